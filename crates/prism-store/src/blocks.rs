//! Checksums of an object's blocks: computed while it is written, compared when it is read.

use std::{fs::File, os::unix::fs::FileExt};

use crc_fast::{CrcAlgorithm, Digest};

use crate::error::Error;

/// Bytes covered by one CRC32C. A 2 GiB object has 2,048 of them (8 KiB), the
/// longest one 5,120 (20 KiB).
pub const BLOCK_LEN: u64 = 1024 * 1024;

/// Bytes read at a time while checking.
const READ_LEN: usize = 64 * 1024;

/// The CRC32C (RFC 3720, section 12.1) of these bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    finished(&mut digest)
}

/// The 32 bits of a CRC32C, after which the digest is empty again.
fn finished(digest: &mut Digest) -> u32 {
    digest.finalize_reset() as u32
}

/// The checksums of a prefix of an object.
#[derive(Debug)]
pub(crate) struct BlockCrcs {
    full: Vec<u32>,
    current: Digest,
    /// Bytes in `current`; always less than `BLOCK_LEN`.
    filled: u64,
}

impl Default for BlockCrcs {
    fn default() -> Self {
        Self {
            full: Vec::new(),
            current: Digest::new(CrcAlgorithm::Crc32Iscsi),
            filled: 0,
        }
    }
}

impl BlockCrcs {
    pub(crate) fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = usize::try_from(BLOCK_LEN - self.filled).unwrap_or(usize::MAX);
            let (head, rest) = data.split_at(room.min(data.len()));
            self.current.update(head);
            self.filled += head.len() as u64;
            if self.filled == BLOCK_LEN {
                self.full.push(finished(&mut self.current));
                self.filled = 0;
            }
            data = rest;
        }
    }

    /// Takes the bytes `[from, to)` of `file`.
    pub(crate) fn update_from(&mut self, file: &File, from: u64, to: u64) -> Result<(), Error> {
        let mut buffer = vec![0; READ_LEN];
        let mut at = from;
        while at < to {
            let want = usize::try_from(to - at).unwrap_or(READ_LEN).min(READ_LEN);
            let (chunk, _) = buffer.split_at_mut(want);
            file.read_exact_at(chunk, at).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::corrupt("file too short"),
                _ => e.into(),
            })?;
            self.update(chunk);
            at += want as u64;
        }
        Ok(())
    }

    /// All checksums; the last may cover less than a block.
    pub(crate) fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.full.push(finished(&mut self.current));
        }
        self.full
    }
}

/// Reads the bytes `[from, to)` of `file`, one block, and compares them with the recorded
/// checksum.
pub(crate) fn verify_block(file: &File, from: u64, to: u64, recorded: u32) -> Result<(), Error> {
    let mut crcs = BlockCrcs::default();
    crcs.update_from(file, from, to)?;
    match crcs.finish().as_slice() {
        [found] if *found == recorded => Ok(()),
        _ => Err(Error::corrupt(format!(
            "checksum of the {} bytes from {from} on differs",
            to - from
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_do_not_depend_on_how_the_bytes_arrive() {
        let data: Vec<u8> = (0..3 * BLOCK_LEN as usize + 17)
            .map(|i| (i * 31 % 251) as u8)
            .collect();
        let mut whole = BlockCrcs::default();
        whole.update(&data);
        let mut pieces = BlockCrcs::default();
        for chunk in data.chunks(70_001) {
            pieces.update(chunk);
        }
        let whole = whole.finish();
        assert_eq!(whole, pieces.finish());
        let by_block: Vec<u32> = data.chunks(BLOCK_LEN as usize).map(crc32c).collect();
        assert_eq!(whole, by_block);
    }

    #[test]
    fn an_exact_multiple_of_blocks_has_no_empty_last_block() {
        let mut crcs = BlockCrcs::default();
        crcs.update(&vec![1; 2 * BLOCK_LEN as usize]);
        assert_eq!(crcs.finish().len(), 2);
        assert!(BlockCrcs::default().finish().is_empty());
    }
}
