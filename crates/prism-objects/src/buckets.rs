//! Operations on buckets.
//!
//! The node that has the client's connection answers the operations that concern all
//! backends: creation and deletion, changes of documents, listings, deletion of many objects.
//! Any backend in sync answers the others from its store.
//!
//! All backends act by a bucket's record, which is agreed on in one place (the registry). A
//! deletion has three steps. The record says `deleting`, so all backends refuse further
//! objects; all backends report that the bucket is empty; the record says `gone`. The bucket's
//! uploads are deleted after that. If the second step fails, the record says `live` again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_cluster::replica::{Bucket, BucketRefusal, Stamp};
use prism_http::Headers;
use prism_replicas::{Question, StoreResult, done_by_all, now_ms};
use prism_s3::access::KeyRights;
use prism_s3::cors::{self, CorsConfig};
use prism_s3::op::{Answerer, Body, UnsetConfiguration};
use prism_s3::{BucketName, BucketOperation, Code, Document, ListBuckets, Policy, S3Error, xml};
use prism_service::Exchange;
use prism_store::{CONFIG_MAX, Store};

use crate::answer::{Answer, Failure};
use crate::objects::Objects;
use crate::request::{Call, Request};
use crate::rules::local_cors_rules;

impl Objects {
    /// Answers an operation on a bucket.
    pub(crate) async fn answer_bucket(
        &self,
        call: &mut Call<'_, impl Exchange>,
        bucket: &BucketName,
        operation: &BucketOperation,
    ) -> io::Result<()> {
        if let Some(wait) = self.wait_to_change(call.request, bucket) {
            let extra = self.rules.cors_fields(call.request.head).await;
            call.exchange.add_fields(extra);
            return self.refuse(call, too_early(wait)).await;
        }
        // The answer to a long list is long too, so its memory counts until it is sent.
        let (body, _memory) = if operation.row().body == Body::Skipped {
            if let Err(error) = self.current_store(call.request).await {
                return self.refuse(call, error).await;
            }
            call.exchange.skip_body().await;
            (Ok(Vec::new()), None)
        } else {
            match self.read_document(call).await {
                Ok((body, memory)) => (Ok(body), Some(memory)),
                Err(failure) => (Err(failure), None),
            }
        };
        let answer = match body {
            Ok(body) => {
                self.bucket_answer(call.request, bucket, operation, body)
                    .await
            }
            Err(failure) => Err(failure),
        };
        if operation.row().answerer != Answerer::ReaderWithAll {
            return self.send_answer(call, answer).await;
        }
        if call.request.meaning.operation.changes_bucket() {
            self.rules.forget(bucket);
        }
        // The CORS fields are by the rules after the operation.
        let extra = self.rules.cors_fields(call.request.head).await;
        call.exchange.add_fields(extra);
        self.send_answer(call, answer).await
    }

    async fn bucket_answer(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        operation: &BucketOperation,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        use BucketOperation as Op;
        let config = self.node.core.config.now();
        let region = config.cluster.region.as_str();
        match operation {
            Op::Create => self.create_bucket(request, bucket, &body).await,
            Op::Delete => self.delete_bucket(request, bucket).await,
            Op::PutVersioning => {
                let enabled = xml::parse_versioning(&body)?;
                let change = |next: &mut Bucket| next.versions = Some(enabled);
                self.change_bucket(request, bucket, change, 200).await
            }
            Op::PutDocument(document) => self.put_document(request, bucket, *document, body).await,
            Op::DeleteDocument(document) => {
                let change = |next: &mut Bucket| {
                    next.documents.remove(document.as_str());
                };
                self.change_bucket(request, bucket, change, 204).await
            }
            Op::ListObjects(list) => self.list_objects(request, bucket, list).await,
            Op::ListVersions(list) => self.list_versions(request, bucket, list).await,
            Op::ListUploads(list) => self.list_uploads(request, bucket, list).await,
            Op::DeleteObjects => self.delete_objects(request, bucket, body).await,
            Op::Head => self.on_store(bucket, region, head).await,
            Op::GetLocation => self.on_store(bucket, region, location).await,
            Op::GetVersioning => self.on_store(bucket, &(), versioning).await,
            Op::GetDocument(wanted) => self.on_store(bucket, wanted, document).await,
            Op::GetPolicyStatus => self.on_store(bucket, &(), policy_status).await,
            Op::Preflight => {
                self.on_store(bucket, request.head.headers(), preflight)
                    .await
            }
        }
    }

