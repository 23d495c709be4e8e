//! One thing that a node has and another one lacks, on its way: an object, an upload
//! or a part, described and then with its bytes, as the answer to a question. What
//! it consists of is the store's; nothing of it is held in memory but the piece that
//! is under way.

use std::io;
use std::time::Instant;

use prism_handoff::RelayStream;
use prism_http::{AnswerBody, Exchange, ResponseHead};
use prism_s3::{Code, Principal, S3Error};
use prism_service::{Input, Io, PeerRequest, send};
use prism_store::{Body, Change, Handed, Prepare, Scope, Stamp, TakeIn};

use crate::Replicator;
use crate::ask::{head_for, preamble_for};
use crate::blocking::{blocking, joined};
use crate::checked_file;
use crate::errors::store_error;
use crate::framed::{MAX_HEADER_BYTES, PIECE_BYTES, prefix, read_exactly, take_piece};
use crate::question::{Asked, Question};
use crate::registry::not_yet;

/// Bytes on their way from another node.
struct Arriving {
    upstream: RelayStream,
    left: u64,
    keep_alive: bool,
}

/// What something is fetched for.
#[derive(Clone, Copy)]
enum How {
    /// This node has missed it, as of an epoch; at the pace of catching up, or at once.
    Missed { since: u64, paced: bool },
    /// It is damaged here.
    Again,
}

impl Replicator {
    /// Hands over what this node holds of a scope, or of one version of a key.
    pub(crate) async fn hand_over(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        (scope, at): (Scope, Option<Stamp>),
    ) -> io::Result<bool> {
        let found = self.node.on_store(move |_, store| {
            let found = match at {
                None => store.catch_up().hand_over(&scope),
                Some(at) => store.catch_up().hand_over_version(&scope, at),
            };
            let found = found.map_err(|e| store_error(&e))?;
            found.ok_or(Code::NoSuchKey.into())
        });
        let (handed, body) = match found.await {
            Ok(found) => found,
            Err(error) => {
                let head = ResponseHead::new(error.status());
                return send(io, exchange, head, &[]).await;
            }
        };
        let header = serde_json::to_vec(&handed).map_err(io::Error::other)?;
        let prefix = prefix(&header)?;
        let len = prefix.len() as u64 + handed.len.unwrap_or(0);
        let mut bytes = Vec::with_capacity(1024 + prefix.len());
        let head = ResponseHead::new(200);
        let written = head.write_to(exchange, AnswerBody::Length(len), &mut bytes);
        bytes.extend_from_slice(&prefix);
        io.write_more(&bytes).await?;
        match body {
            None => {}
            Some(Body::Inline(data)) => io.write_more(&data).await?,
            Some(Body::File(file)) => self.send_whole(io, &file, (0, file.len())).await?,
            Some(Body::Parts(parts)) => {
                for segment in parts.segments(0, parts.len()) {
                    let file = parts.open(segment.index).map_err(io::Error::other)?;
                    let end = segment.offset + segment.len;
                    self.send_whole(io, &file, (segment.offset, end)).await?;
                }
            }
        }
        // All of it leaves.
        io.write_all(&[]).await?;
        Ok(written.keep_alive)
    }

    async fn send_whole(
        &self,
        io: &mut impl Io,
        file: &prism_store::CheckedFile,
        (at, end): (u64, u64),
    ) -> io::Result<()> {
        let good = checked_file::check(file, at, end)
            .await
            .map_err(io::Error::other)?;
        checked_file::send(io, file, (at, good, end)).await
    }

    /// Fetches what `source` has of a scope, and takes it in as of an epoch, at the pace
    /// that is configured. What it has no more is not missed.
    pub(crate) async fn fetch(
        &self,
        source: &str,
        scope: &Scope,
        since: u64,
    ) -> Result<(), S3Error> {
        let how = How::Missed { since, paced: true };
        self.fetch_as(source, scope, how).await.map(drop)
    }

    /// Fetches what is damaged here, in place of the same; whether it was the same.
    pub(crate) async fn fetch_again(&self, source: &str, scope: &Scope) -> Result<bool, S3Error> {
        self.fetch_as(source, scope, How::Again).await
    }

