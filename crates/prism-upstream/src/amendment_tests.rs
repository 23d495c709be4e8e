//! Tests of servers that operators add and remove.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use prism_config::Upstream;

use super::*;
use crate::pool::tests::with_backends;

/// A node of the upstream `app`, with one server at be0 and at be1, and another upstream at be1.
fn shared(own: &str, servers: &str) -> (tempfile::TempDir, Shared) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.servers");
    std::fs::write(&file, servers).unwrap();
    let mut config = with_backends(&["be0", "be1"]);
    config.service.address = SocketAddr::from(([203, 0, 113, 10], 80)).into();
    let named = |name: &str, backends: &[&str]| Upstream {
        name: Some(name.into()),
        backends: backends.iter().map(|name| (*name).to_owned()).collect(),
        address: SocketAddr::from(([10, 0, 0, 9], 80)).into(),
        ..Upstream::default()
    };
    let app = Upstream {
        servers_file: Some(file),
        ..named("app", &[])
    };
    config.service.upstream = Some(vec![app, named("other", &["be1"])].into());
    let shared = Shared::new(&config, own, Arc::default(), Arc::default());
    (directory, shared.with_servers_files().unwrap())
}

fn accept(shared: &Shared, change: AmendmentKind, server: &str) -> Result<Answer, String> {
    shared.accept_amendment(&Amendment {
        upstream: "app".into(),
        server: server.parse().unwrap(),
        change,
    })
}

#[test]
fn a_backend_adds_a_server_once_and_removes_what_was_added() {
    use AmendmentOutcome::{Absent, Added, Present, Removed};
    let (_directory, shared) = shared("be0", "10.0.0.1:80\n");
    for (change, server, outcome, source) in [
        (AmendmentKind::Add, "10.0.0.2:80", Added, None),
        (
            AmendmentKind::Add,
            "10.0.0.2:80",
            Present,
            Some(Source::Added),
        ),
        (
            AmendmentKind::Add,
            "10.0.0.1:80",
            Present,
            Some(Source::File),
        ),
        (
            AmendmentKind::Add,
            "10.0.0.9:80",
            Present,
            Some(Source::Configuration),
        ),
        (AmendmentKind::Remove, "10.0.0.2:80", Removed, None),
        (AmendmentKind::Remove, "10.0.0.2:80", Absent, None),
    ] {
        let answer = accept(&shared, change, server).unwrap();
        assert_eq!(
            (answer.outcome, answer.source),
            (outcome, source),
            "{change:?} {server}"
        );
    }
    assert_eq!(shared.servers().len(), 2);
    for (change, server, expected) in [
        (
            AmendmentKind::Remove,
            "10.0.0.1:80",
            "servers_file names 10.0.0.1:80: remove its line",
        ),
        (
            AmendmentKind::Remove,
            "10.0.0.9:80",
            "out by `prism ctl server down`",
        ),
        (
            AmendmentKind::Add,
            "0.0.0.0:80",
            "cannot be the address of a server",
        ),
        (AmendmentKind::Add, "10.0.0.1:0", "has port 0"),
        (
            AmendmentKind::Add,
            "203.0.113.10:80",
            "is the service itself",
        ),
    ] {
        let error = accept(&shared, change, server).unwrap_err();
        assert!(error.contains(expected), "{server}: {error}");
    }
}

#[test]
fn an_added_server_that_the_file_names_too_stays_by_the_file() {
    let (directory, shared) = shared("be0", "");
    accept(&shared, AmendmentKind::Add, "10.0.0.1:80").unwrap();
    std::fs::write(directory.path().join("app.servers"), "10.0.0.1:80\n").unwrap();
    (0..2).for_each(|_| shared.refresh_servers());
    let removed = accept(&shared, AmendmentKind::Remove, "10.0.0.1:80").unwrap();
    assert_eq!(removed.outcome, AmendmentOutcome::Removed);
    assert_eq!(removed.source, Some(Source::File));
    accept(&shared, AmendmentKind::Remove, "10.0.0.1:80").unwrap_err();
    assert_eq!(shared.servers().len(), 2);
}

