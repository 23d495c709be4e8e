//! The backends that a request goes to, by each node of a cluster.

use std::sync::Arc;

use prism_config::{Config, Node, Role, Upstream};
use prism_http::{Limits, RequestHead};
use prism_proto::facts::{Facts, Progress};
use prism_service::{Route, Service};
use prism_upstream::{Error, Meaning, Shared, Upstreams};

use crate::bed::{Nobody, verified};

/// A node of a cluster of one frontend and three backends. The first upstream is at two of them.
pub fn node(name: &str, balance: &str) -> Upstreams<Nobody> {
    let address = "127.0.0.1:9".parse::<std::net::SocketAddr>().unwrap();
    let upstream = |paths: &[&str], backends: &[&str]| Upstream {
        address: address.into(),
        balance: balance.parse().unwrap(),
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        backends: backends.iter().map(|name| (*name).to_owned()).collect(),
        cookie: Some("SRV".into()),
        ..Upstream::default()
    };
    let mut config: Config = Config::default();
    let two = upstream(&["/two/"], &["be1", "be2"]);
    config.service.upstream = Some(vec![two, upstream(&["/all"], &[])].into());
    config.nodes = [
        ("fe0", Role::Frontend),
        ("be0", Role::Backend),
        ("be1", Role::Backend),
        ("be2", Role::Backend),
    ]
    .map(|(name, role)| Node {
        name: name.into(),
        roles: vec![role],
        ..Node::default()
    })
    .into();
    let shared = Shared::new(&config, name, Arc::default(), Arc::default());
    Upstreams::new(Arc::new(shared), Nobody)
}

/// A request with these header fields as the node understands it.
pub fn understand(
    node: &Upstreams<Nobody>,
    line: &str,
    fields: &str,
    verified: Option<Facts>,
) -> Result<Meaning, Error> {
    let text = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT).unwrap();
    let (mut head, _) = parsed.unwrap();
    node.understand(&mut head, verified)
}

/// The nodes that answer a request; empty for this node.
fn route(node: &Upstreams<Nobody>, path: &str, is_sent: bool) -> Vec<String> {
    route_of(node, path, "", is_sent)
}

/// The same for a request with more header fields.
fn route_of(node: &Upstreams<Nobody>, path: &str, fields: &str, is_sent: bool) -> Vec<String> {
    let verified = is_sent.then(|| verified(1));
    let meaning = understand(node, &format!("GET {path}"), fields, verified);
    match node.route(&meaning.ok().unwrap(), false) {
        Route::Here => Vec::new(),
        Route::HandOff(names) | Route::Relay(names) => names,
    }
}

#[test]
fn a_frontend_gives_each_backend_its_share() {
    for balance in ["round-robin", "least-requests"] {
        let frontend = node("fe0", balance);
        let mut firsts: Vec<String> = Vec::new();
        for _ in 0..30 {
            let names = route(&frontend, "/all", false);
            assert_eq!(names.len(), 3);
            firsts.push(names[0].clone());
            assert!(!route(&frontend, "/two/x", false).contains(&"be0".to_owned()));
        }
        for name in ["be0", "be1", "be2"] {
            let count = firsts.iter().filter(|first| *first == name).count();
            assert_eq!(count, 10, "{balance} {name}");
        }
    }
}

#[test]
fn a_connection_stays_where_its_requests_can_be_answered() {
    let backend = node("be0", "least-requests");
    assert!(route(&backend, "/all", false).is_empty());
    // A backend without this upstream.
    assert_eq!(route(&backend, "/two/x", false).len(), 2);
    assert_eq!(route(&backend, "/two/x", true).len(), 2);
}

#[test]
fn a_connection_that_was_sent_in_vain_moves_on_once() {
    let backend = node("be0", "least-requests");
    let two = |verified| {
        understand(&backend, "GET /two/x", "", verified)
            .ok()
            .unwrap()
    };
    let clients = two(None);
    assert_eq!(backend.facts(&clients).progress, Progress::First);
    let sent = two(Some(verified(1)));
    assert!(matches!(backend.route(&sent, false), Route::HandOff(_)));
    let again = two(Some(backend.facts(&sent)));
    assert!(matches!(backend.route(&again, false), Route::Relay(_)));
}

