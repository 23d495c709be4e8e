//! The two hashes that nearly every body needs: MD5, which becomes its ETag, and the
//! SHA-256 that its request signed. Both wait for themselves most of the time, and cost
//! a fraction where several bodies are taken together.
//!
//! Not responsible for bringing bodies together: that is the caller's, who has them.

use crate::md5::{self, Md5};
use crate::sha256::{self, Sha256};

/// Bodies that go together at most.
pub const TOGETHER: usize = md5::LANES;

/// Bytes of a body that are hashed before the next one's: all bodies' have room in a
/// core's cache, where the second hash finds them.
const STRETCH: usize = 32 << 10;

/// The hashes of one body, as far as it has come in.
#[derive(Debug, Clone, Default)]
pub struct Hashes {
    md5: Md5,
    /// Where it is wanted.
    sha256: Option<Sha256>,
}

impl Hashes {
    /// At the first byte of a body. The SHA-256 only `with_sha256`.
    #[must_use]
    pub fn new(with_sha256: bool) -> Self {
        Self {
            md5: Md5::default(),
            sha256: with_sha256.then(Sha256::default),
        }
    }

    /// Takes the next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        for stretch in bytes.chunks(STRETCH) {
            self.md5.update(stretch);
            if let Some(sha256) = &mut self.sha256 {
                sha256.update(stretch);
            }
        }
    }

    /// The body has ended: its MD5, and its SHA-256 where that was wanted.
    #[must_use]
    pub fn finish(self) -> ([u8; 16], Option<[u8; 32]>) {
        (self.md5.finish(), self.sha256.map(Sha256::finish))
    }
}

/// Takes the next bytes of several bodies. It goes best where all have about as many,
/// and where there are [`TOGETHER`].
pub fn update_together<'h, 'b>(work: impl IntoIterator<Item = (&'h mut Hashes, &'b [u8])>) {
    let mut work: Vec<_> = work.into_iter().collect();
    while work.iter().any(|(_, bytes)| !bytes.is_empty()) {
        let mut md5s = Vec::with_capacity(work.len());
        let mut sha256s = Vec::with_capacity(work.len());
        for (hashes, bytes) in &mut work {
            let (stretch, behind) = bytes.split_at(bytes.len().min(STRETCH));
            *bytes = behind;
            md5s.push((&mut hashes.md5, stretch));
            sha256s.extend(hashes.sha256.as_mut().map(|sha256| (sha256, stretch)));
        }
        md5::update_together(md5s);
        update_by_two(sha256s);
    }
}

fn update_by_two(mut work: Vec<(&mut Sha256, &[u8])>) {
    // Neighbours have about as many bytes left.
    work.sort_by_key(|(_, bytes)| bytes.len());
    let mut work = work.into_iter();
    while let Some((sha256, bytes)) = work.next() {
        match work.next() {
            Some(other) => sha256::update_two((sha256, bytes), other),
            None => sha256.update(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use aws_lc_rs::digest;

    use super::*;

    #[test]
    fn bodies_that_go_together_are_hashed_as_if_alone() {
        let mut random = fastrand::Rng::with_seed(9);
        for count in 0..2 * TOGETHER {
            let bodies: Vec<_> = (0..count)
                .map(|_| {
                    let mut body = vec![0; random.usize(..3 * STRETCH)];
                    random.fill(&mut body);
                    body
                })
                .collect();
            let with_sha256 = |n: usize| n % 5 != 4;
            let mut hashes: Vec<_> = (0..count).map(|n| Hashes::new(with_sha256(n))).collect();
            let cuts: Vec<_> = bodies.iter().map(|b| random.usize(..=b.len())).collect();
            let parts = |part: usize| {
                let cut = bodies.iter().zip(&cuts);
                cut.map(move |(body, cut)| match part {
                    0 => &body[..*cut],
                    _ => &body[*cut..],
                })
            };
            update_together(hashes.iter_mut().zip(parts(0)));
            update_together(hashes.iter_mut().zip(parts(1)));
            for (n, (hashes, body)) in hashes.into_iter().zip(&bodies).enumerate() {
                let (md5, sha256) = hashes.finish();
                assert_eq!(md5, ::md5::compute(body).0, "{n} of {count}");
                let other = digest::digest(&digest::SHA256, body).as_ref().to_vec();
                let wanted = with_sha256(n).then_some(other);
                assert_eq!(sha256.map(|hash| hash.to_vec()), wanted, "{n} of {count}");
            }
        }
    }
}
