//! Changes that come from their primaries: taken in and prepared. While the disk is at
//! work the primary is told so, for a slow disk is not a dead node.

use std::io;
use std::time::Duration;

use prism_http::{BodyFraming, Exchange, PROCESSING, RequestHead, ResponseHead};
use prism_service::{Io, send, set};
use prism_store::{Error, Prepare, PutWriter, Refusal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use crate::Replicator;
use crate::errors::store_error;
use crate::framed::{MAX_HEADER_BYTES, PIECE_BYTES, read_exactly, take_piece};
use crate::question::Reply;

/// How often a primary is told that the disk is at work: several times within the 10 s
/// in which it wants to hear something.
const TOLD_EVERY: Duration = Duration::from_secs(2);

impl Replicator {
    /// Takes in a change from its primary, and answers.
    pub async fn serve_prepare(
        &self,
        io: &mut impl Io,
        head: &RequestHead,
        peer: &str,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let BodyFraming::Length(mut left) = head.framing() else {
            return Ok(false);
        };
        let taken = self.take_in(io, peer, &mut left).await?;
        let reply = match taken {
            Ok(()) => {
                self.node.counters.prepared.add_one();
                Reply::Done
            }
            Err(Error::Refused(refusal)) => Reply::NotPrepared(refusal),
            Err(error) => {
                let error = store_error(&error);
                Reply::Refused {
                    code: error.code().as_str().to_owned(),
                    message: error.message().to_owned(),
                }
            }
        };
        let exchange = Exchange {
            keep_alive: left == 0,
            ..*exchange
        };
        let text = serde_json::to_vec(&reply).map_err(io::Error::other)?;
        let mut head = ResponseHead::new(200);
        set(&mut head, "Content-Type", "application/json")?;
        send(io, &exchange, head, &text).await
    }

    async fn take_in(
        &self,
        io: &mut impl Io,
        peer: &str,
        left: &mut u64,
    ) -> io::Result<Result<(), Error>> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let len = read_exactly(io, 4, left).await?;
        let len = len.try_into().map(u32::from_be_bytes).map_err(|_| bad())?;
        let len = usize::try_from(len).map_err(|_| bad())?;
        if len > MAX_HEADER_BYTES {
            return Err(bad());
        }
        let header = read_exactly(io, len, left).await?;
        let prepare: Prepare = serde_json::from_slice(&header).map_err(io::Error::other)?;
        if prepare.body_len().unwrap_or(0) != *left {
            return Err(bad());
        }
        let mut changes = prepare.changes.iter();
        let replication = &self.node.replication;
        if !changes.all(|one| replication.may_come_from(peer, prepare.epoch, &one.scope)) {
            let why = "a change was refused: the nodes' configurations differ in a key's replicas";
            tracing::warn!(peer, "{why}");
            return Ok(Err(Error::NotPrimary));
        }
        let lacking = crate::fetch::built_on(&prepare);
        let bucket = prepare.changes.first().map(|c| c.scope.bucket.clone());
        let node = self.node.clone();
        let begin = move || {
            let store = node.store.as_ref().ok_or(Error::NotPrimary)?;
            store.open_changes().begin_prepare(prepare)
        };
        let mut told = Instant::now();
        let mut writing = spawn_blocking(begin);
        let mut piece = Vec::new();
        while *left > 0 {
            if io.buffered().is_empty() && io.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take_piece(io, usize::MAX, left, &mut piece);
            if piece.len() >= PIECE_BYTES {
                let writer = match self.waiting(io, &mut told, writing).await? {
                    Ok(writer) => writer,
                    Err(error) => return Ok(Err(error)),
                };
                let piece = std::mem::take(&mut piece);
                writing = spawn_blocking(move || append(writer, &piece));
            }
        }
        let written = self.waiting(io, &mut told, writing).await?;
        let prepared = match written {
            Ok(writer) => self.prepare_written(io, told, writer, piece).await?,
            Err(error) => Err(error),
        };
        let had = match (&prepared, bucket) {
            (Err(Error::Refused(Refusal::Lacking)), _) => self.fetch_lacking(lacking).await,
            // Its primary knows more of the bucket than this node, or less.
            (Err(Error::NoSuchBucket), Some(bucket)) => self.learn_bucket(&bucket).await,
            _ => Ok(()),
        };
        if let Err(error) = had {
            tracing::debug!(%error, "what a change builds on was not had");
        }
        Ok(prepared)
    }

    /// Writes the last piece, and prepares, in steps of which each takes a disk that works
    /// a moment.
    async fn prepare_written(
        &self,
        io: &mut impl Io,
        mut told: Instant,
        writer: PutWriter,
        piece: Vec<u8>,
    ) -> io::Result<Result<(), Error>> {
        let mut step = spawn_blocking(move || prepare_some(append(writer, &piece)?));
        loop {
            match self.waiting(io, &mut told, step).await? {
                Ok(Some(writer)) => step = spawn_blocking(move || prepare_some(writer)),
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Waits for one step of the disk. The primary is told that it goes on, but not for
    /// ever: a disk that has stopped is no better than a dead node.
    async fn waiting<T>(
        &self,
        io: &mut impl Io,
        // When it was told last, or asked.
        told: &mut Instant,
        mut step: JoinHandle<T>,
    ) -> io::Result<T> {
        let begun = Instant::now();
        let longest = self.node.config.limits.stall_timeout();
        loop {
            // Many short steps take long as well.
            match timeout_at(*told + TOLD_EVERY, &mut step).await {
                Ok(done) => return done.map_err(io::Error::other),
                Err(_) => *told = Instant::now(),
            }
            if begun.elapsed() < longest {
                io.write_all(PROCESSING).await?;
            }
        }
    }
}

/// Waits for some bytes to reach the disk, or prepares where none are on their way.
fn prepare_some(mut writer: PutWriter) -> Result<Option<PutWriter>, Error> {
    match writer.wait_for_disk()? {
        true => Ok(Some(writer)),
        false => writer.prepare().map(|()| None),
    }
}

fn append(mut writer: PutWriter, piece: &[u8]) -> Result<PutWriter, Error> {
    writer.write(piece)?;
    Ok(writer)
}
