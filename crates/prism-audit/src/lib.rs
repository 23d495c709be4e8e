//! The check of the files of fjall's trees for damage. The tree compares the blocks that it reads.
//! It does not compare the list of its tables, nor blocks that no one reads. In its log it
//! takes the first unreadable byte for the end.
//!
//! This crate reads the files by the layout of fjall 3. The tree itself checks that
//! `db/version` is `FJL` 3:
//!
//! ```text
//! db/N.jnl                     the log; see `journal`
//! db/keyspaces/N/current       number and checksum of the tree's present version
//! db/keyspaces/N/vM            a version: names and checksums of its files
//! db/keyspaces/N/{tables,blobs}/ID
//! ```
//!
//! Not here: the meaning of keys and values, and the repair of damage (`prism-store`).
#![forbid(unsafe_code)]

mod journal;
mod tag;
mod versions;

use std::{
    fs,
    io::{self, ErrorKind::NotFound},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use prism_common::absent::present;

use journal::{Log, Tail};
pub use tag::LogTag;
pub use versions::tables;

/// A fault in the tree's files.
#[derive(Debug)]
pub struct TreeFault {
    /// The file.
    pub path: PathBuf,
    /// The first byte that may be wrong, where that is known.
    pub offset: Option<u64>,
    /// A description of the damage.
    pub what: String,
}

/// Why a tree cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file is damaged. The tree would forget what lies behind the damage.
    #[error("{} is damaged{}: {}; restore it, or start with an empty directory and let the other copies fill it",
        .0.path.display(), .0.offset.map(|at| format!(" at byte {at}")).unwrap_or_default(), .0.what)]
    Damaged(TreeFault),
    /// The kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// The action, and its path.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Checks the log and the versions before the tree is opened, because the tree would cut the log
/// at the first unreadable byte. Only the very end may be unreadable: a write that the loss of
/// power interrupted. If writes are not flushed one after the other, more of them were lost, so
/// everything behind the damage is cut off. Returns the number of bytes cut off.
///
/// # Errors
/// [`AuditError`].
pub fn before_opening(
    db: &Path,
    tag: Option<LogTag>,
    are_flushed: bool,
) -> Result<u64, AuditError> {
    for keyspace in keyspaces(db).map_err(failed("read the keyspaces"))? {
        let found = versions::current(&keyspace);
        if let Err(fault) = found.map_err(failed("read a version"))? {
            return Err(AuditError::Damaged(fault));
        }
    }
    let journals = journals(db).map_err(failed("read the log"))?;
    let last = journals.last().cloned();
    for path in journals {
        let fail = |e| failed(format!("read {}", path.display()))(e);
        let inspected = Log::open(&path, tag).and_then(|mut log| log.inspect());
        let is_last = last.as_ref() == Some(&path);
        match inspected.map_err(fail)? {
            Tail::Clean => {}
            Tail::Torn { at } if is_last => return cut(&path, at).map_err(fail),
            Tail::Damaged { at } if is_last && !are_flushed => {
                return cut(&path, at).map_err(fail);
            }
            Tail::Torn { at } | Tail::Damaged { at } => {
                return Err(AuditError::Damaged(journal_fault(path, at)));
            }
        }
    }
    Ok(0)
}

/// Reports the faults of the log of an open tree, and returns its length in bytes. Writers of
/// the log lock `writing`.
///
/// # Errors
/// The kernel's. Damage is not an error.
pub fn logs(
    db: &Path,
    tag: LogTag,
    writing: &Mutex<()>,
    found: &mut dyn FnMut(TreeFault),
) -> io::Result<u64> {
    let mut bytes = 0;
    for path in journals(db)? {
        let Some(data) = present(fs::metadata(&path), NotFound)? else {
            continue;
        };
        bytes += data.len();
        if let Some(at) = lasting_fault(&path, tag, writing)? {
            found(journal_fault(path, at));
        }
    }
    Ok(bytes)
}

/// The first faulty position of a log, confirmed while no one writes: a batch that was half
/// written at the first look is complete by then.
fn lasting_fault(path: &Path, tag: LogTag, writing: &Mutex<()>) -> io::Result<Option<u64>> {
    let Some(mut log) = present(Log::open(path, Some(tag)), NotFound)? else {
        return Ok(None);
    };
    loop {
        let at = match log.inspect()? {
            Tail::Clean => return Ok(None),
            Tail::Torn { at } | Tail::Damaged { at } => at,
        };
        let _nobody = writing.lock();
        if !log.step()? {
            return Ok(Some(at));
        }
    }
}

fn journal_fault(path: PathBuf, at: u64) -> TreeFault {
    TreeFault {
        path,
        offset: Some(at),
        what: "no batch of the log begins here".into(),
    }
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> AuditError {
    let what = what.into();
    move |source| AuditError::Io { what, source }
}

/// Cuts an unfinished write off the end of a log.
fn cut(path: &Path, at: u64) -> io::Result<u64> {
    let file = fs::File::options().write(true).open(path)?;
    let len = file.metadata()?.len();
    file.set_len(at)?;
    file.sync_all()?;
    tracing::warn!(path = %path.display(), at, "cut an unfinished write off the log's end");
    Ok(len.saturating_sub(at))
}

/// The logs, oldest first.
fn journals(db: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(db)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Directories of keyspaces.
///
/// # Errors
/// The kernel's.
pub fn keyspaces(db: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(db.join("keyspaces"))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let paths: io::Result<Vec<_>> = paths.collect();
    Ok(paths?.into_iter().filter(|path| path.is_dir()).collect())
}

/// Makes the kernel read a file from the disk again. A hint, and without effect on file systems
/// in memory.
pub fn forget_cached(file: &fs::File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(test)]
mod audit_tests;
