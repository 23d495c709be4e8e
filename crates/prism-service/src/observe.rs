//! The requests that this node has answered to its clients: figures by operation and status, and
//! a line of the access log each.
//!
//! A request is observed once, by the node that sent its answer to the client. A connection that
//! moved before its answer is observed where it went.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::access_log::AccessLog;
use crate::spans::Spans;

/// The upper bounds of the buckets of durations, in seconds.
const BUCKETS_S: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The facts about a request that its service knows.
#[derive(Clone, Copy, Debug)]
pub struct About<'r> {
    /// The operation, one of a fixed list.
    pub operation: &'static str,
    /// The caller's access key; `None` for an anonymous one.
    pub access_key: Option<&'r str>,
    /// The bucket.
    pub bucket: Option<&'r str>,
    /// The key in the bucket.
    pub key: Option<&'r str>,
    /// The version that the request names.
    pub version: Option<&'r str>,
}

impl About<'_> {
    /// A request that was refused before it was understood.
    pub const UNKNOWN: Self = Self {
        operation: "Unknown",
        access_key: None,
        bucket: None,
        key: None,
        version: None,
    };
}

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'r> {
    /// The meaning of the request.
    pub about: About<'r>,
    /// The identifier that the client has got.
    pub id: u64,
    /// The identifier of its trace, if it is traced.
    pub trace_id: Option<[u8; 16]>,
    /// The address of the client.
    pub client: SocketAddr,
    /// The status of the answer.
    pub status: u16,
    /// The service's code for an error.
    pub error: Option<&'static str>,
    /// The declared length of the request's body.
    pub bytes_in: u64,
    /// The length of the answer's body.
    pub bytes_out: u64,
    /// The time until the first byte of the answer left; `None` if the connection broke.
    pub first_byte: Option<Duration>,
    /// The time until the last byte of the answer left this process.
    pub total: Duration,
    /// The node that accepted the connection.
    pub frontend: &'r str,
    /// The node that made the answer.
    pub backend: &'r str,
    /// Whether another node made the answer.
    pub is_relayed: bool,
    /// The hand-offs of the connection for this request.
    pub hand_offs: u8,
    /// Whether the client speaks TLS.
    pub is_tls: bool,
}

impl Answered<'_> {
    /// The way of the answer.
    pub(crate) const fn path(&self) -> &'static str {
        match self.is_relayed {
            true => "relayed",
            false => "direct",
        }
    }
}

/// Labels of answers. Operations and codes are of fixed lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAnswer {
    operation: &'static str,
    code: u32,
    path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOperation {
    operation: &'static str,
}

/// The answered requests of one process.
#[derive(Debug)]
pub struct Requests {
    answers: Family<OfAnswer, Counter>,
    sent_bytes: Family<OfAnswer, Counter>,
    durations: Family<OfOperation, Histogram, fn() -> Histogram>,
    /// The access log, if there is one.
    pub log: Option<AccessLog>,
    spans: Option<Arc<dyn Spans>>,
}

impl Requests {
    /// The requests of a process that writes this access log, and makes these spans.
    pub fn new(log: Option<AccessLog>, spans: Option<Arc<dyn Spans>>) -> Self {
        Self {
            answers: Family::default(),
            sent_bytes: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS_S)),
            log,
            spans,
        }
    }

    /// The receiver of spans, if there is one.
    pub fn spans(&self) -> Option<&dyn Spans> {
        self.spans.as_deref()
    }

    /// Registers the figures.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests that this node has answered to their client";
        registry.register("s3_requests", help, self.answers.clone());
        let help = "Bytes of the bodies of these answers";
        registry.register("s3_sent_bytes", help, self.sent_bytes.clone());
        let help = "Time from a request's head until its answer has left the process";
        registry.register("s3_request_duration_seconds", help, self.durations.clone());
        if let Some(spans) = &self.spans {
            spans.register(registry);
        }
    }

    /// Adds a request.
    pub fn add(&self, answered: &Answered<'_>) {
        let operation = answered.about.operation;
        let labels = OfAnswer {
            operation,
            code: answered.status.into(),
            path: answered.path(),
        };
        self.answers.get_or_create(&labels).inc();
        self.sent_bytes
            .get_or_create(&labels)
            .inc_by(answered.bytes_out);
        let durations = self.durations.get_or_create(&OfOperation { operation });
        durations.observe(answered.total.as_secs_f64());
        drop(durations);
        if let Some(log) = &self.log {
            log.write(answered);
        }
    }
}
