//! Operations that concern every backend, put together by whoever holds the
//! client's connection: creating and deleting buckets, their documents,
//! listings, and deleting many objects.
//!
//! Every backend knows every bucket. What changes one reaches all backends or is
//! answered with an error, and may be repeated. A bucket is deleted in three
//! steps: sealed everywhere, which works only where it is empty; dropped
//! everywhere; unsealed, so that it can be made again. A write that comes in
//! between is told to come again.

use std::collections::BTreeMap;
use std::io;

use prism_cluster::NodeName;
use prism_http::{Exchange, ResponseHead};
use prism_s3::{BucketName, Code, Document, Expected, ObjectKey, Operation, Policy, S3Error, xml};

use super::Worker;
use super::ask::{Question, Reply, together};
use super::io::Io;
use super::serve::Answer;
use super::session::Request;
use super::versions::{Deleted, Target};

/// Longest body of a CreateBucket, and of a bucket's document.
const MAX_XML_BYTES: u64 = 64 << 10;
/// Longest body of a DeleteObjects: 1,000 keys of 1 KiB in which every byte is
/// a reference such as `&amp;`, each within elements of 100 bytes.
const MAX_DELETE_BYTES: u64 = 6 << 20;

impl Worker {
    /// Answers what concerns every backend.
    pub(super) async fn serve_together(
        &self,
        io: &mut impl Io,
        request: &Request,
    ) -> io::Result<bool> {
        let date = self.date();
        let max = match request.operation {
            Operation::DeleteObjects { .. } => MAX_DELETE_BYTES,
            _ => MAX_XML_BYTES,
        };
        let body = self.read_document(io, request, max).await?;
        let result = match body.bytes {
            Ok(body) => self.together(request, &body).await,
            Err(error) => Err(error),
        };
        let keep_alive = request.head.keep_alive() && body.is_whole && !self.is_stopping();
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        self.answer(io, request, &exchange, result).await
    }

