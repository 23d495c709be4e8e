//! The rules in a bucket's documents: its policy says which requests are allowed or denied, its
//! CORS rules say which web pages may see the answers. Backends have the documents in their
//! stores. Other nodes ask a backend. Answers are remembered for a second.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_http::{Headers, Method, RequestHead, ResponseHead};
use prism_replicas::{Node, Question, Replicator, Reply};
use prism_s3::cors::CorsConfig;
use prism_s3::{BucketName, Code, Document, Operation, Policy, S3Error};
use prism_store::Store;
use tokio::sync::OnceCell;

use crate::route;
use crate::shared::Shared;

/// Lifetime of a remembered answer, and so of a policy that was removed. A change counts within a
/// second after its answer, so the rest is for the way to other nodes.
const LIFETIME: Duration = Duration::from_millis(900);
/// Buckets remembered by each worker; a policy takes 20 KiB at most, CORS rules 64 KiB.
const CAPACITY: usize = 256;

/// The document of a bucket. It is asked for once, and all who wait share the answer.
type Asked<T> = Rc<OnceCell<Result<Option<Rc<T>>, S3Error>>>;

/// Documents of one kind that were asked for within [`LIFETIME`], by bucket.
struct RecentDocuments<T>(HashMap<String, (Instant, Asked<T>)>);

impl<T> Default for RecentDocuments<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> RecentDocuments<T> {
    /// The document of a bucket, or the place for it.
    fn get(&mut self, bucket: &str, now: Instant) -> Asked<T> {
        if let Some((asked, document)) = self.0.get(bucket)
            && now.saturating_duration_since(*asked) < LIFETIME
        {
            return document.clone();
        }
        if self.0.len() >= CAPACITY {
            self.0.clear();
        }
        let place = Asked::default();
        self.0.insert(bucket.to_owned(), (now, place.clone()));
        place
    }
}

/// Policies and CORS rules of buckets, as one thread remembers them.
pub(crate) struct BucketRules {
    node: Arc<Node>,
    replicator: Rc<Replicator>,
    policies: RefCell<RecentDocuments<Policy>>,
    cors: RefCell<RecentDocuments<CorsConfig>>,
    shared: Arc<Shared>,
}

impl BucketRules {
    pub(crate) fn new(replicator: Rc<Replicator>, shared: Arc<Shared>) -> Self {
        Self {
            node: replicator.node.clone(),
            replicator,
            policies: RefCell::default(),
            cors: RefCell::default(),
            shared,
        }
    }

    /// The policy of a bucket, if it has one.
    ///
    /// # Errors
    /// `NoSuchBucket`. No backend is in reach. `AccessDenied` if the policy cannot be read, which
    /// is remembered like a policy.
    pub(crate) async fn policy(&self, bucket: &BucketName) -> Result<Option<Rc<Policy>>, S3Error> {
        let question = |bucket| Question::Policy { bucket };
        let parse = |text: &[u8]| {
            Policy::parse(bucket, text).map_err(|error| {
                tracing::error!(%bucket, %error, "cannot read the bucket's policy, so its requests are denied; the bucket's owner can replace or delete it");
                Code::AccessDenied.into()
            })
        };
        self.recent(&self.policies, bucket, question, parse).await
    }

    /// Forgets the documents of a bucket, which may have changed.
    pub(crate) fn forget(&self, bucket: &BucketName) {
        self.policies.borrow_mut().0.remove(bucket.as_str());
        self.cors.borrow_mut().0.remove(bucket.as_str());
    }