#[test]
fn a_node_has_a_bounded_number_of_added_servers() {
    let (_directory, shared) = shared("be0", "");
    let server = |n: usize| format!("10.1.{}.{}:80", n / 256, n % 256);
    for n in 0..MAX_ADDED_SERVERS {
        accept(&shared, AmendmentKind::Add, &server(n)).unwrap();
    }
    let one_more = server(MAX_ADDED_SERVERS);
    let error = accept(&shared, AmendmentKind::Add, &one_more).unwrap_err();
    assert!(
        error.contains("it has 256 added servers, which is the most"),
        "{error}"
    );
    accept(&shared, AmendmentKind::Remove, &server(0)).unwrap();
    accept(&shared, AmendmentKind::Add, &one_more).unwrap();
}

#[test]
fn a_command_names_an_upstream_a_backend_and_an_address() {
    let (_directory, shared) = shared("be0", "");
    let server: SocketAddr = ([127, 0, 0, 1], 7).into();
    let meant = |upstream, target| shared.meant_by(upstream, target);
    let both = vec!["be0".to_owned(), "be1".to_owned()];
    assert_eq!(meant("app", "127.0.0.1:7"), Ok((both, server)));
    let one = vec!["be1".to_owned()];
    assert_eq!(meant("app", "be1/127.0.0.1:7"), Ok((one.clone(), server)));
    assert_eq!(meant("other", "127.0.0.1:7"), Ok((one, server)));
    for (upstream, target, expected) in [
        (
            "ap",
            "127.0.0.1:7",
            "no upstream is called \"ap\"; there are: app, other",
        ),
        (
            "app",
            "be2/127.0.0.1:7",
            "\"be2\" is no backend of app; there are: be0, be1",
        ),
        (
            "other",
            "be0/127.0.0.1:7",
            "\"be0\" is no backend of other; there are: be1",
        ),
        ("app", "be0", "\"be0\" is not an address with a port"),
        ("app", "be0/", "\"\" is not an address with a port"),
        (
            "app",
            "localhost:80",
            "\"localhost:80\" is not an address with a port",
        ),
    ] {
        let error = meant(upstream, target).unwrap_err();
        assert!(error.contains(expected), "{target}: {error}");
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(work)
}

#[test]
fn a_backend_changes_its_own_servers_only() {
    let (_directory, shared) = shared("be0", "");
    let amend = |target, change| run(shared.amend("app", target, change));
    let error = amend("10.0.0.1:80", AmendmentKind::Add).unwrap_err();
    assert!(
        error.contains("only some backends have changed it: be1: be0 is no frontend"),
        "{error}"
    );
    let amended = amend("be0/10.0.0.1:80", AmendmentKind::Remove).unwrap();
    assert_eq!(amended[0].outcome, AmendmentOutcome::Removed);
    let error = amend("be0/10.0.0.1:80", AmendmentKind::Remove).unwrap_err();
    assert_eq!(error, "app has no server be0/10.0.0.1:80");
}

#[test]
fn messages_have_their_form() {
    let amendment = Amendment {
        upstream: "app".into(),
        server: ([10, 0, 0, 1], 80).into(),
        change: AmendmentKind::Add,
    };
    let text = r#"{"upstream":"app","server":"10.0.0.1:80","change":"add"}"#;
    assert_eq!(serde_json::to_string(&amendment).unwrap(), text);
    // A later release may say more.
    let text = r#"{"upstream":"app","server":"10.0.0.1:80","change":"add","weight":2}"#;
    assert_eq!(serde_json::from_str::<Amendment>(text).unwrap(), amendment);
    let answer: Answer = serde_json::from_str(r#"{"outcome":"removed","source":"file"}"#).unwrap();
    assert_eq!(answer.source, Some(Source::File));
    assert!(serde_json::from_str::<Answer>(r#"{"outcome":"absent"}"#).is_ok());
}
