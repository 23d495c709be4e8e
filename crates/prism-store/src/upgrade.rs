//! The upgrade of an older format when a store is opened. After an interruption it is made again.

use std::ops::Bound;

use fjall::PersistMode;
use prism_replica::Stamp;

use crate::{
    error::{Error, OpenError},
    lsm::Lsm,
    record::bucket_prefix,
    store::BUCKETS_MAX,
    versions::{Versioning, object_key_of},
};

/// Keys of one commit.
const AT_ONCE: usize = 1000;

/// Writes the tree `changes`: for every key with versions the greatest stamp of any of them.
/// Blocks for a time proportional to their number.
pub(crate) fn note_changes(lsm: &Lsm) -> Result<(), OpenError> {
    if lsm.has_changes()? {
        return Ok(());
    }
    let failed = OpenError::from_store;
    let view = lsm.view();
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut keys = Noting {
        lsm,
        noted: Vec::new(),
    };
    for found in view.versions::<(Bound<Vec<u8>>, Bound<Vec<u8>>)>(all) {
        let (key, record) = found.map_err(failed)?;
        let object_key = object_key_of(&key);
        let current = view.object(&object_key).map_err(failed)?;
        let stamp = Some(record.stamp).max(current.map(|current| current.stamp));
        keys.note(object_key, stamp.unwrap_or_default())?;
    }
    // Keys whose only version is the current object.
    let buckets = view.buckets(BUCKETS_MAX).map_err(failed)?.into_iter();
    for bucket in buckets.filter(|bucket| bucket.versioning != Versioning::Never) {
        let prefix = bucket_prefix(&bucket.name);
        let begin = (Bound::Included(prefix.clone()), Bound::Unbounded);
        for found in view.objects(begin) {
            let (key, record) = found.map_err(failed)?;
            if !key.starts_with(&prefix) {
                break;
            }
            if record.version.is_some() {
                keys.note(key.to_vec(), record.stamp)?;
            }
        }
    }
    keys.commit(true)
}

struct Noting<'a> {
    lsm: &'a Lsm,
    noted: Vec<(Vec<u8>, Stamp)>,
}

