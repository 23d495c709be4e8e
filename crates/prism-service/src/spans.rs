//! The spans of traced requests, one for each node that a request meets.
//!
//! Not here: where spans go (`prism`), and the spans of hand-offs (`prism_handoff::trace`).

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prism_http::{RequestHead, TraceParent};
use prism_proto::facts::{Facts, TraceId};

use crate::observe::About;

/// The part of a trace that one node makes for a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The identifier of the trace, which is not zero.
    pub trace_id: [u8; 16],
    /// The identifier of the span, which is not zero.
    pub id: u64,
    /// The identifier of the span above it, if there is one.
    pub parent_id: Option<u64>,
}

/// One node's part of a traced request.
#[derive(Clone, Copy, Debug)]
pub struct RequestSpan<'r> {
    /// Its place in the trace.
    pub span: Span,
    /// The request's identifier.
    pub request_id: u64,
    /// The identifier that a trusted proxy has given it.
    pub proxy_request_id: Option<&'r str>,
    /// The meaning of the request.
    pub about: About<'r>,
    /// When the request's head was read here.
    pub begun: Instant,
    /// The time until this node was done with the request.
    pub total: Duration,
    /// The client; `None` if another node has relayed the request.
    pub client: Option<SocketAddr>,
    /// The status of the answer; `None` if it was not made here, because the connection moved or
    /// broke.
    pub status: Option<u16>,
    /// The service's code for an error.
    pub error: Option<&'static str>,
    /// The node to which this node relayed the request, or that relayed it to this one.
    pub peer: Option<&'r str>,
}

/// The receiver of spans. Requests do not wait for it.
pub trait Spans: fmt::Debug + Send + Sync {
    /// Whether a request without a trace of its own begins one.
    fn samples(&self) -> bool;

    /// A node's part of a request is over.
    fn add(&self, span: &RequestSpan<'_>);

    /// The number of spans so far by their outcome.
    fn outcomes(&self) -> Vec<(&'static str, u64)>;
}

/// This node's part of the client's request `id`: in the trace of the node that has verified it, or
/// in the client's trace if that is recorded, or in one that begins here.
pub fn span_of_request(
    head: &RequestHead,
    id: u64,
    verified: Option<&Facts>,
    spans: Option<&dyn Spans>,
) -> Option<Span> {
    if let Some(verified) = verified {
        return span_below(verified);
    }
    if let Some(parent) = TraceParent::of(head.headers()) {
        return parent.is_sampled.then_some(Span {
            trace_id: parent.trace_id,
            id,
            parent_id: Some(parent.parent_id),
        });
    }
    spans.filter(|spans| spans.samples()).map(|_| Span {
        trace_id: fastrand::u128(1..).to_be_bytes(),
        id,
        parent_id: None,
    })
}

/// This node's part of a request that another node has verified.
pub fn span_below(verified: &Facts) -> Option<Span> {
    verified.trace.map(|trace| Span {
        trace_id: trace.bytes(),
        id: fastrand::u64(1..),
        parent_id: Some(verified.request_id),
    })
}

/// The trace of a request, for the node that answers it.
pub fn trace_of(span: Option<Span>) -> Option<TraceId> {
    TraceId::new(span?.trace_id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    const ID: u64 = 9;
    const TRACE: [u8; 16] = [7; 16];

    #[derive(Debug)]
    struct Always;

    impl Spans for Always {
        fn samples(&self) -> bool {
            true
        }
        fn add(&self, _: &RequestSpan<'_>) {}
        fn outcomes(&self) -> Vec<(&'static str, u64)> {
            Vec::new()
        }
    }

    fn head(fields: &str) -> RequestHead {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        parsed.unwrap().unwrap().0
    }

    fn sent(flags: &str) -> RequestHead {
        let trace = "07".repeat(16);
        head(&format!(
            "traceparent: 00-{trace}-000000000000000b-{flags}\r\n"
        ))
    }

    #[test]
    fn a_client_decides_whether_its_trace_is_recorded() {
        let expected = Span {
            trace_id: TRACE,
            id: ID,
            parent_id: Some(11),
        };
        assert_eq!(span_of_request(&sent("01"), ID, None, None), Some(expected));
        assert_eq!(span_of_request(&sent("00"), ID, None, Some(&Always)), None);
    }

    #[test]
    fn a_request_without_a_trace_begins_one_if_it_is_a_sample() {
        assert_eq!(span_of_request(&head(""), ID, None, None), None);
        let begun = span_of_request(&head(""), ID, None, Some(&Always)).unwrap();
        assert_eq!((begun.id, begun.parent_id), (ID, None));
        assert_ne!(begun.trace_id, [0; 16]);
    }

    #[test]
    fn the_word_of_another_node_counts_alone() {
        let mut verified = Facts {
            trace: TraceId::new(TRACE),
            ..Facts::of_anonymous(5)
        };
        let span = span_of_request(&head(""), ID, Some(&verified), None).unwrap();
        assert_eq!((span.trace_id, span.parent_id), (TRACE, Some(5)));
        assert_ne!(span.id, ID);
        verified.trace = None;
        let span = span_of_request(&sent("01"), ID, Some(&verified), Some(&Always));
        assert_eq!(span, None);
    }
}
