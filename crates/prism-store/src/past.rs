//! The store's own past, by which an older copy of its directory is told from the store itself.
//! [`StoreLife`] has the rule. This module draws the ids, and keeps the records of the tree
//! `system`:
//!
//! ```text
//! generation  the number of the present opening
//! identity    the store's identity
//! openings    the list of openings, as JSON
//! commits     the number of commits; a part of every batch, see `Lsm::commit`
//! ```
//!
//! A release that does not know the last two leaves them as they are.

use std::{
    io,
    sync::{Arc, PoisonError},
};

use fjall::PersistMode;
use prism_cluster::{Opening, StoreLife, StoreMark};

use crate::{
    commit::{Op, When},
    error::{Error, OpenError},
    files::random,
    inner::Inner,
    layout::FileId,
    lsm::{Batch, Lsm},
    store::Store,
};

const GENERATION_KEY: &str = "generation";
const IDENTITY_KEY: &str = "identity";
const OPENINGS_KEY: &str = "openings";

/// A store's identity, and its openings up to the present one.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) identity: u64,
    /// The number of the present opening, which is the generation of its file ids.
    pub(crate) generation: u64,
    /// The id of the present opening.
    id: u64,
    /// The commits that the present opening found.
    found: u64,
    life: StoreLife,
}

impl Past {
    /// Begins an opening that found so many commits.
    fn begin(
        identity: u64,
        generation: u64,
        mut life: StoreLife,
        commits: u64,
    ) -> io::Result<Self> {
        let id = random_id()?;
        life.begin(generation, Opening { id, commits });
        Ok(Self {
            identity,
            generation,
            id,
            found: commits,
            life,
        })
    }

    fn mark(&self, commits: u64) -> StoreMark {
        StoreMark {
            store: self.identity,
            opening: self.generation,
            id: self.id,
            found: self.found,
            commits,
        }
    }
}

impl Lsm {
    /// Starts a new generation of file ids, and lists it with the commits found, durably. Blocks.
    pub(crate) fn next_generation(&self) -> Result<Past, OpenError> {
        let last = self.system_value(GENERATION_KEY)?.map(u64::from_be_bytes);
        let generation = last.unwrap_or(0) + 1;
        if generation > FileId::GENERATION_MAX {
            return Err(OpenError::GenerationsExhausted);
        }
        let identity = match self.system_value(IDENTITY_KEY)? {
            Some(identity) => u64::from_be_bytes(identity),
            None => random_id().map_err(OpenError::io("draw an identity"))?,
        };
        let life = self.openings()?;
        let past = Past::begin(identity, generation, life, self.commits());
        let past = past.map_err(OpenError::io("draw the id of an opening"))?;
        let mut batch = Batch::default();
        batch.insert(&self.system, GENERATION_KEY, generation.to_be_bytes());
        self.stage_past(&mut batch, &past)?;
        self.commit(batch, PersistMode::SyncAll)?;
        Ok(past)
    }

    /// The openings that are listed; none in a store of a release that lists none.
    fn openings(&self) -> Result<StoreLife, OpenError> {
        let Some(listed) = self.system.get(OPENINGS_KEY)? else {
            return Ok(StoreLife::default());
        };
        let life = serde_json::from_slice(&listed);
        life.map_err(|_| OpenError::Metadata(format!("record {OPENINGS_KEY:?} is damaged").into()))
    }

    pub(crate) fn stage_past(&self, batch: &mut Batch, past: &Past) -> Result<(), Error> {
        let openings = serde_json::to_vec(&past.life);
        let openings = openings.map_err(|error| Error::Metadata(Arc::new(error)))?;
        batch.insert(&self.system, IDENTITY_KEY, past.identity.to_be_bytes());
        batch.insert(&self.system, OPENINGS_KEY, openings);
        Ok(())
    }
}

impl Inner {
    pub(crate) fn past(&self) -> Arc<Past> {
        let past = self.past.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&past)
    }

    /// Takes the place of the past in memory, once it is on the disk.
    pub(crate) fn set_past(&self, past: Arc<Past>) {
        *self.past.write().unwrap_or_else(PoisonError::into_inner) = past;
    }

    pub(crate) fn store_mark(&self) -> StoreMark {
        self.past().mark(self.lsm.commits())
    }

    pub(crate) fn has_lived(&self, mark: &StoreMark) -> bool {
        let past = self.past();
        mark.store == past.identity && past.life.has_lived(mark, self.lsm.commits())
    }

    pub(crate) fn renew_identity(&self) -> Result<u64, Error> {
        let identity = random_id()?;
        let generation = self.past().generation;
        let life = StoreLife::default();
        let past = Past::begin(identity, generation, life, self.lsm.commits())?;
        let renewal = Op::Renew(Arc::new(past));
        self.finish(self.submit_when(renewal, None, When::Always))?;
        Ok(identity)
    }
}

