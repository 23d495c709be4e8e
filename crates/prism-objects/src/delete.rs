//! DeleteObject and DeleteObjects.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prism_cluster::NodeName;
use prism_replicas::delete::{self, named};
use prism_replicas::{Deleted, Question, Reply, error_of, joined};
use prism_s3::xml::{self, DeleteTarget};
use prism_s3::{BucketName, Code, Conditions, Expected, ObjectKey, ObjectRef, S3Error};
use prism_service::join_all;
use prism_store::ToDelete;

use crate::answer::{Answer, Failure, internal};
use crate::objects::Objects;
use crate::request::Request;
use crate::versions;

/// Keys that are deleted in one turn of their caller.
const PIECE_KEYS: usize = 100;
/// The time after which judging lets the worker do other work. A decision under way is finished.
const MAX_TURN: Duration = Duration::from_millis(2);

impl Objects {
    /// Deletes an object, or the version of it that the client names.
    pub(crate) async fn delete_object(
        &self,
        object: &ObjectRef,
        version: &Option<String>,
        conditions: &Conditions,
    ) -> Result<Answer, Failure> {
        let object = object.clone();
        let conditions = conditions.clone();
        let version = named(version.as_deref())?;
        let deleting = self.node.on_store(move |_, store| {
            let key = object.key.as_str();
            let deletion = ToDelete { key, version };
            delete::delete(store, object.bucket.as_str(), deletion, &conditions)
        });
        let mut answer = Answer::empty(204);
        versions::set_removed(&mut answer.head, deleting.await?).map_err(internal)?;
        Ok(answer)
    }

    /// Deletes many objects, [`PIECE_KEYS`] in each turn of the caller. Each key goes to its
    /// owner, which deletes its keys of a turn in one commit.
    pub(crate) async fn delete_objects(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        let expected = Expected::from_request(request.head.headers(), &request.meaning.payload)?;
        if !expected.is_checked() {
            let message =
                "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
            return Err(Code::InvalidRequest.with_message(message).into());
        }
        let caller = &request.meaning.principal;
        let wanted = {
            let _turn = self.shared.callers.turn(caller).await;
            // A long list takes longer than a turn of the worker.
            let parsing = tokio::task::spawn_blocking(move || xml::parse_delete(&body));
            joined(parsing).await?
        };
        let mut results = Vec::new();
        let mut targets = wanted.parsed();
        loop {
            let piece: Vec<_> = targets.by_ref().take(PIECE_KEYS).collect();
            if piece.is_empty() {
                break;
            }
            let _turn = self.shared.callers.turn(caller).await;
            results.extend(self.delete_piece(request, bucket, piece).await);
        }
        let has_no_bucket = |(_, done): &(_, Result<_, S3Error>)| {
            done.as_ref()
                .is_err_and(|error| error.code() == Code::NoSuchBucket)
        };
        // If some backends have the bucket, the answer reports what they deleted.
        if results.iter().any(has_no_bucket) && results.iter().all(|(_, done)| done.is_err()) {
            return Err(Code::NoSuchBucket.into());
        }
        Ok(Answer::xml(xml::delete_result(wanted.quiet, results)))
    }

    /// Deletes some of the keys of a list, and returns the result of each.
    async fn delete_piece<'t>(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        piece: Vec<(&'t DeleteTarget, Result<ObjectKey, S3Error>)>,
    ) -> Vec<(&'t DeleteTarget, Result<Option<String>, S3Error>)> {
        // One view finds the owner of a key both before and after the deletion.
        let view = self.node.replication.view();
        let owner_of = |key: &ObjectKey| {
            let owner = view.primary(bucket.as_str(), key.as_str());
            owner.map(NodeName::to_string)
        };
        let mut judged = Vec::new();
        let mut turn = Instant::now();
        let mut by_owner: BTreeMap<String, Vec<DeleteTarget>> = BTreeMap::new();
        for (target, key) in piece {
            let key = key.and_then(|key| {
                let object = ObjectRef {
                    bucket: bucket.clone(),
                    key: key.clone(),
                };
                self.decide_deletion(request.meaning, object, target.version.clone())?;
                Ok(key)
            });
            // The results below report keys without an owner.
            if let Some(owner) = key.as_ref().ok().and_then(owner_of) {
                by_owner.entry(owner).or_default().push(target.clone());
            }
            judged.push((target, key));
            if turn.elapsed() >= MAX_TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
        let mut answers = self.delete_at_owners(request, bucket, by_owner).await;
        let results = judged.into_iter().map(|(target, key)| {
            let done = key.and_then(|key| {
                match owner_of(&key).and_then(|owner| answers.get_mut(&owner)) {
                    Some(Ok(done)) => deleted(done.next().ok_or(Code::InternalError)?),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Code::ServiceUnavailable.into()),
                }
            });
            (target, done)
        });
        results.collect()
    }

    /// Asks each owner to delete its keys. Returns the owners' answers.
    async fn delete_at_owners(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        by_owner: BTreeMap<String, Vec<DeleteTarget>>,
    ) -> BTreeMap<String, Result<Deletions, S3Error>> {
        let asked = by_owner.into_iter().map(|(owner, targets)| async move {
            let question = Question::DeleteObjects {
                bucket: bucket.as_str().to_owned(),
                targets,
            };
            let caller = &request.meaning.principal;
            let reply = self.replicator.ask_for(&owner, caller, &question).await;
            (owner, deletions(reply))
        });
        join_all(asked.collect()).await.into_iter().collect()
    }
}

/// A node's results for its targets, in their order.
type Deletions = std::vec::IntoIter<Deleted>;

fn deletions(reply: Result<Reply, S3Error>) -> Result<Deletions, S3Error> {
    match reply? {
        Reply::Deleted(done) => Ok(done.into_iter()),
        _ => Err(Code::InternalError.into()),
    }
}

/// The delete marker of a deletion, if there is one.
fn deleted(deleted: Deleted) -> Result<Option<String>, S3Error> {
    match deleted {
        Deleted::Done { marker } => Ok(marker),
        Deleted::Refused(refused) => Err(error_of(refused)),
    }
}
