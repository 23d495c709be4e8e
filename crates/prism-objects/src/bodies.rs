//! Bodies on their way to the disk: one piece is written while the next
//! arrives. Where they come from (a client, or another node that is copied
//! from) and what they become (an object, or a part) is the caller's.
//!
//! Where the client signs or checks chunk by chunk, that framing is taken off
//! with the write, away from the thread that serves connections.

use std::io;
use std::sync::Arc;

use prism_http::{BodyReader, Exchange, Headers};
use prism_replicas::delete::conditions_error;
use prism_replicas::{Node, joined, store_error};
use prism_s3::{BodyDigest, Conditions, Digests, Expected, Payload, S3Error, StreamDecoder};
use prism_service::{Input, Io};
use prism_store::{Commit, Committed, ObjectMeta, PutWriter};
use tokio::task::JoinHandle;

use crate::hashing::Hashing;
use crate::objects::{Request, Shared};
use crate::pieces::{Piece, Pieces};
use crate::put::condition;

/// Bytes that a core has at hand between two things that are done with them.
const CACHED_BYTES: usize = 64 << 10;

/// A body on its way to the disk.
pub(crate) struct Pipe {
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
    Busy(JoinHandle<Result<(Pipe, Piece), S3Error>>),
}

/// How a body that was verified is to be committed.
pub(crate) struct Finish {
    pub(crate) meta: ObjectMeta,
    /// Of the client, for what the key has at that moment.
    pub(crate) conditions: Conditions,
}

/// A body that was stored.
pub(crate) struct Stored {
    pub(crate) digests: Digests,
    pub(crate) created_ms: u64,
    pub(crate) committed: Committed,
}

/// A body that only has to be committed.
struct Ready {
    commit: Commit,
    of: Of,
}

/// What is known of it.
struct Of {
    digests: Digests,
    created_ms: u64,
    conditions: Conditions,
}

impl Of {
    fn stored(self, committed: Result<Committed, prism_store::Error>) -> Result<Stored, S3Error> {
        let committed = committed.map_err(|e| conditions_error(&self.conditions, &e))?;
        Ok(Stored {
            digests: self.digests,
            created_ms: self.created_ms,
            committed,
        })
    }
}

