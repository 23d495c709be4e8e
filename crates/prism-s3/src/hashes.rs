//! The two hashes that nearly every body needs: MD5 (RFC 1321), which becomes its ETag,
//! and the SHA-256 (FIPS 180-4) that its request signed.
//!
//! Of all that is done with a body they cost most, as each of their steps waits for the
//! one before, so that a core does little else meanwhile. The steps of several bodies do
//! not wait for one another: where the processor has vectors of sixteen words, sixteen
//! bodies have both in the time of four (`prism_hash::avx512`). Where it has not, MD5 goes by
//! eight, and SHA-256 by two with the processor's instructions (`prism_hash::sha256`), or
//! as the library does it. Both hashes take blocks of 64 bytes.
//!
//! Not responsible for bringing bodies together: that is the caller's, who has them. MD5
//! protects from nothing but accidents.

mod eight;

use std::cmp::Reverse;
use std::sync::LazyLock;

use aws_lc_rs::digest;
use prism_hash::avx512::{Avx512, BLOCK, SIXTEEN};
use prism_hash::sha256::ShaNi;
use prism_hash::{md5, sha256};

use eight::{EIGHT, Eight};

/// Bodies that go together at most. Where the processor has vectors for eight only,
/// half of them go before the others.
pub const TOGETHER: usize = SIXTEEN;

/// From so many SHA-256s on vectors are faster than the processor's instructions for it:
/// they take as long for one as for sixteen.
const MANY: usize = 10;

/// Bytes of a body that are hashed before the next one's: all bodies' have room in a
/// core's cache, where a second hash finds them.
const STRETCH: usize = 32 << 10;

/// Asked for once: it is a question of many instructions.
static AVX512: LazyLock<Option<Avx512>> = LazyLock::new(Avx512::detect);

/// The hashes of one body, as far as it has come in.
#[derive(Clone)]
pub struct Hashes {
    md5: md5::State,
    sha256: Sha256,
    len: u64,
    /// The last `len % 64` bytes, at its beginning.
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

impl std::fmt::Debug for Hashes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashes")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Hashes {
    /// At the first byte of a body. The SHA-256 only `with_sha256`.
    #[must_use]
    pub fn new(with_sha256: bool) -> Self {
        Self::by(with_sha256, ShaNi::detect())
    }

