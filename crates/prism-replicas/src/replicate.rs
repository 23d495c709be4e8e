//! Sends this primary's changes to the other replicas, and their outcomes.
//!
//! Not here: the receiver of a change (`prepare.rs`), and changes that stay open
//! (`open_changes.rs`).

use std::io::{self, ErrorKind::HostUnreachable, ErrorKind::TimedOut};
use std::time::Duration;

use prism_core::Refused;
use prism_handoff::RelayStream;
use prism_http::{Limits, ResponseHead, read_answer, read_body};
use prism_s3::{Code, Principal};
use prism_service::{Io as _, PeerRequest, RelayError, encode_head, join_all, own_head};
use prism_store::{Bytes, Decided, Error, Refusal};

use crate::Replicator;
use crate::question::{Question, Reply};
use crate::replication::Outgoing;

/// Longest answer to a change.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// Another replica answers, takes bytes, or says that its disk is at work, within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to read an interim answer that may have arrived already.
const INTERIM_TIMEOUT: Duration = Duration::from_millis(10);
/// Time for which a change is sent again to a replica that is behind.
const BEHIND_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before a change is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Replicator {
    /// Tells other replicas the outcome of a change. A replica that misses it asks later. Returns
    /// whether all have heard it.
    pub(crate) async fn announce_outcome(&self, others: &[String], decided: Decided) -> bool {
        let question = Question::Decided(decided);
        let asked = others.iter().map(|peer| self.ask(peer, &question));
        let mut have_all_heard = true;
        for answer in join_all(asked.collect()).await {
            if let Err(error) = answer {
                tracing::debug!(%error, "a replica missed the outcome of a change");
                have_all_heard = false;
            }
        }
        have_all_heard
    }

    /// Has one replica prepare a change. Tries again while the replica is behind.
    pub(crate) async fn prepare_at(&self, peer: &str, change: &Outgoing) -> Result<(), Error> {
        let begun = tokio::time::Instant::now();
        let mut result = self.try_prepare_at(peer, change).await;
        while self.is_behind(&result) && begun.elapsed() < BEHIND_TIMEOUT {
            tokio::time::sleep(RETRY_PAUSE).await;
            result = self.try_prepare_at(peer, change).await;
        }
        let unreplicated = |why: String, refusal| Error::Unreplicated {
            node: peer.to_owned(),
            why: why.into(),
            refusal,
        };
        let reply = result.map_err(|error| {
            tracing::warn!(peer, %error, "a replica did not prepare a change");
            self.node.replication.avoid(peer);
            unreplicated("is out of reach".into(), None)
        })?;
        let failed = |why: &str| unreplicated(format!("failed: {why}"), None);
        Err(match reply {
            Reply::Done => return Ok(()),
            Reply::NotPrepared(refusal) => {
                unreplicated(format!("refused: {refusal}"), Some(refusal))
            }
            Reply::Refused(Refused { code, message }) => match Code::parse(&code) {
                Some(Code::InsufficientStorage) => Error::NoSpace,
                Some(Code::OperationAborted) => Error::Busy,
                _ => failed(&message),
            },
            _ => failed("an answer of the wrong kind"),
        })
    }

    /// Whether the replica lacks a state, an earlier change or a bucket that it will soon have.
    fn is_behind(&self, result: &Result<Reply, RelayError>) -> bool {
        match result {
            Ok(Reply::NotPrepared(Refusal::Epoch(epoch))) => {
                *epoch < self.node.replication.view().epoch()
            }
            Ok(Reply::NotPrepared(Refusal::Lacking)) => true,
            // This node has the bucket, so it exists.
            Ok(Reply::Refused(error)) => Code::parse(&error.code) == Some(Code::NoSuchBucket),
            _ => false,
        }
    }

    async fn try_prepare_at(&self, peer: &str, change: &Outgoing) -> Result<Reply, RelayError> {
        let len = change.header.len() as u64 + change.len;
        let head = own_head("PUT", len).map_err(RelayError::Broken)?;
        let request = self.request_for(&head, &Principal::Anonymous);
        let mut upstream = self.peers.stream(peer, &request).await?;
        let mut answer = send_change(&mut upstream, &request, change).await;
        // Another node may have closed an idle stream. Preparing twice has the same effect as once.
        let is_lost = match &answer {
            Err(RelayError::Broken(error)) => !matches!(error.kind(), TimedOut | HostUnreachable),
            answer => matches!(answer, Err(RelayError::NotRead)),
        };
        if upstream.was_used() && is_lost {
            upstream = self.peers.fresh(peer).await?;
            answer = send_change(&mut upstream, &request, change).await;
        }
        let answer = answer?;
        let framing = answer.framing(head.method())?;
        let text = read_body(&mut upstream, framing, MAX_REPLY_BYTES).await?;
        if answer.keep_alive() && upstream.is_clean() {
            self.peers.keep(peer, upstream);
        }
        serde_json::from_slice(&text).map_err(|e| RelayError::Broken(io::Error::other(e)))
    }
}

/// Sends a change and reads the head of the answer. A refusal may come before the last byte.
async fn send_change(
    upstream: &mut RelayStream,
    request: &PeerRequest<'_>,
    change: &Outgoing,
) -> Result<ResponseHead, RelayError> {
    upstream.set_io_timeout(ANSWER_TIMEOUT);
    let head = encode_head(request, upstream.form());
    if let Err(error) = send_whole(upstream, &head, change).await {
        tracing::debug!(%error, "a change was not sent to its end");
    }
    Ok(read_answer(upstream, &Limits::ANSWER).await?)
}

async fn send_whole(upstream: &mut RelayStream, head: &[u8], change: &Outgoing) -> io::Result<()> {
    upstream.write_more(head).await?;
    upstream.write_more(&change.header).await?;
    match &change.bytes {
        Bytes::None => upstream.write_all(&[]).await,
        Bytes::Inline(bytes) => upstream.write_all(bytes).await,
        Bytes::File(file) => {
            let mut at = 0;
            while at < change.len {
                let piece_bytes = (RelayStream::PIECE_BYTES as u64).min(change.len - at);
                let mut sent = upstream.send_file(file, at, piece_bytes).await;
                // A replica with a slow disk reads nothing. The piece is sealed already, so a
                // flush sends the rest of it.
                while is_timeout(&sent) && is_at_work(upstream).await {
                    sent = upstream.flush().await;
                }
                sent?;
                at += piece_bytes;
            }
            Ok(())
        }
    }
}

fn is_timeout(sent: &io::Result<()>) -> bool {
    matches!(sent, Err(error) if error.kind() == TimedOut)
}

/// Whether the replica has said, since the last call, that its disk is at work.
async fn is_at_work(upstream: &mut RelayStream) -> bool {
    let _ = tokio::time::timeout(INTERIM_TIMEOUT, upstream.fill()).await;
    let mut is_at_work = false;
    while let Ok(Some((head, len))) = ResponseHead::parse(upstream.buffered(), &Limits::DEFAULT) {
        // The caller reads the final answer.
        if head.status() >= 200 {
            return false;
        }
        upstream.consume(len);
        is_at_work = true;
    }
    is_at_work
}
