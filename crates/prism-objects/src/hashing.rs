//! The hashes of bodies, which cost a fraction together (`prism_s3::hashes`). Who has a
//! long piece of one brings it here, and is served with those of others that came
//! meanwhile; alone, at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use prism_s3::hashes::{Hashes, TOGETHER, update_together};
use prism_s3::{Code, S3Error};
use prism_store::Group;

/// Bytes from which on it is worth to wait for others.
const LONG: usize = 32 << 10;
/// Cores for each group. One thread hashes a group, some 1.5 GB/s: while it does,
/// the others are busy with the rest of what is to be done for those bodies.
const CORES: usize = 2;

/// Where the pieces of bodies come together.
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
            groups: (0..cores.div_ceil(CORES)).map(|_| Group::new()).collect(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Hashing {
    /// Takes the first `len` of `bytes` as the next ones of a body, which others
    /// have meanwhile. Blocks.
    ///
    /// # Errors
    /// `InternalError` where another thread was lost with them.
    pub(crate) fn update(
        &self,
        hashes: &mut Hashes,
        bytes: &mut Vec<u8>,
        len: usize,
    ) -> Result<(), S3Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let group = self.groups.get(turn % self.groups.len().max(1));
        let Some(group) = group.filter(|_| len >= LONG) else {
            hashes.update(bytes.get(..len).unwrap_or(bytes));
            return Ok(());
        };
        let piece = Piece {
            hashes: std::mem::take(hashes),
            bytes: std::mem::take(bytes),
            len,
        };
        let done = group.submit(piece, |waiting| waiting.take(TOGETHER).count(), together);
        let done = done.ok_or(Code::InternalError)?;
        (*hashes, *bytes) = (done.hashes, done.bytes);
        Ok(())
    }
}

fn together(mut pieces: Vec<Piece>) -> Vec<Piece> {
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
                        let mut bytes = vec![n ^ piece; 2 * LONG];
                        let len = LONG - 100 + usize::from(piece) * 100 + usize::from(n);
                        hashing.update(&mut hashes, &mut bytes, len).unwrap();
                        assert_eq!(bytes.len(), 2 * LONG);
                        alone.update(bytes.get(..len).unwrap());
                    }
                    assert_eq!(hashes.finish(), alone.finish());
                });
            }
        });
    }
}
