//! What everybody may read, by the policies of buckets. Backends have them in
//! their stores; a frontend asks one and remembers the answer for a moment.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use prism_s3::{BucketName, Code, Policy, Principal, S3Error};

use super::Worker;
use super::ask::{Question, Reply};
use super::session::Request;

/// How long an answer counts: after that, a policy that was removed has no
/// effect any more.
const LIFETIME: Duration = Duration::from_secs(1);
/// Buckets remembered by each worker; a policy takes 20 KiB at most, CORS rules 64 KiB.
const CAPACITY: usize = 256;

/// Documents of one kind that were asked for lately, by bucket.
pub(super) struct Lately<T> {
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
    pub(super) fn get(&self, bucket: &str, now: Instant) -> Option<Option<Rc<T>>> {
        let (asked, document) = self.known.get(bucket)?;
        (now.saturating_duration_since(*asked) < LIFETIME).then(|| document.clone())
    }

    pub(super) fn put(&mut self, bucket: &str, document: Option<Rc<T>>, now: Instant) {
        if self.known.len() >= CAPACITY {
            self.known.clear();
        }
        self.known.insert(bucket.to_owned(), (now, document));
    }
}

impl Worker {
    /// Whether a request may be answered, whoever makes it. Where that cannot be
    /// found out, it may not.
    pub(super) async fn everybody_may(&self, request: &Request) -> bool {
        let Some(bucket) = request.operation.bucket() else {
            return false;
        };
        match self.policy(bucket).await {
            Ok(policy) => policy.is_some_and(|policy| policy.allows(&request.operation)),
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
    pub(super) async fn ask_any(&self, question: &Question) -> Result<Option<String>, S3Error> {
        let mut nodes = self.backends();
        if self.node.store.is_some() && self.node.replication.is_in_sync() {
            nodes = vec![self.node.name.clone()];
        }
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for node in nodes {
            match self.ask_as(&node, &Principal::Anonymous, question).await {
                Ok(Reply::Document(document)) => return Ok(document),
                Ok(_) => return Err(Code::InternalError.into()),
                Err(error) if error.code() == Code::NoSuchBucket => return Ok(None),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
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