    /// A document of a bucket, from memory or from a backend.
    async fn recent<T>(
        &self,
        known: &RefCell<RecentDocuments<T>>,
        bucket: &BucketName,
        question: fn(String) -> Question,
        parse: impl Fn(&[u8]) -> Result<T, S3Error>,
    ) -> Result<Option<Rc<T>>, S3Error> {
        let name = bucket.as_str();
        let place = known.borrow_mut().get(name, Instant::now());
        if let Some(Ok(document)) = place.get() {
            return Ok(document.clone());
        }
        let asking = async || {
            let text = self.ask_any(&question(name.to_owned())).await?;
            let document = text.map(|text| parse(text.as_bytes()).map(Rc::new));
            document.transpose()
        };
        let answer = Box::pin(place.get_or_init(asking)).await.clone();
        // Other failures count only for those who have waited for them. A bucket that is missing
        // may be made at once, with documents.
        let is_unreadable = |error: &S3Error| error.code() == Code::AccessDenied;
        if answer.as_ref().is_err_and(|error| !is_unreadable(error)) {
            known.borrow_mut().0.remove(name);
        }
        answer
    }

    /// The document from the first backend that answers. Every backend in sync knows all
    /// buckets.
    async fn ask_any(&self, question: &Question) -> Result<Option<String>, S3Error> {
        let mut nodes = route::backends(&self.node);
        if self.node.store.is_some() && self.node.replication.is_in_sync() {
            nodes.sort_by_key(|name| *name != self.node.core.name);
        }
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for node in nodes {
            match self.replicator.ask(&node, question).await {
                Ok(Reply::Document(document)) => return Ok(document),
                Ok(_) => return Err(Code::InternalError.into()),
                Err(error) if error.code() == Code::NoSuchBucket => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The CORS fields of every answer to this request. Preflights have an operation of their
    /// own.
    pub(crate) async fn cors_fields(&self, head: &RequestHead) -> Option<Headers> {
        head.headers().get("origin")?;
        if *head.method() == Method::OPTIONS {
            return None;
        }
        let pages = self.shared.pages();
        if let Some(fields) = pages.and_then(|pages| fields(&pages, head)) {
            return Some(fields);
        }
        let bucket = Operation::bucket_named(head)?;
        let rules = match Box::pin(self.cors_rules(&bucket)).await {
            Ok(rules) => rules?,
            Err(error) => {
                tracing::warn!(%bucket, %error, "no backend has sent the bucket's CORS rules; the answer has no CORS fields");
                return None;
            }
        };
        fields(&rules, head)
    }

    /// The CORS rules of a bucket, from this node's store or from a backend.
    async fn cors_rules(&self, bucket: &BucketName) -> Result<Option<Rc<CorsConfig>>, S3Error> {
        if let Some(store) = &self.node.store
            && self.node.replication.is_in_sync()
        {
            return Ok(local_cors_rules(store, bucket).map(Rc::new));
        }
        let question = |bucket| Question::Cors { bucket };
        let rules = self.recent(&self.cors, bucket, question, CorsConfig::parse);
        match rules.await {
            Err(error) if error.code() == Code::NoSuchBucket => Ok(None),
            rules => rules,
        }
    }
}

/// The CORS fields of an answer by these rules, if one of them allows the request.
fn fields(rules: &CorsConfig, head: &RequestHead) -> Option<Headers> {
    let mut answer = ResponseHead::new(200);
    let added = rules.add_to(&mut answer, head.headers(), head.method().as_str());
    let fields = std::mem::take(answer.headers_mut());
    (added.is_ok() && !fields.is_empty()).then_some(fields)
}

/// The CORS rules of a bucket in this store.
pub(crate) fn local_cors_rules(store: &Store, bucket: &BucketName) -> Option<CorsConfig> {
    let found = store
        .buckets()
        .document(bucket.as_str(), Document::Cors.as_str());
    CorsConfig::parse(&found.ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_remembered_for_its_lifetime_and_few_are() {
        let (mut policies, now) = (RecentDocuments::<Policy>::default(), Instant::now());
        let place = policies.get("b", now);
        assert!(place.get().is_none() && place.set(Ok(None)).is_ok());
        assert_eq!(policies.get("b", now).get(), Some(&Ok(None)));
        assert_eq!(policies.get("b", now + LIFETIME).get(), None);
        for n in 0..2 * CAPACITY {
            policies.get(&n.to_string(), now);
        }
        assert!(policies.0.len() <= CAPACITY);
    }
}