#[test]
fn a_request_whose_answer_is_lost_is_carried_out_again_only_if_it_is_safe() {
    let backend = node("be1", "least-requests");
    for (line, is_safe) in [
        ("GET /all", true),
        ("POST /all", false),
        ("PUT /all", false),
    ] {
        let spent = Facts {
            progress: Progress::AnswerWaits,
            ..verified(1)
        };
        let understood = understand(&backend, line, "", Some(spent));
        assert_eq!(understood.is_ok(), is_safe, "{line}");
        assert!(is_safe || understood.err() == Some(Error::Lost));
    }
}

#[test]
fn all_nodes_find_the_same_backend_for_a_key() {
    let nodes = ["fe0", "be0", "be1", "be2"].map(|name| (name, node(name, "hash:path")));
    for n in 0..200 {
        let path = format!("/all/{n}");
        let owner = route(&nodes[0].1, &path, false).remove(0);
        for (name, node) in &nodes[1..] {
            let names = route(node, &path, false);
            match *name == owner {
                true => assert!(names.is_empty(), "{path} at its owner"),
                false => assert_eq!(names[0], owner, "{path} at {name}"),
            }
            // Wherever it was sent it is answered.
            assert!(route(node, &path, true).is_empty());
        }
    }
}

#[test]
fn requests_without_the_hashed_part_take_turns_and_stay_where_they_are() {
    let nodes = ["fe0", "be0"].map(|name| node(name, "hash:query:user"));
    let mut counts = std::collections::HashMap::<String, usize>::new();
    for _ in 0..30 {
        *counts
            .entry(route(&nodes[0], "/all", false).remove(0))
            .or_default() += 1;
        assert!(route(&nodes[1], "/all", false).is_empty());
    }
    assert!(counts.len() == 3 && counts.values().all(|count| *count == 10));
    let firsts = (0..30).map(|_| route(&nodes[0], "/all?user=bob", false).remove(0));
    assert_eq!(firsts.collect::<std::collections::HashSet<_>>().len(), 1);
    for (path, is_settling) in [("/all", true), ("/all?user=bob", false)] {
        let meaning = understand(&nodes[0], &format!("GET {path}"), "", None);
        let meaning = meaning.ok().unwrap();
        let subject = nodes[0].subject(&meaning).unwrap();
        assert_eq!(subject.is_settling, is_settling, "{path}");
    }
}

#[test]
fn a_client_stays_with_the_server_that_its_cookie_names() {
    for host in ["be0", "be1", "be2"] {
        let cookie = format!("Cookie: a=b; SRV={host}\r\n");
        for name in ["fe0", "be0", "be1", "be2"] {
            let node = node(name, "round-robin");
            for _ in 0..5 {
                let names = route_of(&node, "/all", &cookie, false);
                let expected = (name != host).then_some(host);
                assert_eq!(names.first().map(String::as_str), expected, "at {name}");
            }
            // Wherever it was sent it is answered.
            let names = route_of(&node, "/all", &cookie, true);
            assert_eq!(names.is_empty(), name != "fe0");
            // A server that this upstream lacks is as none.
            let names = route_of(&node, "/two/x", &cookie, false);
            assert!(!names.contains(&"be0".to_owned()));
        }
    }
}

#[test]
fn a_request_does_not_go_round_among_backends_without_servers() {
    let mut config: Config = Config::default();
    config.service.upstream = Some(vec![Upstream::default()].into());
    config.nodes = ["be0", "be1"]
        .map(|name| Node {
            name: name.into(),
            roles: vec![Role::Backend],
            ..Node::default()
        })
        .into();
    let shared = Shared::new(&config, "be0", Arc::default(), Arc::default());
    let backend = Upstreams::new(Arc::new(shared), Nobody);
    // The other one may have servers.
    let understood = |verified| understand(&backend, "GET /", "", verified).ok().unwrap();
    let clients = understood(None);
    assert!(matches!(backend.route(&clients, false), Route::HandOff(_)));
    let sent = understood(Some(verified(1)));
    assert!(matches!(backend.route(&sent, false), Route::HandOff(_)));
    let moved_on = understood(Some(backend.facts(&sent)));
    assert!(matches!(backend.route(&moved_on, false), Route::Here));
}
