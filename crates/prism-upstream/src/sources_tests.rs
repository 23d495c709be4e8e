//! Tests of the servers that the sources name together, and of what a node keeps when they change.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use super::*;
use crate::Shared;
use crate::affinity::Affinity;
use crate::amendment::{AmendmentKind, AmendmentOutcome};
use crate::checks::has_same_checks;
use crate::pool::tests::{REFUSED, with_backends};

/// A directory with a file of servers.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new(servers: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let files = Self { directory };
        files.write(servers);
        files
    }

    fn list(&self) -> PathBuf {
        self.directory.path().join("app.servers")
    }

    fn additions(&self) -> PathBuf {
        self.directory.path().join("added-servers.json")
    }

    /// Replaces the file by another one.
    fn write(&self, servers: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, servers).unwrap();
        std::fs::rename(new, self.list()).unwrap();
    }

    /// The upstream `app` at be0 and be1 with these servers and those of the file.
    fn config(&self, configured: &[&str]) -> Config {
        let mut config = with_backends(&["be0", "be1"]);
        let upstream = Upstream {
            name: Some("app".into()),
            address: configured.iter().map(|text| address(text)).collect(),
            servers_file: Some(self.list()),
            cookie: Some("SRV".into()),
            ..Upstream::default()
        };
        config.service.upstream = Some(vec![upstream].into());
        config
    }

    fn node(&self, config: &Config, name: &str) -> Arc<Shared> {
        let shared = Shared::new(config, name, Arc::default(), Arc::default());
        let shared = shared.with_servers_files().unwrap();
        Arc::new(shared.with_additions(&self.additions()).unwrap())
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// This node's servers, each with its source.
fn servers(shared: &Shared) -> Vec<String> {
    let servers = shared.servers().into_iter();
    let shown = |one: prism_figures::ServerState| {
        format!("{} {}", one.address, one.source.unwrap_or_default())
    };
    servers.map(shown).collect()
}

/// The servers of the backend `name`, as this node knows them.
fn servers_of(shared: &Shared, name: &str) -> Vec<String> {
    let servers = shared.unknown_servers_of(name).into_iter();
    servers.map(|one| one.address).collect()
}

/// Looks until a change has settled.
fn look(shared: &Shared) {
    shared.refresh_servers();
    shared.refresh_servers();
}

fn add(shared: &Shared, server: &str) {
    shared.change_sources(|sources| {
        let added = sources.added.add("app", address(server));
        (added.unwrap(), true)
    });
}

#[test]
fn each_source_adds_servers_that_no_earlier_one_names() {
    let files = Files::new("10.0.0.1:80\n10.0.0.2:80\n10.0.0.2:80\nbe1 10.0.0.3:80\n");
    let node = files.node(&files.config(&["10.0.0.1:80"]), "be0");
    add(&node, "10.0.0.4:80");
    add(&node, "10.0.0.2:80");
    let expected = [
        "10.0.0.1:80 configuration",
        "10.0.0.2:80 file",
        "10.0.0.4:80 added",
    ];
    assert_eq!(servers(&node), expected);
    // It knows nothing of what operators have added at be1.
    let expected = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];
    assert_eq!(servers_of(&node, "be1"), expected);
    // Servers that a reload or a restart leaves out come back.
    let mut other = files.config(&[]);
    other.service.upstream = Some(vec![Upstream::default()].into());
    node.reconfigure(&other);
    assert!(servers(&node).is_empty());
    node.reconfigure(&files.config(&[]));
    let expected = ["10.0.0.1:80 file", "10.0.0.2:80 file", "10.0.0.4:80 added"];
    assert_eq!(servers(&node), expected);
    assert_eq!(servers(&files.node(&files.config(&[]), "be0")), expected);
}

#[test]
fn a_new_file_replaces_the_list_and_a_malformed_one_does_not() {
    let files = Files::new("10.0.0.1:80\n10.0.0.2:80\n");
    let node = files.node(&files.config(&[]), "be0");
    let pool = node.pools()[0].clone();
    pool.learn(&pool.addresses[1], REFUSED);
    files.write("10.0.0.3:80\n10.0.0.2:80\n");
    node.refresh_servers();
    assert_eq!(servers(&node), ["10.0.0.1:80 file", "10.0.0.2:80 file"]);
    node.refresh_servers();
    assert_eq!(servers(&node), ["10.0.0.3:80 file", "10.0.0.2:80 file"]);
    // The one that stays is known.
    let present = node.pools()[0].clone();
    assert!(Arc::ptr_eq(&pool.addresses[1], &present.addresses[1]));
    assert!(present.addresses[0].is_in() && !present.addresses[1].is_in());
    assert!(Arc::ptr_eq(&pool.matcher, &present.matcher));
    for bad in ["10.0.0.4:80\nlocalhost:80\n", "\u{0}"] {
        files.write(bad);
        look(&node);
        assert!(Arc::ptr_eq(&present, &node.pools()[0]), "{bad:?}");
    }
    std::fs::remove_file(files.list()).unwrap();
    look(&node);
    assert_eq!(servers(&node).len(), 2);
    files.write("# none\n");
    look(&node);
    assert!(servers(&node).is_empty());
}

