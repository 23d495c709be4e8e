//! Bodies on their way to the disk: one piece is written while the next
//! arrives. Where they come from (a client, or another node that is copied
//! from) and what they become (an object, or a part) is the caller's.
//!
//! Where the client signs or checks chunk by chunk, that framing is taken off
//! with the write, away from the thread that serves connections.

use std::io;
use std::sync::Arc;

use prism_http::{BodyReader, CONTINUE, Exchange, Headers};
use prism_s3::{BodyDigest, Code, Digests, Expected, Payload, S3Error, StreamDecoder};
use prism_store::PutWriter;
use tokio::task::JoinHandle;

use super::errors::store_error;
use super::io::{Input, Io};
use super::session::Request;
use super::{Node, Worker};

/// Bytes written at a time. Two pieces are in memory for each body, and the
/// data of one more where it comes in chunks.
pub(super) const PIECE_BYTES: usize = 512 << 10;

/// A body on its way to the disk.
pub(super) struct Pipe {
    writer: PutWriter,
    digest: BodyDigest,
    chunks: Option<Chunks>,
}

/// A body whose data comes in chunks.
struct Chunks {
    decoder: StreamDecoder,
    /// The data of the piece under way.
    data: Vec<u8>,
}

/// A body between two pieces, or with a write under way on the blocking pool.
#[allow(clippy::large_enum_variant, reason = "one for each body under way")]
enum Writing {
    Idle(Pipe),
    Busy(JoinHandle<Result<Pipe, S3Error>>),
}

impl Writing {
    /// Writes a piece, after what is under way.
    async fn write(self, piece: Vec<u8>) -> Result<Self, S3Error> {
        let mut pipe = self.done().await?;
        Ok(Self::Busy(tokio::task::spawn_blocking(move || {
            pipe.take(&piece)?;
            Ok(pipe)
        })))
    }

    /// What is under way has been written.
    async fn done(self) -> Result<Pipe, S3Error> {
        match self {
            Self::Idle(pipe) => Ok(pipe),
            Self::Busy(writing) => joined(writing).await,
        }
    }
}

/// Why a body was not stored.
pub(super) enum Failed {
    /// The client can be told.
    Error(S3Error),
    /// It cannot.
    Connection(io::Error),
}

impl From<S3Error> for Failed {
    fn from(error: S3Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl Pipe {
    /// For a body that a client announces with these headers.
    pub(super) fn new(
        writer: PutWriter,
        expected: Expected,
        payload: &Payload,
        headers: &Headers,
    ) -> Result<Self, S3Error> {
        let chunks = match payload {
            Payload::Streaming(streaming) => Some(Chunks {
                decoder: StreamDecoder::new(streaming.clone(), headers)?,
                data: Vec::new(),
            }),
            Payload::Unsigned | Payload::Sha256(_) => None,
        };
        Ok(Self {
            writer,
            digest: BodyDigest::new(expected),
            chunks,
        })
    }

    /// For bytes that are already ours.
    pub(super) fn plain(writer: PutWriter, expected: Expected) -> Self {
        Self {
            writer,
            digest: BodyDigest::new(expected),
            chunks: None,
        }
    }

    /// Writes the data of the next bytes of the body. Blocks.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<(), S3Error> {
        let data = match &mut self.chunks {
            Some(chunks) => chunks.take_off(piece)?,
            None => piece,
        };
        self.digest.update(data);
        self.writer.write(data).map_err(|e| store_error(&e))
    }

    /// Verifies what stands behind the data, and the data.
    pub(super) fn verify(mut self) -> Result<(PutWriter, Digests), S3Error> {
        if let Some(chunks) = self.chunks
            && let Some((algorithm, value)) = chunks.decoder.finish()?
        {
            self.digest.take_trailer(algorithm, value);
        }
        Ok((self.writer, self.digest.finish()?))
    }
}

impl Chunks {
    /// Gives the data in the next bytes, put together for one write.
    fn take_off(&mut self, mut piece: &[u8]) -> Result<&[u8], S3Error> {
        self.data.clear();
        while !piece.is_empty() {
            let step = self.decoder.consume(piece)?;
            let data = piece.get(step.data).unwrap_or_default();
            self.data.extend_from_slice(data);
            piece = piece.get(step.consumed..).unwrap_or_default();
        }
        Ok(&self.data)
    }
}

impl Worker {
    /// Stores a client's body and answers, or refuses what `pipe` already is an
    /// error for. `finish` commits, and `answer` makes the head of the answer.
    pub(super) async fn store_body<T: Send + 'static>(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        pipe: Result<Pipe, S3Error>,
        finish: impl FnOnce(PutWriter, Digests) -> Result<T, S3Error> + Send + 'static,
    ) -> io::Result<Result<T, (S3Error, bool)>> {
        let framing = request.head.framing().into();
        let mut body = BodyReader::new(framing, self.node.limits.body_bytes);
        let pipe = match pipe {
            Ok(pipe) => pipe,
            Err(error) => {
                let skipped = super::answer::discard_body(io, &request.head).await;
                return Ok(Err((error, exchange.keep_alive && skipped)));
            }
        };
        if request.head.expects_continue() && io.buffered().is_empty() {
            io.write_all(CONTINUE).await?;
        }
        match receive(io, &mut body, pipe, finish).await {
            Ok(done) => {
                self.node.counters.bytes_in.add(done.1);
                Ok(Ok(done.0))
            }
            Err(Failed::Error(error)) => Ok(Err((error, exchange.keep_alive && body.is_done()))),
            Err(Failed::Connection(error)) => Err(error),
        }
    }
}

/// Reads a body to its end, and has `finish` commit what was verified. Gives
/// the number of bytes as well. A body of one piece changes threads once: for
/// small ones that is what they cost.
pub(super) async fn receive<T: Send + 'static>(
    io: &mut impl Input,
    body: &mut BodyReader,
    pipe: Pipe,
    finish: impl FnOnce(PutWriter, Digests) -> Result<T, S3Error> + Send + 'static,
) -> Result<(T, u64), Failed> {
    let mut writing = Writing::Idle(pipe);
    let mut piece = Vec::new();
    while !body.is_done() {
        let step = body.consume(io.buffered()).map_err(S3Error::from)?;
        piece.extend_from_slice(io.buffered().get(step.data).unwrap_or_default());
        io.consume(step.consumed);
        if piece.len() >= PIECE_BYTES {
            writing = writing.write(std::mem::take(&mut piece)).await?;
        }
        if !body.is_done() && io.buffered().is_empty() && io.fill().await? == 0 {
            return Err(Failed::Connection(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    let mut pipe = writing.done().await?;
    let committing = tokio::task::spawn_blocking(move || {
        pipe.take(&piece)?;
        let (writer, digests) = pipe.verify()?;
        let len = writer.written();
        Ok::<_, S3Error>((finish(writer, digests)?, len))
    });
    Ok(joined(committing).await?)
}

/// Runs `work` where it may block on the disk.
pub(super) fn blocking<T: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, S3Error> + Send + 'static,
) -> JoinHandle<Result<T, S3Error>> {
    let node = node.clone();
    tokio::task::spawn_blocking(move || work(&node))
}

/// The result of a blocking task; its panic is an internal error.
pub(super) async fn joined<T>(task: JoinHandle<Result<T, S3Error>>) -> Result<T, S3Error> {
    match task.await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a blocking task failed");
            Err(Code::InternalError.into())
        }
    }
}
