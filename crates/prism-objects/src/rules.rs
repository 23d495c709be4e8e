//! What a bucket's documents say of requests: who may make them (policy), and which pages of
//! a browser may see the answers (CORS). Backends have the documents in their stores; a
//! frontend asks one and remembers the answer for a moment.

use prism_http::{Headers, Method, RequestHead, ResponseHead};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_replicas::{Node, Question, Replicator, Reply};
use prism_s3::cors::CorsConfig;
use prism_s3::{BucketName, Code, Document, Operation, Policy, S3Error, xml};
use prism_store::Store;

use crate::route;

/// How long an answer counts: after that, a policy that was removed has no
/// effect any more.
const LIFETIME: Duration = Duration::from_secs(1);
/// Buckets remembered by each worker; a policy takes 20 KiB at most, CORS rules 64 KiB.
const CAPACITY: usize = 256;

/// Documents of one kind that were asked for lately, by bucket.
pub(crate) struct Lately<T> {
    known: HashMap<String, (Instant, Option<Rc<T>>)>,
}

impl<T> Default for Lately<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
        }
    }
}

impl<T> Lately<T> {
    pub(crate) fn get(&self, bucket: &str, now: Instant) -> Option<Option<Rc<T>>> {
        let (asked, document) = self.known.get(bucket)?;
        (now.saturating_duration_since(*asked) < LIFETIME).then(|| document.clone())
    }

    pub(crate) fn put(&mut self, bucket: &str, document: Option<Rc<T>>, now: Instant) {
        if self.known.len() >= CAPACITY {
            self.known.clear();
        }
        self.known.insert(bucket.to_owned(), (now, document));
    }
}

/// Policies and CORS rules of buckets, as one thread asked for them lately.
pub(crate) struct BucketRules {
    node: Arc<Node>,
    replicator: Rc<Replicator>,
    policies: RefCell<Lately<Policy>>,
    cors: RefCell<Lately<CorsConfig>>,
}

impl BucketRules {
    pub(crate) fn new(replicator: Rc<Replicator>) -> Self {
        Self {
            node: replicator.node.clone(),
            replicator,
            policies: RefCell::default(),
            cors: RefCell::default(),
        }
    }

    /// Whether a request may be answered, whoever makes it. Where that cannot be
    /// found out, it may not.
    pub(crate) async fn everybody_may(&self, operation: &Operation) -> bool {
        let Some(bucket) = operation.bucket() else {
            return false;
        };
        match self.policy(bucket).await {
            Ok(policy) => policy.is_some_and(|policy| policy.allows(operation)),
            Err(error) => {
                tracing::warn!(%bucket, %error, "the bucket's policy is out of reach");
                false
            }
        }
    }

    async fn policy(&self, bucket: &BucketName) -> Result<Option<Rc<Policy>>, S3Error> {
        let known = self.policies.borrow().get(bucket.as_str(), Instant::now());
        if let Some(policy) = known {
            return Ok(policy);
        }
        let question = Question::Policy {
            bucket: bucket.as_str().to_owned(),
        };
        let policy = match Box::pin(self.ask_any(&question)).await? {
            Some(text) => Some(Rc::new(Policy::parse(bucket, text.as_bytes())?)),
            None => None,
        };
        let mut policies = self.policies.borrow_mut();
        policies.put(bucket.as_str(), policy.clone(), Instant::now());
        Ok(policy)
    }

    /// The document that the first backend tells which answers: every one knows every
    /// bucket.
    pub(crate) async fn ask_any(&self, question: &Question) -> Result<Option<String>, S3Error> {
        let mut nodes = route::backends(&self.node);
        if self.node.store.is_some() && self.node.replication.is_in_sync() {
            nodes = vec![self.node.name.clone()];
        }
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for node in nodes {
            match self.replicator.ask(&node, question).await {
                Ok(Reply::Document(document)) => return Ok(document),
                Ok(_) => return Err(Code::InternalError.into()),
                Err(error) if error.code() == Code::NoSuchBucket => return Ok(None),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The fields that every answer to this request has for a browser. Preflights are
    /// answered by rules of their own.
    pub(crate) async fn for_browsers(&self, head: &RequestHead) -> Option<Headers> {
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
pub(crate) fn rules_here(store: &Store, bucket: &BucketName) -> Option<CorsConfig> {
    let found = store
        .buckets()
        .document(bucket.as_str(), Document::Cors.as_str());
    xml::parse_cors(&found.ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_a_moment_and_few_are_kept() {
        let (mut policies, now) = (Lately::<Policy>::default(), Instant::now());
        assert_eq!(policies.get("b", now), None);
        policies.put("b", None, now);
        assert_eq!(policies.get("b", now), Some(None));
        assert_eq!(policies.get("b", now + LIFETIME), None);
        for n in 0..2 * CAPACITY {
            policies.put(&n.to_string(), None, now);
        }
        assert!(policies.known.len() <= CAPACITY);
    }
}