    /// Whether it was taken in.
    async fn fetch_as(&self, source: &str, scope: &Scope, how: How) -> Result<bool, S3Error> {
        let question = Question::Fetch(scope.clone());
        let Some((mut arriving, handed)) = self.ask_for(source, &question).await? else {
            return Ok(false);
        };
        if handed.versions.is_some() {
            self.end(source, arriving);

            return match how {
                How::Missed { since, paced } => {
                    let since = (since, paced);
                    self.fetch_versions(source, scope, handed, since).await
                }
                // Versions are not taken in again.
                How::Again => Ok(false),
            };
        }
        let (own, bytes) = (scope.clone(), arriving.left);
        let begin = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let begun = match how {
                How::Missed { since, .. } => store.catch_up().begin_take_in(own, handed, since),
                How::Again => store.catch_up().begin_take_in_again(own, handed),
            };
            begun.map_err(|e| store_error(&e))
        });
        let is_paced = matches!(how, How::Missed { paced: true, .. });
        let writing = self.receive(&mut arriving, begin, is_paced).await?;
        let finishing = blocking(&self.node, move |_| {
            writing.finish().map_err(|e| store_error(&e))
        });
        let taken = joined(finishing).await?;
        if taken && matches!(how, How::Missed { .. }) {
            self.node.progress.add_fetched(bytes);
        }
        self.end(source, arriving);
        Ok(taken)
    }

    /// The same of a key that has versions: those that are missing here are fetched one
    /// after the other, and all take effect at once.
    async fn fetch_versions(
        &self,
        source: &str,
        scope: &Scope,
        handed: Handed,
        (since, is_paced): (u64, bool),
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
            let Some((mut arriving, handed)) = self.ask_for(source, &question).await? else {
                // Then there is something newer to be had.
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
        let taken = joined(finishing).await?;
        if taken {
            self.node.progress.add_fetched(bytes);
        }
        Ok(taken)
    }

    /// What `source` says of the one thing that is asked for, and the bytes to come; none
    /// if it has it no more.
    async fn ask_for(
        &self,
        source: &str,
        question: &Question,
    ) -> Result<Option<(Arriving, Handed)>, S3Error> {
        let failed = |error: io::Error| {
            tracing::debug!(source, ?question, %error, "not fetched");
            Code::ServiceUnavailable.with_message("Another node breaks off.")
        };
        let body = Asked::encode(&self.node.replication, question)?;
        let head = head_for(body.len())?;
        let request = PeerRequest {
            head: &head,
            preamble: preamble_for(&Principal::Anonymous),
            is_repeatable: true,
        };
        let begun = self.peers.begin_asking(source, &request, &body).await;
        let (mut upstream, answer) = begun.map_err(|e| failed(io::Error::other(e)))?;
        match answer.status() {
            200 => {}
            404 => return Ok(None),
            status => return Err(failed(io::Error::other(format!("status {status}")))),
        }
        let framing = answer.framing(head.method());
        let Ok(prism_http::ResponseFraming::Length(mut left)) = framing else {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        };
        let handed = read_header(&mut upstream, &mut left)
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

    /// One piece is written while the next arrives.
    async fn receive(
        &self,
        arriving: &mut Arriving,
        mut writing: tokio::task::JoinHandle<Result<TakeIn, S3Error>>,
        is_paced: bool,
    ) -> Result<TakeIn, S3Error> {
        let broken = || S3Error::from(Code::ServiceUnavailable);
        let (upstream, left) = (&mut arriving.upstream, &mut arriving.left);
        let mut piece = Vec::new();
        while *left > 0 {
            if upstream.buffered().is_empty() && !matches!(upstream.fill().await, Ok(1..)) {
                return Err(broken());
            }
            take_piece(upstream, usize::MAX, left, &mut piece);
            if piece.len() >= PIECE_BYTES || *left == 0 {
                let (writer, piece) = (joined(writing).await?, std::mem::take(&mut piece));
                if is_paced {
                    let wait = self.refill.after(piece.len() as u64, Instant::now());
                    tokio::time::sleep(wait).await;
                }
                writing = blocking(&self.node, move |_| append(writer, &piece));
            }
        }
        joined(writing).await
    }

    /// The connection can be used again.
    fn end(&self, source: &str, arriving: Arriving) {
        if arriving.keep_alive && arriving.left == 0 && arriving.upstream.is_clean() {
            self.peers.keep(source, arriving.upstream);
        }
    }

    /// Fetches what a change builds on that is to be prepared here, if this node is
    /// catching up: then the primary asks again.
    pub(crate) async fn fetch_lacking(&self, scopes: Vec<Scope>) -> Result<(), S3Error> {
        let since = self.node.progress.settled();
        if since == 0 || self.node.store.as_ref().map(|s| s.epoch()) != Some(since) {
            return Ok(());
        }
        for scope in scopes {
            let primary = self.node.replication.primary(&scope.bucket, &scope.key);
            let primary = primary.ok_or(Code::ServiceUnavailable)?;
            // Somebody waits for it.
            let how = How::Missed {
                since,
                paced: false,
            };
            self.fetch_as(&primary, &scope, how).await?;
        }
        Ok(())
    }
}

fn append(mut writer: TakeIn, piece: &[u8]) -> Result<TakeIn, S3Error> {
    writer.write(piece).map_err(|e| store_error(&e))?;
    Ok(writer)
}

async fn read_header(io: &mut impl Input, left: &mut u64) -> io::Result<Handed> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = read_exactly(io, 4, left).await?;
    let len = len.try_into().map(u32::from_be_bytes).map_err(|_| bad())?;
    let len = usize::try_from(len).map_err(|_| bad())?;
    if len > MAX_HEADER_BYTES {
        return Err(bad());
    }
    let header = read_exactly(io, len, left).await?;
    serde_json::from_slice(&header).map_err(io::Error::other)
}

/// What has to be there before changes can be prepared.
pub(crate) fn built_on(prepare: &Prepare) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for change in &prepare.changes {
        let scope = &change.scope;
        let of = |upload| Scope {
            upload: Some(upload),
            ..scope.clone()
        };
        if change.change.builds_on_before() {
            scopes.push(scope.clone());
        }
        match (change.change.what(), scope.upload) {
            (Change::Write { .. }, Some((id, _))) => scopes.push(of((id, None))),
            (Change::Complete { upload, parts, .. }, _) => {
                scopes.push(of((*upload, None)));
                let parts = parts.iter();
                scopes.extend(parts.map(|(number, _)| of((*upload, Some(*number)))));
            }
            _ => {}
        }
    }
    scopes
}