    fn by(with_sha256: bool, sha: Option<ShaNi>) -> Self {
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

    /// The body has ended: its MD5, and its SHA-256 where that was wanted.
    #[must_use]
    pub fn finish(mut self) -> ([u8; 16], Option<[u8; 32]>) {
        let bits = self.len.wrapping_mul(8);
        let (last, count) = self.last(bits.to_le_bytes());
        take_md5(&mut self.md5, last.get(..count).unwrap_or(&last));
        let (last, count) = self.last(bits.to_be_bytes());
        let sha256 = match self.sha256 {
            Sha256::Unwanted => None,
            Sha256::Processor(sha, mut state) => {
                sha.one(&mut state, last.get(..count).unwrap_or(&last));
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

    /// The last blocks, and whether there is one or two: what is left of the body, a bit,
    /// and its length at the end.
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

    fn take(&mut self, blocks: &[[u8; BLOCK]]) {
        // By turns: while one of them waits for itself, the processor is at the other.
        for block in blocks.chunks(1) {
            take_md5(&mut self.md5, block);
            if let Sha256::Processor(sha, state) = &mut self.sha256 {
                sha.one(state, block);
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

fn take_md5(state: &mut md5::State, blocks: &[[u8; BLOCK]]) {
    for block in blocks {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        md5::compress(state, &words);
    }
}

/// Takes the next bytes of several bodies. It goes best where all have about as many,
/// and where there are [`TOGETHER`].
pub fn update_together<'h, 'b>(work: impl IntoIterator<Item = (&'h mut Hashes, &'b [u8])>)
where
    'b: 'h,
{
    go_on_together(work, *AVX512);
}

fn go_on_together<'h, 'b: 'h>(
    work: impl IntoIterator<Item = (&'h mut Hashes, &'b [u8])>,
    avx512: Option<Avx512>,
) {
    let work = work.into_iter();
    let mut lanes: Vec<_> = work
        .map(|(hashes, bytes)| Lane::new(hashes, bytes))
        .collect();
    loop {
        lanes.retain_mut(Lane::is_under_way);
        // Neighbours have about as many left.
        lanes.sort_by_key(|lane| Reverse(lane.blocks.len()));
        match (lanes.as_mut_slice(), avx512) {
            ([], _) => return,
            ([alone], _) => alone.finish_alone(),
            (lanes, Some(avx512)) => {
                let (now, _) = lanes.split_at_mut(lanes.len().min(SIXTEEN));
                take_sixteen(now, avx512);
            }
            (lanes, None) => {
                let (now, _) = lanes.split_at_mut(lanes.len().min(EIGHT));
                take_eight(now);
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
                hashes.take(&block);
            }
        }
        let (blocks, tail) = behind.as_chunks();
        Self {
            hashes,
            blocks,
            tail,
        }
    }

    /// Whether there are whole blocks; keeps what is behind them where there are not.
    fn is_under_way(&mut self) -> bool {
        if self.blocks.is_empty() {
            // None, where it has been kept already, behind what was there.
            let kept = self.hashes.rest.iter_mut();
            kept.zip(self.tail).for_each(|(to, from)| *to = *from);
        }
        !self.blocks.is_empty()
    }

    fn finish_alone(&mut self) {
        self.hashes.take(std::mem::take(&mut self.blocks));
        self.is_under_way();
    }

    fn next(&mut self, count: usize) -> &'b [[u8; BLOCK]] {
        let next;
        (next, self.blocks) = self.blocks.split_at(count.min(self.blocks.len()));
        next
    }
}

/// Blocks that all have, within a stretch.
fn common(lanes: &[Lane<'_>]) -> usize {
    let blocks = lanes.iter().map(|lane| lane.blocks.len());
    blocks.min().unwrap_or_default().min(STRETCH / BLOCK)
}

/// Takes as many blocks of up to sixteen bodies as the shortest of them has.
fn take_sixteen(lanes: &mut [Lane<'_>], avx512: Avx512) {
    let common = common(lanes);
    // Places that nobody has go along with the first one's blocks.
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
    if many < MANY {
        avx512.md5(&mut md5s, &blocks);
        take_sha256_by_two(lanes, &blocks);
    } else {
        avx512.md5_and_sha256(&mut md5s, &mut sha256s, &blocks);
        for (lane, after) in lanes.iter_mut().zip(sha256s) {
            if let Sha256::Processor(_, state) = &mut lane.hashes.sha256 {
                *state = after;
            }
        }
    }
    for (lane, after) in lanes.iter_mut().zip(md5s) {
        lane.hashes.md5 = after;
    }
}

/// Takes as many blocks of up to eight bodies as the shortest of them has.
fn take_eight(lanes: &mut [Lane<'_>]) {
    let common = common(lanes);
    let mut blocks = [[].as_slice(); EIGHT];
    let mut md5s = [md5::BEGIN; EIGHT];
    for ((blocks, md5), lane) in blocks.iter_mut().zip(&mut md5s).zip(lanes.iter_mut()) {
        (*blocks, *md5) = (lane.next(common), lane.hashes.md5);
    }
    let mut state = Eight::gathered(md5s);
    for n in 0..common {
        let words = Eight::words(blocks.map(|blocks| blocks.get(n).unwrap_or(&[0; BLOCK])));
        md5::compress(&mut state, &words);
    }
    take_sha256_by_two(lanes, &blocks);
    for (lane, after) in lanes.iter_mut().zip(Eight::scattered(state)) {
        lane.hashes.md5 = after;
    }
}

/// Of each body the blocks in its place, all as many.
fn take_sha256_by_two(lanes: &mut [Lane<'_>], blocks: &[&[[u8; BLOCK]]]) {
    let lanes = lanes.iter_mut().zip(blocks);
    let mut wanted = lanes.filter_map(|(lane, blocks)| match &mut lane.hashes.sha256 {
        Sha256::Processor(sha, state) => Some((sha, state, *blocks)),
        Sha256::Unwanted | Sha256::Library(_) => None,
    });
    while let Some((sha, state, blocks)) = wanted.next() {
        match wanted.next() {
            Some((_, other, others)) => sha.two((state, blocks), (other, others)),
            None => sha.one(state, blocks),
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
                let mut hashes = Hashes::by(true, sha);
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
            // Long ones now and then, and none that wants a SHA-256, some, most, or all.
            let (count, most) = (round / 2, [5000, 3 * STRETCH][round % 2]);
            let bodies: Vec<_> = (0..count)
                .map(|n| noise(random.usize(..most), n as u64))
                .collect();
            let wants = [0, 30, 90, 100][round / 2 % 4];
            let mut hashes: Vec<_> = (0..count)
                .map(|_| {
                    let sha = ShaNi::detect().filter(|_| random.u8(..10) > 0);
                    Hashes::by(random.u8(..100) < wants, sha)
                })
                .collect();
            let mut at = vec![0; count];
            while at.iter().zip(&bodies).any(|(at, body)| *at < body.len()) {
                let work = hashes.iter_mut().zip(&bodies).zip(&mut at);
                let next = work.map(|((hashes, body), at)| {
                    let end = body.len().min(*at + random.usize(..most / 2));
                    (hashes, &body[std::mem::replace(at, end)..end])
                });
                go_on_together(next, avx512);
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
