//! One thing that a node has and another one lacks, on its way: an object, an upload
//! or a part, described and then with its bytes, as the answer to a question. What
//! it consists of is the store's; nothing of it is held in memory but the piece that
//! is under way.

use std::io;

use prism_http::{AnswerBody, Exchange, ResponseHead};
use prism_s3::{Code, Principal, S3Error};
use prism_store::{Body, Change, Handed, Prepare, Scope, TakeIn};

use super::Worker;
use super::answer::send_error;
use super::ask::{Question, head_for};
use super::asked::Asked;
use super::body;
use super::errors::store_error;
use super::io::{Input, Io, RelayIo};
use super::pieces::PIECE_BYTES;
use super::relay::Relayed;
use super::relayed::preamble;
use super::replicate::{MAX_HEADER_BYTES, read_exactly, take};
use super::replication::prefix;
use super::upload::{blocking, joined};

impl Worker {
    /// Hands over what this node holds of a scope.
    pub(super) async fn hand_over(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        scope: Scope,
    ) -> io::Result<bool> {
        let found = joined(blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let found = store.hand_over(&scope).map_err(|e| store_error(&e))?;
            found.ok_or(Code::NoSuchKey.into())
        }));
        let (handed, body) = match found.await {
            Ok(found) => found,
            Err(error) => return send_error(io, exchange, &error, "/").await,
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
        let good = body::check(file, at, end).await.map_err(io::Error::other)?;
        body::send(io, file, (at, good, end)).await
    }

    /// Fetches what `source` has of a scope, and takes it in as of an epoch. What it
    /// has no more is not missed.
    pub(super) async fn fetch(
        &self,
        source: &str,
        scope: &Scope,
        since: u64,
    ) -> Result<(), S3Error> {
        let failed = |error: io::Error| {
            tracing::debug!(source, ?scope, %error, "not fetched");
            S3Error::with_message(Code::ServiceUnavailable, "Another node breaks off.")
        };
        let question = Question::Fetch(scope.clone());
        let question = Asked::encode(&self.node.replication, &question)?;
        let head = head_for(question.len())?;
        let request = Relayed {
            head: &head,
            preamble: preamble(&Principal::Anonymous, true),
            max_body_bytes: 0,
        };
        let begun = self.begin_asking(source, &request, &question).await;
        let (mut upstream, answer) = begun.map_err(|e| failed(io::Error::other(e)))?;
        match answer.status() {
            200 => {}
            404 => return Ok(()),
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
        let bytes = left;
        let own = scope.clone();
        let begin = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let begun = store.begin_take_in(own, handed, since);
            begun.map_err(|e| store_error(&e))
        });
        let writing = self.receive(&mut upstream, &mut left, begin).await?;
        let finishing = blocking(&self.node, move |_| {
            writing.finish().map_err(|e| store_error(&e))
        });
        if joined(finishing).await? {
            self.node.progress.add_fetched(bytes);
        }
        if answer.keep_alive() && upstream.is_clean() {
            self.handle.keep_relay(source, upstream.stream);
        }
        Ok(())
    }

    /// One piece is written while the next arrives.
    async fn receive(
        &self,
        upstream: &mut RelayIo,
        left: &mut u64,
        mut writing: tokio::task::JoinHandle<Result<TakeIn, S3Error>>,
    ) -> Result<TakeIn, S3Error> {
        let broken = || S3Error::from(Code::ServiceUnavailable);
        let mut piece = Vec::new();
        while *left > 0 {
            if upstream.buffered().is_empty() && !matches!(upstream.fill().await, Ok(1..)) {
                return Err(broken());
            }
            take(upstream, usize::MAX, left, &mut piece);
            if piece.len() >= PIECE_BYTES || *left == 0 {
                let (writer, piece) = (joined(writing).await?, std::mem::take(&mut piece));
                writing = blocking(&self.node, move |_| append(writer, &piece));
            }
        }
        joined(writing).await
    }

    /// Fetches what a change builds on that is to be prepared here, if this node is
    /// catching up: then the primary asks again.
    pub(super) async fn fetch_lacking(&self, scopes: Vec<Scope>) -> Result<(), S3Error> {
        let since = self.node.progress.settled();
        if since == 0 || self.node.store.as_ref().map(|s| s.epoch()) != Some(since) {
            return Ok(());
        }
        for scope in scopes {
            let primary = self.node.replication.primary(&scope.bucket, &scope.key);
            let primary = primary.ok_or(Code::ServiceUnavailable)?;
            self.fetch(&primary, &scope, since).await?;
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
pub(super) fn built_on(prepare: &Prepare) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for change in &prepare.changes {
        let scope = &change.scope;
        let of = |upload| Scope {
            upload: Some(upload),
            ..scope.clone()
        };
        match (&change.change, scope.upload) {
            (Change::SetMeta(_), _) => scopes.push(scope.clone()),
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
