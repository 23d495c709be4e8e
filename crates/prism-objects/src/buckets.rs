//! Operations that concern every backend, put together by whoever holds the
//! client's connection: creating and deleting buckets, their documents,
//! listings, and deleting many objects.
//!
//! A bucket's record is agreed in one place (`registry`); every backend acts by it. A
//! deletion has three steps. The record says `deleting`, so all backends refuse further
//! objects; all backends are found empty; the record says `gone`. The bucket's uploads are
//! deleted after that. If the second step fails, the record says `live` again.

use std::collections::BTreeMap;
use std::io;

use prism_cluster::NodeName;
use prism_http::{Exchange, ResponseHead};
use prism_replica::Bucket;
use prism_replicas::{Deleted, Question, Reply, Target, done_by_all, now_ms};
use prism_s3::{
    BucketName, BucketOperation, Code, Document, Expected, ObjectKey, Operation, Policy, S3Error,
    xml,
};
use prism_service::{Io, join_all};
use prism_store::CONFIG_MAX;

use crate::answer::Answer;
use crate::objects::{Objects, Request};

/// Longest body of a CreateBucket, and of a bucket's document.
const MAX_XML_BYTES: u64 = 64 << 10;
/// Longest body of a DeleteObjects: 1,000 keys of 1 KiB in which every byte is
/// a reference such as `&amp;`, each within elements of 100 bytes.
const MAX_DELETE_BYTES: u64 = 6 << 20;

