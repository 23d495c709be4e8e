//! MD5 and SHA-256 of the same sixteen messages. Each step of MD5 waits for the one before. The
//! processor fills the gaps with steps of SHA-256 if they are near, so the two alternate,
//! sixteen steps each.

use std::arch::x86_64::_mm512_add_epi32;

use super::sixteen::{common, gathered, scatter, words};
use crate::md5::rounds::{Words, first, fourth, second, third};
use crate::md5::sixteen::Sixteen;
use crate::sha256::{K, sixteen as sha};
use crate::{Blocks, SIXTEEN, md5, sha256};

/// Hashes the next blocks: of each message as many as the shortest has.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash(
    md5s: &mut [md5::State; SIXTEEN],
    sha256s: &mut [sha256::State; SIXTEEN],
    blocks: &Blocks<'_>,
) {
    let [k0, k1, k2, k3] = K.as_flattened().as_chunks::<16>().0 else {
        return;
    };
    let mut a = Sixteen::from_words(gathered(md5s));
    let mut b = gathered(sha256s);
    for n in 0..common(blocks) {
        let before_a = a;
        let before_b = b;
        let words = words(blocks, n);
        let m = Sixteen::from_words(words);
        let mut w = sha::swapped(words);
        first(&mut a, &m);
        sha::rounds(&mut b, &w, k0);
        second(&mut a, &m);
        sha::next(&mut w);
        sha::rounds(&mut b, &w, k1);
        third(&mut a, &m);
        sha::next(&mut w);
        sha::rounds(&mut b, &w, k2);
        fourth(&mut a, &m);
        sha::next(&mut w);
        sha::rounds(&mut b, &w, k3);
        for (a, before) in a.iter_mut().zip(before_a) {
            *a = a.plus(before);
        }
        for (b, before) in b.iter_mut().zip(before_b) {
            *b = _mm512_add_epi32(*b, before);
        }
    }
    scatter(&Sixteen::words(a), md5s);
    scatter(&b, sha256s);
}
