//! The check of the tree's own files for damage. The tree compares the blocks that it reads.
//! It does not compare the list of its tables, nor blocks that no one reads. In its log it
//! takes the first unreadable byte for the end.
//!
//! This module reads the files by the layout of fjall 3. The tree itself checks that
//! `db/version` is `FJL` 3:
//!
//! ```text
//! db/N.jnl                     the log; see `journal`
//! db/keyspaces/N/current       number and checksum of the tree's present version
//! db/keyspaces/N/vM            a version: names and checksums of its files
//! db/keyspaces/N/{tables,blobs}/ID
//! ```

mod journal;
mod versions;

use std::{
    fs,
    io::{self, ErrorKind::NotFound},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{config::Durability, error::OpenError, layout::present, log_tag::LogTag};
use journal::{Log, Tail};
pub(crate) use versions::tables;

/// A fault in the tree's files.
#[derive(Debug)]
pub(crate) struct TreeFault {
    pub(crate) path: PathBuf,
    /// The first byte that may be wrong, where that is known.
    pub(crate) offset: Option<u64>,
    pub(crate) what: String,
}

/// Checks the log and the versions before the tree is opened, because the tree would cut the log
/// at the first unreadable byte. Only the very end may be unreadable: a write that the loss of
/// power interrupted. A store that does not flush its writes lost more of them, so everything
/// behind the damage is cut off. Returns the number of bytes cut off.
pub(crate) fn before_opening(
    db: &Path,
    tag: Option<LogTag>,
    durability: Durability,
) -> Result<u64, OpenError> {
    for keyspace in keyspaces(db).map_err(OpenError::io("read the keyspaces"))? {
        let found = versions::current(&keyspace);
        if let Err(fault) = found.map_err(OpenError::io("read a version"))? {
            return Err(damaged(fault));
        }
    }
    let journals = journals(db).map_err(OpenError::io("read the log"))?;
    let last = journals.last().cloned();
    for path in journals {
        let fail = |e| OpenError::io(format!("read {}", path.display()))(e);
        let inspected = Log::open(&path, tag).and_then(|mut log| log.inspect());
        let is_last = last.as_ref() == Some(&path);
        match inspected.map_err(fail)? {
            Tail::Clean => {}
            Tail::Torn { at } if is_last => return cut(&path, at).map_err(fail),
            Tail::Damaged { at } if is_last && durability == Durability::None => {
                return cut(&path, at).map_err(fail);
            }
            Tail::Torn { at } | Tail::Damaged { at } => {
                return Err(damaged(journal_fault(path, at)));
            }
        }
    }
    Ok(0)
}

/// Reports the faults of the log of an open tree, and returns its length in bytes. Writers of
/// the log lock `writing`.
pub(crate) fn logs(
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
        let _nobody = writing.lock().unwrap_or_else(PoisonError::into_inner);
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

fn damaged(fault: TreeFault) -> OpenError {
    OpenError::Damaged {
        path: fault.path,
        offset: fault.offset,
        what: fault.what,
    }
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
pub(crate) fn keyspaces(db: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(db.join("keyspaces"))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let paths: io::Result<Vec<_>> = paths.collect();
    Ok(paths?.into_iter().filter(|path| path.is_dir()).collect())
}

#[cfg(test)]
mod audit_tests;
