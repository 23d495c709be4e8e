//! Bodies as they are read, whatever frames them.

use prism_http::BodyReader;

use crate::{BodyFailure, Input};

/// A body that is read to its end.
pub trait BodySource {
    /// Bytes still to come, if that is known.
    fn left_bytes(&self) -> Option<u64>;

    /// Whether the body has ended.
    fn is_done(&self) -> bool;

    /// Reads some bytes of a body that is not done to `room`, which is not empty. May read none,
    /// and may be cancelled without loss.
    ///
    /// # Errors
    /// The body is malformed or too long, or breaks off.
    async fn read(&mut self, room: &mut [u8]) -> Result<usize, BodyFailure>;
}

/// A body on a connection, behind what was consumed.
#[derive(Debug)]
pub struct FramedBody<'b, I> {
    /// The connection.
    pub input: &'b mut I,
    /// The body's framing.
    pub reader: &'b mut BodyReader,
}

impl<I: Input> BodySource for FramedBody<'_, I> {
    fn left_bytes(&self) -> Option<u64> {
        self.reader.left()
    }

    fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    async fn read(&mut self, room: &mut [u8]) -> Result<usize, BodyFailure> {
        if let BodyReader::Length { left } = self.reader {
            // Without chunks the bytes need no copy: they are read to their place.
            let most = usize::try_from(*left).unwrap_or(usize::MAX);
            let (room, _) = room.split_at_mut(most.min(room.len()));
            let read = self.input.read(room).await?;
            if read == 0 {
                return Err(BodyFailure::ended());
            }
            *left = left.saturating_sub(read as u64);
            return Ok(read);
        }
        if self.input.buffered().is_empty() && self.input.fill().await? == 0 {
            return Err(BodyFailure::ended());
        }
        let input = self.input.buffered();
        let input = input.get(..room.len()).unwrap_or(input);
        let step = self.reader.consume(input)?;
        let data = input.get(step.data).unwrap_or_default();
        if let Some(room) = room.get_mut(..data.len()) {
            room.copy_from_slice(data);
        }
        let read = data.len();
        self.input.consume(step.consumed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;

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

    /// The body as read to a room of `room` bytes, and the unread bytes behind it.
    fn read(framing: ResponseFraming, bytes: &[u8], room: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut input = Slow {
            bytes: bytes.to_vec(),
            seen: 0,
        };
        let mut reader = BodyReader::new(framing, u64::MAX);
        let mut whole = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let mut body = FramedBody {
                input: &mut input,
                reader: &mut reader,
            };
            while !body.is_done() {
                let mut room = vec![0; room];
                let read = body.read(&mut room).await.ok()?;
                whole.extend_from_slice(room.get(..read)?);
            }
            Some(())
        })?;
        Some((whole, input.bytes))
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
}
