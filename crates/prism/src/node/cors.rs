//! CORS headers of every answer, errors included: whether a browser may show it to the page
//! that asked, by the bucket's rules.

use std::rc::Rc;
use std::time::Instant;

use prism_http::{Headers, Method, RequestHead, ResponseHead};
use prism_s3::cors::CorsConfig;
use prism_s3::{BucketName, Document, Operation, S3Error, xml};
use prism_store::Store;

use super::Worker;
use super::ask::Question;

impl Worker {
    /// The fields that every answer to this request has for a browser. Preflights are
    /// answered by rules of their own.
    pub(super) async fn for_browsers(&self, head: &RequestHead) -> Option<Headers> {
        head.headers().get("origin")?;
        if *head.method() == Method::Options {
            return None;
        }
        let bucket = Operation::bucket_named(head, None)?;
        let rules = match Box::pin(self.cors_rules(&bucket)).await {
            Ok(rules) => rules?,
            Err(error) => {
                tracing::warn!(%bucket, %error, "the bucket's CORS rules are out of reach");
                return None;
            }
        };
        let mut answer = ResponseHead::new(200);
        let added = rules.add_to(&mut answer, head.headers(), head.method().as_str());
        let fields = std::mem::take(answer.headers_mut());
        (added.is_ok() && !fields.is_empty()).then_some(fields)
    }

    /// The rules of a bucket: this node's own, or those that a backend told of late.
    async fn cors_rules(&self, bucket: &BucketName) -> Result<Option<Rc<CorsConfig>>, S3Error> {
        if let Some(store) = &self.node.store
            && self.node.replication.is_in_sync()
        {
            return Ok(rules_here(store, bucket).map(Rc::new));
        }
        let known = self.cors.borrow().get(bucket.as_str(), Instant::now());
        if let Some(rules) = known {
            return Ok(rules);
        }
        let question = Question::Cors {
            bucket: bucket.as_str().to_owned(),
        };
        let document = self.ask_any(&question).await?;
        let parse = |text: String| xml::parse_cors(text.as_bytes()).map(Rc::new);
        let rules = document.map(parse).transpose()?;
        let mut known = self.cors.borrow_mut();
        known.put(bucket.as_str(), rules.clone(), Instant::now());
        Ok(rules)
    }
}

/// The rules of a bucket in this store.
pub(super) fn rules_here(store: &Store, bucket: &BucketName) -> Option<CorsConfig> {
    let found = store
        .buckets()
        .document(bucket.as_str(), Document::Cors.as_str());
    xml::parse_cors(&found.ok()??).ok()
}
