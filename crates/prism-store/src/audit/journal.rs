//! The tree's log: batches one after the other, then zeros, which were reserved.
//!
//! ```text
//! 1, number of items (4), sequence number (8)
//!   2, type (1), compression (1), keyspace (8), key length (2), value length (4),
//!     length here (4), key, value
//!   4, keyspace (8)
//! 3, checksum of the items (8), "FJL" 3
//! ```
//!
//! Integers are little-endian, the checksum is XXH3. One batch at a time is
//! written and flushed, so where one makes no sense and a whole one follows, it
//! is not the power that has gone.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use rustix::{fs::SeekFrom, io::Errno};
use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = *b"FJL\x03";
/// Bytes of a batch before its first item.
const HEAD: usize = 13;
/// Bytes of an item before its key.
const ITEM_HEAD: usize = 21;
/// Bytes read at a time.
const READ_LEN: usize = 64 * 1024;

/// How a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// With a whole batch, and perhaps zeros.
    Clean,
    /// With something that is no batch, from here on.
    Torn { at: u64 },
    /// There is something that is no batch here, and a batch behind it.
    Damaged { at: u64 },
}

/// Reads a log. Blocks on disk.
pub(super) fn inspect(path: &Path) -> io::Result<Tail> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let (mut at, mut last) = (0, None);
    while at < len {
        match Cursor::new(&file, at).batch()? {
            Some(batch) if last.is_none_or(|last| last < batch.sequence) => {
                last = Some(batch.sequence);
                at = batch.end;
            }
            // Whole, but not in its place.
            Some(_) => return Ok(Tail::Damaged { at }),
            None => return tail(&file, at),
        }
    }
    Ok(Tail::Clean)
}

/// What it is that is no batch.
fn tail(file: &File, at: u64) -> io::Result<Tail> {
    let Some(end) = end_of_data(file, at)? else {
        return Ok(Tail::Clean);
    };
    let mut cursor = Cursor::new(file, at);
    let mut window = [0; HEAD + 1];
    while cursor.at < end
        && let Some(byte) = cursor.byte()?
    {
        window.rotate_left(1);
        let [.., last] = &mut window;
        *last = byte;
        // A batch's head and the first byte of its first item.
        if matches!(window, [START, .., ITEM | CLEAR]) {
            let from = cursor.at - window.len() as u64;
            if from > at && Cursor::new(file, from).batch()?.is_some() {
                return Ok(Tail::Damaged { at });
            }
        }
    }
    Ok(Tail::Torn { at })
}

/// Behind the last byte from `at` on that is not zero; `None` if all are. Most of
/// a log is zeros, 64 MiB of them in a new one.
fn end_of_data(file: &File, mut at: u64) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; READ_LEN];
    let mut end = None;
    loop {
        // Over what was never written, where the file system knows.
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
        // Compared as a whole first, which is fast.
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

/// A place in the log.
struct Cursor<'a> {
    file: &'a File,
    at: u64,
    buffer: Vec<u8>,
    /// Of the buffer, already read.
    used: usize,
}

impl<'a> Cursor<'a> {
    fn new(file: &'a File, at: u64) -> Self {
        Self {
            file,
            at,
            buffer: Vec::new(),
            used: 0,
        }
    }

    /// The batch that begins here; `None` if none does.
    fn batch(&mut self) -> io::Result<Option<Batch>> {
        let Some([START, head @ ..]) = self.array::<HEAD>()? else {
            return Ok(None);
        };
        let [c0, c1, c2, c3, sequence @ ..] = head;
        let mut hash = Xxh3::new();
        for _ in 0..u32::from_le_bytes([c0, c1, c2, c3]) {
            if !self.item(&mut hash)? {
                return Ok(None);
            }
        }
        let Some([END, end @ ..]) = self.array::<13>()? else {
            return Ok(None);
        };
        let (checksum, trailer) = end.split_at(8);
        if checksum != hash.digest().to_le_bytes() || trailer != TRAILER {
            return Ok(None);
        }
        Ok(Some(Batch {
            sequence: u64::from_le_bytes(sequence),
            end: self.at,
        }))
    }

