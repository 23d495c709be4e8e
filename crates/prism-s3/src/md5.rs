//! MD5 (RFC 1321), of several messages at the same time.
//!
//! Everything that is stored has its MD5 as ETag, and of all that is done with a
//! body that costs most: each of its steps waits for the one before, so that a
//! core does little else meanwhile. The steps of several messages do not wait for
//! one another: in vectors, eight messages cost little more than one, and sixteen
//! where the processor has vectors for them (`prism_sys::md5`).
//!
//! Not responsible for bringing messages together: that is the caller's, who has
//! them. MD5 protects from nothing but accidents.

mod eight;

use std::sync::LazyLock;

use prism_sys::md5::{Avx512, BLOCK, SIXTEEN, State, compress};

use eight::{EIGHT, Eight};

/// Messages that go together at most. Where the processor has vectors for eight only,
/// half of them go before the others.
pub const LANES: usize = SIXTEEN;

/// Asked for once: it is a question of many instructions.
static AVX512: LazyLock<Option<Avx512>> = LazyLock::new(Avx512::detect);

/// The MD5 of one message, as far as it has come in.
#[derive(Clone)]
pub struct Md5 {
    state: State,
    len: u64,
    /// The last `len % 64` bytes, at its beginning.
    rest: [u8; BLOCK],
}

impl Default for Md5 {
    fn default() -> Self {
        Self {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
            len: 0,
            rest: [0; BLOCK],
        }
    }
}

impl std::fmt::Debug for Md5 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Md5")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Md5 {
    /// Takes the next bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        let (blocks, tail) = self.begin(bytes).as_chunks();
        for block in blocks {
            self.compress(block);
        }
        self.end(tail);
    }

    /// The message has ended.
    #[must_use]
    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.len.wrapping_mul(8);
        let mut padding = [0; BLOCK + 8];
        padding[0] = 0x80;
        // So many that eight bytes are left of a block.
        let len = BLOCK - (self.filled() + 8) % BLOCK;
        self.update(padding.get(..len).unwrap_or_default());
        self.update(&bits.to_le_bytes());
        let mut digest = [0; 16];
        for (bytes, word) in digest.as_chunks_mut().0.iter_mut().zip(self.state) {
            *bytes = word.to_le_bytes();
        }
        digest
    }

    fn filled(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// Fills up a block that has begun, and gives what is behind it.
    fn begin<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let filled = self.filled();
        self.len = self.len.wrapping_add(bytes.len() as u64);
        if filled == 0 {
            return bytes;
        }
        let (_, room) = self.rest.split_at_mut(filled);
        let (head, behind) = bytes.split_at(room.len().min(bytes.len()));
        let fills = head.len() == room.len();
        room.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        if fills {
            let block = self.rest;
            self.compress(&block);
        }
        behind
    }

    /// Keeps the bytes behind the last whole block. None, where [`Md5::begin`]
    /// has kept them already.
    fn end(&mut self, tail: &[u8]) {
        let kept = self.rest.iter_mut();
        kept.zip(tail).for_each(|(to, from)| *to = *from);
    }

    fn compress(&mut self, block: &[u8; BLOCK]) {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        compress(&mut self.state, &words);
    }
}

/// Takes the next bytes of up to [`LANES`] messages. Those behind are taken after them.
/// It goes best where all have about as many.
pub fn update_together<'m>(work: impl IntoIterator<Item = (&'m mut Md5, &'m [u8])>) {
    go_on_together(work.into_iter().map(Lane::new).collect(), *AVX512);
}

fn go_on_together(mut lanes: Vec<Lane<'_>>, avx512: Option<Avx512>) {
    loop {
        lanes.retain_mut(Lane::is_under_way);
        match (lanes.as_mut_slice(), avx512) {
            ([], _) => return,
            ([alone], _) => alone.go_on_alone(),
            (lanes, Some(avx512)) => sixteen(avx512, lanes),
            (lanes, None) => eight(lanes),
        }
    }
}

/// One of several messages.
struct Lane<'m> {
    md5: &'m mut Md5,
    blocks: &'m [[u8; BLOCK]],
    tail: &'m [u8],
}

impl<'m> Lane<'m> {
    fn new((md5, bytes): (&'m mut Md5, &'m [u8])) -> Self {
        let (blocks, tail) = md5.begin(bytes).as_chunks();
        Self { md5, blocks, tail }
    }

