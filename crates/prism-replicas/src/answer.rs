//! Answers other nodes' questions from this node's store.
//!
//! Not here: asking them (`ask.rs`), and receiving changes (`prepare.rs`).

use std::io;

use prism_cluster::replica::{Bucket, Phase};
use prism_core::{CoreNode, NodeQuestion, send_reply};
use prism_s3::{Code, Document, S3Error};
use prism_service::{BodyFailure, Exchange};
use prism_store::{Error, Replicas, Stamp, Store};

use crate::delete::delete_here;
use crate::errors::{StoreResult, not_yet};
use crate::fence::elsewhere;
use crate::hand_over::hand_over;
use crate::question::{ListWanted, Question, Reply};
use crate::{Node, Replicator, resolve, shares};

/// Longest question: 1,000 keys of 1 KiB. JSON writes each byte of a key with up to six.
const MAX_QUESTION_BYTES: u64 = 8 << 20;
/// Buckets of one answer: below 8 MiB with two documents of 64 KiB each, of which JSON may write
/// each byte with two.
const BUCKETS_AT_ONCE: usize = 25;

impl Replicator {
    /// Answers another node's question.
    pub async fn serve_question(&self, exchange: &mut impl Exchange) -> io::Result<()> {
        exchange.limit_body(MAX_QUESTION_BYTES);
        let read = match exchange.read_to_end(MAX_QUESTION_BYTES).await {
            Err(BodyFailure::Connection(error)) => return Err(error),
            Err(BodyFailure::TooLong | BodyFailure::Malformed(_)) => Vec::new(),
            Ok(bytes) => bytes,
        };
        let Ok(asked) = serde_json::from_slice(&read) else {
            let reply = CoreNode::answer_text(&self.node.core, &read);
            return send_reply(exchange, &reply).await;
        };
        let is_outdated = |asked: &NodeQuestion<Question>| {
            asked.question.is_for_all() && asked.epoch < self.node.replication.epoch()
        };
        let result = match asked {
            asked if is_outdated(&asked) => Err(elsewhere()),
            NodeQuestion { question, .. } => match question {
                Question::Fetch(scope) => {
                    return hand_over(&self.node, exchange, scope, None).await;
                }
                Question::FetchVersion { scope, at } => {
                    return hand_over(&self.node, exchange, scope, Some(at)).await;
                }
                question => self.answer_here(question).await,
            },
        };
        send_reply(exchange, &Reply::from_result(result)).await
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
            Question::TakeBucket { bucket, record } => {
                Box::pin(self.take_other_life(bucket, record)).await?;
            }
            Question::SealBucket { bucket, record } => {
                Box::pin(self.take_other_life(bucket, record)).await?;
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
        let answer = move |node: &Node, store: &Store| answer(node, store, question);
        self.node.on_store(answer).await
    }
}

fn answer(node: &Node, store: &Store, question: Question) -> Result<Reply, S3Error> {
    let replication = &*node.replication;
    let done = match question {
        Question::Decided(decided) => store.open_changes().decided(decided),
        Question::Standing { changes, epoch } => {
            return resolve::standings(store, replication, &changes, epoch);
        }
        Question::Settled { epoch } => {
            if store.epoch() < epoch || !store.open_changes().begun_before(epoch).is_empty() {
                return Err(not_yet(
                    "Changes of earlier epochs are open at another node.",
                ));
            }
            Ok(())
        }
        Question::Buckets { after, unless } => return records(store, &after, unless),
        Question::Agreed { bucket } => {
            node.check_keeper()?;
            let found = store.buckets().record(&bucket).in_s3()?;
            return Ok(Reply::Agreed(found.map(Box::new)));
        }
        Question::Agree {
            bucket,
            before,
            next,
        } => return agree(node, store, &bucket, before, &next).map(Reply::Has),
        Question::TakeBucket { bucket, record } => {
            node.apply_told(store, &bucket, &record)?;
            Ok(())
        }
        Question::SealBucket { bucket, record } => {
            node.apply_told(store, &bucket, &record)?;
            // This node may have objects that it does not read, and that others have deleted.
            let is_read_here = |key: &str| replication.may_read(&bucket, key);
            store.buckets().check_deletable(&bucket, is_read_here)
        }
        Question::CatchUpPage(wanted) => return wanted.page(node, store).map(Reply::CatchUpPage),
        // Their answers come before the store is asked.
        Question::Fetch(_) | Question::FetchVersion { .. } => {
            return Err(Code::InternalError.into());
        }
        Question::HasChange { scope, open, epoch } => {
            let has = store.open_changes().has_change(&scope, open, epoch);
            return has.map(Reply::Has).in_s3();
        }
        Question::Policy { bucket } => return document(store, &bucket, Document::Policy),
        Question::Cors { bucket } => return document(store, &bucket, Document::Cors),
        Question::Usage { bucket } => {
            return Ok(Reply::Usage(node.quotas.usage_here(store, &bucket)));
        }
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
    done.map(|()| Reply::Done).in_s3()
}

fn document(store: &Store, bucket: &str, document: Document) -> Result<Reply, S3Error> {
    let found = store.buckets().document(bucket, document.as_str());
    let text = found.in_s3()?.map(String::from_utf8).transpose();
    Ok(Reply::Document(text.map_err(|_| Code::InternalError)?))
}

/// This node's records of the next buckets after `after`; none if their version is still
/// `unless`.
fn records(store: &Store, after: &str, unless: Option<u64>) -> Result<Reply, S3Error> {
    // Read first, so that the next call finds later changes.
    let version = store.buckets().version();
    let mut page = Vec::new();
    if unless == Some(version) {
        return Ok(Reply::Buckets { version, page });
    }
    for info in store.buckets().names(after, BUCKETS_AT_ONCE).in_s3()? {
        if let Some(record) = store.buckets().record(&info.name).in_s3()? {
            page.push((info.name, record));
        }
    }
    Ok(Reply::Buckets { version, page })
}

/// As the keeper, replaces the agreed record by `next`, if its stamp is `before`. Returns
/// whether it did.
fn agree(
    node: &Node,
    store: &Store,
    bucket: &str,
    before: Option<Stamp>,
    next: &Bucket,
) -> Result<bool, S3Error> {
    node.check_keeper()?;
    let mut changed = store.buckets().change_record(bucket, before, next);
    if let Err(Error::Busy) = changed {
        // The remains of the deleted bucket of that name go first.
        let purged = store.catch_up().purge(bucket);
        changed = purged.and_then(|()| store.buckets().change_record(bucket, before, next));
    }
    match changed {
        Ok(()) => {
            if next.phase == Phase::Gone {
                node.purge.notify_one();
            }
            Ok(true)
        }
        Err(Error::BucketChanged) => Ok(false),
        Err(error) => Err(error).in_s3(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prism_s3::xml::DeleteTarget;

    #[test]
    fn questions_and_replies_are_read_as_they_are_written() {
        let question = Question::DeleteObjects {
            bucket: "b".into(),
            targets: vec![DeleteTarget {
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
        let target = DeleteTarget {
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
