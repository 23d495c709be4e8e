//! Tests of the nodes that have a key, by a view of the cluster.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use prism_cluster::{Backend, Placing, State};
use prism_config::{Config, Role, Running};
use prism_membership::Cluster;

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn view(replicas: u16) -> State {
    let names = NAMES.map(|name| name.parse().unwrap());
    State::new(Placing::new(names, replicas).unwrap())
}

fn replication(name: &str, replicas: u16) -> Replication {
    let mut config: Config = Config::default();
    config.cluster.replicas = replicas;
    config.nodes.extend(NAMES.map(|name| prism_config::Node {
        name: name.into(),
        roles: vec![Role::Backend],
        ..prism_config::Node::default()
    }));
    let cluster = Cluster::of_users(&config, &[]).unwrap();
    let config = Arc::new(Running::new(config));
    Replication::new(Arc::new(Core::new(config, name, cluster)))
}

#[test]
fn one_replica_lists_a_key_whoever_is_out_of_reach() {
    let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 3));
    for key in 0..50 {
        let key = key.to_string();
        for without in [vec![], vec!["b".to_owned()], vec!["c".into(), "d".into()]] {
            let list = |node: &&Replication| node.lists(&node.view(), "bucket", &key, &without);
            let listing: Vec<_> = nodes.iter().filter(list).map(|n| &n.core.name).collect();
            assert_eq!(listing.len(), 1, "{key} without {without:?}: {listing:?}");
            assert!(!without.contains(listing[0]));
        }
    }
    let alone = replication("a", 1);
    assert!(alone.lists(&alone.view(), "bucket", "x", &[]));
}

#[test]
fn a_replica_reads_its_own_and_others_read_where_somebody_is_in_reach() {
    let node = replication("a", 3);
    for key in 0..50 {
        let key = key.to_string();
        let readers = node.readers("bucket", &key);
        assert_eq!(readers.len(), 3);
        if readers.iter().any(|name| name == "a") {
            assert_eq!(readers[0], "a");
        }
        node.avoid("b");
        let readers = node.readers("bucket", &key);
        assert_ne!(readers[0], "b");
    }
    assert_eq!(replication("a", 1).readers("bucket", "x").len(), 1);
}

#[test]
fn only_the_primary_has_others() {
    let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 2));
    for key in 0..20 {
        let key = key.to_string();
        let primaries = nodes.iter().filter_map(|n| n.others("bucket", &key).ok());
        let others: Vec<_> = primaries.collect();
        assert_eq!(others.len(), 1);
        assert_eq!(others[0].len(), 1);
    }
}

#[test]
fn a_change_is_taken_from_the_primary_that_this_node_knows_and_from_no_other() {
    let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 2));
    for key in 0..20 {
        let scope = Scope::object("bucket", &key.to_string());
        let primary = nodes[0].primary("bucket", &scope.key).unwrap();
        let writers = nodes[0].view().writers("bucket", &scope.key).len();
        let takes = |from: &str, epoch| {
            let not_out = nodes
                .iter()
                .filter(|n| n.may_come_from(from, epoch, &scope));
            not_out.count()
        };
        assert_eq!(takes(&primary, 1), writers);
        let others = nodes.iter().filter(|n| n.core.name != primary);
        assert!(
            others
                .map(|n| takes(&n.core.name, 1))
                .all(|not_out| not_out == 0)
        );
        // The store itself judges an epoch that this node has not adopted.
        assert_eq!(takes("a", 2), nodes.len());
    }
}

#[test]
fn one_replica_decides_about_a_key_and_all_of_its_replicas_read_it() {
    let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 2));
    let primaries = nodes.iter().filter(|n| n.is_primary("bucket", "key"));
    assert_eq!(primaries.count(), 1);
    let readers = nodes.iter().filter(|n| n.may_read("bucket", "key"));
    assert_eq!(readers.count(), 2);
}

#[test]
fn a_backend_that_is_out_is_not_asked_and_leaves_less_to_spare() {
    let node = replication("a", 3);
    assert_eq!((node.spare(), node.is_calm()), (2, true));
    let mut state = view(3);
    state.epoch = 2;
    let out = Backend {
        status: Status::Out,
        since: 2,
        store: 0,
    };
    state.backends.insert("b".parse().unwrap(), out);
    node.core.view.adopt(Arc::new(View::new(state).unwrap()));
    assert_eq!(node.epoch(), 2);
    assert_eq!((node.spare(), node.is_calm()), (1, false));
    assert_eq!(node.backends(), ["a", "b", "c", "d"]);
    assert_eq!(
        node.backends_with(|status| status != Status::Out),
        ["a", "c", "d"]
    );
    assert_eq!(node.in_sync(), ["a", "c", "d"]);
    for key in 0..50 {
        let readers = node.readers("bucket", &key.to_string());
        assert!(!readers.contains(&"b".to_owned()) && readers.len() >= 2);
    }
    // A backend that is about to join need not know the buckets yet.
    let mut state = view(3);
    state.epoch = 3;
    let joins = Backend {
        status: Status::InSync,
        since: 3,
        store: 0,
    };
    state.backends.insert("e".parse().unwrap(), joins);
    node.core.view.adopt(Arc::new(View::new(state).unwrap()));
    assert_eq!(
        node.backends_with(|status| status != Status::Out),
        ["a", "b", "c", "d", "e"]
    );
    assert_eq!(node.in_sync(), ["a", "b", "c", "d"]);
    // An earlier view that comes late does not count.
    node.core.view.adopt(Arc::new(View::new(view(3)).unwrap()));
    assert_eq!(node.epoch(), 3);
}

#[test]
fn a_node_serves_the_store_that_the_cluster_means_only() {
    let node = replication("a", 3);
    assert!(node.is_still(node.begin()) && !node.is_still(None));
    node.set_store(Arc::new(7.into()));
    assert_eq!(node.begin(), None);
    let mut state = view(3);
    state.epoch = 2;
    for backend in state.backends.values_mut() {
        backend.store = 7;
    }
    node.core.view.adopt(Arc::new(View::new(state).unwrap()));
    assert!(node.begin().is_some());
}

#[test]
fn a_change_without_a_worker_is_answered() {
    let node = replication("a", 2);
    let prepare = Prepare {
        epoch: 1,
        life: prism_store::Stamp::NONE,
        stamp: prism_store::Stamp::NONE,
        changes: Vec::new(),
    };
    let answer = node.prepare(&["b".into()], prepare.clone(), Bytes::None);
    assert!(answer.recv().is_err());
    // The worker ends before it comes to the job.
    let (jobs, _) = node.jobs.add_worker();
    let answer = node.prepare(&["b".into()], prepare, Bytes::None);
    drop(jobs);
    assert!(answer.recv().is_err());
}
