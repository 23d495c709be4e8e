//! The two hashes that nearly every body needs: MD5 (RFC 1321) for its ETag, and the SHA-256
//! (FIPS 180-4) that its request signed.
//!
//! The hashes are the largest cost of a body, because each step waits for the one before. The
//! steps of several bodies do not wait for one another. With vectors of sixteen words, sixteen
//! bodies are hashed in the time of four (`prism_hash::avx512`). Other processors take MD5 by
//! eight. They take SHA-256 by two if they have instructions for it (`prism_hash::sha256`),
//! otherwise by the library. Both hashes have blocks of 64 bytes.
//!
//! Not here: the grouping of bodies, which the caller does. MD5 protects from accidents only.

mod eight;

use std::cmp::Reverse;
use std::sync::LazyLock;

use aws_lc_rs::digest;
use prism_hash::avx512::Avx512;
use prism_hash::sha256::ShaNi;
use prism_hash::{BLOCK, SIXTEEN, md5, sha256};

use eight::EIGHT;

/// Most bodies that are hashed together. A processor with vectors for eight hashes half of them
/// before the others.
pub const TOGETHER: usize = SIXTEEN;

/// The number of SHA-256s from which vectors are faster than the processor's instructions for
/// it. Vectors take as long for one as for sixteen.
const MANY: usize = 10;

/// Bytes of each body that are hashed at a time. A core's cache holds those of all bodies, so
/// that the second hash finds them there.
const STRETCH: usize = 32 << 10;

/// Detected once, as that takes many instructions.
static AVX512: LazyLock<Option<Avx512>> = LazyLock::new(Avx512::detect);

/// The hashes of the part of a body that has come in.
#[derive(Clone)]
pub struct Hashes {
    md5: md5::State,
    sha256: Sha256,
    len: u64,
    /// The last `len % 64` bytes of the body, at the front.
    rest: [u8; BLOCK],
}

#[derive(Clone)]
enum Sha256 {
    Unwanted,
    Processor(ShaNi, sha256::State),
    Library(Box<digest::Context>),
}

impl Default for Hashes {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Hashes {
    /// The hashes at the first byte of a body, with or without SHA-256.
    pub fn new(with_sha256: bool) -> Self {
        Self::with_instructions(with_sha256, ShaNi::detect())
    }

    fn with_instructions(with_sha256: bool, sha: Option<ShaNi>) -> Self {
        let sha256 = match (with_sha256, sha) {
            (false, _) => Sha256::Unwanted,
            (true, Some(sha)) => Sha256::Processor(sha, sha256::BEGIN),
            (true, None) => Sha256::Library(Box::new(digest::Context::new(&digest::SHA256))),
        };
        Self {
            md5: md5::BEGIN,
            sha256,
            len: 0,
            rest: [0; BLOCK],
        }
    }

    /// Takes the next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        Lane::new(self, bytes).finish_alone();
    }

    /// Ends the body: its MD5, and its SHA-256 if that was wanted.
    pub fn finish(mut self) -> ([u8; 16], Option<[u8; 32]>) {
        let bits = self.len.wrapping_mul(8);
        let (last, count) = self.last(bits.to_le_bytes());
        md5_blocks(&mut self.md5, last.get(..count).unwrap_or(&last));
        let (last, count) = self.last(bits.to_be_bytes());
        let sha256 = match self.sha256 {
            Sha256::Unwanted => None,
            Sha256::Processor(sha, mut state) => {
                sha.hash([&mut state], [last.get(..count).unwrap_or(&last)]);
                Some(bytes(state.map(u32::to_be_bytes)))
            }
            Sha256::Library(context) => {
                let mut hash = [0; 32];
                let to = hash.iter_mut();
                to.zip(context.finish().as_ref())
                    .for_each(|(to, byte)| *to = *byte);
                Some(hash)
            }
        };
        (bytes(self.md5.map(u32::to_le_bytes)), sha256)
    }

