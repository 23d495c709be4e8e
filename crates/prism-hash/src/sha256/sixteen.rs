//! The rounds of SHA-256 on words of sixteen messages (FIPS 180-4, section 6.2.2).

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_set4_epi32,
    _mm512_shuffle_epi8, _mm512_srli_epi32, _mm512_ternarylogic_epi32,
};

use crate::SIXTEEN;

/// Swaps the bytes of the words of a block, which are big-endian.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn swapped(mut words: [__m512i; SIXTEEN]) -> [__m512i; SIXTEEN] {
    let swap = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
    for words in &mut words {
        *words = _mm512_shuffle_epi8(*words, swap);
    }
    words
}

/// Replaces the words of the schedule by its next sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn next(w: &mut [__m512i; 16]) {
    macro_rules! next {
        ($($n:literal)+) => {
            $(w[$n] = _mm512_add_epi32(
                _mm512_add_epi32(w[$n], w[($n + 9) % 16]),
                _mm512_add_epi32(small_0(w[($n + 1) % 16]), small_1(w[($n + 14) % 16])),
            );)+
        };
    }
    next!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// Sixteen rounds with these words of the schedule and these constants.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn rounds(state: &mut [__m512i; 8], w: &[__m512i; 16], k: &[u32; 16]) {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    // Eight rounds, after which the words of the state are in their places again.
    macro_rules! eight {
        ($n0:literal $n1:literal $n2:literal $n3:literal
         $n4:literal $n5:literal $n6:literal $n7:literal) => {
            round(a, b, c, &mut d, e, f, g, &mut h, w[$n0], k[$n0]);
            round(h, a, b, &mut c, d, e, f, &mut g, w[$n1], k[$n1]);
            round(g, h, a, &mut b, c, d, e, &mut f, w[$n2], k[$n2]);
            round(f, g, h, &mut a, b, c, d, &mut e, w[$n3], k[$n3]);
            round(e, f, g, &mut h, a, b, c, &mut d, w[$n4], k[$n4]);
            round(d, e, f, &mut g, h, a, b, &mut c, w[$n5], k[$n5]);
            round(c, d, e, &mut f, g, h, a, &mut b, w[$n6], k[$n6]);
            round(b, c, d, &mut e, f, g, h, &mut a, w[$n7], k[$n7]);
        };
    }
    eight!(0 1 2 3 4 5 6 7);
    eight!(8 9 10 11 12 13 14 15);
    *state = [a, b, c, d, e, f, g, h];
}

/// One round: `d` and `h` become the next `e` and `a`.
#[expect(clippy::too_many_arguments, reason = "the standard's words and names")]
#[inline]
#[target_feature(enable = "avx512f")]
fn round(
    a: __m512i,
    b: __m512i,
    c: __m512i,
    d: &mut __m512i,
    e: __m512i,
    f: __m512i,
    g: __m512i,
    h: &mut __m512i,
    w: __m512i,
    k: u32,
) {
    // Truth tables for the bits of three words.
    const CHOOSE: i32 = 0xca;
    const MAJORITY: i32 = 0xe8;
    let wk = _mm512_add_epi32(w, _mm512_set1_epi32(k.cast_signed()));
    let choice = _mm512_ternarylogic_epi32::<CHOOSE>(e, f, g);
    let sum_1 = exclusive_or(
        _mm512_ror_epi32::<6>(e),
        _mm512_ror_epi32::<11>(e),
        _mm512_ror_epi32::<25>(e),
    );
    let sum_0 = exclusive_or(
        _mm512_ror_epi32::<2>(a),
        _mm512_ror_epi32::<13>(a),
        _mm512_ror_epi32::<22>(a),
    );
    let majority = _mm512_ternarylogic_epi32::<MAJORITY>(a, b, c);
    // The newest terms are added last.
    let t1 = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(*h, wk), choice), sum_1);
    *d = _mm512_add_epi32(*d, t1);
    *h = _mm512_add_epi32(t1, _mm512_add_epi32(sum_0, majority));
}

#[inline]
#[target_feature(enable = "avx512f")]
fn exclusive_or(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0x96>(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn small_0(x: __m512i) -> __m512i {
    exclusive_or(
        _mm512_ror_epi32::<7>(x),
        _mm512_ror_epi32::<18>(x),
        _mm512_srli_epi32::<3>(x),
    )
}

#[inline]
#[target_feature(enable = "avx512f")]
fn small_1(x: __m512i) -> __m512i {
    exclusive_or(
        _mm512_ror_epi32::<17>(x),
        _mm512_ror_epi32::<19>(x),
        _mm512_srli_epi32::<10>(x),
    )
}
