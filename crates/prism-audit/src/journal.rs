//! The tree's log: batches one after the other, then reserved zeros.
//!
//! ```text
//! 1, number of items (4), sequence number (8)
//!   2, type (1), compression (1), keyspace (8), key length (2), value length (4),
//!     length here (4), key, value
//!   4, keyspace (8)
//! 3, checksum of the items (8), "FJL" 3
//! ```
//!
//! Integers are little-endian, the checksum is XXH3. One batch at a time is written and flushed.
//! So an unreadable batch before a whole one is damage, not the trace of a power loss. The first
//! item of a batch is the store's [`LogTag`], so that no object of a user looks like a batch.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use prism_common::absent::present;
use rustix::{fs::SeekFrom, io::Errno};
use xxhash_rust::xxh3::Xxh3;

use crate::tag::LogTag;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = *b"FJL\x03";
/// Bytes of a batch before its first item.
const HEAD: usize = 13;
/// Bytes of an item before its key.
const ITEM_HEAD: usize = 21;
/// Bytes of a batch up to the end of its tag.
const TAG_END: usize = HEAD + ITEM_HEAD + LogTag::KEY.len() + LogTag::LEN;
/// A sequence number that no store reaches: a million commits a second reach it after
/// 146,000 years. No checksum covers the number, and the tree panics at twice this one.
const MAX_SEQUENCE: u64 = 1 << 62;
/// Bytes read at a time.
const READ_LEN: usize = 64 * 1024;

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// With a whole batch, and perhaps zeros.
    Clean,
    /// With bytes that are no batch, from here on.
    Torn { at: u64 },
    /// Bytes that are no batch begin here, and a batch follows them.
    Damaged { at: u64 },
}

/// A log, and the position up to which it was read. All functions block on disk.
pub(super) struct Log {
    file: File,
    /// The tag with which batches begin, if it is known.
    tag: Option<LogTag>,
    /// The batches before here are whole and in their order.
    at: u64,
    /// The sequence number of the last of them.
    last: Option<u64>,
}

impl Log {
    pub(super) fn open(path: &Path, tag: Option<LogTag>) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            tag,
            at: 0,
            last: None,
        })
    }

    /// Reads up to the end, or to bytes that are no batch.
    pub(super) fn inspect(&mut self) -> io::Result<Tail> {
        while self.step()? {}
        let at = self.at;
        match end_of_data(&self.file, at)? {
            None => Ok(Tail::Clean),
            // A whole batch in the wrong order.
            Some(_) if Cursor::new(&self.file, at).batch()?.is_some() => Ok(Tail::Damaged { at }),
            Some(end) if self.has_batch(at + 1, end)? => Ok(Tail::Damaged { at }),
            Some(_) => Ok(Tail::Torn { at }),
        }
    }

    /// Reads one batch; whether there was one in the right order.
    pub(super) fn step(&mut self) -> io::Result<bool> {
        let batch = Cursor::new(&self.file, self.at).batch()?;
        let batch = batch.filter(|batch| {
            let is_later = self.last.is_none_or(|last| last < batch.sequence);
            is_later && batch.sequence < MAX_SEQUENCE
        });
        if let Some(Batch { sequence, end }) = batch {
            self.last = Some(sequence);
            self.at = end;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether a batch begins between these offsets. Objects of users lie there too, and may look
    /// like a batch but for the tag.
    fn has_batch(&self, begin: u64, end: u64) -> io::Result<bool> {
        let mut cursor = Cursor::new(&self.file, begin);
        let mut window = [0; LogTag::LEN];
        while cursor.at() < end {
            let Some([byte]) = present(cursor.array(), io::ErrorKind::UnexpectedEof)? else {
                break;
            };
            window.rotate_left(1);
            let [.., last] = &mut window;
            *last = byte;
            let len = match self.tag {
                Some(tag) if window == tag.0 => TAG_END,
                // A batch's head and the first byte of its first item.
                None if matches!(window, [_, _, START, .., ITEM | CLEAR]) => HEAD + 1,
                _ => continue,
            };
            let from = cursor.at().checked_sub(len as u64);
            if let Some(from) = from.filter(|from| *from >= begin)
                && Cursor::new(&self.file, from).batch()?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The end of the last byte from `at` on that is not zero; `None` if all are zero. Most of a log
/// is zeros: 64 MiB of a new one.
fn end_of_data(file: &File, mut at: u64) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; READ_LEN];
    let mut end = None;
    loop {
        // Skips bytes that were never written, if the file system knows them.
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => return Ok(end),
            Err(_) => {}
        }
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(end);
        }
        let piece = buffer.get(..read).unwrap_or_default();
        // Compares the piece as a whole first, which is fast.
        if piece.iter().fold(0, |all, byte| all | byte) != 0 {
            let last = piece.iter().rposition(|byte| *byte != 0);
            end = last.map(|last| at + last as u64 + 1).or(end);
        }
        at += read as u64;
    }
}

struct Batch {
    sequence: u64,
    end: u64,
}

/// A position in the log. Reads beyond the end fail by [`io::ErrorKind::UnexpectedEof`].
struct Cursor<'a>(BufReader<ReadAt<'a>>);

/// A file that is read by offset.
struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<'a> Cursor<'a> {
    fn new(file: &'a File, at: u64) -> Self {
        Self(BufReader::with_capacity(READ_LEN, ReadAt { file, at }))
    }

    fn at(&self) -> u64 {
        self.0.get_ref().at - self.0.buffer().len() as u64
    }

    /// The batch that begins here; `None` if none does.
    fn batch(&mut self) -> io::Result<Option<Batch>> {
        present(self.whole_batch(), io::ErrorKind::UnexpectedEof).map(Option::flatten)
    }

    fn whole_batch(&mut self) -> io::Result<Option<Batch>> {
        let [START, c0, c1, c2, c3, sequence @ ..] = self.array::<HEAD>()? else {
            return Ok(None);
        };
        let mut hash = Xxh3::new();
        for _ in 0..u32::from_le_bytes([c0, c1, c2, c3]) {
            if !self.item(&mut hash)? {
                return Ok(None);
            }
        }
        let [END, end @ ..] = self.array::<13>()? else {
            return Ok(None);
        };
        let (checksum, trailer) = end.split_at(8);
        let is_whole = checksum == hash.digest().to_le_bytes() && trailer == TRAILER;
        Ok(is_whole.then(|| Batch {
            sequence: u64::from_le_bytes(sequence),
            end: self.at(),
        }))
    }

    /// Hashes an item; whether one began here.
    fn item(&mut self, hash: &mut Xxh3) -> io::Result<bool> {
        let [tag] = self.array()?;
        hash.update(&[tag]);
        let mut left = match tag {
            CLEAR => 8,
            ITEM => {
                let head = self.array::<{ ITEM_HEAD - 1 }>()?;
                hash.update(&head);
                let [.., k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
                let key = u64::from(u16::from_le_bytes([k0, k1]));
                key + u64::from(u32::from_le_bytes([v0, v1, v2, v3]))
            }
            _ => return Ok(false),
        };
        while left > 0 {
            let unread = self.0.fill_buf()?;
            let len = usize::try_from(left).map_or(unread.len(), |left| left.min(unread.len()));
            hash.update(unread.get(..len).unwrap_or_default());
            self.0.consume(len);
            match len {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => left -= len as u64,
            }
        }
        Ok(true)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut out = [0; N];
        self.0.read_exact(&mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
pub(super) mod tests;