    fn filled(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// The last blocks, of which there are one or two: the rest of the body, a bit, and the
    /// length at the end.
    fn last(&self, bits: [u8; 8]) -> ([[u8; BLOCK]; 2], usize) {
        let mut last = [[0; BLOCK]; 2];
        let count = if self.filled() < BLOCK - 8 { 1 } else { 2 };
        let all = last.as_flattened_mut();
        let body = self.rest.iter().take(self.filled()).chain(&[0x80]);
        all.iter_mut().zip(body).for_each(|(to, byte)| *to = *byte);
        let end = all.iter_mut().skip(count * BLOCK - 8);
        end.zip(bits).for_each(|(to, byte)| *to = byte);
        (last, count)
    }

    fn add_blocks(&mut self, blocks: &[[u8; BLOCK]]) {
        // The hashes alternate: while one waits, the processor works on the other.
        for block in blocks.chunks(1) {
            md5_blocks(&mut self.md5, block);
            if let Sha256::Processor(sha, state) = &mut self.sha256 {
                sha.hash([state], [block]);
            }
        }
    }
}

fn bytes<const WORDS: usize, const BYTES: usize>(words: [[u8; 4]; WORDS]) -> [u8; BYTES] {
    const { assert!(4 * WORDS == BYTES) };
    let mut bytes = [0; BYTES];
    let to = bytes.iter_mut().zip(words.as_flattened());
    to.for_each(|(to, byte)| *to = *byte);
    bytes
}

fn md5_blocks(state: &mut md5::State, blocks: &[[u8; BLOCK]]) {
    for block in blocks {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        md5::compress(state, &words);
    }
}

/// Hashes the next bytes of several bodies. It is fastest for [`TOGETHER`] bodies with about as
/// many bytes each.
pub fn update_together<'h, 'b>(work: impl IntoIterator<Item = (&'h mut Hashes, &'b [u8])>)
where
    'b: 'h,
{
    update_with(work, *AVX512);
}

fn update_with<'h, 'b: 'h>(
    work: impl IntoIterator<Item = (&'h mut Hashes, &'b [u8])>,
    avx512: Option<Avx512>,
) {
    let work = work.into_iter();
    let mut lanes: Vec<_> = work
        .map(|(hashes, bytes)| Lane::new(hashes, bytes))
        .collect();
    loop {
        lanes.retain_mut(Lane::is_under_way);
        // Neighbours have about as many blocks left.
        lanes.sort_by_key(|lane| Reverse(lane.blocks.len()));
        match lanes.as_mut_slice() {
            [] => return,
            [alone] => alone.finish_alone(),
            lanes => {
                let width = if avx512.is_some() { SIXTEEN } else { EIGHT };
                let (now, _) = lanes.split_at_mut(lanes.len().min(width));
                hash_group(now, avx512);
            }
        }
    }
}

/// The next bytes of one of several bodies.
struct Lane<'b> {
    hashes: &'b mut Hashes,
    blocks: &'b [[u8; BLOCK]],
    tail: &'b [u8],
}

impl<'b> Lane<'b> {
    fn new(hashes: &'b mut Hashes, bytes: &'b [u8]) -> Self {
        if let Sha256::Library(context) = &mut hashes.sha256 {
            context.update(bytes);
        }
        let filled = hashes.filled();
        hashes.len = hashes.len.wrapping_add(bytes.len() as u64);
        let mut behind = bytes;
        if filled > 0 {
            let (_, room) = hashes.rest.split_at_mut(filled);
            let head;
            (head, behind) = bytes.split_at(room.len().min(bytes.len()));
            room.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
            if head.len() == room.len() {
                let block = [hashes.rest];
                hashes.add_blocks(&block);
            }
        }
        let (blocks, tail) = behind.as_chunks();
        Self {
            hashes,
            blocks,
            tail,
        }
    }

    /// Whether there are whole blocks. If not, stores the rest of the bytes.
    fn is_under_way(&mut self) -> bool {
        if self.blocks.is_empty() {
            // Bytes that `new` has stored already are not in the tail.
            let rest = self.hashes.rest.iter_mut();
            rest.zip(self.tail).for_each(|(to, from)| *to = *from);
        }
        !self.blocks.is_empty()
    }

    fn finish_alone(&mut self) {
        self.hashes.add_blocks(std::mem::take(&mut self.blocks));
        self.is_under_way();
    }

    fn next(&mut self, count: usize) -> &'b [[u8; BLOCK]] {
        let next;
        (next, self.blocks) = self.blocks.split_at(count.min(self.blocks.len()));
        next
    }
}

