//! Fetches an object, an upload or a part from another node, and takes it into this store.
//!
//! Not here: the source's side (`hand_over.rs`), and the choice of what is missing
//! (`catch_up.rs`). The store decides what takes effect.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use prism_handoff::RelayStream;
use prism_http::{BodyReader, ResponseFraming};
use prism_s3::{Code, Principal, S3Error};
use prism_service::FramedBody;
use prism_store::{Handed, Prepare, Scope, TakeIn};
use tokio::task::JoinHandle;

use crate::Replicator;
use crate::errors::{StoreResult, not_yet};
use crate::framed::{read_header, read_piece};
use crate::node::{blocking, joined};
use crate::question::Question;

/// Bytes that arrive from another node.
struct Arriving {
    upstream: RelayStream,
    reader: BodyReader,
    keep_alive: bool,
}

impl Arriving {
    fn body(&mut self) -> FramedBody<'_, RelayStream> {
        FramedBody {
            input: &mut self.upstream,
            reader: &mut self.reader,
        }
    }

    fn left_bytes(&self) -> u64 {
        self.reader.left().unwrap_or_default()
    }
}

/// The reason for a fetch.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// This node has missed it, as of the epoch `since`. Paced: at the pace of catching up.
    CatchUp { since: u64, is_paced: bool },
    /// This node's copy is damaged.
    Repair,
}

impl Replicator {
    /// Fetches the scopes that a refused change builds on, if this node is catching up. The
    /// primary then sends the change again.
    pub(crate) async fn fetch_lacking(&self, scopes: Vec<Scope>) -> Result<(), S3Error> {
        let since = self.node.settled.load(Ordering::Acquire);
        if since == 0 || self.node.store.as_ref().map(|s| s.epoch()) != Some(since) {
            return Ok(());
        }
        // Not paced: a client waits for the change.
        let purpose = Purpose::CatchUp {
            since,
            is_paced: false,
        };
        for scope in scopes {
            let primary = self.node.replication.primary(&scope.bucket, &scope.key);
            let primary = primary.ok_or(Code::ServiceUnavailable)?;
            self.fetch(&primary, &scope, purpose).await?;
        }
        Ok(())
    }

    /// Fetches what `source` has of a scope. Returns whether the store has taken it in: the source
    /// may no longer have the scope, or have something else than a repair needs.
    pub(crate) async fn fetch(
        &self,
        source: &str,
        scope: &Scope,
        purpose: Purpose,
    ) -> Result<bool, S3Error> {
        let question = Question::Fetch(scope.clone());
        let Some((mut arriving, handed)) = self.begin_fetch(source, &question).await? else {
            return Ok(false);
        };
        let (since, is_paced) = match purpose {
            Purpose::CatchUp { since, is_paced } => (Some(since), is_paced),
            Purpose::Repair => (None, false),
        };
        if handed.versions.is_some() && since.is_none() {
            self.end_fetch(source, arriving);
            // Versions are not replaced whole.
            return Ok(false);
        }
        let own = scope.clone();
        let mut bytes = arriving.left_bytes();
        let begin = blocking(&self.node, move |node| {
            let begun = node.store()?.catch_up().begin_take_in(own, handed, since);
            begun.in_s3()
        });
        let mut taking = self.receive(&mut arriving, begin, is_paced).await?;
        self.end_fetch(source, arriving);
        // The versions of a key come one by one, and take effect at once.
        for version in taking.missing() {
            let question = Question::FetchVersion {
                scope: scope.clone(),
                at: version.at,
            };
            let Some((mut arriving, handed)) = self.begin_fetch(source, &question).await? else {
                return Err(not_yet("A key has changed meanwhile."));
            };
            bytes += arriving.left_bytes();
            let begin = blocking(&self.node, move |_| {
                taking.begin_version(&version, handed).in_s3()?;
                Ok(taking)
            });
            taking = self.receive(&mut arriving, begin, is_paced).await?;
            self.end_fetch(source, arriving);
        }
        let is_taken = joined(blocking(&self.node, |_| taking.finish().in_s3())).await?;
        if is_taken && since.is_some() {
            let mut report = self.node.progress();
            report.fetched += 1;
            report.fetched_bytes += bytes;
        }
        Ok(is_taken)
    }

    /// Asks `source` for one thing. Returns its description and the bytes to come; `None` if
    /// the source does not have it.
    async fn begin_fetch(
        &self,
        source: &str,
        question: &Question,
    ) -> Result<Option<(Arriving, Handed)>, S3Error> {
        let failed = |error: io::Error| {
            tracing::debug!(source, ?question, %error, "not fetched");
            Code::ServiceUnavailable.with_message("Another node breaks off.")
        };
        let (head, body) = self.encode(question)?;
        let request = self.request_for(&head, &Principal::Anonymous);
        let begun = self.peers.begin_asking(source, &request, &body).await;
        let (upstream, answer) = begun.map_err(|e| failed(io::Error::other(e)))?;
        match answer.status() {
            200 => {}
            404 => return Ok(None),
            status => return Err(failed(io::Error::other(format!("status {status}")))),
        }
        let Ok(framing @ ResponseFraming::Length(_)) = answer.framing(head.method()) else {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        };
        let mut arriving = Arriving {
            upstream,
            reader: BodyReader::new(framing, u64::MAX),
            keep_alive: answer.keep_alive(),
        };
        let handed: Handed = read_header(&mut arriving.body()).await.map_err(failed)?;
        if handed.len.unwrap_or(0) != arriving.left_bytes() {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        Ok(Some((arriving, handed)))
    }

    /// Receives the bytes. Writes one piece while the next arrives.
    async fn receive(
        &self,
        arriving: &mut Arriving,
        mut writing: JoinHandle<Result<TakeIn, S3Error>>,
        is_paced: bool,
    ) -> Result<TakeIn, S3Error> {
        while !arriving.reader.is_done() {
            let piece = read_piece(&mut arriving.body()).await;
            let piece = piece.map_err(|_| Code::ServiceUnavailable)?;
            let mut writer = joined(writing).await?;
            if is_paced {
                let rate = self.node.core.config.now().store.refill_bytes_per_s;
                self.pace.set_rate(rate);
                let wait = self.pace.wait_after(piece.len() as u64, Instant::now());
                tokio::time::sleep(wait).await;
            }
            writing = blocking(&self.node, move |_| {
                writer.write(&piece).in_s3()?;
                Ok(writer)
            });
        }
        joined(writing).await
    }

    /// Keeps the stream for the next request, if it can have one.
    fn end_fetch(&self, source: &str, arriving: Arriving) {
        if arriving.keep_alive && arriving.reader.is_done() && arriving.upstream.is_clean() {
            self.peers.keep(source, arriving.upstream);
        }
    }
}

/// The scopes that a store needs before it can prepare these changes.
pub(crate) fn built_on(prepare: &Prepare) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for change in &prepare.changes {
        if change.change.builds_on_before() {
            scopes.push(change.scope.clone());
        }
        scopes.extend(change.built_on().into_iter().map(|(scope, _)| scope));
    }
    scopes
}
