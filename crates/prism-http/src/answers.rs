//! Reads the answers to requests that this process makes itself: to etcd, to an authority of
//! certificates, to health pages and to other nodes.
//!
//! Not here: connecting, timeouts, and answers that are passed on while they arrive.

use std::io;

use prism_common::input::Input;

use crate::{BodyError, BodyReader, HeadError, Limits, ResponseFraming, ResponseHead};

/// The reason why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The connection ended in front of the first byte of an answer.
    #[error("the connection ended without an answer")]
    None,
    /// The connection broke, or ended within the answer.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The head is malformed.
    #[error("the answer is malformed: {0}")]
    Head(#[from] HeadError),
    /// The body is malformed or too long.
    #[error("the answer's body is malformed: {0}")]
    Body(#[from] BodyError),
}

impl From<AnswerError> for io::Error {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::None => io::ErrorKind::UnexpectedEof.into(),
            AnswerError::Broken(error) => error,
            error => Self::other(error),
        }
    }
}

/// The head of the final answer. Interim answers (1xx) are skipped.
///
/// # Errors
/// See [`AnswerError`].
pub async fn read_answer(
    input: &mut impl Input,
    limits: &Limits,
) -> Result<ResponseHead, AnswerError> {
    let mut has_begun = false;
    loop {
        if let Some((head, len)) = ResponseHead::parse(input.buffered(), limits)? {
            input.consume(len);
            has_begun = true;
            if head.status() >= 200 {
                return Ok(head);
            }
            continue;
        }
        has_begun |= !input.buffered().is_empty();
        match input.fill().await {
            Ok(0) if !has_begun => return Err(AnswerError::None),
            Ok(0) => return Err(AnswerError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(AnswerError::Broken(error)),
        }
    }
}

/// The body of an answer.
///
/// # Errors
/// The body is longer than `max_bytes`, malformed, or breaks off.
pub async fn read_body(
    input: &mut impl Input,
    framing: ResponseFraming,
    max_bytes: usize,
) -> Result<Vec<u8>, AnswerError> {
    let mut reader = BodyReader::new(framing, max_bytes as u64);
    let mut bytes = Vec::new();
    while !reader.is_done() {
        if input.buffered().is_empty() && input.fill().await.map_err(AnswerError::Broken)? == 0 {
            reader.end_of_input()?;
            break;
        }
        take_body(input, &mut reader, |piece| bytes.extend_from_slice(piece))?;
        // The bound applies to the bytes read, because nothing else bounds a declared length.
        if bytes.len() > max_bytes {
            return Err(BodyError::TooLong.into());
        }
    }
    Ok(bytes)
}

/// Gives the buffered bytes of a body to `take`, and consumes them.
///
/// # Errors
/// The body is malformed.
pub fn take_body(
    input: &mut impl Input,
    reader: &mut BodyReader,
    mut take: impl FnMut(&[u8]),
) -> Result<(), BodyError> {
    while !input.buffered().is_empty() && !reader.is_done() {
        let step = reader.consume(input.buffered())?;
        take(input.buffered().get(step.data).unwrap_or_default());
        input.consume(step.consumed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::Method;

    /// Reads an answer of these bytes, which come in pieces of `piece` bytes.
    fn read(bytes: &[u8], piece: usize, max_bytes: usize) -> Result<(u16, Vec<u8>), AnswerError> {
        struct Pieces<'b>(&'b [u8], usize, usize);
        impl Input for Pieces<'_> {
            fn buffered(&self) -> &[u8] {
                &self.0[..self.1]
            }
            fn consume(&mut self, n: usize) {
                self.0 = &self.0[n..];
                self.1 -= n;
            }
            async fn fill(&mut self) -> io::Result<usize> {
                let more = self.2.min(self.0.len() - self.1);
                self.1 += more;
                Ok(more)
            }
        }
        let mut input = Pieces(bytes, 0, piece);
        let mut reading = std::pin::pin!(async {
            let head = read_answer(&mut input, &Limits::DEFAULT).await?;
            let framing = head.framing(&Method::GET)?;
            Ok((
                head.status(),
                read_body(&mut input, framing, max_bytes).await?,
            ))
        });
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match reading.as_mut().poll(&mut context) {
            std::task::Poll::Ready(read) => read,
            std::task::Poll::Pending => unreachable!("the input is always ready"),
        }
    }

    #[test]
    fn an_answer_is_read_whole_however_its_bytes_arrive() {
        for piece in [1, 3, 1000] {
            let text = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: \
                         chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
            assert_eq!(read(text, piece, 5).unwrap(), (200, b"abcde".to_vec()));
            let text = b"HTTP/1.1 404 Not Found\r\n\r\nuntil the end";
            assert_eq!(read(text, piece, 100).unwrap().1, b"until the end");
        }
    }

    #[test]
    fn an_answer_that_is_absent_cut_or_too_long_is_an_error() {
        assert!(matches!(read(b"", 9, 9), Err(AnswerError::None)));
        let heads: [&[u8]; 2] = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"];
        for cut in heads {
            assert!(matches!(read(cut, 9, 9), Err(AnswerError::Broken(_))));
        }
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc";
        assert!(matches!(read(cut, 9, 9), Err(AnswerError::Body(_))));
        let long = b"HTTP/1.1 200 OK\r\n\r\n0123456789";
        assert!(matches!(
            read(long, 9, 9),
            Err(AnswerError::Body(BodyError::TooLong))
        ));
        assert!(matches!(
            read(b"SSH-2.0\r\n\r\n", 9, 9),
            Err(AnswerError::Head(_))
        ));
    }
}