/// Hashes as many blocks of up to sixteen bodies as the shortest of them has, at most a stretch.
/// Without vectors for sixteen there may be eight bodies.
fn hash_group(lanes: &mut [Lane<'_>], avx512: Option<Avx512>) {
    let common = lanes.iter().map(|lane| lane.blocks.len()).min();
    let common = common.unwrap_or_default().min(STRETCH / BLOCK);
    // Places without a body get the blocks of the first one.
    let first = lanes.first().map_or(&[][..], |lane| lane.blocks);
    let mut blocks = [first.get(..common).unwrap_or_default(); SIXTEEN];
    let mut md5s = [md5::BEGIN; SIXTEEN];
    let mut sha256s = [sha256::BEGIN; SIXTEEN];
    let mut many = 0;
    let places = blocks.iter_mut().zip(&mut md5s).zip(&mut sha256s);
    for (((blocks, md5), sha256), lane) in places.zip(lanes.iter_mut()) {
        (*blocks, *md5) = (lane.next(common), lane.hashes.md5);
        if let Sha256::Processor(_, state) = lane.hashes.sha256 {
            *sha256 = state;
            many += 1;
        }
    }
    match avx512 {
        Some(avx512) if many >= MANY => {
            avx512.md5_and_sha256(&mut md5s, &mut sha256s, &blocks);
            for (lane, after) in lanes.iter_mut().zip(sha256s) {
                if let Sha256::Processor(_, state) = &mut lane.hashes.sha256 {
                    *state = after;
                }
            }
        }
        Some(avx512) => {
            avx512.md5(&mut md5s, &blocks);
            sha256_by_two(lanes, &blocks);
        }
        None => {
            eight::md5(&mut md5s, &blocks, common);
            sha256_by_two(lanes, &blocks);
        }
    }
    for (lane, after) in lanes.iter_mut().zip(md5s) {
        lane.hashes.md5 = after;
    }
}

/// Computes the SHA-256s of two bodies at a time. `blocks` has as many of each lane.
fn sha256_by_two(lanes: &mut [Lane<'_>], blocks: &[&[[u8; BLOCK]]]) {
    let lanes = lanes.iter_mut().zip(blocks);
    let mut wanted = lanes.filter_map(|(lane, blocks)| match &mut lane.hashes.sha256 {
        Sha256::Processor(sha, state) => Some((sha, state, *blocks)),
        Sha256::Unwanted | Sha256::Library(_) => None,
    });
    while let Some((sha, state, blocks)) = wanted.next() {
        match wanted.next() {
            Some((_, other, others)) => sha.hash([state, other], [blocks, others]),
            None => sha.hash([state], [blocks]),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use data_encoding::HEXLOWER;

    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        bytes
    }

    fn check((md5, sha256): ([u8; 16], Option<[u8; 32]>), body: &[u8], what: &str) {
        assert_eq!(md5, ::md5::compute(body).0, "{what}");
        if let Some(sha256) = sha256 {
            let other = digest::digest(&digest::SHA256, body);
            assert_eq!(sha256, other.as_ref(), "{what}");
        }
    }

    #[test]
    fn the_rows_of_the_rfc_come_out() {
        let digits = "1234567890".repeat(8);
        for (text, hex) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (&digits, "57edf4a22be3c955ac49da2e2107b67a"),
        ] {
            let mut hashes = Hashes::new(false);
            hashes.update(text.as_bytes());
            let (md5, sha256) = hashes.finish();
            assert_eq!(
                (HEXLOWER.encode(&md5).as_str(), sha256),
                (hex, None),
                "{text}"
            );
        }
    }

    #[test]
    fn every_length_is_hashed_as_another_implementation_does() {
        let bytes = noise(300, 1);
        for len in 0..bytes.len() {
            for sha in [None, ShaNi::detect()] {
                let mut hashes = Hashes::with_instructions(true, sha);
                hashes.update(&bytes[..len / 3]);
                hashes.update(&bytes[len / 3..len]);
                let hashes = hashes.finish();
                assert!(hashes.1.is_some());
                check(hashes, &bytes[..len], &format!("{len} bytes"));
            }
        }
    }

    #[test]
    fn bodies_that_go_together_are_hashed_as_if_alone() {
        together_as_alone(None);
        match Avx512::detect() {
            Some(avx512) => together_as_alone(Some(avx512)),
            None => eprintln!("skipped: no AVX-512 here"),
        }
    }

    fn together_as_alone(avx512: Option<Avx512>) {
        let mut random = fastrand::Rng::with_seed(9);
        for round in 0..6 * TOGETHER {
            // Some rounds have long bodies. None, some, most or all want a SHA-256.
            let count = round / 2;
            let most = [5000, 3 * STRETCH][round % 2];
            let bodies: Vec<_> = (0..count)
                .map(|n| noise(random.usize(..most), n as u64))
                .collect();
            let wants = [0, 30, 90, 100][round / 2 % 4];
            let mut hashes: Vec<_> = (0..count)
                .map(|_| {
                    let sha = ShaNi::detect().filter(|_| random.u8(..10) > 0);
                    Hashes::with_instructions(random.u8(..100) < wants, sha)
                })
                .collect();
            let mut at = vec![0; count];
            while at.iter().zip(&bodies).any(|(at, body)| *at < body.len()) {
                let work = hashes.iter_mut().zip(&bodies).zip(&mut at);
                let next = work.map(|((hashes, body), at)| {
                    let end = body.len().min(*at + random.usize(..most / 2));
                    (hashes, &body[std::mem::replace(at, end)..end])
                });
                update_with(next, avx512);
            }
            for (hashes, body) in hashes.into_iter().zip(&bodies) {
                let wanted = !matches!(hashes.sha256, Sha256::Unwanted);
                let hashes = hashes.finish();
                assert_eq!(hashes.1.is_some(), wanted);
                check(hashes, body, &format!("one of {count}"));
            }
        }
    }
}