#[test]
fn a_file_that_changes_at_each_look_is_read_within_four() {
    let files = Files::new("");
    let node = files.node(&files.config(&[]), "be0");
    for n in 1..=3 {
        files.write(&format!("10.0.0.{n}:80\n"));
        node.refresh_servers();
        assert!(servers(&node).is_empty(), "{n}");
    }
    files.write("10.0.0.4:80\n");
    node.refresh_servers();
    assert_eq!(servers(&node), ["10.0.0.4:80 file"]);
}

#[test]
fn a_node_starts_without_the_file_and_not_with_a_malformed_one() {
    let files = Files::new("10.0.0.1\n");
    let config = files.config(&["10.0.0.9:80"]);
    let new = || Shared::new(&config, "be0", Arc::default(), Arc::default());
    let error = new().with_servers_files().err().unwrap().to_string();
    assert!(
        error.contains("app.servers:1: \"10.0.0.1\" is not"),
        "{error}"
    );
    std::fs::remove_file(files.list()).unwrap();
    let node = new().with_servers_files().unwrap();
    assert_eq!(servers(&node), ["10.0.0.9:80 configuration"]);
    files.write("10.0.0.1:80");
    look(&node);
    assert_eq!(servers(&node).len(), 2);
    // A reload that names a malformed file leaves the node without its servers.
    let other = Files::new("x");
    node.reconfigure(&other.config(&["10.0.0.9:80"]));
    assert_eq!(servers(&node), ["10.0.0.9:80 configuration"]);
}

#[test]
fn a_report_says_which_servers_another_backend_has() {
    let files = Files::new("10.0.0.1:80\n");
    let node = files.node(&files.config(&["10.0.0.9:80"]), "fe0");
    let learn = |servers: Option<&[&str]>| {
        let servers =
            servers.map(|servers| servers.iter().map(|one| address(one)).collect::<Vec<_>>());
        node.learn_servers("be0", [("app".to_owned(), servers)].into());
    };
    let of = |server: &str| Affinity {
        key: String::new(),
        server: Some(server.into()),
    };
    let has = |server: &str| node.pools()[0].backends[0].has(&of(server));
    let further = crate::affinity::server_name("be0", address("127.0.0.1:7"), false);
    assert_eq!(servers_of(&node, "be0"), ["10.0.0.9:80", "10.0.0.1:80"]);
    assert!(has("be0") && !has(&further));
    learn(Some(&["10.0.0.9:80", "127.0.0.1:7"]));
    assert_eq!(servers_of(&node, "be0"), ["10.0.0.9:80", "127.0.0.1:7"]);
    // The name of the server that the configuration names is the same as before.
    assert!(has("be0") && has(&further));
    assert_eq!(servers_of(&node, "be1"), ["10.0.0.9:80", "10.0.0.1:80"]);
    learn(None);
    assert_eq!(servers_of(&node, "be0"), ["10.0.0.9:80"]);
    let present = node.pools();
    learn(None);
    assert!(node.is_present(&present));
}

#[test]
fn a_cookie_names_the_same_server_when_others_come() {
    let files = Files::new("");
    let node = files.node(&files.config(&["127.0.0.1:9"]), "be0");
    let names = || -> Vec<String> {
        let pools = node.pools();
        let addresses = pools[0].addresses.iter();
        addresses.map(|address| address.server.clone()).collect()
    };
    let first = node.pools()[0].addresses[0].clone();
    assert_eq!(names(), ["be0"]);
    add(&node, "127.0.0.1:10");
    assert_eq!(names().len(), 2);
    assert_eq!(names()[0], "be0");
    assert!(Arc::ptr_eq(&first, &node.pools()[0].addresses[0]));
    // One that only the file names has never the backend's name.
    files.write("127.0.0.1:10\n");
    node.reconfigure(&files.config(&[]));
    look(&node);
    assert_ne!(names(), ["be0"]);
}

#[test]
fn two_processes_of_a_node_have_the_same_added_servers() {
    let files = Files::new("");
    let config = files.config(&["10.0.0.9:80"]);
    let [former, new] = [0, 1].map(|_| files.node(&config, "be0"));
    let amend = |node: &Arc<Shared>, server: &str, change| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().unwrap();
        let target = format!("be0/{server}");
        let amended = runtime.block_on(node.amend("app", &target, change));
        amended.unwrap()[0].outcome
    };
    use AmendmentKind::{Add, Remove};
    assert_eq!(amend(&former, "10.0.0.1:80", Add), AmendmentOutcome::Added);
    assert_eq!(amend(&new, "10.0.0.2:80", Add), AmendmentOutcome::Added);
    assert_eq!(amend(&new, "10.0.0.1:80", Add), AmendmentOutcome::Present);
    let removed = amend(&former, "10.0.0.2:80", Remove);
    assert_eq!(removed, AmendmentOutcome::Removed);
    new.refresh_servers();
    for node in [&former, &new] {
        let expected = ["10.0.0.9:80 configuration", "10.0.0.1:80 added"];
        assert_eq!(servers(node), expected);
    }
}

#[test]
fn checks_go_on_while_servers_of_other_backends_come_and_go() {
    let files = Files::new("");
    let node = files.node(&files.config(&["10.0.0.9:80"]), "be0");
    let present = node.pools();
    let reported = Some(vec![address("10.0.0.1:80")]);
    node.learn_servers("be1", [("app".to_owned(), reported)].into());
    assert!(!node.is_present(&present) && has_same_checks(&present, &node.pools()));
    add(&node, "10.0.0.1:80");
    assert!(!has_same_checks(&present, &node.pools()));
}