impl Objects {
    /// Answers what concerns every backend.
    pub(crate) async fn serve_together(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let max = match request.meaning.operation {
            Operation::Bucket(_, BucketOperation::DeleteObjects) => MAX_DELETE_BYTES,
            _ => MAX_XML_BYTES,
        };
        let body = self.read_document(io, request, max).await?;
        let result = match body.bytes {
            Ok(body) => self.together(request, &body).await,
            Err(error) => Err(error),
        };
        // The rules may just have changed.
        let extra = self.rules.for_browsers(&request.head).await;
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.is_whole,
            extra: extra.as_ref(),
            ..*exchange
        };
        self.answer(io, request, &exchange, result).await
    }

    async fn together(&self, request: &Request, body: &[u8]) -> Result<Answer, S3Error> {
        let done = |status| Ok((ResponseHead::new(status), Vec::new()));
        let Operation::Bucket(bucket, operation) = &request.meaning.operation else {
            return Err(Code::InternalError.into());
        };
        match operation {
            BucketOperation::Create => {
                self.check_region(body)?;
                self.create_bucket(bucket).await
            }
            BucketOperation::Delete => {
                self.delete_bucket(bucket).await?;
                done(204)
            }
            BucketOperation::PutDocument(Document::Policy) => {
                Policy::parse(bucket, body)?;
                let text = String::from_utf8(body.to_vec()).map_err(|_| Code::MalformedPolicy)?;
                self.set_document(bucket, (Document::Policy, Some(text)))
                    .await?;
                done(204)
            }
            BucketOperation::PutDocument(Document::Cors) => {
                let config = xml::parse_cors(body)?;
                let document = String::from_utf8(config.xml()).map_err(|_| Code::MalformedXML)?;
                self.set_document(bucket, (Document::Cors, Some(document)))
                    .await?;
                done(200)
            }
            BucketOperation::DeleteDocument(document) => {
                self.set_document(bucket, (*document, None)).await?;
                done(204)
            }
            BucketOperation::ListObjects(list) => {
                let xml = self.list_objects(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            BucketOperation::PutVersioning => {
                let enabled = xml::parse_versioning(body)?;
                self.change_bucket(bucket, |next| next.versions = Some(enabled))
                    .await?;
                done(200)
            }
            BucketOperation::ListVersions(list) => {
                let xml = self.list_versions(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            BucketOperation::ListUploads(list) => {
                let xml = self.list_uploads(request, bucket, list).await?;
                Ok((ResponseHead::new(200), xml))
            }
            BucketOperation::DeleteObjects => {
                let xml = self.delete_objects(request, bucket, body).await?;
                Ok((ResponseHead::new(200), xml))
            }
            _ => {
                let operation = request.meaning.operation.name();
                tracing::error!(operation, "not for all nodes together");
                Err(Code::InternalError.into())
            }
        }
    }

    fn check_region(&self, body: &[u8]) -> Result<(), S3Error> {
        let region = &self.node.config.cluster.region;
        match xml::parse_location_constraint(body)? {
            Some(other) if other != *region => Err(Code::InvalidArgument
                .with_message(format!("Buckets can be created in {region} only."))),
            _ => Ok(()),
        }
    }

    async fn create_bucket(&self, bucket: &BucketName) -> Result<Answer, S3Error> {
        let name = bucket.as_str();
        let made = self
            .replicator
            .alter_bucket(name, |known, stamp| Bucket::create(known, stamp, now_ms()));
        let (record, existed) = match made.await {
            Ok(record) => (record, false),
            Err(error) if error.code() == Code::BucketAlreadyOwnedByYou => {
                let known = self.replicator.agreed(name).await?;
                (known.ok_or(Code::OperationAborted)?, true)
            }
            Err(error) => return Err(error),
        };
        match self.node.cluster.is_in_etcd() {
            // A backend that misses the message reads etcd.
            true => self.replicator.try_push_record(name, &record).await,
            // Without etcd only these copies survive a loss of the keeper's disk.
            false => self.replicator.push_record(name, &record).await?,
        }
        // us-east-1 accepts a repeated creation, as S3 does.
        if existed && self.node.config.cluster.region != "us-east-1" {
            return Err(Code::BucketAlreadyOwnedByYou.into());
        }
        let head = ResponseHead::new(200).with("Location", format!("/{name}"));
        Ok((head.map_err(|_| Code::InternalError)?, Vec::new()))
    }

    async fn delete_bucket(&self, bucket: &BucketName) -> Result<(), S3Error> {
        let name = bucket.as_str();
        let deleting = self
            .replicator
            .alter_bucket(name, Bucket::begin_deletion)
            .await?;
        let seal = Question::SealBucket {
            bucket: name.to_owned(),
            record: Box::new(deleting.clone()),
        };
        let empty = done_by_all(self.replicator.ask_all(&seal).await);
        let stamp = self.node.stamp_above(Some(deleting.stamp));
        let ended = deleting.end_deletion(stamp, empty.is_ok());
        let is_agreed = self
            .replicator
            .agree(name, Some(deleting.stamp), &ended)
            .await;
        if let Ok(true) = is_agreed {
            self.replicator.try_push_record(name, &ended).await;
        }
        empty?;
        match is_agreed? {
            true => Ok(()),
            // It took so long that the bucket lives on.
            false => Err(Code::OperationAborted.into()),
        }
    }

    /// Changes what is said of a bucket, everywhere.
    async fn change_bucket(
        &self,
        bucket: &BucketName,
        change: impl Fn(&mut Bucket),
    ) -> Result<(), S3Error> {
        let name = bucket.as_str();
        let changed = self
            .replicator
            .alter_bucket(name, |known, stamp| Bucket::change(known, stamp, &change));
        let record = changed.await?;
        self.replicator.push_record(name, &record).await
    }

    async fn set_document(
        &self,
        bucket: &BucketName,
        (document, text): (Document, Option<String>),
    ) -> Result<(), S3Error> {
        let name = document.as_str();
        if text.as_ref().is_some_and(|text| text.len() > CONFIG_MAX) {
            return Err(Code::MetadataTooLarge.into());
        }
        self.change_bucket(bucket, |next| match &text {
            Some(text) => drop(next.documents.insert(name.to_owned(), text.clone())),
            None => drop(next.documents.remove(name)),
        })
        .await
    }

    /// Every key goes to its owner; keys of one owner are deleted in one commit.
    async fn delete_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        body: &[u8],
    ) -> Result<Vec<u8>, S3Error> {
        let expected = Expected::from_request(request.head.headers(), &request.meaning.payload)?;
        if !expected.is_checked() {
            return Err(Code::InvalidRequest.with_message(
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
            // Keys without an owner are answered below.
            if let Some(owner) = key.ok().and_then(|key| owner_of(&key)) {
                by_owner.entry(owner).or_default().push(to_delete(target));
            }
        }
        let asked = by_owner.iter().map(|(owner, targets)| {
            let question = Question::DeleteObjects {
                bucket: bucket.as_str().to_owned(),
                targets: targets.clone(),
            };
            async move {
                (
                    owner,
                    self.replicator
                        .ask_for(owner, &request.meaning.principal, &question)
                        .await,
                )
            }
        });
        let mut answers: BTreeMap<&String, Result<Deletions, S3Error>> = join_all(asked.collect())
            .await
            .into_iter()
            .map(|(owner, reply)| (owner, deletions(reply)))
            .collect();
        let has_no_bucket = |answer: &Result<_, S3Error>| {
            answer
                .as_ref()
                .is_err_and(|e| e.code() == Code::NoSuchBucket)
        };
        // If some backends have the bucket, the answer reports what they deleted.
        if !answers.is_empty() && answers.values().all(has_no_bucket) {
            return Err(Code::NoSuchBucket.into());
        }
        let results = wanted.parsed().map(|(target, key)| {
            let done = key.and_then(|key| {
                match owner_of(&key).and_then(|owner| answers.get_mut(&owner)) {
                    Some(Ok(done)) => deleted(done.next().ok_or(Code::InternalError)?),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Code::ServiceUnavailable.into()),
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

fn to_delete(target: &xml::DeleteTarget) -> Target {
    Target {
        key: target.key.clone(),
        version: target.version.clone(),
        etag: target.etag.clone(),
    }
}

fn deleted(deleted: Deleted) -> Result<xml::Deleted, S3Error> {
    match deleted {
        Deleted::Done { marker } => Ok(xml::Deleted { marker }),
        Deleted::Refused { code, message } => {
            let code = Code::parse(&code).unwrap_or(Code::InternalError);
            Err(code.with_message(message))
        }
    }
}
