//! The pieces in which bodies are read and written. Their memory is reused, because fresh
//! memory from the kernel costs as much as the work on a piece.

use std::cell::RefCell;

use prism_s3::{Code, S3Error};
use prism_service::{BodyFailure, BodySource};

use crate::answer::Failure;

/// Bytes written at a time. Each body has two pieces in memory, and the data of a third one if
/// it comes in chunks.
pub(crate) const PIECE_BYTES: usize = 512 << 10;
/// Longest body that is one piece instead of two. Writing its first half while the second
/// arrives saves less than passing a piece to another thread costs.
const WHOLE_BYTES: usize = 2 * PIECE_BYTES;
/// Shorter bodies get a piece of their own length.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of memory that a worker keeps for later pieces.
const KEPT_BYTES: usize = 32 << 20;

/// Memory for later pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    kept: RefCell<Vec<Vec<u8>>>,
}

/// A piece of a body, as far as it has been read.
#[derive(Default)]
pub(crate) struct Piece {
    pub(crate) room: Vec<u8>,
    /// Bytes of the body in `room`.
    pub(crate) len: usize,
}

impl Pieces {
    /// A piece for a body of which `left` bytes are to come, if that is known.
    pub(crate) fn piece(&self, left: Option<u64>) -> Piece {
        let small = left.and_then(|left| usize::try_from(left).ok());
        let room = match small {
            Some(len) if len < SMALL_BYTES => vec![0; len],
            Some(len) if len > PIECE_BYTES && len <= WHOLE_BYTES => self.room(WHOLE_BYTES),
            _ => self.room(PIECE_BYTES),
        };
        Piece { room, len: 0 }
    }

    /// Prefers the memory that was recycled last, which is likely in a cache.
    fn room(&self, len: usize) -> Vec<u8> {
        let mut kept = self.kept.borrow_mut();
        match kept.iter().rposition(|room| room.len() == len) {
            Some(at) => kept.remove(at),
            None => vec![0; len],
        }
    }

    /// Keeps a piece's memory for later pieces, up to [`KEPT_BYTES`].
    pub(crate) fn recycle(&self, piece: Piece) {
        let mut kept = self.kept.borrow_mut();
        let bytes: usize = kept.iter().map(Vec::len).sum();
        let len = piece.room.len();
        if len >= PIECE_BYTES && bytes + len <= KEPT_BYTES {
            kept.push(piece.room);
        }
    }
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or(&self.room)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < self.room.len()
    }

    /// Reads more of a body. The piece must have room.
    pub(crate) async fn read(&mut self, body: &mut impl BodySource) -> Result<(), Failure> {
        let (_, room) = self.room.split_at_mut(self.len);
        match body.read(room).await {
            Ok(read) => self.len += read,
            Err(BodyFailure::Connection(error)) => return Err(error.into()),
            Err(BodyFailure::Malformed(error)) => return Err(S3Error::from(error).into()),
            Err(BodyFailure::TooLong) => return Err(Code::EntityTooLarge.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn room_is_kept_for_later_but_not_much_of_it() {
        let pieces = Pieces::default();
        for n in 0..100 {
            let long = if n % 2 == 0 { PIECE_BYTES } else { WHOLE_BYTES };
            for len in [long, 9] {
                let room = vec![0; len];
                pieces.recycle(Piece { room, len: 9 });
            }
        }
        let kept: usize = pieces.kept.borrow().iter().map(Vec::len).sum();
        assert!((KEPT_BYTES - WHOLE_BYTES..=KEPT_BYTES).contains(&kept));
        let piece = pieces.piece(None);
        assert!(piece.room.len() == PIECE_BYTES && piece.bytes().is_empty());
        let whole = |left: usize| pieces.piece(Some(left as u64)).room.len();
        for left in [PIECE_BYTES + 1, WHOLE_BYTES] {
            assert_eq!(whole(left), WHOLE_BYTES);
        }
        for left in [SMALL_BYTES, PIECE_BYTES, WHOLE_BYTES + 1] {
            assert_eq!(whole(left), PIECE_BYTES);
        }
        assert!(pieces.kept.borrow().len() < KEPT_BYTES / PIECE_BYTES);
        assert_eq!(pieces.piece(Some(9)).room.len(), 9);
        assert_eq!(pieces.piece(Some(u64::MAX)).room.len(), PIECE_BYTES);
    }
}
