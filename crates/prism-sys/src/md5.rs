//! The rounds of MD5 (RFC 1321), for one message or for as many as a vector has words:
//! sixteen where the processor has vectors of 512 bits (AVX-512). Each step waits for the
//! one before, so sixteen messages take little longer than one.
//!
//! Not responsible for padding and lengths, nor for bringing messages together. Vectors
//! that need no proof of the processor's are the caller's, by [`Words`].

mod rounds;

pub use rounds::{Words, compress};

/// Bytes of a block.
pub const BLOCK: usize = 64;

/// What stands between two blocks: the words `A` to `D`.
pub type State = [u32; 4];

/// Messages that go together with [`Avx512`].
pub const SIXTEEN: usize = 16;

/// Proof that the processor has vectors of 512 bits.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(imp::Has);

impl Avx512 {
    /// The vectors, where there are any.
    #[must_use]
    pub fn detect() -> Option<Self> {
        imp::detect().map(Self)
    }

    /// Takes the next blocks of sixteen messages: as many of each as all have.
    pub fn sixteen(self, states: &mut [State; SIXTEEN], blocks: &[&[[u8; BLOCK]]; SIXTEEN]) {
        imp::sixteen(self.0, states, blocks);
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use super::{BLOCK, SIXTEEN, State};

    /// There is none.
    #[derive(Clone, Copy, Debug)]
    pub(super) enum Has {}

    pub(super) fn detect() -> Option<Has> {
        None
    }

    pub(super) fn sixteen(has: Has, _: &mut [State; SIXTEEN], _: &[&[[u8; BLOCK]]; SIXTEEN]) {
        match has {}
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_andnot_si512, _mm512_loadu_si512,
        _mm512_or_si512, _mm512_rol_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4,
        _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
        _mm512_unpacklo_epi64, _mm512_xor_si512,
    };

    use super::rounds::{Words, compress};
    use super::{BLOCK, SIXTEEN, State};

    /// Made by [`detect`] only.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Has(());

    pub(super) fn detect() -> Option<Has> {
        is_x86_feature_detected!("avx512f").then_some(Has(()))
    }

    pub(super) fn sixteen(
        _: Has,
        states: &mut [State; SIXTEEN],
        blocks: &[&[[u8; BLOCK]]; SIXTEEN],
    ) {
        // SAFETY: there is a `Has`, so the processor has what the function is made for.
        unsafe { by_avx512(states, blocks) }
    }

    /// A word of each message. Made and used within [`by_avx512`] only, so wherever there
    /// is one the processor has its instructions; all of it is inlined there.
    #[derive(Clone, Copy)]
    struct Sixteen(__m512i);

    #[target_feature(enable = "avx512f")]
    fn by_avx512(states: &mut [State; SIXTEEN], blocks: &[&[[u8; BLOCK]]; SIXTEEN]) {
        let mut words = [[0; SIXTEEN]; 4];
        for (lane, state) in states.iter().enumerate() {
            for (row, word) in words.iter_mut().zip(state) {
                row.iter_mut().skip(lane).take(1).for_each(|to| *to = *word);
            }
        }
        let mut state = [zero(); 4];
        for (to, row) in state.iter_mut().zip(&words) {
            *to = load(row);
        }
        let common = blocks.iter().map(|blocks| blocks.len()).min();
        for n in 0..common.unwrap_or_default() {
            // Not `array::map`: it would be a call for each, and one more for the whole.
            let mut rows = [zero(); SIXTEEN];
            for (row, blocks) in rows.iter_mut().zip(blocks) {
                if let Some(block) = blocks.get(n) {
                    *row = load(block);
                }
            }
            compress(&mut state, &transposed(rows));
        }
        for (row, words) in words.iter_mut().zip(state) {
            *row = store(words);
        }
        for (lane, state) in states.iter_mut().enumerate() {
            for (word, row) in state.iter_mut().zip(&words) {
                row.iter().skip(lane).take(1).for_each(|from| *word = *from);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Sixteen {
        Sixteen(_mm512_set1_epi32(0))
    }

    /// Sixteen words, little-endian as they are: of a block, or of anything as long.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load<T>(from: &T) -> Sixteen {
        const { assert!(size_of::<T>() == BLOCK) };
        // SAFETY: sixty-four bytes are there; no alignment is needed.
        Sixteen(unsafe { _mm512_loadu_si512(std::ptr::from_ref(from).cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(from: Sixteen) -> [u32; SIXTEEN] {
        let mut words = [0; SIXTEEN];
        // SAFETY: there is room for sixty-four bytes; no alignment is needed.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), from.0) };
        words
    }

    /// The first words of all rows, then the second ones.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transposed(rows: [Sixteen; SIXTEEN]) -> [Sixteen; SIXTEEN] {
        // Words, then pairs of words, change places between neighbours, then between
        // the neighbours' neighbours: within each quarter of a vector.
        let mut fours = [zero(); SIXTEEN];
        for (from, to) in rows
            .as_chunks::<4>()
            .0
            .iter()
            .zip(fours.as_chunks_mut::<4>().0)
        {
            let [Sixteen(a), Sixteen(b), Sixteen(c), Sixteen(d)] = *from;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            *to = [
                Sixteen(_mm512_unpacklo_epi64(ab, cd)),
                Sixteen(_mm512_unpackhi_epi64(ab, cd)),
                Sixteen(_mm512_unpacklo_epi64(ab_high, cd_high)),
                Sixteen(_mm512_unpackhi_epi64(ab_high, cd_high)),
            ];
        }
        // Then quarters do, between rows four apart.
        let mut all = [zero(); SIXTEEN];
        if let [p, q, r, s] = fours.as_chunks::<4>().0 {
            let rows = p.iter().zip(q).zip(r.iter().zip(s));
            for (n, ((p, q), (r, s))) in rows.enumerate() {
                for (quarter, column) in quarters(p.0, q.0, r.0, s.0).into_iter().enumerate() {
                    if let Some(to) = all.get_mut(4 * quarter + n) {
                        *to = column;
                    }
                }
            }
        }
        all
    }

    /// The first quarters of all, then the second ones.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn quarters(p: __m512i, q: __m512i, r: __m512i, s: __m512i) -> [Sixteen; 4] {
        /// Of each of two vectors the first and the third quarter.
        const EVEN: i32 = 0b10_00_10_00;
        /// The second and the fourth.
        const ODD: i32 = 0b11_01_11_01;
        let pq = _mm512_shuffle_i32x4::<EVEN>(p, q);
        let rs = _mm512_shuffle_i32x4::<EVEN>(r, s);
        let pq_odd = _mm512_shuffle_i32x4::<ODD>(p, q);
        let rs_odd = _mm512_shuffle_i32x4::<ODD>(r, s);
        [
            Sixteen(_mm512_shuffle_i32x4::<EVEN>(pq, rs)),
            Sixteen(_mm512_shuffle_i32x4::<EVEN>(pq_odd, rs_odd)),
            Sixteen(_mm512_shuffle_i32x4::<ODD>(pq, rs)),
            Sixteen(_mm512_shuffle_i32x4::<ODD>(pq_odd, rs_odd)),
        ]
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
}
