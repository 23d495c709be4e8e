//! The hashes of bodies. Several bodies hashed together cost a fraction of the time
//! (`prism_s3::hashes`), so long pieces that arrive at the same time are hashed together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use prism_common::group::Group;
use prism_s3::hashes::{Hashes, TOGETHER, update_together};
use prism_s3::{Code, S3Error};

/// Length from which a piece waits for others, in bytes.
const LONG_BYTES: usize = 32 << 10;
/// Cores for each group. One thread hashes the group's pieces, while the others do the rest of
/// the work for those bodies.
const CORES_PER_GROUP: usize = 2;

/// The groups in which pieces of bodies are hashed together.
pub(crate) struct Hashing {
    groups: Vec<Group<Piece, Piece>>,
    next: AtomicUsize,
}

/// The next bytes of a body, at the beginning of `bytes`.
struct Piece {
    hashes: Hashes,
    bytes: Vec<u8>,
    len: usize,
}

impl Default for Hashing {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self {
            groups: (0..cores.div_ceil(CORES_PER_GROUP))
                .map(|_| Group::new())
                .collect(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Hashing {
    /// Adds the first `len` of `bytes` to the hashes of a body. Blocks. Another thread may
    /// own `hashes` and `bytes` meanwhile.
    ///
    /// # Errors
    /// `InternalError` if that thread panicked.
    pub(crate) fn update(
        &self,
        hashes: &mut Hashes,
        bytes: &mut Vec<u8>,
        len: usize,
    ) -> Result<(), S3Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let group = self.groups.get(turn % self.groups.len().max(1));
        let Some(group) = group.filter(|_| len >= LONG_BYTES) else {
            hashes.update(bytes.get(..len).unwrap_or(bytes));
            return Ok(());
        };
        let piece = Piece {
            hashes: std::mem::take(hashes),
            bytes: std::mem::take(bytes),
            len,
        };
        let done = group.submit(
            piece,
            |waiting| waiting.take(TOGETHER).count(),
            hash_together,
        );
        let done = done.ok_or(Code::InternalError)?;
        (*hashes, *bytes) = (done.hashes, done.bytes);
        Ok(())
    }
}

fn hash_together(mut pieces: Vec<Piece>) -> Vec<Piece> {
    let work = pieces.iter_mut().map(|piece| {
        let Piece { hashes, bytes, len } = piece;
        (hashes, bytes.get(..*len).unwrap_or(bytes))
    });
    update_together(work);
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::thread;

    use super::*;

    #[test]
    fn bodies_that_come_together_are_hashed_as_if_alone() {
        let hashing = Hashing::default();
        thread::scope(|scope| {
            for n in 0..12_u8 {
                let hashing = &hashing;
                scope.spawn(move || {
                    let wants = n % 3 > 0;
                    let (mut hashes, mut alone) = (Hashes::new(wants), Hashes::new(wants));
                    for piece in 1..20 {
                        let mut bytes = vec![n ^ piece; 2 * LONG_BYTES];
                        let len = LONG_BYTES - 100 + usize::from(piece) * 100 + usize::from(n);
                        hashing.update(&mut hashes, &mut bytes, len).unwrap();
                        assert_eq!(bytes.len(), 2 * LONG_BYTES);
                        alone.update(bytes.get(..len).unwrap());
                    }
                    assert_eq!(hashes.finish(), alone.finish());
                });
            }
        });
    }
}
