//! SHA-256 by SHA-NI. The messages alternate at each step, so that the processor can work on one
//! while the other waits.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_loadu_si128, _mm_set_epi32, _mm_set_epi64x,
    _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
    _mm_shuffle_epi32, _mm_storeu_si128,
};

use super::{K, State};
use crate::BLOCK;

/// The state of a message in the order of the instructions, and the last sixteen words of its
/// schedule.
#[derive(Clone, Copy)]
struct Lane {
    abef: __m128i,
    cdgh: __m128i,
    w: [__m128i; 4],
}

impl Lane {
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn new(state: &State) -> Self {
        let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
        Self {
            abef: _mm_set_epi32(a, b, e, f),
            cdgh: _mm_set_epi32(c, d, g, h),
            w: [_mm_set_epi64x(0, 0); 4],
        }
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn state(&self) -> State {
        let [f, e, b, a] = words(self.abef);
        let [h, g, d, c] = words(self.cdgh);
        [a, b, c, d, e, f, g, h]
    }

    /// Loads the big-endian words of a block.
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn load(&mut self, block: &[u8; BLOCK]) {
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        for (w, bytes) in self.w.iter_mut().zip(block.as_chunks::<16>().0) {
            // SAFETY: `bytes` has sixteen bytes; no alignment is needed.
            let loaded = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
            *w = _mm_shuffle_epi8(loaded, swap);
        }
    }

    /// Four rounds with the oldest words of the schedule, which the next four then replace.
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn rounds(&mut self, k: &[u32; 4]) {
        let [w0, w1, w2, w3] = self.w;
        let [k0, k1, k2, k3] = k.map(u32::cast_signed);
        let wk = _mm_add_epi32(w0, _mm_set_epi32(k3, k2, k1, k0));
        self.cdgh = _mm_sha256rnds2_epu32(self.cdgh, self.abef, wk);
        let wk = _mm_shuffle_epi32(wk, 0x0e);
        self.abef = _mm_sha256rnds2_epu32(self.abef, self.cdgh, wk);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
        self.w = [w1, w2, w3, _mm_sha256msg2_epu32(sum, w3)];
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn plus(&mut self, before: &Self) {
        self.abef = _mm_add_epi32(self.abef, before.abef);
        self.cdgh = _mm_add_epi32(self.cdgh, before.cdgh);
    }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn words(vector: __m128i) -> [u32; 4] {
    let mut words = [0; 4];
    // SAFETY: `words` has sixteen bytes; no alignment is needed.
    unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), vector) };
    words
}

/// Hashes the next blocks: of each message as many as the shortest has.
#[target_feature(enable = "sha,ssse3,sse4.1")]
pub(super) fn hash<const N: usize>(states: [&mut State; N], blocks: [&[[u8; BLOCK]]; N]) {
    let mut lanes = [Lane::new(&super::BEGIN); N];
    for (lane, state) in lanes.iter_mut().zip(&states) {
        *lane = Lane::new(state);
    }
    let common = blocks.iter().map(|blocks| blocks.len()).min();
    let mut blocks = blocks.map(<[_]>::iter);
    for _ in 0..common.unwrap_or_default() {
        let before = lanes;
        for (lane, blocks) in lanes.iter_mut().zip(&mut blocks) {
            if let Some(block) = blocks.next() {
                lane.load(block);
            }
        }
        // The processor gets no loop, in which words would move between registers.
        macro_rules! rounds {
            ($($n:literal)+) => {
                $(lanes.iter_mut().for_each(|lane| lane.rounds(&K[$n]));)+
            };
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        for (lane, before) in lanes.iter_mut().zip(&before) {
            lane.plus(before);
        }
    }
    for (state, lane) in states.into_iter().zip(&lanes) {
        *state = lane.state();
    }
}