impl Store {
    /// A number other than 0 that every created store has for itself. A copy of a store has the
    /// same, until [`Store::renew_identity`]. Does not block.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.past().identity
    }

    /// The openings of this store, up to the present one. Does not block.
    #[must_use]
    pub fn life(&self) -> StoreLife {
        self.inner.past().life.clone()
    }

    /// The mark of this store at this moment. It counts the commits that are as durable as
    /// configured, and so every answered write. Does not block.
    ///
    /// Without `fsync` a loss of power takes back commits that a mark may count. The store has
    /// not lived such a mark.
    #[must_use]
    pub fn mark(&self) -> StoreMark {
        self.inner.store_mark()
    }

    /// Whether this store reported the mark, or goes on from the one that did: see
    /// [`StoreLife::has_lived`]. A mark of another identity is one of another store. For marks of
    /// earlier openings the commits of this one do not count, so the answer is the same at any
    /// time. Does not block.
    ///
    /// A copy that was not made at one moment, file by file from an open store, may count commits
    /// of which it lacks a part.
    #[must_use]
    pub fn has_lived(&self, mark: &StoreMark) -> bool {
        self.inner.has_lived(mark)
    }

    /// Gives the store another identity, and a life that begins with this opening. The cluster
    /// then takes it for another store. Returns the identity. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Stalled`]. The store then has one of both identities at the
    /// next opening, and its former one until then.
    pub fn renew_identity(&self) -> Result<u64, Error> {
        self.inner.renew_identity()
    }
}

/// Random, and not 0.
fn random_id() -> io::Result<u64> {
    random().map(|bytes| u64::from_be_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn open(dir: &Path) -> Result<Store, OpenError> {
        let config = Config {
            reserve_bytes: 0,
            ..Config::default()
        };
        Store::open(dir, config)
    }

    fn change(store: &Store, change: impl FnOnce(&Lsm, &mut Batch)) {
        let (lsm, mut batch) = (&store.inner.lsm, Batch::default());
        change(lsm, &mut batch);
        lsm.commit(batch, PersistMode::SyncAll).unwrap();
    }

    #[test]
    fn a_store_without_a_list_of_openings_begins_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let of_another_copy = store.mark();
        change(&store, |lsm, batch| batch.remove(&lsm.system, OPENINGS_KEY));
        drop(store);
        let store = open(dir.path()).unwrap();
        let life = store.life();
        assert_eq!(life.openings().keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(store.identity(), of_another_copy.store);
        assert!(store.has_lived(&store.mark()));
        assert!(!store.has_lived(&of_another_copy));
    }

    #[test]
    fn an_opening_by_a_release_that_lists_none_changes_nothing_for_earlier_marks() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let mark = store.mark();
        change(&store, |lsm, batch| {
            let generation = store.inner.past().generation + 1;
            batch.insert(&lsm.system, GENERATION_KEY, generation.to_be_bytes());
        });
        drop(store);
        let store = open(dir.path()).unwrap();
        let life = store.life();
        assert_eq!(life.openings().keys().collect::<Vec<_>>(), [&1, &3]);
        assert!(store.has_lived(&mark));
        let listed_by_another_copy = StoreMark { opening: 2, ..mark };
        assert!(!store.has_lived(&listed_by_another_copy));
    }

    #[test]
    fn a_list_of_openings_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        change(&store, |lsm, batch| {
            batch.insert(&lsm.system, OPENINGS_KEY, [1])
        });
        drop(store);
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(OPENINGS_KEY), "{error}");
    }

    #[test]
    fn every_commit_is_counted_and_the_count_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let before = store.mark().commits;
        change(&store, |_, _| {});
        store.inner.lsm.note_scrub(1).unwrap();
        store.inner.lsm.seal_log().unwrap();
        assert_eq!(store.mark().commits, before + 3);
        drop(store);
        let store = open(dir.path()).unwrap();
        // The store was sealed when it was closed.
        assert_eq!(store.life().openings()[&2].commits, before + 4);
    }
}
