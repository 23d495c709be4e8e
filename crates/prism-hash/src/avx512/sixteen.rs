//! Words of sixteen messages, gathered from blocks and states.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use crate::{BLOCK, Blocks, SIXTEEN};

/// Loads sixteen little-endian words from 64 bytes, such as a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn load<T>(from: &T) -> __m512i {
    const { assert!(size_of::<T>() == BLOCK) };
    // SAFETY: `from` has sixty-four bytes; no alignment is needed.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(from).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(from: __m512i) -> [u32; SIXTEEN] {
    let mut words = [0; SIXTEEN];
    // SAFETY: `words` has sixty-four bytes; no alignment is needed.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), from) };
    words
}

/// The words of the states: all first words, then all second words, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn gathered<const N: usize>(states: &[[u32; N]; SIXTEEN]) -> [__m512i; N] {
    let mut words = [[0; SIXTEEN]; N];
    for (lane, state) in states.iter().enumerate() {
        for (row, word) in words.iter_mut().zip(state) {
            row.iter_mut().skip(lane).take(1).for_each(|to| *to = *word);
        }
    }
    let mut gathered = [_mm512_setzero_si512(); N];
    for (to, row) in gathered.iter_mut().zip(&words) {
        *to = load(row);
    }
    gathered
}

/// The reverse of [`gathered`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn scatter<const N: usize>(words: &[__m512i; N], states: &mut [[u32; N]; SIXTEEN]) {
    for (n, words) in words.iter().enumerate() {
        for (state, word) in states.iter_mut().zip(store(*words)) {
            state.iter_mut().skip(n).take(1).for_each(|to| *to = word);
        }
    }
}

/// The number of blocks that all messages have.
pub(crate) fn common(blocks: &Blocks<'_>) -> usize {
    let counts = blocks.iter().map(|blocks| blocks.len());
    counts.min().unwrap_or_default()
}

/// The words of the `n`th blocks: all first words, then all second words, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn words(blocks: &Blocks<'_>, n: usize) -> [__m512i; SIXTEEN] {
    // `array::map` would make a call for each row, and one for the whole.
    let mut rows = [_mm512_setzero_si512(); SIXTEEN];
    for (row, blocks) in rows.iter_mut().zip(blocks) {
        if let Some(block) = blocks.get(n) {
            *row = load(block);
        }
    }
    transposed(rows)
}

/// The first words of all rows, then the second ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; SIXTEEN]) -> [__m512i; SIXTEEN] {
    // Within each quarter of the vectors, words change places between neighbouring rows, then
    // pairs of words between pairs of rows.
    let mut fours = [_mm512_setzero_si512(); SIXTEEN];
    let from = rows.as_chunks::<4>().0.iter();
    for ([a, b, c, d], to) in from.zip(fours.as_chunks_mut::<4>().0) {
        let ab = _mm512_unpacklo_epi32(*a, *b);
        let cd = _mm512_unpacklo_epi32(*c, *d);
        let ab_high = _mm512_unpackhi_epi32(*a, *b);
        let cd_high = _mm512_unpackhi_epi32(*c, *d);
        *to = [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }
    // Then quarters change places between rows that are four apart.
    let mut all = [_mm512_setzero_si512(); SIXTEEN];
    if let [p, q, r, s] = fours.as_chunks::<4>().0 {
        let rows = p.iter().zip(q).zip(r.iter().zip(s));
        for (n, ((p, q), (r, s))) in rows.enumerate() {
            for (quarter, column) in quarters(*p, *q, *r, *s).into_iter().enumerate() {
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
fn quarters(p: __m512i, q: __m512i, r: __m512i, s: __m512i) -> [__m512i; 4] {
    /// The first and the third quarter of each of two vectors.
    const EVEN: i32 = 0b10_00_10_00;
    /// The second and the fourth quarter of each.
    const ODD: i32 = 0b11_01_11_01;
    let pq = _mm512_shuffle_i32x4::<EVEN>(p, q);
    let rs = _mm512_shuffle_i32x4::<EVEN>(r, s);
    let pq_odd = _mm512_shuffle_i32x4::<ODD>(p, q);
    let rs_odd = _mm512_shuffle_i32x4::<ODD>(r, s);
    [
        _mm512_shuffle_i32x4::<EVEN>(pq, rs),
        _mm512_shuffle_i32x4::<EVEN>(pq_odd, rs_odd),
        _mm512_shuffle_i32x4::<ODD>(pq, rs),
        _mm512_shuffle_i32x4::<ODD>(pq_odd, rs_odd),
    ]
}
