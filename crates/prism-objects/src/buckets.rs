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

use prism_cluster::replica::Bucket;
use prism_http::Headers;
use prism_replicas::{Question, StoreResult, done_by_all, now_ms};
use prism_s3::access::KeyRights;
use prism_s3::cors::{self, CorsConfig};
use prism_s3::op::{Answerer, Body};
use prism_s3::{BucketName, BucketOperation, Code, Document, Policy, S3Error, xml};
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
        let extra = self.rules.cors_fields(&call.request.head).await;
        call.exchange.add_fields(extra);
        self.send_answer(call, answer).await
    }

    async fn bucket_answer(
        &self,
        request: &Request,
        bucket: &BucketName,
        operation: &BucketOperation,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        use BucketOperation as Op;
        let config = self.node.core.config.now();
        let region = config.cluster.region.as_str();
        match operation {
            Op::Create => self.create_bucket(bucket, &body).await,
            Op::Delete => self.delete_bucket(bucket).await,
            Op::PutVersioning => {
                let enabled = xml::parse_versioning(&body)?;
                let change = |next: &mut Bucket| next.versions = Some(enabled);
                self.change_bucket(bucket, change, 200).await
            }
            Op::PutDocument(document) => self.put_document(bucket, *document, body).await,
            Op::DeleteDocument(document) => {
                let change = |next: &mut Bucket| {
                    next.documents.remove(document.as_str());
                };
                self.change_bucket(bucket, change, 204).await
            }
            Op::ListObjects(list) => self.list_objects(request, bucket, list).await,
            Op::ListVersions(list) => self.list_versions(request, bucket, list).await,
            Op::ListUploads(list) => self.list_uploads(request, bucket, list).await,
            Op::DeleteObjects => self.delete_objects(request, bucket, body).await,
            Op::Head => self.on_store(bucket, region, head).await,
            Op::GetLocation => self.on_store(bucket, region, location).await,
            Op::GetVersioning => self.on_store(bucket, &(), versioning).await,
            Op::GetDocument(wanted) => self.on_store(bucket, wanted, document).await,
            Op::Preflight => {
                self.on_store(bucket, request.head.headers(), preflight)
                    .await
            }
        }
    }

    async fn put_document(
        &self,
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
        self.change_bucket(bucket, change, status).await
    }

    async fn create_bucket(&self, bucket: &BucketName, xml: &[u8]) -> Result<Answer, Failure> {
        let config = self.node.core.config.now();
        let name = bucket.as_str();
        let region = &config.cluster.region;
        if xml::parse_location_constraint(xml)?.is_some_and(|other| other != *region) {
            let message = format!("Buckets can be created in {region} only.");
            return Err(Code::InvalidArgument.with_message(message).into());
        }
        let made = self
            .replicator
            .alter_bucket(name, |known, stamp| Bucket::create(known, stamp, now_ms()));
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

    async fn delete_bucket(&self, bucket: &BucketName) -> Result<Answer, Failure> {
        let name = bucket.as_str();
        let deleting = self
            .replicator
            .alter_bucket(name, Bucket::begin_deletion)
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
        bucket: &BucketName,
        change: impl Fn(&mut Bucket),
        status: u16,
    ) -> Result<Answer, Failure> {
        let name = bucket.as_str();
        let changed = self
            .replicator
            .alter_bucket(name, |known, stamp| Bucket::change(known, stamp, &change));
        self.replicator.push_record(name, &changed.await?).await?;
        Ok(Answer::empty(status))
    }
}

/// Lists the buckets of this store on which a key has a right. Blocks on disk.
pub(crate) fn list(store: &Store, rights: &Arc<KeyRights>, (): &()) -> Result<Answer, S3Error> {
    let buckets = store.buckets().list().in_s3()?;
    let named = buckets
        .iter()
        .filter_map(|b| Some((BucketName::parse(&b.name).ok()?, b.created_ms)));
    let shown: Vec<_> = named
        .filter(|(name, _)| !rights.on(name).is_empty())
        .collect();
    let listed = shown.iter().map(|(name, created)| (name, *created));
    Ok(Answer::xml(xml::list_buckets(listed)))
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

fn preflight(store: &Store, bucket: &BucketName, headers: &Headers) -> Result<Answer, S3Error> {
    cors::asked(headers)?;
    let config = local_cors_rules(store, bucket).ok_or_else(cors::forbidden)?;
    Ok(Answer {
        head: config.preflight(headers)?,
        document: Vec::new(),
    })
}
