//! The rounds of SHA-256 (FIPS 180-4) with the processor's instructions for it (SHA-NI), for one
//! message or for two together. Each round waits for the one before, so two together take less
//! time than one after the other. [`crate::avx512`] hashes sixteen.
//!
//! Not here: padding, lengths, the grouping of messages, and an implementation for processors
//! without the instructions.

#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sixteen;

use crate::BLOCK;

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

/// Proof that the processor has the instructions. Other architectures have none.
#[derive(Clone, Copy, Debug)]
pub struct ShaNi(
    #[cfg(not(target_arch = "x86_64"))] std::convert::Infallible,
    (),
);

impl ShaNi {
    /// The proof, if the processor has the instructions.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1")
        {
            return Some(Self(()));
        }
        None
    }

    /// Hashes the next blocks of one message or of two: of each as many as the shortest has.
    pub fn hash<const N: usize>(self, states: [&mut State; N], blocks: [&[[u8; BLOCK]]; N]) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `self` proves that the processor has the instructions of the function.
        unsafe {
            lanes::hash(states, blocks);
        }
        #[cfg(not(target_arch = "x86_64"))]
        match (self.0, states, blocks) {}
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
            sha.hash([&mut state], [&padded(message)]);
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
            sha.hash([&mut state_a, &mut state_b], [&a[..first], &b[..first]]);
            sha.hash([&mut state_a, &mut state_b], [&a[first..], &b[first..]]);
            let both = a.len().min(b.len());
            sha.hash([&mut state_a], [&a[both..]]);
            sha.hash([&mut state_b], [&b[both..]]);
            assert_eq!(bytes(state_a), whole_a, "pair {n}");
            assert_eq!(bytes(state_b), whole_b, "pair {n}");
        }
    }
}
