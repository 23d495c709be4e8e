//! What nodes ask each other for when an operation concerns every backend, and
//! how a backend answers from its own store.
//!
//! A question travels as the JSON body of a `POST` behind a preamble that says
//! so; the answer is JSON as well. All of it lies within the nodes' mutual TLS.

use std::io;
use std::time::Duration;

use prism_http::{Exchange, Limits, RequestHead, ResponseHead};
use prism_replica::Bucket;
use prism_s3::{Code, Document, Principal, S3Error};
use prism_store::{Decided, Pending, Refusal, Replicas, Scope, ScopePage, Stamp, Standing, Store};
use serde::{Deserialize, Serialize};

use super::answer::{send, set};
use super::asked::Asked;
use super::errors::store_error;
use super::fence::{cut_off, elsewhere};
use super::held::{self, HeldWanted};
use super::io::Io;
use super::listing::{ListShare, ObjectsWanted, UploadsWanted};
use super::progress::ProgressReport;
use super::relay::Relayed;
use super::relayed::for_itself;
use super::session::Request;
use super::upload::{blocking, joined};
use super::versions::{Deleted, Target, VersionsWanted, delete_here};
use super::{Node, Worker};

/// Longest question: 1,000 keys of 1 KiB, each byte of which JSON writes with up
/// to six.
const MAX_QUESTION_BYTES: u64 = 8 << 20;
/// Longest answer: a page of a listing, with the same keys.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// How often all are asked while the cluster changes.
const EVERYONE_TRIES: u32 = 3;

/// Something that a backend does for itself. Asking twice does no harm, but for what
/// [`Question::is_repeatable`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Question {
    /// A change is over, says the primary.
    Decided(Decided),
    /// How the asked backend is.
    Report,
    /// What became of these changes, of which the asked node is the primary in this
    /// epoch or a later one.
    Standing {
        changes: Vec<(Scope, Stamp)>,
        epoch: u64,
    },
    /// Whether the asked node is in this epoch and has nothing open of before it.
    Settled {
        epoch: u64,
    },
    /// The asked node's records of buckets after this name, unless its version is still this
    /// one.
    Buckets {
        after: String,
        unless: Option<u64>,
    },
    /// The agreed record of a bucket, asked of the node that keeps the registry.
    Agreed {
        bucket: String,
    },
    /// Something else is to be agreed, if what is agreed has this stamp.
    Agree {
        bucket: String,
        before: Option<Stamp>,
        next: Box<Bucket>,
    },
    /// This is agreed, and to be acted by.
    TakeBucket {
        bucket: String,
        record: Box<Bucket>,
    },
    /// The same of a bucket that is to be deleted: whether it may be.
    SealBucket {
        bucket: String,
        record: Box<Bucket>,
    },
    /// What the asked node holds.
    Held(HeldWanted),
    /// One thing, with its bytes; the answer is no [`Reply`], but see `fetch`.
    Fetch(Scope),
    /// One version of a key likewise, by where it lies.
    FetchVersion {
        scope: Scope,
        at: Stamp,
    },
    /// Whether the asked node, in this epoch, has a change that is open elsewhere.
    HasChange {
        scope: Scope,
        open: Pending,
        epoch: u64,
    },
    Policy {
        bucket: String,
    },
    Cors {
        bucket: String,
    },
    ListObjects(ObjectsWanted),
    ListUploads(UploadsWanted),
    ListVersions(VersionsWanted),
    DeleteObjects {
        bucket: String,
        targets: Vec<Target>,
    },
}

/// What a backend says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Share(ListShare),
    /// What became of each target, in their order.
    Deleted(Vec<Deleted>),
    /// A document of a bucket, if it has one.
    Document(Option<String>),
    /// In the order of the question.
    Standings {
        standings: Vec<Standing>,
        epoch: u64,
    },
    Has(bool),
    /// The next ones; none behind the last.
    Buckets {
        version: u64,
        page: Vec<(String, Bucket)>,
    },
    /// None: nothing was ever agreed.
    Agreed(Option<Box<Bucket>>),
    Held(ScopePage),
    /// A change was not prepared.
    NotPrepared(Refusal),
    Report {
        open_changes: u64,
        bytes_used: u64,
        progress: ProgressReport,
    },
    Refused {
        code: String,
        message: String,
    },
}

impl Reply {
    fn from_result(result: Result<Self, S3Error>) -> Self {
        result.unwrap_or_else(|error| Self::Refused {
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
        })
    }

    fn into_result(self) -> Result<Self, S3Error> {
        match self {
            Self::Refused { code, message } => {
                let code = Code::parse(&code).unwrap_or(Code::InternalError);
                Err(S3Error::with_message(code, message))
            }
            reply => Ok(reply),
        }
    }
}

