//! The facts about a client's request that metrics and the access log need.

use std::net::SocketAddr;
use std::time::Instant;

use prism_handoff::Connection;
use prism_http::{BodyFraming, RequestHead};
use prism_service::{About, Answered, Service};

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
    /// Adds a request to the figures and to the log, if its answer left from here.
    pub(crate) fn observe(&self, sight: &Sight, head: &RequestHead, about: About<'_>, next: &Next) {
        let noted = head.noted();
        let Some(status) = noted.status() else { return };
        let peer = noted.peer();
        let wrote_at = match next {
            Next::Again(client) | Next::Close(client) => client.wrote_at(),
            Next::Gone => None,
        };
        self.requests.add(&Answered {
            about,
            id: noted.id(),
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
            backend: peer.as_deref().unwrap_or(&self.shared.name),
            is_relayed: peer.is_some(),
            hand_offs: sight.hand_offs,
            is_tls: sight.is_tls,
        });
    }
}
