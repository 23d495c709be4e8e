//! Bodies on their way to the disk: one piece is written while the next arrives. The caller
//! decides where a body comes from (a client, or another node) and what it becomes (an object,
//! or a part).
//!
//! If the client signs or checks chunk by chunk, the blocking thread that writes a piece also
//! removes that framing.

use std::rc::Rc;
use std::sync::Arc;

use prism_replicas::delete::{conditions_error, holds};
use prism_replicas::meta::stored_meta;
use prism_replicas::{Replicator, Room, StoreResult, joined, now_ms};
use prism_s3::{
    BodyDigest, Code, Conditions, Digests, Expected, ObjectHeaders, Payload, S3Error,
    StreamDecoder, Tags,
};
use prism_service::{BodySource, Exchange};
use prism_store::{Commit, Committed, Condition, ObjectMeta, PutWriter};
use tokio::task::JoinHandle;

use crate::answer::Failure;
use crate::hashing::Hashing;
use crate::pieces::{Piece, Pieces};
use crate::request::{Call, Request};
use crate::shared::Shared;

/// Bytes that stay in a core's cache between the checksum and the write.
const CACHED_BYTES: usize = 64 << 10;

/// A body on its way to the disk.
pub(crate) struct Pipe {
    writer: PutWriter,
    digest: BodyDigest,
    becomes: Becomes,
    chunks: Option<Chunks>,
    /// The MD5 of the bytes, if this system has told it.
    md5: Option<String>,
    /// Their room in the quota of the bucket, if it has one.
    room: Option<Room>,
}

/// A body whose data comes in chunks.
struct Chunks {
    decoder: StreamDecoder,
    /// The data of the piece under way.
    data: Vec<u8>,
}

/// A body between two writes, or with one under way on the blocking pool.
#[allow(clippy::large_enum_variant, reason = "one for each body under way")]
enum Writing {
    Idle(Pipe),
    Busy(JoinHandle<Result<(Pipe, Piece), S3Error>>),
}

/// The object that a body becomes; the default for a part of an upload.
#[derive(Default)]
pub(crate) struct Becomes {
    pub(crate) headers: ObjectHeaders,
    pub(crate) tags: Tags,
    /// The client's conditions on the object that the key has at the commit.
    pub(crate) conditions: Conditions,
}

/// The conditions of a write as the store evaluates them.
pub(crate) fn store_condition(conditions: &Conditions) -> Option<Condition> {
    if conditions.is_empty() {
        return None;
    }
    let conditions = conditions.clone();
    Some(Box::new(move |current: Option<&ObjectMeta>| {
        holds(&conditions, current)
    }))
}

/// A body that was stored.
pub(crate) struct Stored {
    pub(crate) digests: Digests,
    pub(crate) created_ms: u64,
    pub(crate) committed: Committed,
}

/// The facts that the answer to a body needs after its commit.
struct Uncommitted {
    digests: Digests,
    created_ms: u64,
    conditions: Conditions,
    room: Option<Room>,
}

impl Uncommitted {
    fn stored(self, committed: Result<Committed, prism_store::Error>) -> Result<Stored, S3Error> {
        let committed = committed.map_err(|e| conditions_error(&self.conditions, &e))?;
        Ok(Stored {
            digests: self.digests,
            created_ms: self.created_ms,
            committed,
        })
    }
}

impl Pipe {
    /// For the body of a client's request.
    pub(crate) fn new(
        writer: PutWriter,
        expected: Expected,
        becomes: Becomes,
        request: &Request<'_>,
    ) -> Result<Self, S3Error> {
        let mut pipe = Self::plain(writer, expected, becomes, None);
        if let Payload::Streaming(streaming) = &request.meaning.payload {
            pipe.chunks = Some(Chunks {
                decoder: StreamDecoder::new(streaming.clone(), request.head.headers())?,
                data: Vec::new(),
            });
        }
        Ok(pipe)
    }

    /// For the bytes of a copy's source, and their MD5 if it is known.
    pub(crate) fn plain(
        writer: PutWriter,
        expected: Expected,
        becomes: Becomes,
        md5: Option<String>,
    ) -> Self {
        Self {
            writer,
            digest: BodyDigest::new(expected),
            becomes,
            chunks: None,
            md5,
            room: None,
        }
    }

    /// The same with room in the quota of the bucket, which is free again after the commit.
    pub(crate) fn within(self, room: Option<Room>) -> Self {
        Self { room, ..self }
    }

    /// Writes the data in the next bytes of the body. Blocks on disk.
    fn append(&mut self, hashing: &Hashing, piece: &mut Piece) -> Result<(), S3Error> {
        let (data, len) = match &mut self.chunks {
            Some(chunks) => {
                chunks.decode(piece.bytes())?;
                let len = chunks.data.len();
                (&mut chunks.data, len)
            }
            None => (&mut piece.room, piece.len),
        };
        if let Some(room) = &self.room {
            room.check(self.writer.written().saturating_add(len as u64))?;
        }
        // The write finds the bytes in the cache that the checksum has just read.
        for part in data.get(..len).unwrap_or(data).chunks(CACHED_BYTES) {
            self.digest.update_checksum(part);
            self.writer.write(part).in_s3()?;
        }
        hashing.update(self.digest.hashes_mut(), data, len)
    }

