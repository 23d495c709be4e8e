//! The blocks of files that were compared with their checksums, so that a hot object is compared
//! once in a while rather than by every reader.

use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{blocks::BLOCK_LEN, layout::FileId};

/// Most files whose blocks are known: about 100 bytes each.
const FILES_MAX: usize = 1 << 16;
/// Most blocks of all of them: 4 bytes each, for 1 TiB of objects.
const BLOCKS_MAX: usize = 1 << 20;

/// The time of a file's last change, seconds and nanoseconds.
pub(crate) type Changed = (i64, i64);

/// The blocks that were found good, and when.
#[derive(Debug)]
pub(crate) struct Known {
    recheck_s: AtomicU64,
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
            recheck_s: AtomicU64::new(recheck.as_secs()),
            since: Instant::now(),
            files: Mutex::default(),
        }
    }

    pub(crate) fn set_recheck(&self, recheck: Duration) {
        self.recheck_s.store(recheck.as_secs(), Ordering::Relaxed);
    }

    fn now_s(&self) -> u64 {
        self.since.elapsed().as_secs() + 1
    }

    pub(crate) fn good_until(&self, id: FileId, changed: Changed, bytes: Range<u64>) -> u64 {
        let Range { start: at, end } = bytes;
        let recheck_s = self.recheck_s.load(Ordering::Relaxed);
        if recheck_s == 0 {
            return at;
        }
        let oldest = self.now_s().saturating_sub(recheck_s).max(1);
        let files = self.files.lock();
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
    pub(crate) fn note_good(&self, id: FileId, changed: Changed, index: usize, count: usize) {
        let now_s = u32::try_from(self.now_s()).unwrap_or(u32::MAX);
        let mut files = self.files.lock();
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
        let files = known.files.lock();
        assert!(files.by_id.len() <= FILES_MAX);
        let blocks: usize = files.by_id.values().map(|good| good.at_s.len()).sum();
        assert_eq!(files.blocks, blocks);
        assert!(blocks <= BLOCKS_MAX + 20);
    }
}
