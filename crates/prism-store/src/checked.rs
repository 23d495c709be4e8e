//! Files whose blocks are compared with their checksums before their bytes leave.
//!
//! `sendfile` sends a file unseen. So the store reads and compares a block first, and the
//! kernel then sends the same pages from its cache. A good block counts as good for
//! [`Config::recheck`](crate::Config::recheck), unless the file changes: a hot object is
//! compared once in that time.

use std::{fmt, fs::File, os::unix::fs::MetadataExt, sync::Arc};

use crate::{
    blocks::{self, BLOCK_LEN},
    error::Error,
    known::{Changed, Known},
    layout::FileId,
    record::FileRecord,
    storage::Storage,
};

/// An object's file, or a part's, open for reading. It stays readable,
/// unchanged, whatever is written to its key meanwhile.
#[derive(Clone)]
pub struct CheckedFile(Arc<Opened>);

struct Opened {
    id: FileId,
    file: File,
    len: u64,
    changed: Changed,
    /// `None` if all blocks were known to be good when the file was opened.
    unproven: Option<Unproven>,
}

/// The recorded checksums of a file's blocks, and the place where comparisons are noted.
struct Unproven {
    storage: Arc<Storage>,
    crcs: Vec<u32>,
}

impl CheckedFile {
    /// Opens a file of `recorded` bytes; `None` if it is missing. `record` gives the checksums
    /// where they are needed.
    pub(crate) fn open(
        storage: &Arc<Storage>,
        id: FileId,
        recorded: u64,
        record: impl FnOnce() -> Result<Option<FileRecord>, Error>,
    ) -> Result<Option<Self>, Error> {
        let Some(file) = storage.files.open_file(id)? else {
            return Ok(None);
        };
        let data = file.metadata()?;
        let len = data.len();
        let changed = (data.ctime(), data.ctime_nsec());
        if len != recorded {
            return Err(wrong_length(len, recorded));
        }
        let unproven = if storage.known.good_until(id, changed, 0..len) == len {
            None
        } else {
            let record = record()?.ok_or_else(|| Error::corrupt("no checksums"))?;
            if record.len != len {
                return Err(wrong_length(len, record.len));
            }
            if record.crcs.len() as u64 != len.div_ceil(BLOCK_LEN) {
                return Err(Error::corrupt("number of blocks differs"));
            }
            Some(Unproven {
                storage: Arc::clone(storage),
                crcs: record.crcs,
            })
        };
        Ok(Some(Self(Arc::new(Opened {
            id,
            file,
            len,
            changed,
            unproven,
        }))))
    }

    /// Whether all blocks were known to be good when the file was opened. Such a file does not
    /// keep its store open.
    pub(crate) fn was_good(&self) -> bool {
        self.0.unproven.is_none()
    }

    /// Whether the file is unchanged, and all of its blocks are still known to be good.
    pub(crate) fn is_still_good(&self, known: &Known) -> bool {
        let Opened {
            id,
            file,
            len,
            changed,
            ..
        } = &*self.0;
        // The number of links is 0 once the file is removed.
        let unchanged = file.metadata().is_ok_and(|data| {
            let now = (data.ctime(), data.ctime_nsec());
            (now, data.len()) == (*changed, *len) && data.nlink() > 0
        });
        unchanged && known.good_until(*id, *changed, 0..*len) == *len
    }

    /// The file. Read only bytes that are known to be good. Other readers share the file
    /// position, so read by offset (`pread`, `sendfile`).
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0.file
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The end of the bytes from `at` on that are known to be good, at most `end`; `at` if
    /// the first block is not. Does not block.
    #[must_use]
    pub fn good_until(&self, at: u64, end: u64) -> u64 {
        let opened = &self.0;
        match &opened.unproven {
            None => end,
            Some(Unproven { storage, .. }) => {
                let known = &storage.known;
                known.good_until(opened.id, opened.changed, at..end)
            }
        }
    }

    /// Compares the block of the byte `at`, unless it is known to be good. Returns the end of
    /// the bytes from `at` on that are known to be good, which is beyond `at`. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the block differs from its checksum.
    pub fn check(&self, at: u64, end: u64) -> Result<u64, Error> {
        let opened = &self.0;
        let known = self.good_until(at, end);
        let (Some(Unproven { storage, crcs }), true) = (&opened.unproven, known <= at) else {
            return Ok(known);
        };
        let block = at / BLOCK_LEN;
        let index = usize::try_from(block).unwrap_or(usize::MAX);
        let recorded = crcs
            .get(index)
            .ok_or_else(|| Error::corrupt("no such block"))?;
        let from = block * BLOCK_LEN;
        let to = opened.len.min((block + 1) * BLOCK_LEN);
        if let Err(error) = blocks::verify_block(&opened.file, from, to, *recorded) {
            let view = storage.lsm.view();
            storage.corruption.note(&view, opened.id, from, &error);
            return Err(error);
        }
        let known = &storage.known;
        known.note_good(opened.id, opened.changed, index, crcs.len());
        Ok(self.good_until(to, end).max(to).min(end))
    }

    /// Compares all blocks of the bytes `[at, end)` that are not known to be good. Blocks on
    /// disk.
    ///
    /// # Errors
    /// As for [`CheckedFile::check`].
    pub fn check_all(&self, mut at: u64, end: u64) -> Result<(), Error> {
        while at < end {
            at = self.check(at, end)?;
        }
        Ok(())
    }
}

fn wrong_length(found: u64, recorded: u64) -> Error {
    Error::corrupt(format!("file of {found} bytes instead of {recorded}"))
}

impl fmt::Debug for CheckedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedFile")
            .field("id", &self.0.id)
            .field("len", &self.0.len)
            .finish_non_exhaustive()
    }
}
