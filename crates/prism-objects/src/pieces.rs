//! The pieces in which bodies are read and written. Their memory is reused, because fresh
//! memory from the kernel costs as much as the work on a piece.

use std::cell::RefCell;
use std::io;

use prism_http::BodyReader;
use prism_s3::S3Error;
use prism_service::Input;

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
    pub(crate) async fn read(
        &mut self,
        io: &mut impl Input,
        body: &mut BodyReader,
    ) -> Result<(), Failure> {
        let ended = || Failure::Connection(io::ErrorKind::UnexpectedEof.into());
        let (_, room) = self.room.split_at_mut(self.len);
        if let BodyReader::Length { left } = body {
            // Without chunks the bytes need no copy: they are read to their place.
            let most = usize::try_from(*left).unwrap_or(usize::MAX);
            let (room, _) = room.split_at_mut(most.min(room.len()));
            let read = io.read(room).await?;
            *left = left.saturating_sub(read as u64);
            self.len += read;
            return if read == 0 { Err(ended()) } else { Ok(()) };
        }
        if io.buffered().is_empty() && io.fill().await? == 0 {
            return Err(ended());
        }
        let input = io.buffered();
        let input = input.get(..room.len()).unwrap_or(input);
        let step = body.consume(input).map_err(S3Error::from)?;
        let data = input.get(step.data).unwrap_or_default();
        if let Some(room) = room.get_mut(..data.len()) {
            room.copy_from_slice(data);
        }
        self.len += data.len();
        io.consume(step.consumed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::ResponseFraming;

    use super::*;

    /// Gives its bytes three at a time.
    struct Slow {
        bytes: Vec<u8>,
        seen: usize,
    }

    impl Input for Slow {
        fn buffered(&self) -> &[u8] {
            self.bytes.get(..self.seen).unwrap()
        }

        fn consume(&mut self, n: usize) {
            self.bytes.drain(..n);
            self.seen -= n;
        }

        async fn fill(&mut self) -> io::Result<usize> {
            let seen = self.bytes.len().min(self.seen + 3);
            let more = seen - self.seen;
            self.seen = seen;
            Ok(more)
        }
    }

    /// The body as read in pieces of `room` bytes, and the unread bytes behind it.
    fn read(framing: ResponseFraming, bytes: &[u8], room: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let bytes = bytes.to_vec();
        let mut io = Slow { bytes, seen: 0 };
        let mut body = BodyReader::new(framing, u64::MAX);
        let mut whole = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            while !body.is_done() {
                let room = vec![0; room];
                let mut piece = Piece { room, len: 0 };
                while piece.has_room() && !body.is_done() {
                    piece.read(&mut io, &mut body).await.ok()?;
                }
                whole.extend_from_slice(piece.bytes());
            }
            Some((whole, io.bytes))
        })
    }

    #[test]
    fn a_body_ends_where_its_framing_says() {
        let expected = Some((b"0123456789".to_vec(), b"GET".to_vec()));
        for room in [1, 4, 9, 10, 64] {
            let length = ResponseFraming::Length(10);
            assert_eq!(read(length, b"0123456789GET", room), expected);
            let chunks = b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\nGET";
            assert_eq!(read(ResponseFraming::Chunked, chunks, room), expected);
            assert_eq!(read(length, b"012345678", room), None);
            assert_eq!(read(ResponseFraming::Chunked, b"4\r\n01", room), None);
        }
    }

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
