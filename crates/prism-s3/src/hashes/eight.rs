//! MD5 of eight messages. A word of each is in two vectors of four, which every x86-64 and every
//! 64-bit ARM has.

use prism_hash::md5::{State, Words, compress};
use prism_hash::{BLOCK, Blocks, SIXTEEN};
use wide::u32x4;

/// Messages that are hashed together.
pub(super) const EIGHT: usize = 8;

/// Hashes the next blocks, so many, of the first eight messages.
pub(super) fn md5(states: &mut [State; SIXTEEN], blocks: &Blocks<'_>, count: usize) {
    let (Some(states), Some(blocks)) = (states.first_chunk_mut(), blocks.first_chunk()) else {
        return;
    };
    let mut state = Eight::gathered(*states);
    for n in 0..count {
        let words = Eight::words(blocks.map(|blocks| blocks.get(n).unwrap_or(&[0; BLOCK])));
        compress(&mut state, &words);
    }
    *states = Eight::scattered(state);
}

/// A word of each message.
#[derive(Clone, Copy)]
struct Eight(u32x4, u32x4);

impl Eight {
    /// The words of the blocks: all first words, then all second words, and so on.
    #[inline(always)]
    fn words(blocks: [&[u8; BLOCK]; EIGHT]) -> [Self; 16] {
        let quarters = blocks.map(|block| block.as_chunks::<16>().0);
        let mut all = [Self::splat(0); 16];
        for (n, words) in all.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *words = Self::gathered(quarters.map(|q| q.get(n).map_or([0; 4], four_words)));
        }
        all
    }

    /// Turns four words of each message into four words of all.
    #[inline(always)]
    fn gathered([a, b, c, d, e, f, g, h]: [[u32; 4]; EIGHT]) -> [Self; 4] {
        let first = u32x4::transpose([a, b, c, d].map(u32x4::new));
        let second = u32x4::transpose([e, f, g, h].map(u32x4::new));
        let mut words = [Self::splat(0); 4];
        for ((words, first), second) in words.iter_mut().zip(first).zip(second) {
            *words = Self(first, second);
        }
        words
    }

    /// The reverse of [`Eight::gathered`].
    fn scattered(words: [Self; 4]) -> [[u32; 4]; EIGHT] {
        let first = u32x4::transpose(words.map(|words| words.0));
        let second = u32x4::transpose(words.map(|words| words.1));
        let [a, b, c, d] = first.map(u32x4::to_array);
        let [e, f, g, h] = second.map(u32x4::to_array);
        [a, b, c, d, e, f, g, h]
    }
}

#[inline(always)]
fn four_words(bytes: &[u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

impl Words for Eight {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self(u32x4::splat(word), u32x4::splat(word))
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0, self.1 & other.1)
    }

    #[inline(always)]
    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0, self.1 & !other.1)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0, self.1 | other.1)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }

    #[inline(always)]
    fn rotated<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        let rotated = |words: u32x4| words << LEFT | words >> RIGHT;
        Self(rotated(self.0), rotated(self.1))
    }
}
