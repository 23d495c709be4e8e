//! The function that answers each operation, and the errors before one is called.

use std::borrow::Borrow;
use std::io;

use prism_http::Headers;
use prism_s3::op::Body;
use prism_s3::{Code, ObjectOperation, ObjectRef, Operation, S3Error};
use prism_service::Exchange;
use prism_store::Store;

use crate::answer::{Answer, Failure, is_ours, send_error};
use crate::objects::Objects;
use crate::request::{Call, Request};
use crate::{attributes, buckets, multipart, tagging};

impl Objects {
    /// Answers a request here.
    pub(crate) async fn answer_here(&self, call: &mut Call<'_, impl Exchange>) -> io::Result<()> {
        let operation = &call.request.meaning.operation;
        if let Operation::Unsupported { what } = operation {
            return self.refuse(call, Operation::not_implemented(what)).await;
        }
        if let Operation::Preflight = operation {
            call.exchange.skip_body().await;
            let answer = self.shared.preflight(call.request.head);
            return self.send_answer(call, answer.map_err(Failure::from)).await;
        }
        if let Operation::Bucket(bucket, operation) = operation {
            return Box::pin(self.answer_bucket(call, bucket, operation)).await;
        }
        let store = match self.current_store(call.request).await {
            Ok(store) => store,
            Err(error) => return self.refuse(call, error).await,
        };
        if let Operation::Object(object, operation) = operation {
            return self.answer_object(call, store, object, operation).await;
        }
        call.exchange.skip_body().await;
        let answer = match (operation, &call.request.meaning.rights) {
            (Operation::Unset(bucket, configuration), _) => {
                self.on_store(bucket, configuration, buckets::unset).await
            }
            (Operation::ListBuckets(wanted), Some(rights)) => {
                let region = self.node.core.config.now().cluster.region.clone();
                let shown = (rights.clone(), region);
                self.on_store(&shown, wanted, buckets::list).await
            }
            // Another node knows the caller, and this one will hear of it.
            _ => Err(S3Error::from(Code::ServiceUnavailable).into()),
        };
        self.send_answer(call, answer).await
    }

    /// Answers an operation on an object from this node's store.
    async fn answer_object(
        &self,
        call: &mut Call<'_, impl Exchange>,
        store: &Store,
        object: &ObjectRef,
        operation: &ObjectOperation,
    ) -> io::Result<()> {
        use ObjectOperation as Op;
        if operation.row().body == Body::Skipped {
            call.exchange.skip_body().await;
        }
        let answer = match operation {
            Op::Get(read) | Op::Head(read) => {
                return match self.get_object(call, store, object, read).await {
                    Ok(()) => Ok(()),
                    Err(failure) => self.send_failure(call, failure).await,
                };
            }
            Op::Copy(copy) => {
                let copying = self.copy_object(call.request, object, copy);
                return Box::pin(self.answer_in_time(call, copying)).await;
            }
            Op::CopyPart(part) => {
                let copying = self.copy_part(call.request, object, part);
                return Box::pin(self.answer_in_time(call, copying)).await;
            }
            Op::Put(put) => {
                let pipe = self.begin_put(call.request, object, put);
                Box::pin(self.store_body(call, pipe)).await
            }
            Op::UploadPart(part) => {
                let pipe = self.begin_put_part(call.request, object, part);
                Box::pin(self.store_body(call, pipe)).await
            }
            Op::CompleteUpload(complete) => {
                Box::pin(self.complete_upload(call, object, complete)).await
            }
            Op::PutTagging { version } => {
                Box::pin(self.put_tagging(call, object, version.as_deref())).await
            }
            Op::GetTagging { version } => self.on_store(object, version, tagging::read).await,
            Op::DeleteTagging { version } => self.on_store(object, version, tagging::delete).await,
            Op::GetAcl { version } => self.on_store(object, version, attributes::acl).await,
            Op::GetAttributes(wanted) => self.on_store(object, wanted, attributes::read).await,
            Op::Delete {
                version,
                conditions,
            } => self.delete_object(object, version, conditions).await,
            Op::CreateUpload(create) => self.create_upload(object, create).await,
            Op::ListParts(list) => self.on_store(object, list, multipart::list).await,
            Op::AbortUpload { upload } => {
                self.on_store(object, upload.as_str(), multipart::abort)
                    .await
            }
        };
        self.send_answer(call, answer).await
    }

    /// This node's store, if it may answer the request and is current.
    pub(crate) async fn current_store(&self, request: &Request<'_>) -> Result<&Store, S3Error> {
        let operation = &request.meaning.operation;
        let store = self.node.store.as_ref().ok_or(Code::ServiceUnavailable)?;
        self.may_answer(request)?;
        if let Some(bucket) = operation.bucket() {
            self.replicator.ensure_bucket(bucket.as_str()).await?;
        }
        if let Some(ObjectRef { bucket, key }) = operation.object() {
            let bucket = bucket.as_str();
            let key = key.as_str();
            self.replicator.resolve_key_with_retry(bucket, key).await?;
        }
        Ok(store)
    }

    /// Runs `work` on copies of its arguments, where it may block on the disk.
    pub(crate) async fn on_store<S, P>(
        &self,
        subject: &S,
        parameters: &P,
        work: fn(&Store, &S, &P) -> Result<Answer, S3Error>,
    ) -> Result<Answer, Failure>
    where
        S: Clone + Send + 'static,
        P: ToOwned<Owned: Send> + ?Sized + 'static,
    {
        let subject = subject.clone();
        let parameters = parameters.to_owned();
        let working = self
            .node
            .on_store(move |_, store| work(store, &subject, parameters.borrow()));
        Ok(working.await?)
    }

    /// Sends an answer or an error. Either turns into another error if this node may no longer
    /// serve.
    pub(crate) async fn send_answer(
        &self,
        call: &mut Call<'_, impl Exchange>,
        answer: Result<Answer, Failure>,
    ) -> io::Result<()> {
        let still = self.if_still(call.request, Ok(()));
        match still.map_err(Failure::from).and(answer) {
            Ok(answer) => answer.send(call.exchange).await,
            Err(failure) => self.send_failure(call, failure).await,
        }
    }

    /// Answers with an error before the body is read.
    pub(crate) async fn refuse(
        &self,
        call: &mut Call<'_, impl Exchange>,
        error: S3Error,
    ) -> io::Result<()> {
        self.send_failure(call, error.into()).await
    }

    /// Sends an error, and counts it if it is this node's fault.
    pub(crate) async fn send_failure(
        &self,
        call: &mut Call<'_, impl Exchange>,
        failure: Failure,
    ) -> io::Result<()> {
        let meaning = &call.request.meaning;
        let (error, fields) = match failure {
            Failure::Refused { error, .. }
                if meaning.operation.only_reads_object() && meaning.hides(&error) =>
            {
                (Code::AccessDenied.into(), Headers::new())
            }
            Failure::Refused { error, fields } => (error, fields),
            Failure::Connection(error) => return Err(error),
        };
        let resource = call.request.head.path();
        if is_ours(&error) {
            self.node.core.counters.failed.add_one();
            tracing::warn!(%error, resource, "request failed");
        }
        send_error(call.exchange, &error, fields, resource).await
    }
}
