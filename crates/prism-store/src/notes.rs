//! Small documents that the caller keeps in the store, and the handle by which a thread uses
//! them that may outlive the store. They are records `note/NAME` of the tree `system`.

use std::sync::{Arc, Weak};

use crate::{
    commit::{Op, When},
    error::Error,
    keys::note_key,
    primary::Primary,
    store::Store,
    types::check_key,
};

impl Store {
    /// Keeps documents by their names, all of them or none, in place of those that the names had.
    /// The caller bounds their number and size; they are not counted in the quota. Blocks on
    /// disk.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a name of 0 or more than [`KEY_MAX`](crate::KEY_MAX) bytes;
    /// [`Error::NoSpace`], [`Error::Stalled`].
    pub fn note(&self, notes: &[(&str, &[u8])]) -> Result<(), Error> {
        for (name, _) in notes {
            check_key(name)?;
        }
        let notes = notes.iter();
        let notes = notes.map(|(name, document)| ((*name).to_owned(), document.to_vec()));
        let note = Op::Note(notes.collect());
        self.committer().commit(note, When::Always)?;
        Ok(())
    }

    /// The document of this name, if one was kept. May block on disk.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a name that no document can have.
    pub fn noted(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        check_key(name)?;
        let document = self.storage().lsm.system.get(note_key(name))?;
        Ok(document.map(|document| document.to_vec()))
    }

    /// A handle that does not keep the store open. Does not block.
    #[must_use]
    pub fn handle(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.primary))
    }
}

/// A store for a thread that may outlive it. The directory stays locked only while the store is
/// open by [`Self::open`].
#[derive(Debug, Clone)]
pub struct WeakStore(Weak<Primary>);

impl WeakStore {
    /// The store, for one call. Does not block.
    ///
    /// # Errors
    /// [`Error::Closed`] once the store has been closed.
    pub fn open(&self) -> Result<Store, Error> {
        let primary = self.0.upgrade().ok_or(Error::Closed)?;
        Ok(Store { primary })
    }
}
