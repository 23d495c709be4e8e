//! The facts about a client's request that metrics, the access log and traces need.

use std::net::SocketAddr;
use std::time::Instant;

use prism_handoff::Connection;
use prism_http::{BodyFraming, RequestHead};
use prism_service::{About, Answered, RequestSpan, Service};

use crate::gateway::Gateway;
use crate::session::Next;

/// The connection of a request when its head was read. It may move before the answer.
pub(crate) struct Sight {
    pub(crate) begun: Instant,
    client: SocketAddr,
    frontend: String,
    hand_offs: u8,
    is_tls: bool,
}

impl Sight {
    pub(crate) fn of(client: &Connection) -> Self {
        Self {
            begun: Instant::now(),
            client: client.client(),
            frontend: client.origin().to_owned(),
            hand_offs: client.moves(),
            is_tls: client.is_tls(),
        }
    }
}

impl<S: Service> Gateway<S> {
    /// Adds a request to its trace, and, if its answer left from here, to the figures and to the
    /// log.
    pub(crate) fn observe(&self, sight: &Sight, head: &RequestHead, about: About<'_>, next: &Next) {
        let noted = head.noted();
        let relayed_to = noted.peer();
        self.trace(head, about, sight.begun, |span| RequestSpan {
            client: Some(sight.client),
            peer: relayed_to.as_deref(),
            ..span
        });
        let Some(status) = noted.status() else { return };
        let wrote_at = match next {
            Next::Again(client) | Next::Close(client) => client.wrote_at(),
            Next::Gone => None,
        };
        self.requests.add(&Answered {
            about,
            id: noted.id(),
            trace_id: noted.span().map(|span| span.trace_id),
            client: sight.client,
            status,
            error: noted.error(),
            bytes_in: match head.framing() {
                BodyFraming::Length(bytes) => bytes,
                BodyFraming::None | BodyFraming::Chunked => 0,
            },
            bytes_out: noted.body_bytes(),
            first_byte: wrote_at.map(|at| at.saturating_duration_since(sight.begun)),
            total: sight.begun.elapsed(),
            frontend: &sight.frontend,
            backend: relayed_to.as_deref().unwrap_or(&self.shared.name),
            is_relayed: relayed_to.is_some(),
            hand_offs: sight.hand_offs,
            is_tls: sight.is_tls,
        });
    }

    /// Adds this node's part of a request to its trace, if it has one.
    pub(crate) fn trace<'r>(
        &self,
        head: &RequestHead,
        about: About<'r>,
        begun: Instant,
        with_peers: impl FnOnce(RequestSpan<'r>) -> RequestSpan<'r>,
    ) {
        let noted = head.noted();
        let (Some(span), Some(spans)) = (noted.span(), self.shared.requests.spans()) else {
            return;
        };
        spans.add(&with_peers(RequestSpan {
            span,
            request_id: noted.id(),
            about,
            begun,
            total: begun.elapsed(),
            client: None,
            status: noted.status(),
            error: noted.error(),
            peer: None,
        }));
    }
}
