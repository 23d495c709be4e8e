//! Requests that other nodes answer: the connection moves there, or what is said passes
//! through this node. Also where a node that was asked is not the one any more.

use std::time::Duration;

use prism_config::HandOffMode;
use prism_handoff::{Connection, Exported, Kept};
use prism_http::BodyFraming;
use prism_proto::node::Refusal;
use prism_s3::{Code, ObjectRef, S3Error};

use super::Worker;
use super::fence::elsewhere;
use super::relay::{RelayError, Relayed};
use super::relayed::for_client;
use super::session::{Next, Request};

/// How long a node waits for news when another one sees the cluster differently. A step takes
/// a few round trips to etcd, and the pause before it longer.
const NEWS_IN: Duration = Duration::from_secs(2);
/// How many times a request is placed again after such news.
const MAX_TRIES: u32 = 3;
/// Nodes that a connection is offered to.
const MAX_OFFERS: usize = 3;

impl Worker {
    /// Moves the connection to one of those whom it is for; relays where none takes it.
    pub(super) async fn hand_off(
        &self,
        mut client: Connection,
        request: &Request,
        peers: &[String],
    ) -> Next {
        let returns = self.node.config.service.hand_off == HandOffMode::Return
            && client.origin() != self.node.name;
        let origin = returns.then(|| client.origin().to_owned());
        if !matches!(
            request.head.framing(),
            BodyFraming::None | BodyFraming::Length(0)
        ) {
            client.acknowledge();
        }
        let context = request.verified().encode();
        for target in origin.iter().chain(peers).take(MAX_OFFERS) {
            match self.handle.export(client, target, &context).await {
                Exported::Moved | Exported::Lost | Exported::Unknown => return Next::Gone,
                Exported::Kept { connection, reason } => {
                    tracing::debug!(client = %connection.client(), target, ?reason, "not moved");
                    client = connection;
                    // One that leaves says so; and the way back to an origin may be gone.
                    let is_origin = origin.as_ref() == Some(target);
                    let is_unwilling = reason == Kept::TargetRefused(Refusal::Unwilling);
                    let others_may = is_unwilling || is_origin && reason == Kept::TargetSilent;
                    if !others_may {
                        break;
                    }
                }
            }
        }
        Box::pin(self.relay_to(client, request, peers)).await
    }

    /// Relays to the first of `peers` that is in reach, and answers.
    pub(super) async fn relay_to(
        &self,
        mut client: Connection,
        request: &Request,
        peers: &[String],
    ) -> Next {
        client.consume(request.head_bytes);
        let relayed = Relayed {
            head: &request.head,
            preamble: for_client(request),
            is_repeatable: request.head.method().is_safe(),
        };
        let mut body = request.take_body(self.node.limits.body_bytes);
        let mut peers = peers.to_vec();
        let mut tries = 1;
        let failure = loop {
            let epoch = self.node.replication.view().epoch();
            let mut failure = None;
            for peer in &peers {
                match self.relay(&mut client, peer, &relayed, &mut body).await {
                    Ok(done) if done.keep_alive && !self.is_stopping() => {
                        return Next::Again(client);
                    }
                    Ok(_) => return Next::Close(client),
                    Err(error @ RelayError::Peer(_)) => {
                        self.node.replication.avoid(peer);
                        failure = Some(error);
                    }
                    Err(error @ RelayError::Elsewhere) => failure = Some(error),
                    // Another node may answer instead.
                    Err(error)
                        if relayed.may_follow(&error)
                            && request.head.framing() == BodyFraming::None =>
                    {
                        self.node.replication.avoid(peer);
                        failure = Some(error);
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let wait = match failure {
                Some(RelayError::Elsewhere) if self.node.cluster.is_in_etcd() => NEWS_IN,
                Some(RelayError::Elsewhere | RelayError::Peer(_)) => Duration::ZERO,
                _ => break failure,
            };
            if tries == MAX_TRIES
                || body.has_begun()
                || !self.node.replication.wait_beyond(epoch, wait).await
            {
                break failure;
            }
            tries += 1;
            peers = self.answerers_now(request);
            if peers.first() == Some(&self.node.name) {
                request.give_body_back();
                let _write = self.begin_write(&request.operation).await;
                return Box::pin(self.serve_behind_head(client, request)).await;
            }
        };
        let error = match failure {
            Some(RelayError::Connection(error)) => {
                tracing::debug!(client = %client.client(), %error, "relay ended");
                return Next::Gone;
            }
            Some(RelayError::Body(error)) => S3Error::from(error),
            Some(RelayError::Elsewhere) => elsewhere(),
            failure => {
                tracing::warn!(?peers, ?failure, "cannot relay");
                Code::ServiceUnavailable.into()
            }
        };
        self.refuse(client, &request.head, body, &error).await
    }

    /// The nodes that may answer a request, by the present view of the cluster.
    fn answerers_now(&self, request: &Request) -> Vec<String> {
        match request.operation.object() {
            Some(ObjectRef { bucket, key }) => {
                self.answerers(&request.operation, bucket.as_str(), key.as_str())
            }
            None => self.backends(),
        }
    }
}
