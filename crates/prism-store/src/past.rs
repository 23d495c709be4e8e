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

use std::{io, sync::Arc};

use fjall::PersistMode;
use prism_cluster::{Opening, StoreLife, StoreMark};
use prism_common::random;

use crate::{
    error::{Error, OpenError},
    layout::FileId,
    lsm::{Batch, Lsm},
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
    pub(crate) life: StoreLife,
}

impl Past {
    /// Starts a new generation of file ids, and lists it with the commits found, durably. Blocks.
    pub(crate) fn next(lsm: &Lsm) -> Result<Self, OpenError> {
        let generation = lsm.number(GENERATION_KEY)?.unwrap_or(0) + 1;
        if generation > FileId::GENERATION_MAX {
            return Err(OpenError::GenerationsExhausted);
        }
        let identity = match lsm.number(IDENTITY_KEY)? {
            Some(identity) => identity,
            None => random_id().map_err(OpenError::io("draw an identity"))?,
        };
        let past = Self::begin(identity, generation, listed(lsm)?, lsm.commits());
        let past = past.map_err(OpenError::io("draw the id of an opening"))?;
        let mut batch = Batch::default();
        batch.insert(&lsm.system, GENERATION_KEY, generation.to_be_bytes());
        past.stage(lsm, &mut batch)?;
        lsm.commit(batch, PersistMode::SyncAll)?;
        Ok(past)
    }

    /// The same opening with another identity, and a life that begins with it.
    pub(crate) fn renewed(&self, commits: u64) -> io::Result<Self> {
        Self::begin(random_id()?, self.generation, StoreLife::default(), commits)
    }

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

    pub(crate) fn stage(&self, lsm: &Lsm, batch: &mut Batch) -> Result<(), Error> {
        let openings = serde_json::to_vec(&self.life);
        let openings = openings.map_err(|error| Error::Metadata(Arc::new(error)))?;
        batch.insert(&lsm.system, IDENTITY_KEY, self.identity.to_be_bytes());
        batch.insert(&lsm.system, OPENINGS_KEY, openings);
        Ok(())
    }

    pub(crate) fn mark(&self, commits: u64) -> StoreMark {
        StoreMark {
            store: self.identity,
            opening: self.generation,
            id: self.id,
            found: self.found,
            commits,
        }
    }
}

/// The openings that are listed; none in a store of a release that lists none.
fn listed(lsm: &Lsm) -> Result<StoreLife, OpenError> {
    let Some(listed) = lsm.system.get(OPENINGS_KEY)? else {
        return Ok(StoreLife::default());
    };
    let life = serde_json::from_slice(&listed);
    life.map_err(|_| OpenError::Metadata(format!("record {OPENINGS_KEY:?} is damaged").into()))
}

/// Random, and not 0.
fn random_id() -> io::Result<u64> {
    random::bytes().map(|bytes| u64::from_be_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::path::Path;

    use super::*;
    use crate::{Config, Store};

    fn open(dir: &Path) -> Result<Store, OpenError> {
        let config = Config {
            reserve_bytes: 0,
            ..Config::default()
        };
        Store::open(dir, config)
    }

    fn change(store: &Store, change: impl FnOnce(&Lsm, &mut Batch)) {
        let (lsm, mut batch) = (&store.storage().lsm, Batch::default());
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
            let generation = store.committer().past().generation + 1;
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
        store.integrity().note_scrub(1).unwrap();
        store.storage().lsm.seal_log().unwrap();
        assert_eq!(store.mark().commits, before + 3);
        drop(store);
        let store = open(dir.path()).unwrap();
        // The store was sealed when it was closed.
        assert_eq!(store.life().openings()[&2].commits, before + 4);
    }
}
