//! The trees and the files of an open store, and the facts about both that are in memory. Open
//! files and objects share them, and keep the store open. `commit` makes the changes.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use crate::{
    config::Config,
    damage::Corruption,
    error::OpenError,
    files::Files,
    known::Known,
    layout::Layout,
    lsm::Lsm,
    past::Past,
    pins::Pins,
    recovery::{RecoveryReport, recover},
};

/// The trees and the files. Sealed and closed when the last user drops it.
pub(crate) struct Storage {
    pub(crate) lsm: Lsm,
    pub(crate) pins: Pins,
    pub(crate) known: Known,
    pub(crate) corruption: Corruption,
    pub(crate) recovery: RecoveryReport,
    /// Whether records may name files that were missing when the store was opened.
    pub(crate) has_dangling: AtomicBool,
    /// Dropped after the tree, because it has the lock of the directory.
    pub(crate) files: Files,
}

impl Storage {
    /// Opens or creates a store, begins an opening of it, and cleans up after a crash. Blocks on
    /// disk.
    pub(crate) fn open(dir: &Path, config: &Config) -> Result<(Arc<Self>, Past), OpenError> {
        let layout = Layout::open(dir)?;
        let lsm = Lsm::open(&layout, config)?;
        // The first commit, because the opening is listed with the commits that it found.
        let past = Past::next(&lsm)?;
        lsm.write_tag(&layout)?;
        let files = Files::open(layout, past.generation, config)?;
        let recovery = recover(&lsm, &files)?;
        let storage = Self {
            lsm,
            pins: Pins::default(),
            known: Known::new(config.recheck),
            corruption: Corruption::default(),
            has_dangling: AtomicBool::new(recovery.dangling > 0),
            recovery,
            files,
        };
        Ok((Arc::new(storage), past))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Err(error) = self.lsm.seal_log() {
            tracing::warn!(%error, "the store was closed without sealing its log; a torn end is cut off at the next start");
        }
    }
}
