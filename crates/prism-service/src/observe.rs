//! The requests that this node has answered to its clients: figures by operation and status, and
//! a line of the access log each.
//!
//! A request is observed once, by the node that sent its answer to the client. A connection that
//! moved before its answer is observed where it went.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prism_http::{RequestHead, Version};

use crate::EndedBy;
use crate::access_log::{AccessLog, LogOfThread, request_id_text};
use crate::audit::{Action, Actor, AuditLog};
use crate::spans::Spans;

/// The upper bounds of the buckets of durations, in seconds.
pub const BUCKETS_S: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The facts about a request that its service knows.
#[derive(Clone, Copy, Debug)]
pub struct About<'r> {
    /// Whether it changes more than objects, and stands in the audit log.
    pub is_administrative: bool,
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
    /// The name of the upstream that answers.
    pub upstream: Option<&'r str>,
}

impl<'r> About<'r> {
    /// A request for `path` that the configuration has answered.
    pub fn by_rule(path: &'r str) -> Self {
        Self {
            operation: "Rule",
            key: Some(path),
            ..Self::UNKNOWN
        }
    }

    /// A request that was refused before it was understood.
    pub const UNKNOWN: Self = Self {
        is_administrative: false,
        operation: "Unknown",
        access_key: None,
        bucket: None,
        key: None,
        version: None,
        upstream: None,
    };
}

/// The parts of a request's head that logs have; empty for one that could not be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedHead<'r> {
    /// The method.
    pub method: &'r str,
    /// The target, as it came.
    pub target: &'r str,
    /// `1.1`, or `1.0`.
    pub version: &'static str,
    /// `Host`, with its port.
    pub host: Option<&'r str>,
    /// `User-Agent`.
    pub user_agent: Option<&'r str>,
    /// `Referer`.
    pub referer: Option<&'r str>,
    /// The identifier that a trusted proxy has given the request.
    pub request_id: Option<&'r str>,
}

impl<'r> LoggedHead<'r> {
    /// The parts of this head.
    #[must_use]
    pub fn of(head: &'r RequestHead) -> Self {
        let headers = head.headers();
        Self {
            method: head.method().as_str(),
            target: head.target(),
            version: match head.version() {
                Version::Http10 => "1.0",
                Version::Http11 => "1.1",
            },
            host: head.host(),
            user_agent: headers.get_str("user-agent"),
            referer: headers.get_str("referer"),
            request_id: None,
        }
    }
}

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'r> {
    /// The meaning of the request.
    pub about: About<'r>,
    /// Parts of its head, for the access log only.
    pub head: LoggedHead<'r>,
    /// The identifier that the client has got.
    pub id: u64,
    /// The identifier of its trace, if it is traced.
    pub trace_id: Option<[u8; 16]>,
    /// The address of the client.
    pub client: SocketAddr,
    /// The status of the answer; 499, as nginx has it, if the client has gone before it got one.
    pub status: u16,
    /// The service's code for an error.
    pub error: Option<&'static str>,
    /// The side that ended the exchange early.
    pub ended_by: Option<EndedBy>,
    /// The server of this node that answered.
    pub server: Option<SocketAddr>,
    /// How often a server has got the request and has given no answer.
    pub retries: u8,
    /// The internal redirects that have led to the request.
    pub redirects: u8,
    /// Whether the answer was an internal redirect itself, and not for the client.
    pub is_redirect: bool,
    /// Bytes of the request's body that were read.
    pub bytes_in: u64,
    /// Bytes of the answer's body that were given.
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

/// The way of an answer that its client does not get.
pub(crate) const REDIRECTED: &str = "redirected";

impl Answered<'_> {
    fn record_in(&self, audit: &AuditLog) {
        let outcome = match (self.status, self.error) {
            (200..300, _) => "done".to_owned(),
            (status, error) => format!("{status} {}", error.unwrap_or_default()),
        };
        let action = Action {
            actor: Actor::Client {
                client: self.client,
                access_key: self.about.access_key,
                request_id: &request_id_text(self.id),
            },
            at: self.backend,
            action: self.about.operation,
            subject: self.about.bucket,
            outcome: &outcome,
        };
        if self.about.access_key.is_none() && outcome != "done" {
            audit.record_stranger(&action);
        } else {
            audit.record(&action);
        }
    }

    /// The way of the answer.
    pub(crate) const fn path(&self) -> &'static str {
        match (self.is_redirect, self.is_relayed) {
            (true, _) => REDIRECTED,
            (false, true) => "relayed",
            (false, false) => "direct",
        }
    }
}

/// The kind of an answer. Operations are of a fixed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnswerKind {
    /// The operation.
    pub operation: &'static str,
    /// The status code.
    pub code: u16,
    /// `direct`, or `relayed` if another node made the answer.
    pub path: &'static str,
}