    /// Whether there are whole blocks; ends where there are not.
    fn is_under_way(&mut self) -> bool {
        if self.blocks.is_empty() {
            self.md5.end(self.tail);
        }
        !self.blocks.is_empty()
    }

    fn go_on_alone(&mut self) {
        for block in std::mem::take(&mut self.blocks) {
            self.md5.compress(block);
        }
    }
}

/// Takes as many blocks of the first sixteen as the shortest of them has.
fn sixteen(avx512: Avx512, lanes: &mut [Lane<'_>]) {
    let common = common(lanes, SIXTEEN);
    let (mut states, mut blocks) = ([[0; 4]; SIXTEEN], [[].as_slice(); SIXTEEN]);
    // Lanes that nobody has go along with the first one's blocks.
    if let Some(first) = lanes.first() {
        blocks = [first.blocks.get(..common).unwrap_or_default(); SIXTEEN];
    }
    for ((state, blocks), lane) in states.iter_mut().zip(&mut blocks).zip(lanes.iter_mut()) {
        *state = lane.md5.state;
        (*blocks, lane.blocks) = lane.blocks.split_at(common);
    }
    avx512.sixteen(&mut states, &blocks);
    for (lane, state) in lanes.iter_mut().zip(states) {
        lane.md5.state = state;
    }
}

/// Takes as many blocks of the first eight as the shortest of them has.
fn eight(lanes: &mut [Lane<'_>]) {
    let common = common(lanes, EIGHT);
    let mut states = [[0; 4]; EIGHT];
    for (state, lane) in states.iter_mut().zip(lanes.iter()) {
        *state = lane.md5.state;
    }
    let mut state = Eight::gathered(states);
    for _ in 0..common {
        let mut blocks = [&[0; BLOCK]; EIGHT];
        for (to, lane) in blocks.iter_mut().zip(lanes.iter_mut()) {
            if let Some((block, behind)) = lane.blocks.split_first() {
                (*to, lane.blocks) = (block, behind);
            }
        }
        compress(&mut state, &Eight::words(blocks));
    }
    for (lane, state) in lanes.iter_mut().zip(Eight::scattered(state)) {
        lane.md5.state = state;
    }
}

/// Blocks that all of the first `most` have.
fn common(lanes: &[Lane<'_>], most: usize) -> usize {
    let blocks = lanes.iter().take(most).map(|lane| lane.blocks.len());
    blocks.min().unwrap_or_default()
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

    fn other(bytes: &[u8]) -> [u8; 16] {
        ::md5::compute(bytes).0
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
            let mut md5 = Md5::default();
            md5.update(text.as_bytes());
            assert_eq!(HEXLOWER.encode(&md5.finish()), hex, "{text}");
        }
    }

    #[test]
    fn every_length_is_hashed_as_another_implementation_does() {
        let bytes = noise(300, 1);
        for len in 0..bytes.len() {
            let mut md5 = Md5::default();
            md5.update(&bytes[..len / 3]);
            md5.update(&bytes[len / 3..len]);
            assert_eq!(md5.finish(), other(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn messages_that_go_together_are_hashed_as_if_alone() {
        together_as_alone(None);
        match Avx512::detect() {
            Some(avx512) => together_as_alone(Some(avx512)),
            None => eprintln!("skipped: no AVX-512 here"),
        }
    }

    fn together_as_alone(avx512: Option<Avx512>) {
        let mut random = fastrand::Rng::with_seed(7);
        for count in 0..LANES + 3 {
            let lengths = (0..count).map(|_| random.usize(..5000));
            let messages: Vec<_> = lengths.map(|len| noise(len, len as u64)).collect();
            let mut hashes = vec![Md5::default(); count];
            let mut at = vec![0; count];
            while at.iter().zip(&messages).any(|(at, m)| *at < m.len()) {
                let work = hashes.iter_mut().zip(&messages).zip(&mut at);
                let lanes = work.map(|((md5, message), at)| {
                    let end = message.len().min(*at + random.usize(..900));
                    Lane::new((md5, &message[std::mem::replace(at, end)..end]))
                });
                go_on_together(lanes.collect(), avx512);
            }
            for (md5, message) in hashes.into_iter().zip(&messages) {
                assert_eq!(md5.finish(), other(message), "one of {count}");
            }
        }
    }
}
