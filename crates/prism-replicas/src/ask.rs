//! Questions of this node to other backends, and to itself.
//!
//! Not here: the answers (`answer.rs`) and the wire format (`question.rs`).

use std::time::Duration;

use prism_cluster::Status;
use prism_core::NodeQuestion;
use prism_http::RequestHead;
use prism_s3::{Code, Principal, S3Error};
use prism_service::{PeerRequest, join_all, own_head};
use prism_store::Replicas;

use crate::Replicator;
use crate::errors::not_yet;
use crate::question::{Question, Reply};

/// Longest answer: a page of a listing, with the same keys.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Most rounds of one question to all backends while the cluster changes.
const MAX_ROUNDS: u32 = 3;

impl Replicator {
    /// A request of this node on behalf of `principal`.
    pub fn request_for<'h>(&self, head: &'h RequestHead, principal: &Principal) -> PeerRequest<'h> {
        let mut request = PeerRequest::for_node(head);
        request.preamble.facts.caller = principal.clone();
        request.preamble.facts.lineage = self.node.lineage_facts();
        request
    }

    /// A question as it travels: the head and the body of an HTTP request between nodes.
    pub(crate) fn encode(&self, question: &Question) -> Result<(RequestHead, Vec<u8>), S3Error> {
        let asked = NodeQuestion {
            epoch: self.node.replication.epoch(),
            question: question.clone(),
        };
        let body = serde_json::to_vec(&asked).map_err(|_| Code::InternalError)?;
        let head = own_head("POST", body.len() as u64).map_err(|_| Code::InternalError)?;
        Ok((head, body))
    }

    /// Asks all backends at the same time, this node included. Leaves out those that are out.
    pub async fn ask_all(&self, question: &Question) -> Vec<Result<Reply, S3Error>> {
        let replication = &self.node.replication;
        let mut rounds = 0;
        loop {
            let epoch = replication.epoch();
            let nodes = replication.backends_with(|status| status != Status::Out);
            let asked = nodes.iter().map(|node| self.ask(node, question));
            let answers = join_all(asked.collect()).await;
            rounds += 1;
            // A backend that has joined meanwhile has to hear the question too.
            if replication.epoch() == epoch || rounds == MAX_ROUNDS {
                return answers;
            }
        }
    }

    /// [`Self::ask_for`], on behalf of no user.
    pub async fn ask(&self, node: &str, question: &Question) -> Result<Reply, S3Error> {
        self.ask_for(node, &Principal::Anonymous, question).await
    }

    /// [`Self::ask`], for at most the time `limit`.
    pub(crate) async fn ask_within(
        &self,
        limit: Duration,
        node: &str,
        question: &Question,
    ) -> Result<Reply, S3Error> {
        let reply = tokio::time::timeout(limit, self.ask(node, question)).await;
        reply.unwrap_or_else(|_| Err(not_yet("Another node takes too long to answer.")))
    }

    /// Asks the backend `node`, which may be this node, on behalf of `principal`.
    ///
    /// # Errors
    /// The error that the backend answers; unavailable if the backend is out of reach.
    pub async fn ask_for(
        &self,
        node: &str,
        principal: &Principal,
        question: &Question,
    ) -> Result<Reply, S3Error> {
        if node == self.node.core.name {
            return self.answer_here(question.clone()).await;
        }
        let unavailable = |what: &dyn std::fmt::Display| {
            tracing::warn!(node, error = %what, "a backend did not answer");
            self.node.replication.avoid(node);
            Code::ServiceUnavailable.with_message("A storage node is out of reach.")
        };
        let (head, body) = self.encode(question)?;
        let request = PeerRequest {
            is_repeatable: question.is_repeatable(),
            ..self.request_for(&head, principal)
        };
        let asked = self
            .peers
            .ask(node, &request, &body, MAX_ANSWER_BYTES)
            .await;
        let (answer, bytes) = asked.map_err(|e| unavailable(&e))?;
        if answer.status() != 200 {
            return Err(unavailable(&format_args!("status {}", answer.status())));
        }
        let reply: Reply = serde_json::from_slice(&bytes).map_err(|e| unavailable(&e))?;
        reply.into_result()
    }
}

/// Succeeds if all backends have done their part.
///
/// # Errors
/// The first error by status: the client can fix a 4xx, but not a node out of reach.
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
    fn an_error_that_the_client_can_fix_comes_first() {
        let error = |code: Code| Err(S3Error::from(code));
        assert_eq!(done_by_all(vec![Ok(Reply::Done), Ok(Reply::Done)]), Ok(()));
        let mixed = vec![
            error(Code::ServiceUnavailable),
            error(Code::BucketNotEmpty),
            Ok(Reply::Done),
        ];
        let code = done_by_all(mixed).map_err(|error| error.code());
        assert_eq!(code, Err(Code::BucketNotEmpty));
    }
}