impl Noting<'_> {
    /// Adds a stamp of a key, of which the greatest counts.
    fn note(&mut self, object_key: Vec<u8>, stamp: Stamp) -> Result<(), OpenError> {
        if let Some((last, known)) = self.noted.last_mut()
            && *last == object_key
        {
            *known = stamp.max(*known);
            return Ok(());
        }
        if self.noted.len() >= AT_ONCE {
            self.commit(false)?;
        }
        self.noted.push((object_key, stamp));
        Ok(())
    }

    fn commit(&mut self, is_all: bool) -> Result<(), OpenError> {
        let mut batch = self.lsm.batch();
        let view = self.lsm.view();
        for (object_key, stamp) in self.noted.drain(..) {
            let known = view.change(&object_key).map_err(OpenError::from_store)?;
            let stamp = known.max(Some(stamp)).unwrap_or_default();
            batch.insert(&self.lsm.changes, object_key, stamp.to_bytes());
        }
        if is_all {
            self.lsm.stage_has_changes(&mut batch);
        }
        let written = self.lsm.commit(batch, PersistMode::SyncData);
        written.map_err(|error| OpenError::from_store(Error::from(error)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        Bucket, Config, Durability, PageRequest, Scope, Store, ToDelete, types::ObjectMeta,
    };

    fn open(dir: &std::path::Path) -> Store {
        let config = Config {
            durability: Durability::None,
            reserve_bytes: 0,
            ..Config::default()
        };
        Store::open(dir, config).unwrap()
    }

    fn put(store: &Store, key: &str) {
        let writer = store.begin_put("b", key, Some(0)).unwrap();
        writer.commit(ObjectMeta::default()).unwrap();
    }

    fn keep_versions(store: &Store, bucket: &str) {
        let alter = |known: Option<&Bucket>, stamp| {
            Bucket::change(known, stamp, |next| next.versions = Some(true))
        };
        store.buckets().alter(bucket, alter).unwrap();
    }

    #[test]
    fn buckets_of_an_older_release_are_read_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let said = Stamp {
            epoch: 1,
            time_us: 5,
            origin: 7,
        };
        let created = 3_u64.to_be_bytes().to_vec();
        let values = [
            ("plain", created.clone()),
            ("early", [created.clone(), vec![1]].concat()),
            (
                "last",
                [created, vec![2], said.to_bytes().to_vec()].concat(),
            ),
        ];
        let lsm = &store.inner.lsm;
        let mut batch = lsm.batch();
        for (name, value) in &values {
            batch.insert(&lsm.buckets, *name, value.as_slice());
        }
        batch.insert(
            &lsm.configs,
            [&bucket_prefix("last"), &b"cors"[..]].concat(),
            "<a/>",
        );
        lsm.commit(batch, PersistMode::SyncData).unwrap();
        drop(store);
        // As the last format had it; its log had no tag.
        std::fs::write(dir.path().join("FORMAT"), "prism-store format 5\n").unwrap();
        std::fs::remove_file(dir.path().join("LOGTAG")).unwrap();
        let store = open(dir.path());
        let format = std::fs::read_to_string(dir.path().join("FORMAT")).unwrap();
        assert_eq!(format, "prism-store format 6\n");
        assert!(dir.path().join("LOGTAG").exists());
        let of = |name| store.buckets().record(name).unwrap().unwrap();
        assert_eq!(of("plain").versions, None);
        assert_eq!(of("early").versions, Some(true));
        let last = of("last");
        assert_eq!((last.versions, last.stamp), (Some(false), said));
        assert_eq!((last.life, last.created_ms), (Stamp::NONE, 3));
        assert_eq!(last.documents.get("cors").unwrap(), "<a/>");
        assert!(
            ["plain", "early", "last"]
                .iter()
                .all(|name| store.buckets().has(name))
        );
        keep_versions(&store, "last");
        assert_eq!(of("last").life, Stamp::NONE);
    }

    #[test]
    fn a_store_of_an_older_format_knows_the_last_changes_of_keys_with_versions() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.buckets().create("b", 1).unwrap();
        put(&store, "before");
        keep_versions(&store, "b");
        for n in 0..AT_ONCE + 10 {
            put(&store, &format!("hidden {n}"));
            let key = &format!("hidden {n}");
            let deletion = ToDelete { key, version: None };
            store.delete_version("b", deletion, None).unwrap();
        }
        put(&store, "one");
        put(&store, "two");
        put(&store, "two");
        let held = |store: &Store| {
            let mut found = Vec::new();
            let mut after: Option<Scope> = None;
            loop {
                let request = PageRequest {
                    bucket: "b",
                    uploads: false,
                    after: after.as_ref(),
                };
                let page = store.catch_up().page(request, |_| true).unwrap();
                found.extend(page.items);
                match page.end {
                    Some(end) => after = Some(end),
                    None => return found,
                }
            }
        };
        let before = held(&store);
        assert_eq!(before.len(), AT_ONCE + 13);
        store.inner.lsm.forget_changes().unwrap();
        drop(store);
        let store = open(dir.path());
        assert_eq!(held(&store), before);
        assert!(store.buckets().get("b").unwrap().which.stamp > Stamp::NONE);
        let versions = |key| {
            let (handed, _) = store
                .catch_up()
                .hand_over(&Scope::object("b", key))
                .unwrap()
                .unwrap();
            handed.versions.map(|versions| versions.len())
        };
        assert_eq!(
            [
                versions("before"),
                versions("one"),
                versions("two"),
                versions("hidden 7")
            ],
            [None, Some(1), Some(2), Some(2)]
        );
    }
}
