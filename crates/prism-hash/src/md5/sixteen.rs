//! MD5 of sixteen messages.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_andnot_si512, _mm512_or_si512,
    _mm512_rol_epi32, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_xor_si512,
};

use super::State;
use super::rounds::{Words, compress};
use crate::avx512::sixteen::{common, gathered, scatter, words};
use crate::{Blocks, SIXTEEN};

/// A word of each message. Only [`Sixteen::from_words`] makes it, so the processor has the
/// instructions. All functions are inlined into callers with the target feature.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen(__m512i);

impl Sixteen {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn from_words<const N: usize>(words: [__m512i; N]) -> [Self; N] {
        let mut made = [Self(_mm512_setzero_si512()); N];
        for (made, words) in made.iter_mut().zip(words) {
            *made = Self(words);
        }
        made
    }

    pub(crate) fn words(state: [Self; 4]) -> [__m512i; 4] {
        let [a, b, c, d] = state;
        [a.0, b.0, c.0, d.0]
    }
}

/// Hashes the next blocks: of each message as many as the shortest has.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn hash(states: &mut [State; SIXTEEN], blocks: &Blocks<'_>) {
    let mut state = Sixteen::from_words(gathered(states));
    for n in 0..common(blocks) {
        compress(&mut state, &Sixteen::from_words(words(blocks, n)));
    }
    scatter(&Sixteen::words(state), states);
}

impl Words for Sixteen {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn without(self, other: Self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_andnot_si512(other.0, self.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn rotated<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: as `Sixteen` says.
        Self(unsafe { _mm512_rol_epi32::<LEFT>(self.0) })
    }
}
