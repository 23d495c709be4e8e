//! The interface between a connection and the service that answers its requests.
//!
//! - A service implements [`Service`]: it understands a request, says which nodes
//!   answer it, and answers it.
//! - [`Request`] is one request, and [`Exchange`] its unread body and the way of its answer.
//! - [`Peers`] sends requests of this node's own to other nodes.
//! - [`Orders`] tell the threads of a node how it ends.
//!
//! Not here: reading requests and moving connections (`prism-gateway`), and any service.
#![forbid(unsafe_code)]
#![expect(async_fn_in_trait, reason = "all of it runs on one thread")]

mod access_log;
mod audit;
mod body_source;
mod counters;
mod date;
mod exchange;
mod http1;
mod io;
mod join;
mod link;
mod observe;
mod orders;
mod peers;
mod redirection;
mod request;
mod request_body;
mod service;
mod spans;

pub use access_log::{AccessLog, AccessLogForm, AccessLogTo, request_id_text};
pub use audit::{Action, Actor, AuditLog};
pub use body_source::{BodySource, FramedBody};
pub use counters::RequestCounters;
pub use date::DateCache;
pub use exchange::{AnswerRecord, EndedBy, Exchange, send, set};
pub use http1::{Http1, Http1Parts};
pub use io::Io;
pub use join::join_all;
pub use link::Link;
pub use observe::{
    About, AnswerKind, Answered, BUCKETS_S, Durations, LoggedHead, Requests, RequestsOfThread,
    Tallies, Tally,
};
pub use orders::{Order, Orders, Stage};
pub use peers::{PeerRequest, Peers, RelayError, encode_head, has_body, own_head, parse_own_head};
pub use prism_handoff::Moved;
pub use prism_http::Input;
pub use redirection::{MAX_REDIRECTS, Redirected, Redirection};
pub use request::{Request, RequestMut, RequestRef};
pub use request_body::{BodyFailure, MAX_SKIP_BYTES, RequestBody};
pub use service::{Fault, NodeRequests, Remote, Route, Served, Service, Subject};
pub use spans::{RequestSpan, Span, Spans, span_below, span_of_request, trace_of};
