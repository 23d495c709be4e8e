//! How a node asks others when an operation concerns more than its own store.

use prism_http::{Limits, RequestHead};
use prism_proto::relay::Preamble;
use prism_proto::verified::{Body, Caller, Policy, Verified};
use prism_s3::{Code, Principal, S3Error};
use prism_service::{PeerRequest, join_all};
use prism_store::Replicas;

use crate::Replicator;
use crate::question::{Asked, Question, Reply};

/// Longest answer: a page of a listing, with the same keys.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// How often all are asked while the cluster changes.
const EVERYONE_TRIES: u32 = 3;

impl Replicator {
    /// The answers of all backends but those that are out, this node's own included.
    /// They are asked at the same time.
    pub async fn ask_everyone(
        &self,
        principal: &Principal,
        question: &Question,
    ) -> Vec<Result<Reply, S3Error>> {
        let mut tries = 1;
        loop {
            let epoch = self.node.replication.epoch();
            let nodes = self.node.replication.takers();
            let asked = nodes
                .iter()
                .map(|node| self.ask_as(node, principal, question));
            let answers = join_all(asked.collect()).await;
            // Somebody may have come meanwhile who has to be told as well.
            if self.node.replication.epoch() == epoch || tries == EVERYONE_TRIES {
                return answers;
            }
            tries += 1;
        }
    }

    /// The answer of one backend, which may be this node, on behalf of `principal`.
    ///
    /// # Errors
    /// Those of the answer; unavailable where the backend is out of reach.
    pub async fn ask_as(
        &self,
        node: &str,
        principal: &Principal,
        question: &Question,
    ) -> Result<Reply, S3Error> {
        if node == self.node.name {
            return self.answer_here(question.clone()).await;
        }
        let unavailable = |what: &dyn std::fmt::Display| {
            tracing::warn!(node, error = %what, "a backend did not answer");
            self.node.replication.avoid(node);
            Code::ServiceUnavailable.with_message("A storage node is out of reach.")
        };
        let body = Asked::encode(&self.node.replication, question)?;
        let head = head_for(body.len())?;
        let relayed = PeerRequest {
            head: &head,
            preamble: preamble_for(principal),
            is_repeatable: question.is_repeatable(),
        };
        let asked = self
            .peers
            .ask(node, &relayed, &body, MAX_ANSWER_BYTES)
            .await;
        let (answer, bytes) = asked.map_err(|e| unavailable(&e))?;
        if answer.status() != 200 {
            return Err(unavailable(&format_args!("status {}", answer.status())));
        }
        let reply: Reply = serde_json::from_slice(&bytes).map_err(|e| unavailable(&e))?;
        reply.into_result()
    }
}

pub(crate) fn head_for(body_len: usize) -> Result<RequestHead, S3Error> {
    let text = format!("POST / HTTP/1.1\r\nHost: prism\r\nContent-Length: {body_len}\r\n\r\n");
    match RequestHead::parse(text.as_bytes(), &Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(Code::InternalError.into()),
    }
}

/// What precedes a request of this node itself, on behalf of somebody.
pub fn preamble_for(principal: &Principal) -> Preamble {
    let caller = match principal {
        Principal::Anonymous => Caller::Anonymous(Policy::NotAsked),
        Principal::AccessKey(key) => Caller::AccessKey(key.clone()),
    };
    Preamble {
        alone: true,
        verified: Verified {
            caller,
            body: Body::Unsaid,
        },
        most_bytes: None,
    }
}

/// Whether all have done it. An error that the client can fix comes before a node out of
/// reach.
pub fn done_by_all(answers: Vec<Result<Reply, S3Error>>) -> Result<(), S3Error> {
    let errors = answers.into_iter().filter_map(Result::err);
    match errors.min_by_key(|error| error.status()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_can_act_on_is_said_first() {
        let error = |code: Code| Err(S3Error::from(code));
        assert_eq!(done_by_all(vec![Ok(Reply::Done), Ok(Reply::Done)]), Ok(()));
        let mixed = vec![
            error(Code::ServiceUnavailable),
            error(Code::BucketNotEmpty),
            Ok(Reply::Done),
        ];
        let said = done_by_all(mixed).map_err(|error| error.code());
        assert_eq!(said, Err(Code::BucketNotEmpty));
    }
}