/// Answers and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Their number.
    pub count: u64,
    /// Bytes of the bodies of the requests.
    pub received_bytes: u64,
    /// Bytes of the bodies of the answers.
    pub sent_bytes: u64,
}

/// The distribution of the times that requests took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// The sum, in seconds.
    pub sum_s: f64,
    /// The number of requests.
    pub count: u64,
    /// The number of requests by the first of [`BUCKETS_S`] that they do not exceed.
    pub buckets: [u64; BUCKETS_S.len()],
}

/// The answered requests of a thread, or of all threads.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    /// All answers.
    pub answers: BTreeMap<AnswerKind, Tally>,
    /// The relayed ones of them by the node that made them.
    pub relayed: BTreeMap<String, Tally>,
    /// Times from a request's head until its answer has left the process, by operation.
    pub durations: BTreeMap<&'static str, Durations>,
}

/// The answered requests of one process.
#[derive(Debug, Default)]
pub struct Requests {
    workers: Mutex<Vec<Arc<Mutex<Tallies>>>>,
    /// The access log.
    pub log: AccessLog,
    /// The audit log.
    pub audit: AuditLog,
    spans: Option<Arc<dyn Spans>>,
}

/// The answered requests of one thread, which has its own tallies, so that threads do not wait
/// for each other.
#[derive(Debug)]
pub struct RequestsOfThread {
    tallies: Arc<Mutex<Tallies>>,
    log: LogOfThread,
    all: Arc<Requests>,
}

impl Requests {
    /// The requests of a process that writes these logs, and makes these spans.
    pub fn new(log: AccessLog, audit: AuditLog, spans: Option<Arc<dyn Spans>>) -> Self {
        Self {
            workers: Mutex::default(),
            log,
            audit,
            spans,
        }
    }

    /// The receiver of spans, if there is one.
    pub fn spans(&self) -> Option<&dyn Spans> {
        self.spans.as_deref()
    }

    /// The requests of the calling thread.
    pub fn of_thread(self: &Arc<Self>) -> RequestsOfThread {
        let tallies = Arc::<Mutex<Tallies>>::default();
        self.workers.lock().push(tallies.clone());
        RequestsOfThread {
            tallies,
            log: self.log.of_thread(),
            all: self.clone(),
        }
    }

    /// The sums of all threads since the start.
    pub fn totals(&self) -> Tallies {
        let mut totals = Tallies::default();
        for worker in self.workers.lock().iter() {
            totals.add_all(&worker.lock());
        }
        totals
    }
}

impl RequestsOfThread {
    /// Whether the access log is on.
    pub fn are_logged(&self) -> bool {
        self.all.log.is_on()
    }

    /// Logs an answer that was an internal redirect. Its request is answered later.
    pub fn log_redirect(&self, answered: &Answered<'_>) {
        self.log.write(answered);
    }

    /// Adds a request.
    pub fn add(&self, answered: &Answered<'_>) {
        self.tallies.lock().add(answered);
        self.log.write(answered);
        if answered.about.is_administrative {
            answered.record_in(&self.all.audit);
        }
    }
}

impl Tallies {
    fn add(&mut self, answered: &Answered<'_>) {
        let kind = AnswerKind {
            operation: answered.about.operation,
            code: answered.status,
            path: answered.path(),
        };
        let tally = Tally {
            count: 1,
            received_bytes: answered.bytes_in,
            sent_bytes: answered.bytes_out,
        };
        self.answers.entry(kind).or_default().add(&tally);
        if answered.is_relayed {
            match self.relayed.get_mut(answered.backend) {
                Some(known) => known.add(&tally),
                None => drop(self.relayed.insert(answered.backend.to_owned(), tally)),
            }
        }
        let total_s = answered.total.as_secs_f64();
        let durations = self.durations.entry(kind.operation).or_default();
        durations.sum_s += total_s;
        durations.count += 1;
        let bucket = BUCKETS_S.iter().position(|bound| total_s <= *bound);
        if let Some(bucket) = bucket.and_then(|bucket| durations.buckets.get_mut(bucket)) {
            *bucket += 1;
        }
    }

    fn add_all(&mut self, other: &Self) {
        for (kind, tally) in &other.answers {
            self.answers.entry(*kind).or_default().add(tally);
        }
        for (node, tally) in &other.relayed {
            self.relayed.entry(node.clone()).or_default().add(tally);
        }
        for (operation, durations) in &other.durations {
            let sum = self.durations.entry(operation).or_default();
            sum.sum_s += durations.sum_s;
            sum.count += durations.count;
            for (sum, count) in sum.buckets.iter_mut().zip(durations.buckets) {
                *sum += count;
            }
        }
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}
