//! Answers other nodes' questions from this node's store.
//!
//! Not here: asking them (`ask.rs`), and receiving changes (`prepare.rs`).

use std::io;
use std::time::Duration;

use prism_http::{Exchange, RequestHead, ResponseHead};
use prism_s3::{Code, Document, S3Error};
use prism_service::{BodyFailure, Io, RequestBody, send, set};
use prism_store::{Replicas, Store};

use crate::delete::delete_here;
use crate::errors::store_error;
use crate::fence::elsewhere;
use crate::hand_over::hand_over;
use crate::question::{Asked, ListWanted, Question, Reply};
use crate::registry::apply_record;
use crate::{Node, Replicator, catch_up_page, resolve, shares};

/// Longest question: 1,000 keys of 1 KiB. JSON writes each byte of a key with up to six.
const MAX_QUESTION_BYTES: u64 = 8 << 20;

impl Replicator {
    /// Answers another node's question. Returns whether the connection lives on.
    pub async fn serve_question(
        &self,
        io: &mut impl Io,
        head: &RequestHead,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let mut body = RequestBody::new(head, MAX_QUESTION_BYTES);
        let read = match body.read_to_end(io, MAX_QUESTION_BYTES).await {
            Err(BodyFailure::Connection(error)) => return Err(error),
            Err(BodyFailure::TooLong | BodyFailure::Malformed(_)) => Err(Code::InvalidRequest),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| Code::InvalidRequest),
        };
        let asked = read.map_err(S3Error::from);
        let result = match asked {
            Ok(Asked { epoch, question })
                if question.is_for_all() && epoch < self.node.replication.epoch() =>
            {
                Err(elsewhere())
            }
            Ok(Asked {
                question: Question::Fetch(scope),
                ..
            }) => return hand_over(&self.node, io, exchange, scope, None).await,
            Ok(Asked {
                question: Question::FetchVersion { scope, at },
                ..
            }) => return hand_over(&self.node, io, exchange, scope, Some(at)).await,
            Ok(Asked { question, .. }) => self.answer_here(question).await,
            Err(error) => Err(error),
        };
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.skip_rest(io).await,
            ..*exchange
        };
        let reply = serde_json::to_vec(&Reply::from_result(result)).map_err(io::Error::other)?;
        let mut head = ResponseHead::new(200);
        set(&mut head, "Content-Type", "application/json")?;
        send(io, &exchange, head, &reply).await
    }

    /// Answers a question, if this node may serve from its store or the question does not need
    /// that ([`Question::is_of_store`]).
    pub(crate) async fn answer_here(&self, question: Question) -> Result<Reply, S3Error> {
        if !question.is_of_store() {
            return self.answer_current(question).await;
        }
        let term = self.node.replication.begin();
        self.node.check_lease(term)?;
        let reply = self.answer_current(question).await?;
        self.node.replication.if_still(term, Ok(reply))
    }

    /// Answers a question after the open changes that it concerns are resolved.
    async fn answer_current(&self, question: Question) -> Result<Reply, S3Error> {
        if let Some(bucket) = question.bucket() {
            self.ensure_bucket(bucket).await?;
        }
        match &question {
            Question::SealBucket { bucket, .. } => {
                let all = self.node.replication.backends();
                self.resolve_bucket(bucket, &all).await?;
            }
            Question::ListObjects(ListWanted {
                bucket, without, ..
            })
            | Question::ListUploads(ListWanted {
                bucket, without, ..
            })
            | Question::ListVersions(ListWanted {
                bucket, without, ..
            }) => self.resolve_bucket(bucket, without).await?,
            Question::Standing { changes, .. } => self.resolve_own_keys(changes).await?,
            _ => {}
        }
        self.node
            .on_store(move |node, store| answer(node, store, question))
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
            return resolve::standings(store, replication, &changes, epoch);
        }
        Question::Settled { epoch } => return catch_up_page::settled(store, epoch),
        Question::Buckets { after, unless } => {
            return catch_up_page::buckets(store, &after, unless);
        }
        Question::Agreed { bucket } => return catch_up_page::agreed(node, store, &bucket),
        Question::Agree {
            bucket,
            before,
            next,
        } => return catch_up_page::agree(node, store, &bucket, before, &next),
        Question::TakeBucket { bucket, record } => {
            return apply_record(node, store, &bucket, &record).map(|()| Reply::Done);
        }
        Question::SealBucket { bucket, record } => {
            apply_record(node, store, &bucket, &record)?;
            // This node may have objects that it does not read, and that others have deleted.
            store
                .buckets()
                .check_deletable(&bucket, |key| replication.is_reader(&bucket, key))
        }
        Question::CatchUpPage(wanted) => return catch_up_page::page(store, replication, &wanted),
        // `serve_question` answers these.
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
            return delete_here(store, replication, &bucket, &targets).map(Reply::Deleted);
        }
        Question::ListVersions(wanted) => {
            return shares::versions(store, replication, &wanted).map(Reply::Share);
        }
        Question::ListObjects(wanted) => {
            return shares::objects(store, replication, &wanted).map(Reply::Share);
        }
        Question::ListUploads(wanted) => {
            return shares::uploads(store, replication, &wanted).map(Reply::Share);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::question::Target;

    #[test]
    fn questions_and_replies_are_read_as_they_are_written() {
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
        let error = Code::BucketNotEmpty.with_message("no");
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
}