    /// Writes the last piece and verifies the body. Blocks on disk.
    fn finish(
        mut self,
        hashing: &Hashing,
        piece: &mut Piece,
    ) -> Result<(Commit, Uncommitted), S3Error> {
        self.append(hashing, piece)?;
        if let Some(chunks) = self.chunks
            && let Some((algorithm, value)) = chunks.decoder.finish()?
        {
            self.digest.take_trailer(algorithm, value);
        }
        let digests = self.digest.finish()?;
        let etag = digests.etag();
        if self.md5.is_some_and(|md5| md5 != etag) {
            tracing::error!("the MD5 of a copy's source is not the stored one");
            return Err(Code::InternalError.into());
        }
        let Becomes {
            headers,
            tags,
            conditions,
        } = self.becomes;
        let meta = ObjectMeta {
            etag,
            created_ms: now_ms(),
            ..stored_meta(&headers, &tags, digests.checksum.as_ref())
        };
        let uncommitted = Uncommitted {
            digests,
            created_ms: meta.created_ms,
            conditions,
            room: self.room,
        };
        let condition = store_condition(&uncommitted.conditions);
        let mut commit = self.writer.ready(meta, condition).in_s3()?;
        if let Some(room) = &uncommitted.room {
            commit = commit.within(room.check_at_commit());
        }
        Ok((commit, uncommitted))
    }
}

impl Chunks {
    /// Collects the data in the next bytes, for one write.
    fn decode(&mut self, mut piece: &[u8]) -> Result<(), S3Error> {
        self.data.clear();
        while !piece.is_empty() {
            let data = self.decoder.consume(piece)?;
            let (used, rest) = piece.split_at_checked(data.end).unwrap_or_default();
            let data = used.get(data.start..).unwrap_or_default();
            self.data.extend_from_slice(data);
            piece = rest;
        }
        Ok(())
    }
}

/// Stores the bodies that one thread receives.
pub(crate) struct Bodies {
    replicator: Rc<Replicator>,
    shared: Arc<Shared>,
    pieces: Pieces,
}

impl Bodies {
    pub(crate) fn new(replicator: Rc<Replicator>, shared: Arc<Shared>) -> Self {
        Self {
            replicator,
            shared,
            pieces: Pieces::default(),
        }
    }

    /// Stores a client's body, unless `pipe` is an error already.
    pub(crate) async fn store(
        &self,
        call: &mut Call<'_, impl Exchange>,
        pipe: Result<Pipe, S3Error>,
    ) -> Result<Stored, Failure> {
        let exchange = &mut *call.exchange;
        exchange.limit_body(self.shared.limits.body_bytes);
        let stored = match pipe {
            Ok(pipe) => {
                exchange.invite().await?;
                self.receive(exchange, pipe).await
            }
            Err(error) => Err(error.into()),
        };
        match &stored {
            Ok(stored) => {
                let counters = &self.replicator.node.core.counters;
                counters.bytes_in.add(stored.committed.len);
            }
            Err(Failure::Refused { .. }) => exchange.skip_body().await,
            Err(Failure::Connection(_)) => {}
        }
        stored
    }

    /// Reads a body to its end, verifies it, and commits it. The worker's own thread verifies a
    /// small body, because waking another thread takes longer.
    pub(crate) async fn receive(
        &self,
        body: &mut impl BodySource,
        pipe: Pipe,
    ) -> Result<Stored, Failure> {
        let mut writing = Writing::Idle(pipe);
        let mut piece = self.pieces.piece(body.left_bytes());
        while !body.is_done() {
            if !piece.has_room() {
                let next = self.pieces.piece(body.left_bytes());
                let full = std::mem::replace(&mut piece, next);
                writing = self.write(writing, full).await?;
            }
            piece.read(body).await?;
        }
        let pipe = self.finish_writing(writing).await?;
        if let Some(room) = &pipe.room {
            Box::pin(self.replicator.refresh(room)).await;
        }
        if pipe.writer.goes_with_others(piece.len as u64) {
            let (commit, uncommitted) = pipe.finish(&self.shared.hashing, &mut piece)?;
            let committed = self.shared.commit(&self.replicator.node, commit).await;
            return Ok(uncommitted.stored(committed)?);
        }
        let shared = self.shared.clone();
        let committing = tokio::task::spawn_blocking(move || {
            let (commit, uncommitted) = pipe.finish(&shared.hashing, &mut piece)?;
            let stored = uncommitted.stored(commit.commit())?;
            Ok::<_, S3Error>((stored, piece))
        });
        let (stored, piece) = joined(committing).await?;
        self.pieces.recycle(piece);
        Ok(stored)
    }

    /// Starts to write a piece, after the write under way has ended.
    async fn write(&self, writing: Writing, mut piece: Piece) -> Result<Writing, S3Error> {
        let mut pipe = self.finish_writing(writing).await?;
        let shared = self.shared.clone();
        Ok(Writing::Busy(tokio::task::spawn_blocking(move || {
            pipe.append(&shared.hashing, &mut piece)?;
            Ok((pipe, piece))
        })))
    }

    /// Waits for the write under way.
    async fn finish_writing(&self, writing: Writing) -> Result<Pipe, S3Error> {
        match writing {
            Writing::Idle(pipe) => Ok(pipe),
            Writing::Busy(writing) => {
                let (pipe, piece) = joined(writing).await?;
                self.pieces.recycle(piece);
                Ok(pipe)
            }
        }
    }
}
