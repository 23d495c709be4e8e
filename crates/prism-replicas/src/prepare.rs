//! Receives changes from their primaries, and prepares them.
//!
//! While the disk is at work, the primary gets interim answers, so that it does not take a slow
//! disk for a dead node.
//!
//! Not here: the primary's side (`replicate.rs`).

use std::io;
use std::time::Duration;

use prism_config::seconds;
use prism_http::{PROCESSING, ResponseHead};
use prism_service::Exchange;
use prism_store::{Error, Prepare, PutWriter, Refusal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use crate::Replicator;
use crate::errors::store_error;
use crate::framed::{read_header, read_piece};
use crate::question::Reply;
use prism_core::send_reply;

/// Time between two interim answers: several within the 10 s after which the primary gives up.
const INTERIM_EVERY: Duration = Duration::from_secs(2);

impl Replicator {
    /// Answers a change of the primary `peer`.
    pub async fn serve_prepare(&self, exchange: &mut impl Exchange, peer: &str) -> io::Result<()> {
        let taken = self.take_in(exchange, peer).await?;
        let reply = match taken {
            Ok(()) => {
                self.node.core.counters.prepared.add_one();
                Reply::Done
            }
            Err(Error::Refused(refusal)) => Reply::NotPrepared(refusal),
            Err(error) => Reply::from_result(Err(store_error(&error))),
        };
        send_reply(exchange, &reply).await
    }

    async fn take_in(
        &self,
        exchange: &mut impl Exchange,
        peer: &str,
    ) -> io::Result<Result<(), Error>> {
        let prepare: Prepare = read_header(exchange).await?;
        if exchange.left_bytes() != Some(prepare.body_len()) {
            return Err(io::ErrorKind::InvalidData.into());
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
        let mut disk = DiskWait {
            last_interim: Instant::now(),
            stall_timeout: seconds(self.node.core.config.now().limits.stall_timeout_s),
        };
        let mut writing = spawn_blocking(begin);
        let mut piece = read_piece(exchange).await?;
        while !exchange.is_done() {
            let writer = match disk.wait(exchange, writing).await? {
                Ok(writer) => writer,
                Err(error) => return Ok(Err(error)),
            };
            writing = spawn_blocking(move || append(writer, &piece));
            piece = read_piece(exchange).await?;
        }
        let written = disk.wait(exchange, writing).await?;
        let prepared = match written {
            Ok(writer) => prepare_written(exchange, &mut disk, writer, piece).await?,
            Err(error) => Err(error),
        };
        let fetched = match (&prepared, bucket) {
            (Err(Error::Refused(Refusal::Lacking)), _) => self.fetch_lacking(lacking).await,
            // This node may have missed the bucket's creation.
            (Err(Error::NoSuchBucket), Some(bucket)) => self.refresh_bucket(&bucket).await,
            _ => Ok(()),
        };
        if let Err(error) = fetched {
            tracing::debug!(%error, "cannot fetch what a change builds on");
        }
        Ok(prepared)
    }
}

/// Writes the last piece, and prepares, in steps that a working disk does in a moment.
async fn prepare_written(
    exchange: &mut impl Exchange,
    disk: &mut DiskWait,
    writer: PutWriter,
    piece: Vec<u8>,
) -> io::Result<Result<(), Error>> {
    let mut step = spawn_blocking(move || prepare_some(append(writer, &piece)?));
    loop {
        match disk.wait(exchange, step).await? {
            Ok(Some(writer)) => step = spawn_blocking(move || prepare_some(writer)),
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Waits for the disk, and has the primary know that it is at work.
struct DiskWait {
    /// The time of the last interim answer, or of the request.
    last_interim: Instant,
    /// A step that takes longer is a stopped disk, no better than a dead node.
    stall_timeout: Duration,
}

impl DiskWait {
    /// Waits for one step, and sends interim answers meanwhile.
    async fn wait<T>(
        &mut self,
        exchange: &mut impl Exchange,
        mut step: JoinHandle<T>,
    ) -> io::Result<T> {
        let begun = Instant::now();
        loop {
            // Many short steps need interim answers as well, so the time runs across steps.
            match timeout_at(self.last_interim + INTERIM_EVERY, &mut step).await {
                Ok(done) => return done.map_err(io::Error::other),
                Err(_) => self.last_interim = Instant::now(),
            }
            if begun.elapsed() < self.stall_timeout {
                exchange.interim(&ResponseHead::new(PROCESSING)).await?;
            }
        }
    }
}

/// Waits for some bytes to reach the disk; prepares when all have. `None` when it is done.
fn prepare_some(mut writer: PutWriter) -> Result<Option<PutWriter>, Error> {
    if writer.wait_for_disk()? {
        Ok(Some(writer))
    } else {
        writer.prepare().map(|()| None)
    }
}

fn append(mut writer: PutWriter, piece: &[u8]) -> Result<PutWriter, Error> {
    writer.write(piece)?;
    Ok(writer)
}
