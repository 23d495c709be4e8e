//! SHA-256 (FIPS 180-4), of two messages at the same time where the processor has
//! instructions for it (`prism_sys::sha256`); else as the library does it.
//!
//! Not responsible for bringing messages together: see [`crate::hashes`].

use aws_lc_rs::digest;
use prism_sys::sha256::{BLOCK, ShaNi, State};

/// The SHA-256 of one message, as far as it has come in.
#[derive(Clone)]
pub struct Sha256(By);

#[derive(Clone)]
enum By {
    Processor(Running),
    Library(digest::Context),
}

#[derive(Clone)]
struct Running {
    sha: ShaNi,
    state: State,
    len: u64,
    /// The last `len % 64` bytes, at its beginning.
    rest: [u8; BLOCK],
}

impl Default for Sha256 {
    fn default() -> Self {
        Self(match ShaNi::detect() {
            Some(sha) => By::Processor(Running::new(sha)),
            None => By::Library(digest::Context::new(&digest::SHA256)),
        })
    }
}

impl std::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sha256").finish_non_exhaustive()
    }
}

impl Sha256 {
    /// Takes the next bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            By::Processor(running) => running.update(bytes),
            By::Library(context) => context.update(bytes),
        }
    }

    /// The message has ended.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        let mut out = [0; 32];
        match self.0 {
            By::Processor(running) => {
                let words = running.finish();
                for (to, word) in out.as_chunks_mut().0.iter_mut().zip(words) {
                    *to = word.to_be_bytes();
                }
            }
            By::Library(context) => {
                let digest = context.finish();
                out.iter_mut()
                    .zip(digest.as_ref())
                    .for_each(|(to, byte)| *to = *byte);
            }
        }
        out
    }
}

/// Takes the next bytes of two messages. It goes best where both have about as many.
pub fn update_two((a, bytes_a): (&mut Sha256, &[u8]), (b, bytes_b): (&mut Sha256, &[u8])) {
    let (By::Processor(a), By::Processor(b)) = (&mut a.0, &mut b.0) else {
        a.update(bytes_a);
        b.update(bytes_b);
        return;
    };
    let (blocks_a, tail_a) = a.begin(bytes_a).as_chunks();
    let (blocks_b, tail_b) = b.begin(bytes_b).as_chunks();
    let both = blocks_a.len().min(blocks_b.len());
    let (both_a, more_a) = blocks_a.split_at(both);
    let (both_b, more_b) = blocks_b.split_at(both);
    a.sha.two((&mut a.state, both_a), (&mut b.state, both_b));
    a.sha.one(&mut a.state, more_a);
    b.sha.one(&mut b.state, more_b);
    a.end(tail_a);
    b.end(tail_b);
}

impl Running {
    fn new(sha: ShaNi) -> Self {
        // Section 5.3.3.
        let state = [
            0x6a09_e667,
            0xbb67_ae85,
            0x3c6e_f372,
            0xa54f_f53a,
            0x510e_527f,
            0x9b05_688c,
            0x1f83_d9ab,
            0x5be0_cd19,
        ];
        Self {
            sha,
            state,
            len: 0,
            rest: [0; BLOCK],
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        let (blocks, tail) = self.begin(bytes).as_chunks();
        self.sha.one(&mut self.state, blocks);
        self.end(tail);
    }

    fn finish(mut self) -> State {
        let bits = self.len.wrapping_mul(8);
        let mut padding = [0; BLOCK + 8];
        padding[0] = 0x80;
        // So many that eight bytes are left of a block.
        let len = BLOCK - (self.filled() + 8) % BLOCK;
        self.update(padding.get(..len).unwrap_or_default());
        self.update(&bits.to_be_bytes());
        self.state
    }

    fn filled(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// Fills up a block that has begun, and gives what is behind it.
    fn begin<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let filled = self.filled();
        self.len = self.len.wrapping_add(bytes.len() as u64);
        if filled == 0 {
            return bytes;
        }
        let (_, room) = self.rest.split_at_mut(filled);
        let (head, behind) = bytes.split_at(room.len().min(bytes.len()));
        let fills = head.len() == room.len();
        room.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        if fills {
            self.sha.one(&mut self.state, &[self.rest]);
        }
        behind
    }

    /// Keeps the bytes behind the last whole block. None, where [`Running::begin`]
    /// has kept them already.
    fn end(&mut self, tail: &[u8]) {
        let kept = self.rest.iter_mut();
        kept.zip(tail).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        bytes
    }

    fn other(bytes: &[u8]) -> Vec<u8> {
        digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
    }

    #[test]
    fn every_length_is_hashed_as_another_implementation_does() {
        let bytes = noise(300, 1);
        for len in 0..bytes.len() {
            let mut sha = Sha256::default();
            sha.update(&bytes[..len / 3]);
            sha.update(&bytes[len / 3..len]);
            assert_eq!(sha.finish()[..], other(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn two_messages_are_hashed_as_if_alone_however_they_come() {
        let mut random = fastrand::Rng::with_seed(7);
        let library = || Sha256(By::Library(digest::Context::new(&digest::SHA256)));
        for n in 0..200 {
            let (a, b) = (noise(random.usize(..5000), n), noise(3000, n + 1000));
            let (mut sha_a, mut sha_b) = (Sha256::default(), Sha256::default());
            if n % 4 == 3 {
                sha_b = library();
            }
            let (mut at_a, mut at_b) = (0, 0);
            while at_a < a.len() || at_b < b.len() {
                let end_a = a.len().min(at_a + random.usize(..900));
                let end_b = b.len().min(at_b + random.usize(..900));
                update_two((&mut sha_a, &a[at_a..end_a]), (&mut sha_b, &b[at_b..end_b]));
                (at_a, at_b) = (end_a, end_b);
            }
            assert_eq!(sha_a.finish()[..], other(&a), "pair {n}");
            assert_eq!(sha_b.finish()[..], other(&b), "pair {n}");
        }
    }
}
