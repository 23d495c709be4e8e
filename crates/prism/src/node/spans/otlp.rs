//! Sends the spans of a node to a collector, by OTLP over HTTP (feature `otlp`).
//!
//! A thread of the OpenTelemetry SDK sends them in batches. A span that finds too many others
//! waiting is dropped and counted, and so is a batch that the collector does not take.
//!
//! Attributes have the names of OpenTelemetry's conventions, or begin with `prism.`. They hold no
//! secrets.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use async_trait::async_trait;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use prism_config::{Config, Node};
use prism_handoff::observe::Count;
use prism_handoff::trace::{Ended, Observer, Part};
use prism_proto::facts::Facts;
use prism_service::{RequestSpan, Spans, request_id_text};

/// Most spans that wait to be sent: some 1 KB each, with their attributes.
const MAX_WAITING: usize = 8_192;
/// Most spans of a batch.
const BATCH: usize = 512;
/// The time in which spans gather before they are sent.
const GATHER: Duration = Duration::from_secs(1);
/// The time that the collector has to take a batch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a node which ends waits for its last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// The longest answer of a collector that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
const ALL_PER_MILLION: u32 = 1_000_000;

/// Sends the spans of a node. The last ones are sent when it is dropped.
pub(super) struct Exporter {
    processor: BatchSpanProcessor,
    queue: Arc<Queue>,
    scope: InstrumentationScope,
    sample_per_million: Arc<AtomicU32>,
}

/// The number of spans that wait, and the outcomes of others.
#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicUsize,
    sent: Count,
    /// The collector did not take them.
    failed: Count,
    /// Too many others waited.
    dropped: Count,
}

impl Exporter {
    /// Starts the thread that sends the spans of this node.
    pub(super) fn start(config: &Config, node: &Node) -> anyhow::Result<Self> {
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_endpoint(&config.trace.otlp)
            .with_timeout(TIMEOUT)
            .with_http_client(Client::new())
            .build();
        let exporter = exporter.with_context(|| {
            let url = &config.trace.otlp;
            format!("trace.otlp: {url:?} cannot be used; give a URL such as \"http://127.0.0.1:4318/v1/traces\"")
        })?;
        let queue = Arc::new(Queue::default());
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(GATHER)
            .build();
        let counted = Counted {
            exporter,
            queue: queue.clone(),
            is_failing: false.into(),
        };
        let mut processor = BatchSpanProcessor::builder(counted)
            .with_batch_config(batches)
            .build();
        processor.set_resource(&resource(config, node));
        Ok(Self {
            processor,
            queue,
            scope: InstrumentationScope::builder("prism").build(),
            sample_per_million: Arc::new(AtomicU32::new(config.trace.sample_per_million)),
        })
    }

    /// The number of requests of a million that begin a trace.
    pub(super) fn sampling(&self) -> Arc<AtomicU32> {
        self.sample_per_million.clone()
    }

    /// Queues a span, if there is room.
    fn send(&self, span: Span) {
        if self.queue.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            return self.queue.dropped.add_one();
        }
        let context = SpanContext::new(
            TraceId::from_bytes(span.trace_id),
            id_of(span.id),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        );
        self.processor.on_end(SpanData {
            span_context: context,
            parent_span_id: id_of(span.parent_id.unwrap_or_default()),
            parent_span_is_remote: span.is_parent_remote,
            span_kind: span.kind,
            name: span.name,
            start_time: span.begun,
            end_time: span.ended,
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: span.status,
            instrumentation_scope: self.scope.clone(),
        });
    }
}

/// A span of this node.
struct Span {
    trace_id: [u8; 16],
    id: u64,
    parent_id: Option<u64>,
    is_parent_remote: bool,
    kind: SpanKind,
    name: Cow<'static, str>,
    begun: SystemTime,
    ended: SystemTime,
    attributes: Vec<KeyValue>,
    status: Status,
}

fn id_of(id: u64) -> SpanId {
    SpanId::from_bytes(id.to_be_bytes())
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.processor.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "the last spans may not have reached the collector");
        }
    }
}

impl Spans for Exporter {
    fn samples(&self) -> bool {
        fastrand::u32(..ALL_PER_MILLION) < self.sample_per_million.load(Ordering::Relaxed)
    }

    fn add(&self, request: &RequestSpan<'_>) {
        let ended = SystemTime::now();
        let status = match request.status {
            Some(500..) => Status::error(""),
            _ => Status::Unset,
        };
        let begun = ended.checked_sub(request.begun.elapsed()).unwrap_or(ended);
        self.send(Span {
            trace_id: request.span.trace_id,
            id: request.span.id,
            parent_id: request.span.parent_id,
            is_parent_remote: request.span.parent_id.is_some(),
            kind: SpanKind::Server,
            name: request.about.operation.into(),
            begun,
            ended: begun.checked_add(request.total).unwrap_or(ended),
            attributes: attributes(request),
            status,
        });
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let queue = &self.queue;
        vec![
            ("sent", queue.sent.read()),
            ("failed", queue.failed.read()),
            ("dropped", queue.dropped.read()),
        ]
    }
}

