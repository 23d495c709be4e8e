//! Changes on their way between replicas: sent to those that are to prepare
//! them, and asked about where nobody has told. How they are taken in is in `prepare`.

use std::io::{self, ErrorKind::TimedOut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::RelayStream;
use prism_http::{Limits, RequestHead, ResponseHead};
use prism_replica::{Step, Write};
use prism_s3::{Code, Principal, S3Error};
use prism_service::{
    Io as _, PeerRequest, Peers, RelayError, Stage, encode_head, join_all, read_all, read_answer,
};
use prism_store::{Bytes, Decided, Refusal, Unprepared};
use tokio::sync::mpsc;

use crate::ask::preamble_for;
use crate::errors::store_error;
use crate::framed::prefix;
use crate::pace::Pace;
use crate::question::{Question, Reply};
use crate::replication::Job;
use crate::{Node, now_ms};

/// Longest answer to a change.
const MAX_REPLY_BYTES: usize = 64 << 10;
/// Another replica answers, takes bytes, or says that it is at work, within this time, or
/// the change is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long what another replica has said may take to be read, when it is there.
const AT_HAND: Duration = Duration::from_millis(10);
/// How long a replica that is behind may take until it is not.
const CATCH_UP: Duration = Duration::from_secs(3);
/// After what time it is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// After what time a change counts as open, and is asked about.
const OPEN_AFTER: Duration = Duration::from_secs(2);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often deletions are looked at that may be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// One thread's way to other nodes.
pub struct Replicator {
    /// What all threads share.
    pub node: Arc<Node>,
    /// The streams to other nodes.
    pub peers: Rc<Peers>,
    /// Of catching up.
    pub(crate) refill: Pace,
}

impl Replicator {
    /// One for the calling thread.
    #[must_use]
    pub fn new(node: Arc<Node>, peers: Rc<Peers>) -> Self {
        Self {
            refill: Pace::new(node.config.store.refill_bytes_per_s),
            node,
            peers,
        }
    }

    /// Carries out what the store leaves, until the worker ends.
    pub(crate) async fn carry_out(self: &Rc<Self>, jobs: &mut mpsc::Receiver<Job>) {
        while let Some(job) = jobs.recv().await {
            let worker = self.clone();
            tokio::task::spawn_local(async move {
                match job {
                    Job::Prepare {
                        others,
                        header,
                        len,
                        bytes,
                        answer,
                    } => {
                        let asked = others
                            .iter()
                            .map(|peer| worker.prepare_at(peer, &header, &bytes, len));
                        let answers = join_all(asked.collect()).await;
                        let _ = answer.send(verdict(&others, answers));
                    }
                    Job::Decided { others, decided } => worker.tell(&others, decided).await,
                    Job::Survey(answer) => {
                        let _ = answer.send(worker.survey().await);
                    }
                    Job::Mend(fault) => {
                        worker.mend(&fault).await;
                        worker.node.replication.mended(&fault);
                    }
                }
            });
        }
    }

    /// Tells others what became of a change; whether all have heard it.
    pub(crate) async fn tell(&self, others: &[String], decided: Decided) {
        let question = Question::Decided(decided);
        let nobody = Principal::Anonymous;
        let asked = others
            .iter()
            .map(|peer| self.ask_as(peer, &nobody, &question));
        for answer in join_all(asked.collect()).await {
            if let Err(error) = answer {
                // It asks in time.
                tracing::debug!(%error, "a replica has not heard of a change");
            }
        }
    }

    /// Has one replica prepare a change.
    async fn prepare_at(
        &self,
        peer: &str,
        header: &[u8],
        bytes: &Bytes,
        len: u64,
    ) -> Result<(), Unprepared> {
        let begun = tokio::time::Instant::now();
        let mut result = self.try_prepare_at(peer, header, bytes, len).await;
        // It learns of the cluster's state, or gets hold of what it lacks.
        while self.is_behind(&result) && begun.elapsed() < CATCH_UP {
            tokio::time::sleep(AGAIN).await;
            result = self.try_prepare_at(peer, header, bytes, len).await;
        }
        let reply = result.map_err(|error| {
            tracing::warn!(peer, %error, "a replica did not prepare a change");
            self.node.replication.avoid(peer);
            Unprepared::Unreachable(peer.to_owned())
        })?;
        match reply {
            Reply::Done => Ok(()),
            Reply::NotPrepared(refusal) => Err(Unprepared::Refused(peer.to_owned(), refusal)),
            Reply::Refused { code, message } => Err(match Code::parse(&code) {
                Some(Code::InsufficientStorage) => Unprepared::NoSpace,
                Some(Code::OperationAborted) => Unprepared::Busy,
                _ => Unprepared::Failed(peer.to_owned(), message),
            }),
            _ => Err(Unprepared::Failed(peer.to_owned(), "strange answer".into())),
        }
    }

    /// Whether a replica may do soon what it does not do now.
    fn is_behind(&self, result: &Result<Reply, RelayError>) -> bool {
        match result {
            Ok(Reply::NotPrepared(Refusal::Epoch(epoch))) => {
                *epoch < self.node.replication.view().epoch()
            }
            Ok(Reply::NotPrepared(Refusal::Lacking)) => true,
            // This node has the bucket.
            Ok(Reply::Refused { code, .. }) => Code::parse(code) == Some(Code::NoSuchBucket),
            _ => false,
        }
    }

    async fn try_prepare_at(
        &self,
        peer: &str,
        header: &[u8],
        bytes: &Bytes,
        len: u64,
    ) -> Result<Reply, RelayError> {
        let prefix = prefix(header).map_err(RelayError::Broken)?;
        let head = head_of(prefix.len() as u64 + len).map_err(RelayError::Broken)?;
        let request = PeerRequest {
            head: &head,
            preamble: preamble_for(&Principal::Anonymous),
            is_repeatable: true,
        };
        let (mut upstream, used) = self.peers.begin(peer, &request).await?;
        upstream.set_io_timeout(PATIENCE);
        let mut answer = send_change(&mut upstream, &prefix, bytes, len).await;
        // Preparing twice does no harm, and an idle stream may have been closed.
        let is_lost = match &answer {
            Err(RelayError::Broken(error)) => error.kind() != TimedOut,
            answer => matches!(answer, Err(RelayError::NotRead)),
        };
        if used && is_lost {
            upstream = self.peers.fresh(peer).await?;
            upstream.set_io_timeout(PATIENCE);
            let again = upstream.write_more(&encode_head(&request)).await;
            again.map_err(RelayError::Broken)?;
            answer = send_change(&mut upstream, &prefix, bytes, len).await;
        }
        let answer = answer?;
        let framing = answer.framing(head.method())?;
        let text = read_all(&mut upstream, framing, MAX_REPLY_BYTES).await?;
        if answer.keep_alive() && upstream.is_clean() {
            self.peers.keep(peer, upstream);
        }
        serde_json::from_slice(&text).map_err(|e| RelayError::Broken(io::Error::other(e)))
    }

    /// Asks about what has been open for long, or since before the present epoch, and
    /// forgets deletions, until the node stops. One worker does it.
    pub(crate) async fn tidy(&self) {
        let mut forgotten = tokio::time::Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.node.orders.reached(Stage::Leaving) => return,
            }
            let Some(store) = &self.node.store else {
                return;
            };
            // Others wait for this who have to get hold of what they missed.
            let before = store.open_changes().begun_before(store.epoch()).into_iter();
            let mut open: Vec<_> = before.map(|(scope, open)| (scope, open.stamp)).collect();
            for late in store.open_changes().older_than(OPEN_AFTER, None) {
                if !open.contains(&late) {
                    open.push(late);
                }
            }
            if let Err(error) = self.find_out(open).await {
                tracing::debug!(%error, "changes stay open");
            }
            // Who has missed some must not hear of one from before it as if it were new.
            if forgotten.elapsed() >= FORGET_EVERY && self.node.replication.is_calm() {
                forgotten = tokio::time::Instant::now();
                if let Err(error) = self.forget_deletions().await {
                    tracing::debug!(%error, "deletions stay remembered");
                }
            }
        }
    }

    async fn forget_deletions(&self) -> Result<(), S3Error> {
        let mut after = Vec::new();
        loop {
            let begin = after.clone();
            let (old, last) = self
                .node
                .on_store(move |_, store| {
                    let found = store.old_deletions(&begin, now_ms());
                    found.map_err(|e| store_error(&e))
                })
                .await?;
            let mut gone = Vec::new();
            for deletion in old {
                let (bucket, key) = (&deletion.scope.bucket, &deletion.scope.key);
                if !self.node.replication.is_primary(bucket, key)
                    || self.all_have_applied(&deletion).await.is_ok()
                {
                    gone.push(deletion);
                }
            }
            self.node
                .on_store(move |_, store| {
                    store.forget_deletions(&gone).map_err(|e| store_error(&e))
                })
                .await?;
            match last {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    async fn all_have_applied(&self, deletion: &prism_store::Deletion) -> Result<(), S3Error> {
        let scope = deletion.scope.clone();
        let decided = Decided {
            stamp: deletion.stamp,
            committed: true,
            scopes: vec![scope.clone()],
            epoch: self.node.replication.view().epoch(),
        };
        let question = Question::Decided(decided);
        let nobody = Principal::Anonymous;
        let replication = &self.node.replication;
        for peer in replication.other_writers(&scope.bucket, &scope.key) {
            self.ask_as(&peer, &nobody, &question).await?;
        }
        Ok(())
    }
}

/// All have to have it.
fn verdict(others: &[String], answers: Vec<Result<(), Unprepared>>) -> Result<(), Unprepared> {
    let mut write = Write::new(others.iter());
    for (peer, answer) in others.iter().zip(answers) {
        answer?;
        if write.prepared(&peer) == Step::Commit {
            return Ok(());
        }
    }
    Err(Unprepared::Overloaded)
}

/// Sends a change, and reads the head of the answer, which may come early.
async fn send_change(
    upstream: &mut RelayStream,
    prefix: &[u8],
    bytes: &Bytes,
    len: u64,
) -> Result<ResponseHead, RelayError> {
    if let Err(error) = send_whole(upstream, prefix, bytes, len).await {
        tracing::debug!(%error, "a change was not sent whole");
    }
    read_answer(upstream).await
}

async fn send_whole(
    upstream: &mut RelayStream,
    prefix: &[u8],
    bytes: &Bytes,
    len: u64,
) -> io::Result<()> {
    upstream.write_more(prefix).await?;
    match bytes {
        Bytes::None => upstream.write_all(&[]).await,
        Bytes::Inline(bytes) => upstream.write_all(bytes).await,
        Bytes::File(file) => {
            let mut at = 0;
            while at < len {
                let piece_bytes = (RelayStream::PIECE_BYTES as u64).min(len - at);
                let mut sent = upstream.send_file(file, at, piece_bytes).await;
                // It takes nothing because its disk does not. The piece is sealed whole.
                while is_late(&sent) && is_at_work(upstream).await {
                    sent = upstream.flush().await;
                }
                sent?;
                at += piece_bytes;
            }
            Ok(())
        }
    }
}

fn is_late(sent: &io::Result<()>) -> bool {
    matches!(sent, Err(error) if error.kind() == TimedOut)
}

/// Whether a replica has said, since it was last asked, that it is at work.
async fn is_at_work(upstream: &mut RelayStream) -> bool {
    let _ = tokio::time::timeout(AT_HAND, upstream.fill()).await;
    let mut is_at_work = false;
    while let Ok(Some((head, len))) = ResponseHead::parse(upstream.buffered(), &Limits::DEFAULT) {
        // The final answer is left where it is.
        if head.status() >= 200 {
            return false;
        }
        upstream.consume(len);
        is_at_work = true;
    }
    is_at_work
}

fn head_of(len: u64) -> io::Result<RequestHead> {
    let text = format!("PUT / HTTP/1.1\r\nHost: prism\r\nContent-Length: {len}\r\n\r\n");
    match RequestHead::parse(text.as_bytes(), &Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_prepared_when_every_other_replica_says_so() {
        let others = ["b".to_owned(), "c".to_owned()];
        assert_eq!(verdict(&others, vec![Ok(()), Ok(())]), Ok(()));
        assert!(verdict(&others, vec![Ok(())]).is_err());
        let gone = Unprepared::Unreachable("c".into());
        assert_eq!(verdict(&others, vec![Ok(()), Err(gone.clone())]), Err(gone));
    }
}
