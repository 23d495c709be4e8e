//! Open changes from one epoch to the next: decided, replaced or refused.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver},
    },
    thread,
};

use prism_store::{
    Bytes, Change, Decided, Error, Pending, Prepare, Proof, Refusal, Replicas, Scope, ScopedChange,
    Stamp, Store,
};

use super::{open, take_in, two};
use crate::common::{StoreExt, agreed, bytes, meta, object_files, put, read};

fn prepared(store: &Store, epoch: u64, time_us: u64, change: Change) -> (Scope, Pending) {
    let scope = Scope::object("b", "k");
    let removes = matches!(change, Change::Remove);
    let stamp = Stamp {
        epoch,
        time_us,
        origin: 7,
    };
    let prepare = Prepare {
        epoch,
        life: Stamp::NONE,
        stamp,
        changes: vec![ScopedChange {
            scope: scope.clone(),
            before: None,
            change,
        }],
    };
    let mut writer = store.open_changes().begin_prepare(prepare).unwrap();
    writer.write(b"12345").unwrap();
    writer.prepare().unwrap();
    let open = Pending {
        epoch,
        stamp,
        removes,
    };
    (scope, open)
}

fn write_of_5() -> Change {
    let meta = meta(b"12345");
    Change::Write { meta, len: 5 }
}

#[test]
fn a_change_that_was_left_open_is_decided_in_the_epoch_of_whoever_asks() {
    for happened in [true, false] {
        let (dirs, [store, other]) = two();
        let (scope, open) = prepared(&store, 1, 5, write_of_5());
        store.adopt(2, None).unwrap();
        drop(store);
        let store = open_again(&dirs[0]);
        assert_eq!(store.epoch(), 2);
        assert_eq!(
            store.open_changes().of_key("b", "k"),
            [(scope.clone(), open)]
        );
        assert_eq!(store.open_changes().begun_before(2).len(), 1);
        assert!(store.open_changes().begun_before(1).is_empty());
        assert!(store.open_changes().has_change(&scope, open, 2).unwrap());
        assert!(matches!(
            store.open_changes().has_change(&scope, open, 1),
            Err(Error::OtherEpoch)
        ));
        assert!(!other.open_changes().has_change(&scope, open, 1).unwrap());
        // The store prepares nothing of an earlier epoch, and takes no verdict of one.
        let again = store.open_changes().begin_prepare(Prepare {
            epoch: 1,
            life: Stamp::NONE,
            stamp: open.stamp,
            changes: Vec::new(),
        });
        drop(again);
        let decided = |epoch| Decided {
            scopes: vec![scope.clone()],
            stamp: open.stamp,
            committed: false,
            epoch,
        };
        store.open_changes().decided(decided(1)).unwrap();
        assert!(!store.open_changes().is_empty());
        let item = (scope.clone(), open.stamp, happened);
        let late = store.open_changes().resolve(vec![item.clone()], 1);
        assert!(matches!(late, Err(Error::OtherEpoch)));
        store.open_changes().resolve(vec![item], 2).unwrap();
        assert!(store.open_changes().is_empty());
        assert_eq!(store.head("b", "k").unwrap().is_some(), happened);
    }
}

fn open_again(dir: &tempfile::TempDir) -> Store {
    open(dir.path(), "a")
}

#[test]
fn what_is_taken_in_tells_what_became_of_what_was_open_before() {
    let (_dirs, [from, to]) = two();
    put(&from, "b", "k", b"other").unwrap();
    let (scope, _) = prepared(&to, 1, u64::MAX / 2, write_of_5());
    to.adopt(2, None).unwrap();
    assert!(take_in(&from, &to, &scope, 2));
    assert!(to.open_changes().is_empty());
    assert_eq!(read(to.get("b", "k").unwrap().unwrap()), b"other");
    // A change that was prepared since then goes on.
    let (_, open) = prepared(&to, 2, 5, write_of_5());
    assert!(!take_in(&from, &to, &scope, 2));
    assert_eq!(to.open_changes().of_key("b", "k"), [(scope, open)]);
}

/// A primary whose cluster goes on to the next epoch before it can commit.
struct Overtaken(Weak<Store>);

impl Replicas for Overtaken {
    fn epoch(&self) -> u64 {
        1
    }

    fn others(&self, _: &str, key: &str) -> Result<Vec<String>, Error> {
        match key {
            "alone" => {
                self.0.upgrade().unwrap().adopt(2, None).unwrap();
                Ok(Vec::new())
            }
            _ => Ok(vec!["other".into()]),
        }
    }

    fn prepare(&self, _: &[String], _: Prepare, _: Bytes) -> Receiver<Result<(), Error>> {
        let (answer, answered) = mpsc::channel();
        let store = self.0.upgrade().unwrap();
        thread::spawn(move || {
            store.adopt(2, None).unwrap();
            answer.send(Ok(())).unwrap();
        });
        answered
    }

    fn decided(&self, _: Vec<String>, decided: Decided) {
        assert!(!decided.committed && decided.epoch == 1);
    }
}

#[test]
fn a_change_is_not_committed_in_another_epoch_than_it_was_begun_in() {
    for key in ["with others", "alone"] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open(dir.path(), "a"));
        store.create_bucket("b", 1).unwrap();
        store.replicate(Arc::new(Overtaken(Arc::downgrade(&store))));
        let late = put(&store, "b", key, &bytes(1, 50_000));
        assert!(matches!(late, Err(Error::OtherEpoch)), "{late:?}");
        assert!(store.head("b", key).unwrap().is_none());
        assert!(object_files(dir.path()).is_empty());
    }
}

#[test]
fn nothing_is_prepared_for_a_primary_of_another_epoch_nor_changed_while_something_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path(), "a"));
    store
        .buckets()
        .accept_record("b", &agreed(1, None), Proof::TRUSTED)
        .unwrap();
    prepared(&store, 1, 5, write_of_5());
    store.replicate(Arc::new(Overtaken(Arc::downgrade(&store))));
    let early = put(&store, "b", "k", b"later");
    assert!(matches!(early, Err(Error::Unsettled)), "{early:?}");
    for epoch in [0, 2] {
        let stamp = Stamp {
            epoch,
            time_us: 9,
            origin: 7,
        };
        let prepare = Prepare {
            epoch,
            life: Stamp::NONE,
            stamp,
            changes: vec![ScopedChange {
                scope: Scope::object("b", "x"),
                before: None,
                change: Change::Remove,
            }],
        };
        let refused = store
            .open_changes()
            .begin_prepare(prepare)
            .unwrap()
            .prepare();
        let Err(Error::Refused(Refusal::Epoch(1))) = refused else {
            panic!("{refused:?}");
        };
    }
}
