//! The rounds of SHA-256 (FIPS 180-4) with the processor's instructions for it (SHA-NI), for one
//! message or for two together. Each round waits for the one before, so two together take less
//! time than one after the other. [`crate::avx512`] hashes sixteen.
//!
//! Not here: padding, lengths, the grouping of messages, and an implementation for processors
//! without the instructions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod sixteen;

use crate::avx512::BLOCK;

/// The state between two blocks: the words `a` to `h`.
pub type State = [u32; 8];

/// The state before the first block (section 5.3.3).
pub const BEGIN: State = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The constants of four rounds each.
#[cfg(target_arch = "x86_64")]
pub(crate) const K: [[u32; 4]; 16] = [
    [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
    [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
    [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
    [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
    [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
    [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
    [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
    [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
    [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
    [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
    [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
    [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
    [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
    [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
    [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
    [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
];

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub struct ShaNi(imp::Has);

impl ShaNi {
    /// The proof, if the processor has the instructions.
    #[must_use]
    pub fn detect() -> Option<Self> {
        imp::detect().map(Self)
    }

    /// Hashes the next blocks of one message.
    pub fn one(self, state: &mut State, blocks: &[[u8; BLOCK]]) {
        imp::one(self.0, state, blocks);
    }

    /// Hashes the next blocks of two messages: of each as many as the shorter has.
    pub fn two(
        self,
        state_a: &mut State,
        blocks_a: &[[u8; BLOCK]],
        state_b: &mut State,
        blocks_b: &[[u8; BLOCK]],
    ) {
        imp::two(self.0, state_a, blocks_a, state_b, blocks_b);
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use super::{BLOCK, State};

    /// Other architectures have no such proof.
    #[derive(Clone, Copy, Debug)]
    pub(super) enum Has {}

    pub(super) fn detect() -> Option<Has> {
        None
    }

    pub(super) fn one(has: Has, _: &mut State, _: &[[u8; BLOCK]]) {
        match has {}
    }

    pub(super) fn two(
        has: Has,
        _: &mut State,
        _: &[[u8; BLOCK]],
        _: &mut State,
        _: &[[u8; BLOCK]],
    ) {
        match has {}
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_loadu_si128, _mm_set_epi32, _mm_set_epi64x,
        _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
        _mm_shuffle_epi32, _mm_storeu_si128,
    };

    use super::{BLOCK, K, State};

    /// Made by [`detect`] only.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Has(());

    pub(super) fn detect() -> Option<Has> {
        let all = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1");
        all.then_some(Has(()))
    }

    pub(super) fn one(_: Has, state: &mut State, blocks: &[[u8; BLOCK]]) {
        // SAFETY: `Has` proves that the processor has the instructions of the function.
        unsafe { one_by_sha(state, blocks) }
    }

    pub(super) fn two(
        _: Has,
        state_a: &mut State,
        blocks_a: &[[u8; BLOCK]],
        state_b: &mut State,
        blocks_b: &[[u8; BLOCK]],
    ) {
        // SAFETY: as in `one`.
        unsafe { two_by_sha(state_a, blocks_a, state_b, blocks_b) }
    }

    /// The state of a message in the order of the instructions, and the last sixteen words of
    /// its schedule.
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

        /// Four rounds with these words of the schedule.
        #[inline]
        #[target_feature(enable = "sha,ssse3,sse4.1")]
        fn rounds(&mut self, w: __m128i, k: &[u32; 4]) {
            let [k0, k1, k2, k3] = k.map(u32::cast_signed);
            let wk = _mm_add_epi32(w, _mm_set_epi32(k3, k2, k1, k0));
            self.cdgh = _mm_sha256rnds2_epu32(self.cdgh, self.abef, wk);
            let wk = _mm_shuffle_epi32(wk, 0x0e);
            self.abef = _mm_sha256rnds2_epu32(self.abef, self.cdgh, wk);
        }

        /// The next four words of the schedule, which replace its oldest.
        #[inline]
        #[target_feature(enable = "sha,ssse3,sse4.1")]
        fn next(w0: __m128i, w1: __m128i, w2: __m128i, w3: __m128i) -> __m128i {
            let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
            _mm_sha256msg2_epu32(sum, w3)
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

    /// Hashes one block of each lane. The lanes alternate, so that the processor can work on one
    /// while the other waits.
    macro_rules! block {
        ($($lane:ident),+) => {
            block!(@ 0 1 2 3; $($lane),+);
            block!(@ 4 5 6 7; $($lane),+);
            block!(@ 8 9 10 11; $($lane),+);
            $($lane.rounds($lane.w[0], &K[12]);)+
            $($lane.rounds($lane.w[1], &K[13]);)+
            $($lane.rounds($lane.w[2], &K[14]);)+
            $($lane.rounds($lane.w[3], &K[15]);)+
        };
        (@ $k0:literal $k1:literal $k2:literal $k3:literal; $($lane:ident),+) => {
            $(
                let [w0, w1, w2, w3] = $lane.w;
                $lane.rounds(w0, &K[$k0]);
                $lane.w[0] = Lane::next(w0, w1, w2, w3);
            )+
            $(
                let [w0, w1, w2, w3] = $lane.w;
                $lane.rounds(w1, &K[$k1]);
                $lane.w[1] = Lane::next(w1, w2, w3, w0);
            )+
            $(
                let [w0, w1, w2, w3] = $lane.w;
                $lane.rounds(w2, &K[$k2]);
                $lane.w[2] = Lane::next(w2, w3, w0, w1);
            )+
            $(
                let [w0, w1, w2, w3] = $lane.w;
                $lane.rounds(w3, &K[$k3]);
                $lane.w[3] = Lane::next(w3, w0, w1, w2);
            )+
        };
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn one_by_sha(state: &mut State, blocks: &[[u8; BLOCK]]) {
        let mut a = Lane::new(state);
        for block in blocks {
            let before = a;
            a.load(block);
            block!(a);
            a.plus(&before);
        }
        *state = a.state();
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn two_by_sha(
        state_a: &mut State,
        blocks_a: &[[u8; BLOCK]],
        state_b: &mut State,
        blocks_b: &[[u8; BLOCK]],
    ) {
        let (mut a, mut b) = (Lane::new(state_a), Lane::new(state_b));
        for (block_a, block_b) in blocks_a.iter().zip(blocks_b) {
            let (before_a, before_b) = (a, b);
            a.load(block_a);
            b.load(block_b);
            block!(a, b);
            a.plus(&before_a);
            b.plus(&before_b);
        }
        (*state_a, *state_b) = (a.state(), b.state());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use aws_lc_rs::digest::{SHA256, digest};

    use super::*;

    fn padded(message: &[u8]) -> Vec<[u8; BLOCK]> {
        let mut bytes = message.to_vec();
        bytes.push(0x80);
        bytes.resize((bytes.len() + 8).next_multiple_of(BLOCK) - 8, 0);
        bytes.extend((8 * message.len() as u64).to_be_bytes());
        bytes.as_chunks().0.to_vec()
    }

    fn bytes(state: State) -> Vec<u8> {
        state.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        bytes
    }

    /// `None` if the processor lacks the instructions, which is no failure.
    fn sha() -> Option<ShaNi> {
        let found = ShaNi::detect();
        if found.is_none() {
            eprintln!("skipped: no SHA-NI here");
        }
        found
    }

    #[test]
    fn the_rows_of_the_standard_come_out() {
        let Some(sha) = sha() else { return };
        let rows: [(&[u8], &str); 3] = [
            (
                b"",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                b"abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
        ];
        for (message, hex) in rows {
            let mut state = BEGIN;
            sha.one(&mut state, &padded(message));
            let found: String = bytes(state).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(found, hex);
        }
    }

    #[test]
    fn one_and_two_at_a_time_agree_with_another_implementation() {
        let Some(sha) = sha() else { return };
        let mut random = fastrand::Rng::with_seed(3);
        for n in 0..300 {
            let message = |len, seed| {
                let message = noise(len, seed);
                let whole = digest(&SHA256, &message).as_ref().to_vec();
                (padded(&message), whole)
            };
            let (a, whole_a) = message(random.usize(..3000), 2 * n);
            let (b, whole_b) = message(random.usize(..3000), 2 * n + 1);
            let (mut state_a, mut state_b) = (BEGIN, BEGIN);
            // The common blocks together in two steps, then the others alone.
            let first = random.usize(..=a.len().min(b.len()));
            sha.two(&mut state_a, &a[..first], &mut state_b, &b[..first]);
            sha.two(&mut state_a, &a[first..], &mut state_b, &b[first..]);
            let both = a.len().min(b.len());
            sha.one(&mut state_a, &a[both..]);
            sha.one(&mut state_b, &b[both..]);
            assert_eq!(bytes(state_a), whole_a, "pair {n}");
            assert_eq!(bytes(state_b), whole_b, "pair {n}");
        }
    }
}