    async fn put_document(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        document: Document,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        let (text, status) = match document {
            Document::Policy => {
                Policy::parse(bucket, &body)?;
                let text = String::from_utf8(body).map_err(|_| Code::MalformedPolicy)?;
                (text, 204)
            }
            Document::Cors => {
                let xml = CorsConfig::parse(&body)?.xml();
                (String::from_utf8(xml).map_err(|_| Code::MalformedXML)?, 200)
            }
        };
        if text.len() > CONFIG_MAX {
            return Err(Code::MetadataTooLarge.into());
        }
        let change = |next: &mut Bucket| {
            let name = document.as_str().to_owned();
            next.documents.insert(name, text.clone());
        };
        self.change_bucket(request, bucket, change, status).await
    }

    async fn create_bucket(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        xml: &[u8],
    ) -> Result<Answer, Failure> {
        let config = self.node.core.config.now();
        let name = bucket.as_str();
        let region = &config.cluster.region;
        if let Some(other) = xml::parse_location_constraint(xml)?
            && other != *region
        {
            return Err(wrong_region(&other, region).into());
        }
        let made = self.alter_bucket(request, bucket, |known, stamp| {
            Bucket::create(known, stamp, now_ms())
        });
        let (record, existed) = match made.await {
            Ok(record) => (record, false),
            Err(error) if error.code() == Code::BucketAlreadyOwnedByYou => {
                let known = self.replicator.agreed(name).await?;
                (known.ok_or(Code::OperationAborted)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        match self.node.core.cluster.is_in_etcd() {
            // A backend that misses the message reads etcd.
            true => self.replicator.try_push_record(name, &record).await?,
            // Without etcd only these copies survive a loss of the keeper's disk.
            false => self.replicator.push_record(name, &record).await?,
        }
        // us-east-1 accepts a repeated creation, as S3 does.
        if existed && region != "us-east-1" {
            return Err(Code::BucketAlreadyOwnedByYou.into());
        }
        Ok(Answer::empty(200).with("Location", format!("/{name}"))?)
    }

    async fn delete_bucket(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
    ) -> Result<Answer, Failure> {
        let name = bucket.as_str();
        let deleting = self
            .alter_bucket(request, bucket, Bucket::begin_deletion)
            .await;
        let deleting = match deleting {
            Err(error) if error.code() == Code::NoSuchBucket => {
                self.make_deletion_known(name).await?;
                return Err(error.into());
            }
            deleting => deleting?,
        };
        let seal = Question::SealBucket {
            bucket: name.to_owned(),
            record: Box::new(deleting.clone()),
        };
        let empty = done_by_all(self.replicator.ask_all(&seal).await);
        let stamp = self.node.stamp_above(Some(deleting.stamp));
        let ended = deleting.end_deletion(stamp, empty.is_ok());
        self.count_change(request, bucket);
        let is_agreed = self
            .replicator
            .agree(name, Some(deleting.stamp), &ended, None)
            .await;
        if let Ok(true) = is_agreed {
            self.replicator.try_push_record(name, &ended).await?;
        }
        empty?;
        if is_agreed? {
            Ok(Answer::empty(204))
        } else {
            // The deletion took so long that the bucket lives on.
            Err(Code::OperationAborted.into())
        }
    }

    /// Tells the backends of a deletion before a client hears that the bucket is gone. The node
    /// that deleted the bucket may have ended before it told them, and etcd alone can lose the
    /// record.
    async fn make_deletion_known(&self, name: &str) -> Result<(), S3Error> {
        match self.replicator.agreed(name).await? {
            Some(record) => self.replicator.try_push_record(name, &record).await,
            None => Ok(()),
        }
    }

    /// Changes a bucket's record, tells all backends, and answers with `status`.
    async fn change_bucket(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        change: impl Fn(&mut Bucket),
        status: u16,
    ) -> Result<Answer, Failure> {
        let name = bucket.as_str();
        let changed = self.alter_bucket(request, bucket, |known, stamp| {
            Bucket::change(known, stamp, &change)
        });
        self.replicator.push_record(name, &changed.await?).await?;
        Ok(Answer::empty(status))
    }

    /// Changes the agreed record of a bucket. Each try counts against the rates of the bucket and
    /// of the caller.
    async fn alter_bucket(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<Bucket, S3Error> {
        let counted = |known: Option<&Bucket>, stamp: Stamp| {
            alter(known, stamp).inspect(|_| self.count_change(request, bucket))
        };
        self.replicator.alter_bucket(bucket.as_str(), counted).await
    }

    fn count_change(&self, request: &Request<'_>, bucket: &BucketName) {
        let caller = request.meaning.caller_with_rate();
        let changes = &self.shared.changes;
        changes.add(bucket.as_str(), caller, Instant::now());
    }

    /// The time until the request may change the bucket; `None` if it may now, or changes none.
    fn wait_to_change(&self, request: &Request<'_>, bucket: &BucketName) -> Option<Duration> {
        let meaning = &request.meaning;
        if !meaning.operation.changes_bucket() || !self.node.core.cluster.is_in_etcd() {
            return None;
        }
        let changes = &self.shared.changes;
        changes.wait(bucket.as_str(), meaning.caller_with_rate(), Instant::now())
    }
}

/// The error for a change that comes too early.
fn too_early(wait: Duration) -> S3Error {
    let error = Code::SlowDown.with_message(
        "This bucket, or this access key, has made too many changes of buckets lately. Repeat the \
         request after the time of Retry-After.",
    );
    let wait_s = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    error.until(wait_s.saturating_add(1))
}

/// Lists the buckets of this store, in a cluster of this region, on which a key has a right. Blocks
/// on disk.
pub(crate) fn list(
    store: &Store,
    (rights, region): &(Arc<KeyRights>, String),
    wanted: &ListBuckets,
) -> Result<Answer, S3Error> {
    let buckets = store.buckets().list().in_s3()?;
    let named = buckets
        .iter()
        .filter_map(|b| Some((BucketName::parse(&b.name).ok()?, b.created_ms)));
    let mut shown: Vec<_> = named
        .filter(|(name, _)| wanted.shows(name.as_str()) && !rights.on(name).is_empty())
        .collect();
    if wanted.region.as_ref().is_some_and(|other| other != region) {
        shown.clear();
    }
    let max = wanted.max.unwrap_or(shown.len());
    let is_truncated = shown.len() > max;
    shown.truncate(max);
    let document = xml::list_buckets(wanted, region, &shown, is_truncated);
    Ok(Answer::xml(document))
}

/// Answers about a configuration that no bucket has. Blocks on disk.
pub(crate) fn unset(
    store: &Store,
    bucket: &BucketName,
    configuration: &UnsetConfiguration,
) -> Result<Answer, S3Error> {
    store.buckets().get(bucket.as_str()).in_s3()?;
    Ok(match configuration.answer()? {
        Some(document) => Answer::xml(document),
        None => Answer::empty(204),
    })
}

/// The error for a location constraint that is another region, or is not the name of one.
fn wrong_region(constraint: &str, region: &str) -> S3Error {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_region = constraint.contains('-')
        && constraint.bytes().all(is_plain)
        && constraint.ends_with(|c: char| c.is_ascii_digit());
    let code = if is_region || constraint == "EU" {
        Code::IllegalLocationConstraintException
    } else {
        Code::InvalidLocationConstraint
    };
    code.with_message(format!("Buckets can be created in {region} only."))
}

fn head(store: &Store, bucket: &BucketName, region: &str) -> Result<Answer, S3Error> {
    store.buckets().get(bucket.as_str()).in_s3()?;
    Answer::empty(200).with("x-amz-bucket-region", region)
}

fn location(store: &Store, bucket: &BucketName, region: &str) -> Result<Answer, S3Error> {
    store.buckets().get(bucket.as_str()).in_s3()?;
    Ok(Answer::xml(xml::location(region)))
}

fn versioning(store: &Store, bucket: &BucketName, (): &()) -> Result<Answer, S3Error> {
    let info = store.buckets().get(bucket.as_str()).in_s3()?;
    Ok(Answer::xml(xml::versioning(info.versioning.enabled())))
}

fn document(store: &Store, bucket: &BucketName, wanted: &Document) -> Result<Answer, S3Error> {
    let found = store.buckets().document(bucket.as_str(), wanted.as_str());
    let found = found.in_s3()?;
    match wanted {
        Document::Cors => Ok(Answer::xml(found.ok_or(Code::NoSuchCORSConfiguration)?)),
        Document::Policy => Answer::xml(found.ok_or(Code::NoSuchBucketPolicy)?)
            .with("Content-Type", "application/json"),
    }
}

fn policy_status(store: &Store, bucket: &BucketName, (): &()) -> Result<Answer, S3Error> {
    let name = Document::Policy.as_str();
    let found = store.buckets().document(bucket.as_str(), name).in_s3()?;
    let policy = Policy::parse(bucket, &found.ok_or(Code::NoSuchBucketPolicy)?)?;
    Ok(Answer::xml(xml::policy_status(policy.is_public())))
}

fn preflight(store: &Store, bucket: &BucketName, headers: &Headers) -> Result<Answer, S3Error> {
    cors::asked(headers)?;
    let config = local_cors_rules(store, bucket).ok_or_else(cors::forbidden)?;
    Ok(Answer {
        head: config.preflight(headers)?,
        document: Vec::new(),
    })
}