    async fn together(&self, request: &Request, body: &[u8]) -> Result<Answer, S3Error> {
        let done = |status| Ok((ResponseHead::new(status), Vec::new()));
        match &request.operation {
            Operation::CreateBucket { bucket } => {
                self.check_region(body)?;
                self.create_bucket(request, bucket).await
            }
            Operation::DeleteBucket { bucket } => {
                self.delete_bucket(request, bucket).await?;
                done(204)
            }
            Operation::PutBucketDocument {
                bucket,
                document: Document::Policy,
            } => {
                Policy::parse(bucket, body)?;
                let text = String::from_utf8(body.to_vec()).map_err(|_| Code::MalformedPolicy)?;
                self.set_policy(request, bucket, Some(text)).await?;
                done(204)
            }
            Operation::PutBucketDocument { bucket, .. } => {
                let config = xml::parse_cors(body)?;
                let document = String::from_utf8(config.xml()).map_err(|_| Code::MalformedXML)?;
                self.set_cors(request, bucket, Some(document)).await?;
                done(200)
            }
            Operation::DeleteBucketDocument {
                bucket,
                document: Document::Policy,
            } => {
                self.set_policy(request, bucket, None).await?;
                done(204)
            }
            Operation::DeleteBucketDocument { bucket, .. } => {
                self.set_cors(request, bucket, None).await?;
                done(204)
            }
            Operation::ListObjects { bucket, list } => {
                let xml = self.list_objects(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            Operation::PutBucketVersioning { bucket } => {
                let enabled = xml::parse_versioning(body)?;
                self.set_versioning(request, bucket, enabled).await?;
                done(200)
            }
            Operation::ListObjectVersions { bucket, list } => {
                let xml = self.list_versions(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            Operation::ListMultipartUploads { bucket, list } => {
                let xml = self.list_uploads(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            Operation::DeleteObjects { bucket } => {
                let xml = self.delete_objects(request, bucket, body).await?;
                Ok((ResponseHead::new(200), xml))
            }
            other => {
                tracing::error!(operation = other.name(), "not for all nodes together");
                Err(Code::InternalError.into())
            }
        }
    }

    fn check_region(&self, body: &[u8]) -> Result<(), S3Error> {
        let region = &self.node.config.cluster.region;
        match xml::parse_location_constraint(body)? {
            Some(other) if other != *region => Err(S3Error::with_message(
                Code::InvalidArgument,
                format!("Buckets can be created in {region} only."),
            )),
            _ => Ok(()),
        }
    }

    async fn create_bucket(
        &self,
        request: &Request,
        bucket: &BucketName,
    ) -> Result<Answer, S3Error> {
        let name = bucket.as_str();
        let question = Question::CreateBucket {
            bucket: name.to_owned(),
        };
        let mut existed = true;
        for answer in self.ask_everyone(request, &question).await {
            match answer {
                Ok(_) => existed = false,
                Err(error) if error.code() == Code::BucketAlreadyOwnedByYou => {}
                Err(error) => return Err(error),
            }
        }
        // In that region, for history's sake, it may be made again.
        if existed && self.node.config.cluster.region != "us-east-1" {
            return Err(Code::BucketAlreadyOwnedByYou.into());
        }
        let head = ResponseHead::new(200).with("Location", format!("/{name}"));
        Ok((head.map_err(|_| Code::InternalError)?, Vec::new()))
    }

    /// Deletes the bucket on all backends, or on none where one of them holds
    /// objects of it.
    async fn delete_bucket(&self, request: &Request, bucket: &BucketName) -> Result<(), S3Error> {
        let (bucket, token) = (bucket.as_str().to_owned(), fastrand::u64(..));
        let seal = Question::SealBucket {
            bucket: bucket.clone(),
            token,
        };
        let mut outcome = everywhere(self.ask_everyone(request, &seal).await);
        if outcome.is_ok() {
            let drop = Question::DropBucket {
                bucket: bucket.clone(),
                token,
            };
            outcome = everywhere(self.ask_everyone(request, &drop).await);
            if outcome.is_err() {
                self.undo_drop(request, &bucket, token).await;
            }
        }
        let unseal = Question::UnsealBucket { bucket, token };
        // Should this not arrive, the seal ends by itself.
        self.ask_everyone(request, &unseal).await;
        outcome
    }

    /// Of a bucket that could not be dropped everywhere: it was empty, and has to
    /// go on existing.
    async fn undo_drop(&self, request: &Request, bucket: &str, token: u64) {
        let bucket = bucket.to_owned();
        let unseal = Question::UnsealBucket {
            bucket: bucket.clone(),
            token,
        };
        self.ask_everyone(request, &unseal).await;
        let create = Question::CreateBucket { bucket };
        for answer in self.ask_everyone(request, &create).await {
            if let Some(error) = answer.err().filter(|e| e.status() >= 500) {
                tracing::error!(%error, "bucket half deleted: repeat the request");
            }
        }
    }

    async fn set_cors(
        &self,
        request: &Request,
        bucket: &BucketName,
        document: Option<String>,
    ) -> Result<(), S3Error> {
        let bucket = bucket.as_str().to_owned();
        let question = Question::SetCors { bucket, document };
        everywhere(self.ask_everyone(request, &question).await)
    }

    async fn set_policy(
        &self,
        request: &Request,
        bucket: &BucketName,
        document: Option<String>,
    ) -> Result<(), S3Error> {
        let bucket = bucket.as_str().to_owned();
        let question = Question::SetPolicy { bucket, document };
        everywhere(self.ask_everyone(request, &question).await)
    }

    /// Every key goes to its owner; keys of one owner are deleted in one commit.
    async fn delete_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        body: &[u8],
    ) -> Result<Vec<u8>, S3Error> {
        let expected = Expected::from_request(request.head.headers(), &request.payload)?;
        if !expected.is_checked() {
            return Err(S3Error::with_message(
                Code::InvalidRequest,
                "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
            ));
        }
        let wanted = xml::parse_delete(body)?;
        // The same view from beginning to end.
        let view = self.node.replication.view();
        let owner_of = |key: &ObjectKey| {
            let owner = view.primary(bucket.as_str(), key.as_str());
            owner.map(NodeName::to_string)
        };
        let mut by_owner: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        for (target, key) in wanted.parsed() {
            let Ok(key) = key else { continue };
            let owner = owner_of(&key).ok_or(Code::ServiceUnavailable)?;
            by_owner.entry(owner).or_default().push(target.into());
        }
        let asked = by_owner.iter().map(|(owner, targets)| {
            let question = Question::DeleteObjects {
                bucket: bucket.as_str().to_owned(),
                targets: targets.clone(),
            };
            async move { (owner, self.ask_node(owner, request, &question).await) }
        });
        let mut answers: BTreeMap<&String, Result<Deletions, S3Error>> = together(asked.collect())
            .await
            .into_iter()
            .map(|(owner, reply)| (owner, deletions(reply)))
            .collect();
        if let Some(Err(error)) = answers
            .values()
            .find(|answer| matches!(answer, Err(e) if e.code() == Code::NoSuchBucket))
        {
            return Err(error.clone());
        }
        let results = wanted.parsed().map(|(target, key)| {
            let done = key.and_then(|key| {
                match owner_of(&key).and_then(|owner| answers.get_mut(&owner)) {
                    Some(Ok(done)) => done.next().ok_or(Code::InternalError)?.into_result(),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Code::InternalError.into()),
                }
            });
            (target, done)
        });
        Ok(xml::delete_result(wanted.quiet, results))
    }
}

/// What a node says of its targets, in their order.
type Deletions = std::vec::IntoIter<Deleted>;

fn deletions(reply: Result<Reply, S3Error>) -> Result<Deletions, S3Error> {
    match reply? {
        Reply::Deleted(done) => Ok(done.into_iter()),
        _ => Err(Code::InternalError.into()),
    }
}

/// Whether all have done it. Those that do not know the bucket do not matter
/// where others do.
pub(super) fn everywhere(answers: Vec<Result<Reply, S3Error>>) -> Result<(), S3Error> {
    let all = answers.len();
    let mut missing = 0;
    let mut failure: Option<S3Error> = None;
    for answer in answers {
        match answer {
            Ok(_) => {}
            Err(error) if error.code() == Code::NoSuchBucket => missing += 1,
            // What the client can do something about says more.
            Err(error) => match &failure {
                Some(known) if known.status() < 500 => {}
                _ => failure = Some(error),
            },
        }
    }
    match failure {
        Some(error) => Err(error),
        None if missing == all => Err(Code::NoSuchBucket.into()),
        None => Ok(()),
    }
}
