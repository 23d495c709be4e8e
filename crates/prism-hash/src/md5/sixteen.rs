//! MD5 of sixteen messages.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_andnot_si512, _mm512_or_si512,
    _mm512_rol_epi32, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_xor_si512,
};

use super::State;
use super::rounds::{Words, compress};
use crate::avx512::sixteen::{common, gathered, scatter, words};
use crate::avx512::{Blocks, SIXTEEN};

/// A word of each message. Made by [`Sixteen::of`] only, so wherever there is one the
/// processor has its instructions; all of it is inlined there.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen(__m512i);

impl Sixteen {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn of<const N: usize>(words: [__m512i; N]) -> [Self; N] {
        let mut of = [Self(_mm512_setzero_si512()); N];
        for (of, words) in of.iter_mut().zip(words) {
            *of = Self(words);
        }
        of
    }

    pub(crate) fn words(of: [Self; 4]) -> [__m512i; 4] {
        let [a, b, c, d] = of;
        [a.0, b.0, c.0, d.0]
    }
}

/// Takes the next blocks: as many of each message as all have.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn take(states: &mut [State; SIXTEEN], blocks: &Blocks<'_>) {
    let mut state = Sixteen::of(gathered(states));
    for n in 0..common(blocks) {
        compress(&mut state, &Sixteen::of(words(blocks, n)));
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
