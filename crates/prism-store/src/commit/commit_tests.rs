#![allow(clippy::unwrap_used)]
use prism_cluster::replica::{Bucket, Proof, Stamp};

use super::*;
use crate::{
    Config, ObjectMeta, Store,
    blocks::crc32c,
    keys::object_key,
    record::{Payload, PutBytes, Record},
    types::Versioning,
};

const QUOTA: usize = 1000;

fn put(store: &Store, key: &str, len: usize, given: Option<Given>) -> Queued {
    let (id, bytes) = (store.files().new_id().unwrap(), vec![7; len]);
    let record = Record {
        stamp: Stamp::NONE,
        version: None,
        payload: Payload::Inline {
            id,
            crc: crc32c(&bytes),
        },
        len: len as u64,
        meta: ObjectMeta::default(),
    };
    let op = Op::Put(PutOp {
        object_key: object_key("b", key),
        part: None,
        record,
        id,
        bytes: PutBytes::Inline(bytes),
        condition: None,
        quota: None,
    });
    queued(op, given)
}

fn queued(op: Op, given: Option<Given>) -> Queued {
    let when = When::Always;
    Queued { op, given, when }
}

/// A PUT adds its bytes to the batch, and then finds no room.
#[test]
fn an_operation_that_fails_halfway_changes_nothing_beside_one_that_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        quota_bytes: Some(QUOTA as u64),
        reserve_bytes: 0,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    let bucket = Bucket::create(None, Stamp::NONE, 0).unwrap();
    store
        .buckets()
        .accept_record("b", &bucket, Proof::TRUSTED)
        .unwrap();
    let committer = store.committer();
    let given = || {
        let (stamp, versioning) = (committer.stamp(1, None), Versioning::Never);
        Some(Given { stamp, versioning })
    };
    let deleted = object_key("b", "deleted");
    let delete = Op::Delete(DeleteOp {
        bucket: "b".into(),
        deletions: vec![(deleted.clone(), None)],
        condition: None,
    });
    for queued in [put(&store, "deleted", 10, given()), queued(delete, given())] {
        let submitted = committer.submit(queued.op, queued.given, queued.when);
        submitted.unwrap();
    }
    let deletion = store.view().deletion(&deleted).unwrap();
    assert!(deletion.is_some());
    let together = vec![
        put(&store, "first", 20, given()),
        put(&store, "deleted", QUOTA, given()),
        put(&store, "last", 30, given()),
    ];
    let results = committer.commit_group(together);
    let errors: Vec<_> = results.iter().map(|result| result.as_ref().err()).collect();
    let [None, Some(failure), None] = errors.as_slice() else {
        unreachable!("{errors:?}");
    };
    assert!(matches!(failure.error, Error::NoSpace) && !failure.in_doubt);
    assert_eq!(store.view().deletion(&deleted).unwrap(), deletion);
    assert!(store.get("b", "deleted").unwrap().is_none());
    for (key, len) in [("first", 20), ("last", 30)] {
        assert_eq!(store.head("b", key).unwrap().unwrap().len, len);
    }
    assert_eq!(store.bytes_used(), 50);
    assert_eq!(store.view().inline_bytes().unwrap(), 50);
}