fn attributes(request: &RequestSpan<'_>) -> Vec<KeyValue> {
    let about = &request.about;
    let mut all = vec![KeyValue::new(
        "aws.request_id",
        request_id_text(request.request_id),
    )];
    let mut text = |name: &'static str, value: Option<&str>| {
        all.extend(value.map(|value| KeyValue::new(name, value.to_owned())));
    };
    text("prism.proxy_request_id", request.proxy_request_id);
    text("aws.s3.bucket", about.bucket);
    text("aws.s3.key", about.key);
    text("error.type", request.error);
    match (request.client, request.status) {
        (None, _) => text("prism.relayed_by", request.peer),
        (Some(_), Some(_)) => {
            let path = if request.peer.is_some() {
                "relayed"
            } else {
                "direct"
            };
            text("prism.path", Some(path));
            text("prism.relayed_to", request.peer);
        }
        // The request is answered where the connection is now.
        (Some(_), None) => {}
    }
    if let Some(client) = request.client {
        all.push(KeyValue::new("client.address", client.ip().to_string()));
        all.push(KeyValue::new("client.port", i64::from(client.port())));
    }
    if let Some(status) = request.status {
        let name = "http.response.status_code";
        all.push(KeyValue::new(name, i64::from(status)));
    }
    all
}

impl Observer for Exporter {
    fn ended(&self, hand_off: &Ended<'_>) {
        // A connection also moves without a request, and with one that is not traced.
        let Ok(verified) = Facts::decode(hand_off.context) else {
            return;
        };
        let Some(trace) = verified.trace else { return };
        let record = hand_off.record;
        let clock = Clock::now();
        let span = |name: &'static str, from_ns, to_ns| Span {
            trace_id: trace.bytes(),
            id: fastrand::u64(1..),
            // The span of the hand-off itself, which its source makes.
            parent_id: Some(record.id),
            is_parent_remote: record.part != Part::Source,
            kind: SpanKind::Internal,
            name: name.into(),
            begun: clock.at(from_ns),
            ended: clock.at(to_ns),
            attributes: Vec::new(),
            status: Status::Unset,
        };
        let mut marked = record.at_ns.iter().copied().filter(|ns| *ns > 0);
        if let (Part::Source, Some(from_ns)) = (record.part, marked.next()) {
            let is_moved = hand_off.outcome == "moved";
            self.send(Span {
                id: record.id,
                parent_id: Some(verified.request_id),
                is_parent_remote: false,
                kind: SpanKind::Client,
                attributes: vec![
                    KeyValue::new("aws.request_id", request_id_text(verified.request_id)),
                    KeyValue::new("prism.target", hand_off.peer.to_owned()),
                    KeyValue::new("prism.outcome", hand_off.outcome),
                ],
                status: if is_moved {
                    Status::Unset
                } else {
                    Status::error(hand_off.outcome)
                },
                ..span("hand-off", from_ns, marked.next_back().unwrap_or(from_ns))
            });
        }
        let steps = record.at_ns.iter().zip(record.at_ns.iter().skip(1));
        for ((from_ns, to_ns), name) in steps.zip(record.part.durations()) {
            if *from_ns == 0 || *to_ns == 0 {
                continue;
            }
            let mut step = span(name, *from_ns, *to_ns);
            let asks_switch = match *name {
                "own" => true,
                "block" => record.is_blocked_by_switch,
                _ => false,
            };
            if asks_switch {
                step.kind = SpanKind::Client;
                (step.attributes).push(KeyValue::new("peer.service", "switch"));
            }
            self.send(step);
        }
    }
}

/// The two clocks at one moment, to turn times of one into times of the other.
struct Clock {
    wall: SystemTime,
    monotonic_ns: u64,
}

impl Clock {
    fn now() -> Self {
        Self {
            wall: SystemTime::now(),
            monotonic_ns: prism_sys::clock::monotonic_ns(),
        }
    }

    /// The time of day at a time of the past.
    fn at(&self, monotonic_ns: u64) -> SystemTime {
        let ago = Duration::from_nanos(self.monotonic_ns.saturating_sub(monotonic_ns));
        self.wall.checked_sub(ago).unwrap_or(self.wall)
    }
}

fn resource(config: &Config, node: &Node) -> Resource {
    let service = match (node.is_frontend(), node.is_backend()) {
        (true, false) => "prism-frontend",
        (false, true) => "prism-backend",
        _ => "prism",
    };
    let attributes = [
        ("service.namespace", config.cluster.name.clone()),
        ("service.instance.id", node.name.clone()),
        ("service.version", env!("PRISM_VERSION").to_owned()),
    ];
    Resource::builder()
        .with_service_name(service)
        .with_attributes(attributes.map(|(name, value)| KeyValue::new(name, value)))
        .build()
}

/// Counts the spans that an exporter has sent.
#[derive(Debug)]
struct Counted {
    exporter: OtlpExporter,
    queue: Arc<Queue>,
    is_failing: std::sync::atomic::AtomicBool,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = self.exporter.export(batch).await;
        self.queue.waiting.fetch_sub(count, Ordering::Relaxed);
        let was_failing = self.is_failing.swap(sent.is_err(), Ordering::Relaxed);
        match &sent {
            Ok(()) if was_failing => tracing::info!("the collector takes spans again"),
            Ok(()) => {}
            Err(_) if was_failing => {}
            Err(error) => tracing::warn!(%error, "cannot send spans; they are dropped"),
        }
        let outcome = if sent.is_ok() {
            &self.queue.sent
        } else {
            &self.queue.failed
        };
        outcome.add(count as u64);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The HTTP client of the thread that sends. It blocks.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .build();
        Self(config.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(parts, &body[..]))?;
        let (parts, mut body) = answer.into_parts();
        let read = body.with_config().limit(MAX_ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(parts, read.into()))
    }
}
