//! Files whose blocks are compared with their checksums before their bytes leave.
//!
//! `sendfile` sends a file unseen. So the store reads and compares a block first, and the
//! kernel then sends the same pages from its cache. A good block counts as good for
//! [`Config::recheck`](crate::Config::recheck), unless the file changes: a hot object is
//! compared once in that time.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    ops::Range,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    blocks::{self, BLOCK_LEN},
    error::Error,
    layout::FileId,
    record::FileRecord,
    store::Inner,
};

/// Most files whose blocks are known: about 100 bytes each.
const FILES_MAX: usize = 1 << 16;
/// Most blocks of all of them: 4 bytes each, for 1 TiB of objects.
const BLOCKS_MAX: usize = 1 << 20;

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

/// The recorded checksums of a file's blocks, and the store that notes comparisons.
struct Unproven {
    store: Arc<Inner>,
    crcs: Vec<u32>,
}

/// The time of a file's last change, seconds and nanoseconds.
type Changed = (i64, i64);

impl CheckedFile {
    /// Opens a file; `None` if it is missing. `record` gives the checksums where they are
    /// needed.
    pub(crate) fn open(
        store: &Arc<Inner>,
        id: FileId,
        record: impl FnOnce() -> Result<Option<FileRecord>, Error>,
    ) -> Result<Option<Self>, Error> {
        let file = match store.files.open_file(id) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let data = file.metadata()?;
        let (len, changed) = (data.len(), (data.ctime(), data.ctime_nsec()));
        let unproven = match store.known.good_until(id, changed, 0..len) == len {
            true => None,
            false => {
                let record = record()?.ok_or_else(|| Error::corrupt("no checksums"))?;
                if record.len != len {
                    return Err(wrong_length(len, record.len));
                }
                if record.crcs.len() as u64 != len.div_ceil(BLOCK_LEN) {
                    return Err(Error::corrupt("number of blocks differs"));
                }
                Some(Unproven {
                    store: Arc::clone(store),
                    crcs: record.crcs,
                })
            }
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
            Some(Unproven { store, .. }) => {
                let known = &store.known;
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
        let (Some(Unproven { store, crcs }), true) = (&opened.unproven, known <= at) else {
            return Ok(known);
        };
        let block = at / BLOCK_LEN;
        let index = usize::try_from(block).unwrap_or(usize::MAX);
        let recorded = crcs
            .get(index)
            .ok_or_else(|| Error::corrupt("no such block"))?;
        let (from, to) = (block * BLOCK_LEN, opened.len.min((block + 1) * BLOCK_LEN));
        if let Err(error) = blocks::verify_block(&opened.file, from, to, *recorded) {
            store.corruption.note(store, opened.id, from, &error);
            return Err(error);
        }
        let known = &store.known;
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

pub(crate) fn wrong_length(found: u64, recorded: u64) -> Error {
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

/// The blocks that were found good, and when.
#[derive(Debug)]
pub(crate) struct Known {
    recheck: Duration,
    since: Instant,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    by_id: HashMap<FileId, Good>,
    /// The number of blocks of all files.
    blocks: usize,
}

#[derive(Debug)]
struct Good {
    changed: Changed,
    /// For each block the second in which it was found good, counted from 1; 0 for never.
    at_s: Vec<u32>,
}

impl Known {
    pub(crate) fn new(recheck: Duration) -> Self {
        Self {
            recheck,
            since: Instant::now(),
            files: Mutex::default(),
        }
    }

    fn now_s(&self) -> u64 {
        self.since.elapsed().as_secs() + 1
    }

    fn good_until(&self, id: FileId, changed: Changed, bytes: Range<u64>) -> u64 {
        let Range { start: at, end } = bytes;
        let recheck_s = self.recheck.as_secs();
        if recheck_s == 0 {
            return at;
        }
        let oldest = self.now_s().saturating_sub(recheck_s).max(1);
        let files = self.locked();
        let Some(good) = files.by_id.get(&id).filter(|good| good.changed == changed) else {
            return at;
        };
        let first = usize::try_from(at / BLOCK_LEN).unwrap_or(usize::MAX);
        let blocks = good.at_s.get(first..).unwrap_or_default();
        let is_good = |at_s: &&u32| u64::from(**at_s) >= oldest;
        match blocks.iter().take_while(is_good).count() as u64 {
            0 => at,
            count => end.min((first as u64 + count) * BLOCK_LEN),
        }
    }

    /// Notes that one of a file's `count` blocks was found good.
    fn note_good(&self, id: FileId, changed: Changed, index: usize, count: usize) {
        let now_s = u32::try_from(self.now_s()).unwrap_or(u32::MAX);
        let mut files = self.locked();
        files.make_room(count);
        let good = files.by_id.get(&id);
        if good.is_none_or(|good| good.changed != changed || good.at_s.len() != count) {
            let at_s = vec![0; count];
            let replaced = files.by_id.insert(id, Good { changed, at_s });
            files.blocks += count;
            files.blocks -= replaced.map_or(0, |good| good.at_s.len());
        }
        let good = files.by_id.get_mut(&id);
        if let Some(at_s) = good.and_then(|good| good.at_s.get_mut(index)) {
            *at_s = now_s;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Forgets a random half of the files if there are too many.
    fn make_room(&mut self, count: usize) {
        if self.by_id.len() < FILES_MAX && self.blocks + count <= BLOCKS_MAX {
            return;
        }
        let mut keep = false;
        self.by_id.retain(|_, _| {
            keep = !keep;
            keep
        });
        self.blocks = self.by_id.values().map(|good| good.at_s.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED: Changed = (7, 7);

    fn id(n: u8) -> FileId {
        FileId::from_bytes([n; 8])
    }

    #[test]
    fn what_was_found_good_is_so_for_its_file_unchanged_and_a_while() {
        let known = Known::new(Duration::from_secs(60));
        let end = 3 * BLOCK_LEN - 5;
        let until = |at| known.good_until(id(1), CHANGED, at..end);
        assert_eq!(until(9), 9);
        known.note_good(id(1), CHANGED, 0, 3);
        known.note_good(id(1), CHANGED, 2, 3);
        assert_eq!(until(9), BLOCK_LEN);
        assert_eq!(until(BLOCK_LEN), BLOCK_LEN);
        assert_eq!(until(2 * BLOCK_LEN + 1), end);
        known.note_good(id(1), CHANGED, 1, 3);
        assert_eq!(until(0), end);
        assert_eq!(known.good_until(id(1), (7, 8), 0..end), 0);
        assert_eq!(known.good_until(id(2), CHANGED, 0..end), 0);
        let never = Known::new(Duration::ZERO);
        never.note_good(id(1), CHANGED, 0, 3);
        assert_eq!(never.good_until(id(1), CHANGED, 0..end), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let known = Known::new(Duration::from_secs(60));
        for n in 0..2 * FILES_MAX as u64 {
            known.note_good(FileId::from_bytes(n.to_be_bytes()), CHANGED, 0, 20);
        }
        let files = known.locked();
        assert!(files.by_id.len() <= FILES_MAX);
        let blocks: usize = files.by_id.values().map(|good| good.at_s.len()).sum();
        assert_eq!(files.blocks, blocks);
        assert!(blocks <= BLOCKS_MAX + 20);
    }
}
