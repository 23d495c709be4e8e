//! The facts about a client's request that metrics, the access log and traces need.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prism_common::input::SourceFault;
use prism_handoff::Connection;
use prism_http::RequestHead;
use prism_service::{
    About, AnswerRecord, Answered, EndedBy, LoggedHead, Remote, RequestSpan, Service, Span,
    request_id_text,
};

use crate::gateway::Gateway;

/// A client's request when its head was read. Its connection may move before the answer.
pub(crate) struct Sight {
    pub(crate) begun: Instant,
    client: SocketAddr,
    frontend: String,
    hand_offs: u8,
    is_tls: bool,
    is_proxied: bool,
    /// Its identifier, and this node's part of its trace.
    pub(crate) id: u64,
    pub(crate) span: Option<Span>,
}

impl Sight {
    pub(crate) fn of(client: &Connection, remote: &Remote, id: u64, span: Option<Span>) -> Self {
        Self {
            begun: Instant::now(),
            client: remote.address,
            frontend: client.origin().to_owned(),
            hand_offs: client.moves(),
            is_tls: remote.is_tls,
            is_proxied: remote.is_proxied,
            id,
            span,
        }
    }

    /// The identifier that a trusted proxy has given this request.
    fn proxy_request_id<'r>(&self, head: Option<&'r RequestHead>) -> Option<&'r str> {
        let id = head.filter(|_| self.is_proxied)?.headers();
        let id = id.get_str("x-request-id")?;
        (id != request_id_text(self.id)).then_some(id)
    }
}

/// The status in logs of a request whose client has gone before it got one, as nginx has it.
const CLIENT_GONE: u16 = 499;

/// Completes the record of an exchange that has ended early, by this error.
pub(crate) fn end_early(record: &mut AnswerRecord, error: &io::Error) {
    let side = match SourceFault::is(error) {
        true => EndedBy::Server,
        false => EndedBy::Client,
    };
    let side = *record.ended_by.get_or_insert(side);
    record.status.get_or_insert(CLIENT_GONE);
    record.error.get_or_insert(match side {
        EndedBy::Client => "ClientGone",
        EndedBy::Server => "AnswerCut",
    });
}

impl<S: Service> Gateway<S> {
    /// Adds a request to its trace, and, if its answer left from here, to the figures and to the
    /// log. `wrote_at`: when its first byte left; `None` if the connection has gone.
    pub(crate) fn observe(
        &self,
        sight: &Sight,
        about: About<'_>,
        head: Option<&RequestHead>,
        record: &AnswerRecord,
        wrote_at: Option<Instant>,
    ) {
        let relayed_to = record.peer.as_deref();
        self.trace(sight.span, || RequestSpan {
            client: Some(sight.client),
            proxy_request_id: sight.proxy_request_id(head),
            peer: relayed_to,
            ..span_of(sight.id, about, sight.begun, record)
        });
        let Some(status) = record.status else { return };
        let first_byte = wrote_at.map(|at| at.saturating_duration_since(sight.begun));
        if record.redirects > 0 {
            let bytes = record.body_bytes;
            self.shared.counters.redirected_bytes.add(bytes);
        }
        self.requests
            .add(&self.answered(sight, about, head, record, status, first_byte));
    }

    /// Logs a server's answer that is an internal redirect.
    pub(crate) fn observe_redirect(
        &self,
        sight: &Sight,
        about: About<'_>,
        head: &RequestHead,
        record: &AnswerRecord,
    ) {
        let status = record.status.unwrap_or_default();
        let answered = self.answered(sight, about, Some(head), record, status, None);
        self.requests.log_redirect(&Answered {
            is_redirect: true,
            ..answered
        });
    }

    fn answered<'r>(
        &'r self,
        sight: &'r Sight,
        about: About<'r>,
        head: Option<&'r RequestHead>,
        record: &'r AnswerRecord,
        status: u16,
        first_byte: Option<Duration>,
    ) -> Answered<'r> {
        let relayed_to = record.peer.as_deref();
        // The parts of a head are for the log alone.
        let head = head.filter(|_| self.requests.are_logged());
        Answered {
            about,
            head: LoggedHead {
                request_id: sight.proxy_request_id(head),
                ..head.map(LoggedHead::of).unwrap_or_default()
            },
            id: sight.id,
            trace_id: sight.span.map(|span| span.trace_id),
            client: sight.client,
            status,
            error: record.error,
            ended_by: record.ended_by,
            server: record.server,
            retries: record.retries,
            redirects: record.redirects,
            is_redirect: false,
            bytes_in: record.received_bytes,
            bytes_out: record.body_bytes,
            first_byte,
            total: sight.begun.elapsed(),
            frontend: &sight.frontend,
            backend: relayed_to.unwrap_or(&self.shared.name),
            is_relayed: relayed_to.is_some(),
            hand_offs: sight.hand_offs,
            is_tls: sight.is_tls,
        }
    }

    /// Adds this node's part of a request to its trace, if it has one.
    pub(crate) fn trace<'r>(&self, span: Option<Span>, made: impl FnOnce() -> RequestSpan<'r>) {
        if let (Some(span), Some(spans)) = (span, self.shared.requests.spans()) {
            spans.add(&RequestSpan { span, ..made() });
        }
    }
}

/// This node's part of a request, without the nodes beside it.
pub(crate) fn span_of<'r>(
    id: u64,
    about: About<'r>,
    begun: Instant,
    record: &AnswerRecord,
) -> RequestSpan<'r> {
    RequestSpan {
        span: Span::default(),
        request_id: id,
        proxy_request_id: None,
        about,
        begun,
        total: begun.elapsed(),
        client: None,
        status: record.status,
        error: record.error,
        peer: None,
    }
}
