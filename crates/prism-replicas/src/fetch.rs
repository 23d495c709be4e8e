//! Fetches an object, an upload or a part from another node, and takes it into this store.
//!
//! Not here: the source's side (`hand_over.rs`), and the choice of what is missing
//! (`catch_up.rs`). The store decides what takes effect.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use prism_handoff::RelayStream;
use prism_http::ResponseFraming;
use prism_s3::{Code, Principal, S3Error};
use prism_service::Peers;
use prism_store::{Change, Handed, Prepare, Scope, TakeIn};
use tokio::task::JoinHandle;

use crate::Node;
use crate::ask::EncodedQuestion;
use crate::blocking::{blocking, joined};
use crate::errors::store_error;
use crate::framed::{PIECE_BYTES, read_header, take_buffered};
use crate::pace::Pace;
use crate::question::Question;
use crate::registry::not_yet;

/// Bytes that arrive from another node.
struct Arriving {
    upstream: RelayStream,
    left: u64,
    keep_alive: bool,
}

/// The reason for a fetch.
#[derive(Clone, Copy)]
enum Purpose {
    /// This node has missed it, as of the epoch `since`. Paced: at the pace of catching up.
    CatchUp { since: u64, is_paced: bool },
    /// This node's copy is damaged.
    Repair,
}

/// One thread's fetches.
pub(crate) struct Fetcher {
    node: Arc<Node>,
    peers: Rc<Peers>,
    pace: Pace,
}

impl Fetcher {
    pub(crate) fn new(node: Arc<Node>, peers: Rc<Peers>) -> Self {
        Self {
            pace: Pace::new(node.config.store.refill_bytes_per_s),
            node,
            peers,
        }
    }

    /// Fetches what `source` has of a scope as of the epoch `since`, at the configured pace.
    /// Succeeds if the source no longer has the scope.
    pub(crate) async fn fetch(
        &self,
        source: &str,
        scope: &Scope,
        since: u64,
    ) -> Result<(), S3Error> {
        let purpose = Purpose::CatchUp {
            since,
            is_paced: true,
        };
        self.fetch_as(source, scope, purpose).await.map(drop)
    }

    /// Replaces this node's damaged copy of a scope. False: the source has something else.
    pub(crate) async fn fetch_again(&self, source: &str, scope: &Scope) -> Result<bool, S3Error> {
        self.fetch_as(source, scope, Purpose::Repair).await
    }