    /// Takes an item in; whether there was one.
    fn item(&mut self, hash: &mut Xxh3) -> io::Result<bool> {
        let Some(tag) = self.byte()? else {
            return Ok(false);
        };
        hash.update(&[tag]);
        match tag {
            CLEAR => self.hash(hash, 8),
            ITEM => {
                let Some(head) = self.array::<{ ITEM_HEAD - 1 }>()? else {
                    return Ok(false);
                };
                hash.update(&head);
                let [.., k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
                let key = u64::from(u16::from_le_bytes([k0, k1]));
                let value = u64::from(u32::from_le_bytes([v0, v1, v2, v3]));
                self.hash(hash, key + value)
            }
            _ => Ok(false),
        }
    }

    /// Takes `len` bytes in; whether there were as many.
    fn hash(&mut self, hash: &mut Xxh3, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            let unread = self.unread()?;
            let Some((taken, _)) = unread.split_at_checked(
                usize::try_from(len).map_or(unread.len(), |len| len.min(unread.len())),
            ) else {
                return Ok(false);
            };
            if taken.is_empty() {
                return Ok(false);
            }
            hash.update(taken);
            let taken = taken.len();
            len -= taken as u64;
            self.advance(taken);
        }
        Ok(true)
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        let byte = self.unread()?.first().copied();
        if byte.is_some() {
            self.advance(1);
        }
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut out = [0; N];
        for place in &mut out {
            match self.byte()? {
                Some(byte) => *place = byte,
                None => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    /// What is in the buffer; nothing at the file's end only.
    fn unread(&mut self) -> io::Result<&[u8]> {
        if self.used == self.buffer.len() {
            self.buffer.resize(READ_LEN, 0);
            let read = self.file.read_at(&mut self.buffer, self.at)?;
            self.buffer.truncate(read);
            self.used = 0;
        }
        Ok(self.buffer.get(self.used..).unwrap_or_default())
    }

    fn advance(&mut self, len: usize) {
        self.used += len;
        self.at += len as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    /// A batch of one item.
    fn batch(sequence: u64, value: &[u8]) -> Vec<u8> {
        let mut item = vec![ITEM, 0, 0];
        item.extend_from_slice(&7_u64.to_le_bytes());
        item.extend_from_slice(&3_u16.to_le_bytes());
        for _ in 0..2 {
            item.extend_from_slice(&u32::try_from(value.len()).unwrap().to_le_bytes());
        }
        item.extend_from_slice(b"key");
        item.extend_from_slice(value);
        let mut out = vec![START, 1, 0, 0, 0];
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&item);
        out.push(END);
        out.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&item).to_le_bytes());
        out.extend_from_slice(&TRAILER);
        out
    }

    fn tail_of(bytes: &[u8]) -> Tail {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        inspect(file.path()).unwrap()
    }

    #[test]
    fn whole_batches_and_reserved_zeros_are_clean() {
        let value = vec![5; READ_LEN + 17];
        let mut log = [batch(1, b"a"), batch(4, &value), batch(5, b"")].concat();
        assert_eq!(tail_of(&log), Tail::Clean);
        log.resize(log.len() + 100_000, 0);
        assert_eq!(tail_of(&log), Tail::Clean);
        assert_eq!(tail_of(&[]), Tail::Clean);
    }

    #[test]
    fn every_cut_of_the_last_batch_is_torn_and_no_cut_is_damage() {
        let first = batch(1, b"first");
        let last = batch(2, b"FJL\x03 is no end in a value");
        for len in 1..last.len() {
            let log = [&first, &last[..len]].concat();
            let at = first.len() as u64;
            assert_eq!(tail_of(&log), Tail::Torn { at }, "{len} bytes");
            let zeros = [log.as_slice(), &[0; 50]].concat();
            assert_eq!(tail_of(&zeros), Tail::Torn { at }, "{len} bytes");
        }
    }

    #[test]
    fn any_flip_before_the_last_batch_is_damage_unless_it_changes_nothing() {
        let (first, second, last) = (batch(10, b"one"), batch(20, b"two"), batch(30, b"end"));
        let log = [first.as_slice(), &second, &last].concat();
        for at in 0..first.len() + second.len() {
            let mut bad = log.clone();
            bad[at] ^= 0x40;
            let found = tail_of(&bad);
            // A lower sequence number of the first batch, which has no order to keep.
            let harmless = (5..13).contains(&at);
            assert!(
                matches!(found, Tail::Damaged { .. }) || harmless,
                "byte {at}: {found:?}"
            );
        }
    }
}