impl Worker {
    /// The answers of all backends but those that are out, this node's own included.
    /// They are asked at the same time.
    pub(super) async fn ask_everyone(
        &self,
        principal: &Principal,
        question: &Question,
    ) -> Vec<Result<Reply, S3Error>> {
        let mut tries = 1;
        loop {
            let epoch = self.node.replication.epoch();
            let nodes = self.node.replication.takers();
            let asked = nodes
                .iter()
                .map(|node| self.ask_as(node, principal, question));
            let answers = together(asked.collect()).await;
            // Somebody may have come meanwhile who has to be told as well.
            if self.node.replication.epoch() == epoch || tries == EVERYONE_TRIES {
                return answers;
            }
            tries += 1;
        }
    }

    /// The answer of one backend, which may be this node.
    pub(super) async fn ask_node(
        &self,
        node: &str,
        request: &Request,
        question: &Question,
    ) -> Result<Reply, S3Error> {
        self.ask_as(node, &request.principal, question).await
    }

    /// The same, for somebody, or for the node itself.
    pub(super) async fn ask_as(
        &self,
        node: &str,
        principal: &Principal,
        question: &Question,
    ) -> Result<Reply, S3Error> {
        if node == self.node.name {
            return self.answer_here(question.clone()).await;
        }
        let unavailable = |what: &dyn std::fmt::Display| {
            tracing::warn!(node, error = %what, "a backend did not answer");
            self.node.replication.avoid(node);
            S3Error::with_message(Code::ServiceUnavailable, "A storage node is out of reach.")
        };
        let body = Asked::encode(&self.node.replication, question)?;
        let head = head_for(body.len())?;
        let relayed = Relayed {
            head: &head,
            preamble: for_itself(principal),
            is_repeatable: question.is_repeatable(),
        };
        let asked = self.ask(node, &relayed, &body, MAX_ANSWER_BYTES).await;
        let (answer, bytes) = asked.map_err(|e| unavailable(&e))?;
        if answer.status() != 200 {
            return Err(unavailable(&format_args!("status {}", answer.status())));
        }
        let reply: Reply = serde_json::from_slice(&bytes).map_err(|e| unavailable(&e))?;
        reply.into_result()
    }

    /// Answers another node's question.
    pub(super) async fn serve_question(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let body = self.read_document(io, request, MAX_QUESTION_BYTES).await?;
        let asked = body.bytes.and_then(|bytes| {
            serde_json::from_slice(&bytes).map_err(|_| Code::InvalidRequest.into())
        });
        let result = match asked {
            Ok(Asked { epoch, question })
                if question.is_for_all() && epoch < self.node.replication.epoch() =>
            {
                Err(elsewhere())
            }
            Ok(Asked {
                question: Question::Fetch(scope),
                ..
            }) => return self.hand_over(io, exchange, (scope, None)).await,
            Ok(Asked {
                question: Question::FetchVersion { scope, at },
                ..
            }) => return self.hand_over(io, exchange, (scope, Some(at))).await,
            Ok(Asked { question, .. }) => self.answer_here(question).await,
            Err(error) => Err(error),
        };
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.is_whole,
            ..*exchange
        };
        let reply = serde_json::to_vec(&Reply::from_result(result)).map_err(io::Error::other)?;
        let mut head = ResponseHead::new(200);
        set(&mut head, "Content-Type", "application/json")?;
        send(io, &exchange, head, &reply).await
    }

    /// Answers where this node may, as [`Question::is_of_store`] says.
    async fn answer_here(&self, question: Question) -> Result<Reply, S3Error> {
        let fenced = question.is_of_store();
        let held = self.node.replication.begin();
        if fenced {
            self.node.may_look(held)?;
        }
        let reply = self.answer_for_sure(question).await?;
        match fenced && !self.node.replication.is_still(held) {
            true => Err(cut_off()),
            false => Ok(reply),
        }
    }

    async fn answer_for_sure(&self, question: Question) -> Result<Reply, S3Error> {
        // First of all, what is open here: the answer is of what counts.
        if let Some(bucket) = question.bucket() {
            self.know_bucket(bucket).await?;
        }
        match &question {
            Question::SealBucket { bucket, .. } => {
                let all = self.node.replication.backends();
                self.make_bucket_certain(bucket, &all).await?;
            }
            Question::ListObjects(ObjectsWanted {
                bucket, without, ..
            })
            | Question::ListUploads(UploadsWanted {
                bucket, without, ..
            })
            | Question::ListVersions(VersionsWanted {
                bucket, without, ..
            }) => self.make_bucket_certain(bucket, without).await?,
            Question::Standing { changes, .. } => self.make_all_certain(changes).await?,
            _ => {}
        }
        joined(blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            answer(node, store, question)
        }))
        .await
    }
}