    /// Fetches the scopes that a refused change builds on, if this node is catching up. The
    /// primary then sends the change again.
    pub(crate) async fn fetch_lacking(&self, scopes: Vec<Scope>) -> Result<(), S3Error> {
        let since = self.node.progress.settled();
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
            self.fetch_as(&primary, &scope, purpose).await?;
        }
        Ok(())
    }

    /// Returns whether the store has taken it in.
    async fn fetch_as(
        &self,
        source: &str,
        scope: &Scope,
        purpose: Purpose,
    ) -> Result<bool, S3Error> {
        let question = Question::Fetch(scope.clone());
        let Some((mut arriving, handed)) = self.begin(source, &question).await? else {
            return Ok(false);
        };
        if handed.versions.is_some() {
            self.end(source, arriving);
            return match purpose {
                Purpose::CatchUp { since, is_paced } => {
                    self.fetch_versions(source, scope, handed, since, is_paced)
                        .await
                }
                // Versions are not replaced whole.
                Purpose::Repair => Ok(false),
            };
        }
        let (own, bytes) = (scope.clone(), arriving.left);
        let begin = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let begun = match purpose {
                Purpose::CatchUp { since, .. } => {
                    store.catch_up().begin_take_in(own, handed, since)
                }
                Purpose::Repair => store.catch_up().begin_take_in_again(own, handed),
            };
            begun.map_err(|e| store_error(&e))
        });
        let is_paced = matches!(purpose, Purpose::CatchUp { is_paced: true, .. });
        let writing = self.receive(&mut arriving, begin, is_paced).await?;
        let finishing = blocking(&self.node, move |_| {
            writing.finish().map_err(|e| store_error(&e))
        });
        let is_taken = joined(finishing).await?;
        if is_taken && matches!(purpose, Purpose::CatchUp { .. }) {
            self.node.progress.add_fetched(bytes);
        }
        self.end(source, arriving);
        Ok(is_taken)
    }

    /// Fetches a key that has versions: the missing ones one by one. All take effect at once.
    async fn fetch_versions(
        &self,
        source: &str,
        scope: &Scope,
        handed: Handed,
        since: u64,
        is_paced: bool,
    ) -> Result<bool, S3Error> {
        let own = scope.clone();
        let mut taking = self
            .node
            .on_store(move |_, store| {
                let begun = store.catch_up().begin_take_versions(own, handed, since);
                begun.map_err(|e| store_error(&e))
            })
            .await?;
        let mut bytes = 0;
        for version in taking.missing() {
            let question = Question::FetchVersion {
                scope: scope.clone(),
                at: version.at,
            };
            let Some((mut arriving, handed)) = self.begin(source, &question).await? else {
                return Err(not_yet("A key has changed meanwhile."));
            };
            bytes += arriving.left;
            let (kept, writer) = joined(blocking(&self.node, move |_| {
                let begun = taking.begin(&version, handed);
                begun
                    .map(|writer| (taking, writer))
                    .map_err(|e| store_error(&e))
            }))
            .await?;
            taking = kept;
            let begin = blocking(&self.node, move |_| Ok(writer));
            let writer = self.receive(&mut arriving, begin, is_paced).await?;
            self.end(source, arriving);
            taking = joined(blocking(&self.node, move |_| {
                taking.add(writer).map_err(|e| store_error(&e))?;
                Ok(taking)
            }))
            .await?;
        }
        let finishing = blocking(&self.node, move |_| {
            taking.finish().map_err(|e| store_error(&e))
        });
        let is_taken = joined(finishing).await?;
        if is_taken {
            self.node.progress.add_fetched(bytes);
        }
        Ok(is_taken)
    }

    /// Asks `source` for one thing. Returns its description and the bytes to come; `None` if
    /// the source does not have it.
    async fn begin(
        &self,
        source: &str,
        question: &Question,
    ) -> Result<Option<(Arriving, Handed)>, S3Error> {
        let failed = |error: io::Error| {
            tracing::debug!(source, ?question, %error, "not fetched");
            Code::ServiceUnavailable.with_message("Another node breaks off.")
        };
        let encoded = EncodedQuestion::new(&self.node.replication, question)?;
        let request = encoded.request(&Principal::Anonymous, true);
        let begun = self.peers.begin_asking(source, &request, &encoded.body);
        let (mut upstream, answer) = begun.await.map_err(|e| failed(io::Error::other(e)))?;
        match answer.status() {
            200 => {}
            404 => return Ok(None),
            status => return Err(failed(io::Error::other(format!("status {status}")))),
        }
        let framing = answer.framing(encoded.head.method());
        let Ok(ResponseFraming::Length(mut left)) = framing else {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        };
        let handed: Handed = read_header(&mut upstream, &mut left)
            .await
            .map_err(failed)?;
        if handed.len.unwrap_or(0) != left {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        let arriving = Arriving {
            upstream,
            left,
            keep_alive: answer.keep_alive(),
        };
        Ok(Some((arriving, handed)))
    }

    /// Receives the bytes. Writes one piece while the next arrives.
    async fn receive(
        &self,
        arriving: &mut Arriving,
        mut writing: JoinHandle<Result<TakeIn, S3Error>>,
        is_paced: bool,
    ) -> Result<TakeIn, S3Error> {
        let broken = || S3Error::from(Code::ServiceUnavailable);
        let (upstream, left) = (&mut arriving.upstream, &mut arriving.left);
        let mut piece = Vec::new();
        while *left > 0 {
            if upstream.buffered().is_empty() && !matches!(upstream.fill().await, Ok(1..)) {
                return Err(broken());
            }
            take_buffered(upstream, usize::MAX, left, &mut piece);
            if piece.len() >= PIECE_BYTES || *left == 0 {
                let (writer, piece) = (joined(writing).await?, std::mem::take(&mut piece));
                if is_paced {
                    let wait = self.pace.wait_after(piece.len() as u64, Instant::now());
                    tokio::time::sleep(wait).await;
                }
                writing = blocking(&self.node, move |_| append(writer, &piece));
            }
        }
        joined(writing).await
    }

    /// Keeps the stream for the next request, if it can have one.
    fn end(&self, source: &str, arriving: Arriving) {
        if arriving.keep_alive && arriving.left == 0 && arriving.upstream.is_clean() {
            self.peers.keep(source, arriving.upstream);
        }
    }
}

fn append(mut writer: TakeIn, piece: &[u8]) -> Result<TakeIn, S3Error> {
    writer.write(piece).map_err(|e| store_error(&e))?;
    Ok(writer)
}

/// The scopes that a store needs before it can prepare these changes.
pub(crate) fn built_on(prepare: &Prepare) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for change in &prepare.changes {
        let scope = &change.scope;
        let with_upload = |upload| Scope {
            upload: Some(upload),
            ..scope.clone()
        };
        if change.change.builds_on_before() {
            scopes.push(scope.clone());
        }
        match (change.change.what(), scope.upload) {
            (Change::Write { .. }, Some((id, _))) => scopes.push(with_upload((id, None))),
            (Change::Complete { upload, parts, .. }, _) => {
                scopes.push(with_upload((*upload, None)));
                let parts = parts.iter();
                scopes.extend(parts.map(|(number, _)| with_upload((*upload, Some(*number)))));
            }
            _ => {}
        }
    }
    scopes
}