/// Why a body was not stored.
pub(crate) enum Failed {
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
    pub(crate) fn new(
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
    pub(crate) fn plain(writer: PutWriter, expected: Expected) -> Self {
        Self {
            writer,
            digest: BodyDigest::new(expected),
            chunks: None,
        }
    }

    /// Writes the data of the next bytes of the body. Blocks.
    fn take(&mut self, hashing: &Hashing, piece: &mut Piece) -> Result<(), S3Error> {
        let (data, len) = match &mut self.chunks {
            Some(chunks) => {
                chunks.take_off(piece.bytes())?;
                let len = chunks.data.len();
                (&mut chunks.data, len)
            }
            None => (&mut piece.room, piece.len),
        };
        // What was read for the one is at hand for the other.
        for part in data.get(..len).unwrap_or(data).chunks(CACHED_BYTES) {
            self.digest.update_checksum(part);
            self.writer.write(part).map_err(|e| store_error(&e))?;
        }
        hashing.update(self.digest.hashes_mut(), data, len)
    }

    /// Writes the last piece and verifies all. Blocks.
    fn finish(
        mut self,
        hashing: &Hashing,
        piece: &mut Piece,
        finish: impl FnOnce(&Digests) -> Result<Finish, S3Error>,
    ) -> Result<Ready, S3Error> {
        self.take(hashing, piece)?;
        let (writer, digests) = self.verify()?;
        let Finish { meta, conditions } = finish(&digests)?;
        let created_ms = meta.created_ms;
        let commit = Commit {
            writer,
            meta,
            condition: condition(&conditions),
        };
        let of = Of {
            digests,
            created_ms,
            conditions,
        };
        Ok(Ready { commit, of })
    }

    /// Verifies what stands behind the data, and the data.
    fn verify(mut self) -> Result<(PutWriter, Digests), S3Error> {
        if let Some(chunks) = self.chunks
            && let Some((algorithm, value)) = chunks.decoder.finish()?
        {
            self.digest.take_trailer(algorithm, value);
        }
        Ok((self.writer, self.digest.finish()?))
    }
}

impl Chunks {
    /// Puts the data in the next bytes together, for one write.
    fn take_off(&mut self, mut piece: &[u8]) -> Result<(), S3Error> {
        self.data.clear();
        while !piece.is_empty() {
            let step = self.decoder.consume(piece)?;
            let data = piece.get(step.data).unwrap_or_default();
            self.data.extend_from_slice(data);
            piece = piece.get(step.consumed..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Stores the bodies that one thread receives.
pub(crate) struct Bodies {
    node: Arc<Node>,
    shared: Arc<Shared>,
    pieces: Pieces,
}

impl Bodies {
    pub(crate) fn new(node: Arc<Node>, shared: Arc<Shared>) -> Self {
        Self {
            node,
            shared,
            pieces: Pieces::default(),
        }
    }

    /// Stores a client's body, or refuses what `pipe` already is an error for;
    /// `finish` says how to commit what was verified. With an error comes whether
    /// the connection lives on.
    pub(crate) async fn store(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        pipe: Result<Pipe, S3Error>,
        finish: impl FnOnce(&Digests) -> Result<Finish, S3Error> + Send + 'static,
    ) -> io::Result<Result<Stored, (S3Error, bool)>> {
        let mut body = request.take_body(self.shared.limits.body_bytes);
        let pipe = match pipe {
            Ok(pipe) => pipe,
            Err(error) => {
                let keep_alive = exchange.keep_alive && body.skip_rest(io).await;
                return Ok(Err((error, keep_alive)));
            }
        };
        body.invite(io).await?;
        match self.receive(io, body.reader(), pipe, finish).await {
            Ok(stored) => {
                self.node.counters.bytes_in.add(stored.committed.len);
                Ok(Ok(stored))
            }
            Err(Failed::Error(error)) => {
                let keep_alive = exchange.keep_alive && body.skip_rest(io).await;
                Ok(Err((error, keep_alive)))
            }
            Err(Failed::Connection(error)) => Err(error),
        }
    }

    /// Reads a body to its end, verifies it, and commits it as `finish` says. What
    /// is small is verified here and now: to wake another thread takes longer.
    pub(crate) async fn receive(
        &self,
        io: &mut impl Input,
        body: &mut BodyReader,
        pipe: Pipe,
        finish: impl FnOnce(&Digests) -> Result<Finish, S3Error> + Send + 'static,
    ) -> Result<Stored, Failed> {
        let mut writing = Writing::Idle(pipe);
        let mut piece = self.pieces.piece(body.left());
        while !body.is_done() {
            if !piece.has_room() {
                let next = self.pieces.piece(body.left());
                let full = std::mem::replace(&mut piece, next);
                writing = self.write(writing, full).await?;
            }
            piece.read(io, body).await?;
        }
        let pipe = self.written(writing).await?;
        if self.is_small(&pipe, &piece) {
            let ready = pipe.finish(&self.shared.hashing, &mut piece, finish)?;
            let committed = self.shared.commit(&self.node, ready.commit).await;
            return Ok(ready.of.stored(committed)?);
        }
        let shared = self.shared.clone();
        let committing = tokio::task::spawn_blocking(move || {
            let ready = pipe.finish(&shared.hashing, &mut piece, finish)?;
            let stored = ready.of.stored(ready.commit.commit())?;
            Ok::<_, S3Error>((stored, piece))
        });
        let (stored, piece) = joined(committing).await?;
        self.pieces.take_back(piece);
        Ok(stored)
    }

    /// Whether the rest of a body, its last piece, is written to memory.
    fn is_small(&self, pipe: &Pipe, piece: &Piece) -> bool {
        let len = pipe.writer.written() + piece.len as u64;
        let store = self.node.store.as_ref();
        store.is_some_and(|store| store.fits_in_tree(len)) && pipe.writer.goes_with_others()
    }

    /// Writes a piece, after what is under way.
    async fn write(&self, writing: Writing, mut piece: Piece) -> Result<Writing, S3Error> {
        let mut pipe = self.written(writing).await?;
        let shared = self.shared.clone();
        Ok(Writing::Busy(tokio::task::spawn_blocking(move || {
            pipe.take(&shared.hashing, &mut piece)?;
            Ok((pipe, piece))
        })))
    }

    /// What is under way has been written.
    async fn written(&self, writing: Writing) -> Result<Pipe, S3Error> {
        match writing {
            Writing::Idle(pipe) => Ok(pipe),
            Writing::Busy(writing) => {
                let (pipe, piece) = joined(writing).await?;
                self.pieces.take_back(piece);
                Ok(pipe)
            }
        }
    }
}