fn answer(node: &Node, store: &Store, question: Question) -> Result<Reply, S3Error> {
    let replication = &*node.replication;
    let done = match question {
        Question::Report => {
            return Ok(Reply::Report {
                open_changes: store.open_changes().older_than(Duration::ZERO, None).len() as u64,
                bytes_used: store.bytes_used(),
                progress: node.progress.report(),
            });
        }
        Question::Decided(decided) => store.open_changes().decided(decided),
        Question::Standing { changes, epoch } => {
            return super::certain::standings(store, replication, (&changes, epoch));
        }
        Question::Settled { epoch } => return held::settled(store, epoch),
        Question::Buckets { after, unless } => return held::buckets(store, (&after, unless)),
        Question::Agreed { bucket } => return held::agreed(node, store, &bucket),
        Question::Agree {
            bucket,
            before,
            next,
        } => return held::agree(node, store, (&bucket, before), &next),
        Question::TakeBucket { bucket, record } => {
            return super::registry::take(node, store, &bucket, &record).map(|()| Reply::Done);
        }
        Question::SealBucket { bucket, record } => {
            super::registry::take(node, store, &bucket, &record)?;
            // Others may have deleted what is here and not read here.
            store
                .buckets()
                .check_deletable(&bucket, |key| replication.is_reader(&bucket, key))
        }
        Question::Held(wanted) => return held::page(store, replication, &wanted),
        // Answered before.
        Question::Fetch(_) | Question::FetchVersion { .. } => {
            return Err(Code::InternalError.into());
        }
        Question::HasChange { scope, open, epoch } => {
            let has = store.open_changes().has_change(&scope, open, epoch);
            return has.map(Reply::Has).map_err(|e| store_error(&e));
        }
        Question::Policy { bucket } => return document(store, &bucket, Document::Policy),
        Question::Cors { bucket } => return document(store, &bucket, Document::Cors),
        Question::DeleteObjects { bucket, targets } => {
            let here = (store, replication);
            return delete_here(here, &bucket, &targets).map(Reply::Deleted);
        }
        Question::ListVersions(wanted) => {
            return super::versions::share(store, replication, &wanted).map(Reply::Share);
        }
        Question::ListObjects(wanted) => {
            return super::listing::objects(store, replication, &wanted).map(Reply::Share);
        }
        Question::ListUploads(wanted) => {
            return super::listing::uploads(store, replication, &wanted).map(Reply::Share);
        }
    };
    done.map(|()| Reply::Done).map_err(|e| store_error(&e))
}

fn document(store: &Store, bucket: &str, document: Document) -> Result<Reply, S3Error> {
    let found = store.buckets().document(bucket, document.as_str());
    let found = found.map_err(|e| store_error(&e))?;
    let text = found.map(String::from_utf8).transpose();
    Ok(Reply::Document(text.map_err(|_| Code::InternalError)?))
}

pub(super) fn head_for(body_len: usize) -> Result<RequestHead, S3Error> {
    let text = format!("POST / HTTP/1.1\r\nHost: prism\r\nContent-Length: {body_len}\r\n\r\n");
    match RequestHead::parse(text.as_bytes(), &Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(Code::InternalError.into()),
    }
}

/// Runs a few futures at the same time, on this thread; their results come in
/// their order.
pub(super) async fn together<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures
        .into_iter()
        .map(|future| (Some(Box::pin(future)), None))
        .collect();
    std::future::poll_fn(|context| {
        let mut all = true;
        for (future, result) in &mut running {
            let Some(pinned) = future else { continue };
            match pinned.as_mut().poll(context) {
                std::task::Poll::Ready(value) => {
                    *result = Some(value);
                    *future = None;
                }
                std::task::Poll::Pending => all = false,
            }
        }
        match all {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, result)| result)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_nodes_say_to_each_other_survives_the_way() {
        let question = Question::DeleteObjects {
            bucket: "b".into(),
            targets: vec![Target {
                key: "a\"\u{1}\u{10ffff}".into(),
                version: Some("null".into()),
                etag: None,
            }],
        };
        let text = serde_json::to_string(&question).unwrap();
        assert_eq!(serde_json::from_str::<Question>(&text).unwrap(), question);
        let error = S3Error::with_message(Code::BucketNotEmpty, "no");
        let reply = Reply::from_result(Err(error.clone()));
        let text = serde_json::to_string(&reply).unwrap();
        let read: Reply = serde_json::from_str(&text).unwrap();
        assert_eq!(read.into_result(), Err(error));
        assert!(serde_json::from_str::<Question>("{\"Format\":{}}").is_err());
    }

    #[test]
    fn the_longest_question_and_answer_fit() {
        let target = Target {
            key: "\u{1}".repeat(1024),
            version: Some("v".repeat(39)),
            etag: Some("e".repeat(40)),
        };
        let targets = vec![target; 1000];
        let bucket = "b".repeat(63);
        let question = serde_json::to_vec(&Question::DeleteObjects { bucket, targets }).unwrap();
        assert!(
            (question.len() as u64) < MAX_QUESTION_BYTES,
            "{}",
            question.len()
        );
    }

    #[test]
    fn futures_run_at_the_same_time_and_answer_in_order() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let all_here = tokio::sync::Barrier::new(3);
            let meet = |n: u64| {
                let all_here = &all_here;
                async move {
                    all_here.wait().await;
                    n
                }
            };
            assert_eq!(together(vec![meet(3), meet(1), meet(2)]).await, [3, 1, 2]);
            let none: Vec<std::future::Ready<u8>> = Vec::new();
            assert!(together(none).await.is_empty());
        });
    }
}
