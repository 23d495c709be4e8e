//! Keys with versions: all replicas have the same versions with the same names, after any changes.

use std::collections::BTreeMap;

use prism_store::{Step, ToDelete, VERSIONS_MAX, VersionId, VersionPosition, Versioning};

use super::*;
use crate::versions::{Wanted, change, compare, files_of};

/// Changes of one run.
const CHANGES: usize = 120;

impl Cluster {
    fn all(&self) -> impl Iterator<Item = Arc<Store>> {
        NAMES.iter().map(|name| self.store(name))
    }

    fn say(&self, versioning: Versioning) {
        let known = self.store("a").buckets().record("b").unwrap().unwrap();
        let record = agreed(known.stamp.time_us + 1, versioning.enabled());
        for store in self.all() {
            store
                .buckets()
                .accept_record("b", &record, Proof::TRUSTED)
                .unwrap();
        }
    }

    /// All replicas have the expected versions, and are the same.
    fn compare(&self, wanted: &Wanted) {
        self.settle();
        let first = self.store("a");
        for store in self.all() {
            compare(&store, wanted);
            let page = |store: &Store| {
                store
                    .catch_up()
                    .page(request("b", false, None), |_| true)
                    .unwrap()
            };
            assert_eq!(page(&store), page(&first));
            for (key, id) in wanted
                .iter()
                .flat_map(|(key, history)| history.iter().map(move |(id, _)| (key, *id)))
            {
                let head = |store: &Store| store.head_version("b", key, Some(id)).ok();
                assert_eq!(head(&store), head(&first));
            }
        }
    }
}

#[test]
fn random_changes_of_versions_are_the_same_on_all_replicas_also_when_opened_anew() {
    let rounds = std::env::var("PRISM_CATCH_UP_ROUNDS").map_or(2, |n| n.parse().unwrap());
    for (seed, silent) in (0..rounds).map(|seed| (seed, seed % 2 == 1)) {
        // The test has no power cuts.
        let cluster = Cluster::with(3, Durability::None);
        cluster.silent.store(silent, Ordering::Relaxed);
        let (mut wanted, mut versioning) = (BTreeMap::new(), Versioning::Never);
        let mut rng = fastrand::Rng::with_seed(seed);
        for n in 0..CHANGES {
            let store_of = |key: &str| cluster.primary(key);
            let say = |versioning| cluster.say(versioning);
            change(&store_of, &say, &mut wanted, &mut versioning, &mut rng);
            if n % 20 == 0 {
                cluster.compare(&wanted);
            }
        }
        // Open changes outlive the closing of the stores.
        for name in NAMES {
            cluster.stop(name);
        }
        for name in NAMES {
            cluster.start(name);
        }
        cluster.compare(&wanted);
        for (at, name) in NAMES.iter().enumerate() {
            assert_eq!(cluster.store(name).recovery().orphans_removed, 0);
            let files = object_files(cluster.dirs[at].path()).len();
            assert_eq!(files, files_of(&wanted), "seed {seed}");
        }
    }
}

#[test]
fn replicas_that_have_not_heard_that_versions_are_kept_keep_them_all_the_same() {
    let cluster = Cluster::with(3, Durability::None);
    let primary = cluster.primary("k");
    put(&primary, "b", "k", b"null").unwrap();
    primary.set_versioning("b", Versioning::Enabled).unwrap();
    let first = put(&primary, "b", "k", b"one").unwrap().version.unwrap();
    let deletion = ToDelete {
        key: "k",
        version: None,
    };
    let marker = primary.delete_version("b", deletion, None).unwrap();
    let marker = marker.unwrap().version;
    let wanted = [
        (VersionId::Null, Some(b"null".to_vec())),
        (first, Some(b"one".to_vec())),
        (marker, None),
    ];
    cluster.settle();
    for name in cluster.owners("k") {
        let mut found = Vec::new();
        let begin = VersionPosition::Key(prism_store::Position::Start);
        let visit = |entry: prism_store::Entry| {
            found.insert(0, entry.id);
            Step::Entry
        };
        let store = cluster.store(&name);
        store.scan_versions("b", "", begin, visit).unwrap();
        assert_eq!(found, wanted.clone().map(|(id, _)| id));
        for (id, body) in wanted.iter().filter(|(_, body)| body.is_some()) {
            let object = store.get_version("b", "k", Some(*id)).unwrap();
            assert_eq!(object.map(read), *body);
        }
    }
}

#[test]
fn a_version_that_a_replica_cannot_take_exists_nowhere() {
    let cluster = Cluster::with(3, Durability::None);
    cluster.say(Versioning::Enabled);
    let owners = cluster.owners("k");
    let primary = cluster.primary("k");
    let first = put(&primary, "b", "k", &bytes(1, 50_000)).unwrap().version;
    cluster.stop(NAMES.iter().find(|name| **name == owners[2]).unwrap());
    for version in [None, first] {
        let deletion = ToDelete { key: "k", version };
        let refused = primary.delete_version("b", deletion, None);
        assert!(matches!(refused, Err(Error::Unreplicated { .. })));
    }
    let refused = put(&primary, "b", "k", &bytes(2, 50_000));
    assert!(matches!(refused, Err(Error::Unreplicated { .. })));
    let refused = primary.change_meta("b", "k", first, |meta| meta.etag = "other".into());
    assert!(matches!(refused, Err(Error::Unreplicated { .. })));
    cluster.start(NAMES.iter().find(|name| **name == owners[2]).unwrap());
    let wanted = Wanted::from([(
        "k".to_owned(),
        vec![(first.unwrap(), Some(bytes(1, 50_000)))],
    )]);
    cluster.compare(&wanted);
}

#[test]
fn a_key_has_no_more_versions_than_another_replica_could_take_in() {
    let cluster = Cluster::with(3, Durability::None);
    cluster.say(Versioning::Enabled);
    let primary = cluster.primary("k");
    let deletion = ToDelete {
        key: "k",
        version: None,
    };
    // One store alone makes them faster.
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        durability: Durability::None,
        reserve_bytes: 0,
        ..Config::default()
    };
    let alone = Store::open(dir.path(), config).unwrap();
    alone
        .buckets()
        .accept_record("b", &agreed(1, None), Proof::TRUSTED)
        .unwrap();
    alone.set_versioning("b", Versioning::Enabled).unwrap();
    for _ in 0..VERSIONS_MAX {
        alone.delete_version("b", deletion.clone(), None).unwrap();
    }
    let scope = Scope::object("b", "k");
    let (handed, _) = alone.catch_up().hand_over(&scope, None).unwrap().unwrap();
    // The list fits in one answer.
    assert!(serde_json::to_vec(&handed).unwrap().len() < 4 << 20);
    for store in cluster.all() {
        let taken = store
            .catch_up()
            .begin_take_in(scope.clone(), handed.clone(), Some(1));
        assert!(taken.unwrap().finish().unwrap());
    }
    let refused = primary.delete_version("b", deletion.clone(), None);
    assert!(matches!(refused, Err(Error::TooManyVersions)));
    let refused = put(&primary, "b", "k", b"one too many");
    assert!(matches!(refused, Err(Error::TooManyVersions)));
    let last = primary.delete_marker("b", "k").unwrap();
    let removal = ToDelete {
        key: "k",
        version: last,
    };
    primary.delete_version("b", removal, None).unwrap().unwrap();
    put(&primary, "b", "k", b"the last").unwrap();
}
