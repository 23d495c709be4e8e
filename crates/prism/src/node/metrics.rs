//! The metrics of a node.

use std::time::Duration;

use prism_cluster::Status;
use prism_handoff::observe::tasks_restarted;
use prism_handoff::trace::{BUCKETS_NS, Part};
use prism_process::{Metric, Value, build_info};
use prism_replicas::Node;
use prism_service::BUCKETS_S;
use prism_store::Store;
use prism_upstream::{ServerFigures, ServerState};

use super::certificates::ends;
use super::pages::not_ready;
use super::server::{Server, ServiceShared};

/// Counters that only the object store has.
const OF_OBJECTS: [&str; 4] = [
    "changes_prepared",
    "object_received_bytes",
    "object_sent_bytes",
    "requests_unauthenticated",
];

/// The figures of a node for Prometheus.
pub(super) fn metrics(server: &Server) -> Vec<Metric> {
    let node = &server.node;
    let figures = node.process.counters.figures().into_iter();
    let figures = figures
        .chain(node.counters.figures())
        .chain([tasks_restarted()]);
    let has_objects = matches!(server.service, ServiceShared::Objects(_));
    let is_shown =
        |metric: &str| metric != "handoffs_kept" && (has_objects || !OF_OBJECTS.contains(&metric));
    let mut metrics: Vec<Metric> = figures
        .filter(|figure| is_shown(figure.metric))
        .map(Metric::from)
        .collect();
    metrics.push(build_info(env!("PRISM_VERSION"), "node"));
    metrics.push(Metric::new(
        "ready",
        "1 while the node may serve.",
        Value::Gauge(f64::from(u8::from(not_ready(server).is_none()))),
    ));
    metrics.push(Metric::new(
        "relay_max_bytes",
        "The longest answer that is relayed.",
        Value::Gauge(server.gateway.relay_up_to_bytes().into()),
    ));
    let log = &server.requests.log;
    if log.is_on() {
        metrics.push(Metric::new(
            "access_log_dropped_lines",
            "Lines of the access log that were dropped.",
            Value::Counter(log.dropped_lines()),
        ));
    }
    add_requests(server, &mut metrics);
    add_spans(server, &mut metrics);
    add_hand_offs(node, &mut metrics);
    add_moves(node, &mut metrics);
    add_backends(node, has_objects, &mut metrics);
    add_certificates(server, &mut metrics);
    add_orders(server, &mut metrics);
    if let ServiceShared::Upstreams(upstreams) = &server.service {
        let servers = upstreams.servers();
        servers.iter().for_each(|one| add_server(one, &mut metrics));
    }
    if let Some(store) = &node.store {
        add_store(node, store, &mut metrics);
        add_buckets(node, &mut metrics);
    }
    metrics
}

fn add_requests(server: &Server, metrics: &mut Vec<Metric>) {
    let totals = server.requests.totals();
    let service = match &server.service {
        ServiceShared::Upstreams(_) => "http",
        ServiceShared::Objects(_) => "s3",
    };
    for (kind, tally) in &totals.answers {
        for (name, help, value) in [
            (
                "requests",
                "Requests that this node has answered to their client.",
                tally.count,
            ),
            (
                "received_bytes",
                "Bytes of the bodies of these requests, as declared.",
                tally.received_bytes,
            ),
            (
                "sent_bytes",
                "Bytes of the bodies of these answers.",
                tally.sent_bytes,
            ),
        ] {
            metrics.push(
                Metric::new(format!("{service}_{name}"), help, Value::Counter(value))
                    .with("operation", kind.operation)
                    .with("code", kind.code.to_string())
                    .with("path", kind.path),
            );
        }
    }
    for (operation, durations) in &totals.durations {
        let buckets = BUCKETS_S.iter().copied().zip(durations.buckets);
        let value = histogram(durations.sum_s, durations.count, buckets);
        let help = "Time from a request's head until its answer has left the process.";
        let metric = Metric::new(format!("{service}_request_duration_seconds"), help, value);
        metrics.push(metric.with("operation", *operation));
    }
    for (node, tally) in &totals.relayed {
        for (name, help, value) in [
            (
                "relayed_answers",
                "Answers of another node that this node has relayed.",
                tally.count,
            ),
            (
                "relayed_bytes",
                "Bytes of the bodies of these answers.",
                tally.sent_bytes,
            ),
        ] {
            let metric = Metric::new(name, help, Value::Counter(value));
            metrics.push(metric.with("node", node));
        }
    }
}

/// Adds the figures of a server behind this backend.
fn add_server(figures: &ServerFigures, metrics: &mut Vec<Metric>) {
    let mut add =
        |name: &'static str, help: &'static str, value, own: Option<(&'static str, &str)>| {
            let metric = Metric::new(name, help, value);
            let metric = metric.with("upstream", figures.upstream.as_str());
            let metric = metric.with("address", figures.address.to_string());
            metrics.push(match own {
                Some((label, value)) => metric.with(label, value),
                None => metric,
            });
        };
    for state in ServerState::ALL {
        let value = Value::Gauge(f64::from(u8::from(state == figures.state)));
        let help = "1 for the state of each server of an upstream.";
        add("upstream_state", help, value, Some(("state", state.word())));
    }
    for (reason, count) in &figures.errors {
        let help = "Requests that this server of an upstream has failed, by the reason.";
        let value = Value::Counter(*count);
        add("upstream_errors", help, value, Some(("reason", reason)));
    }
    for (name, help, value) in [
        (
            "upstream_up",
            "1 while this server of an upstream gets requests.",
            Value::Gauge(f64::from(u8::from(figures.gets_requests))),
        ),
        (
            "upstream_requests_under_way",
            "Requests that this server is answering.",
            Value::Gauge(figures.under_way.into()),
        ),
        (
            "upstream_ejections",
            "How often this server was ejected.",
            Value::Counter(figures.ejections),
        ),
    ] {
        add(name, help, value, None);
    }
}

fn add_spans(server: &Server, metrics: &mut Vec<Metric>) {
    let outcomes = server.requests.spans().map(|spans| spans.outcomes());
    for (outcome, count) in outcomes.unwrap_or_default() {
        let help = "Spans of traces by their outcome.";
        let metric = Metric::new("trace_spans", help, Value::Counter(count));
        metrics.push(metric.with("outcome", outcome));
    }
}

fn add_hand_offs(node: &Node, metrics: &mut Vec<Metric>) {
    for part in Part::ALL {
        let names = part.durations().iter();
        for (name, duration) in names.zip(node.process.trace.durations(part)) {
            let count = duration.count();
            let bounds = BUCKETS_NS.iter().map(|ns| *ns as f64 / 1e9);
            let sum = duration.sum_ns() as f64 / 1e9;
            let value = histogram(sum, count, bounds.zip(duration.buckets()));
            metrics.push(
                Metric::new(
                    "handoff_duration_seconds",
                    "The time of each step of a hand-off.",
                    value,
                )
                .with("role", part.name())
                .with("step", *name),
            );
        }
    }
}

fn add_moves(node: &Node, metrics: &mut Vec<Metric>) {
    for (peer, count) in node.process.moves.by_peer() {
        let help = "Connections that have moved from this node to another one.";
        let metric = Metric::new("moved_connections", help, Value::Counter(count));
        metrics.push(metric.with("node", peer));
    }
}

/// The backends as this node sees them.
fn add_backends(node: &Node, has_objects: bool, metrics: &mut Vec<Metric>) {
    let view = node.replication.view();
    for name in view.backends() {
        let status = view.state().status(name.as_str());
        for (possible, label) in Status::ALL.into_iter().filter(|_| has_objects) {
            let value = f64::from(u8::from(status == Some(possible)));
            let help = "1 for the status of each backend by the state that this node acts by.";
            let metric = Metric::new("backend_state", help, Value::Gauge(value));
            metrics.push(metric.with("backend", name.as_str()).with("state", label));
        }
        let is_suspect = node.process.health.is_suspect(name.as_str());
        let value = f64::from(u8::from(is_suspect));
        let help = "1 if the backend leaves this node's handshakes unanswered.";
        let metric = Metric::new("backend_suspect", help, Value::Gauge(value));
        metrics.push(metric.with("backend", name.as_str()));
    }
}

fn add_certificates(server: &Server, metrics: &mut Vec<Metric>) {
    for (file, end_s) in ends(server) {
        let help = "When the certificate of the file expires, in seconds since 1970; of several \
            authorities the first to end.";
        let name = "tls_certificate_expiry_timestamp_seconds";
        let metric = Metric::new(name, help, Value::Gauge(end_s as f64));
        metrics.push(metric.with("file", file.display().to_string()));
    }
}

/// Orders of certificates, if they come by ACME.
fn add_orders(server: &Server, metrics: &mut Vec<Metric>) {
    for (outcome, count) in server.acme.iter().flat_map(|acme| acme.orders()) {
        let help = "Orders of certificates by ACME that this node has made, by their outcome.";
        let metric = Metric::new("acme_orders", help, Value::Counter(count));
        metrics.push(metric.with("outcome", outcome));
    }
}

/// A histogram of values, of which those above the last bound have no bucket of their own.
fn histogram(sum: f64, count: u64, buckets: impl Iterator<Item = (f64, u64)>) -> Value {
    let mut buckets: Vec<_> = buckets.collect();
    let bounded: u64 = buckets.iter().map(|(_, count)| count).sum();
    buckets.push((f64::INFINITY, count.saturating_sub(bounded)));
    Value::Histogram {
        sum,
        count: count.max(bounded),
        buckets,
    }
}

fn add_store(node: &Node, store: &Store, metrics: &mut Vec<Metric>) {
    let mut counter = |name, help, value| {
        metrics.push(Metric::new(name, help, Value::Counter(value)));
    };
    let scrub = node.scrub.totals();
    let integrity = store.integrity();
    let help = "Blocks that readers found damaged.";
    counter("store_corrupt_reads", help, integrity.corrupt_reads());
    counter("store_scrub_runs", "Scrubs since the start.", scrub.runs);
    let help = "Bytes that scrubs have read.";
    counter("store_scrub_read_bytes", help, scrub.bytes);
    let help = "Faults that scrubs have found.";
    counter("store_scrub_faults", help, scrub.faults);
    let help = "Repairs from another replica.";
    counter("store_repaired_blocks", help, scrub.repaired);
    let mut gauge = |name, help, value: u64| {
        metrics.push(Metric::new(name, help, Value::Gauge(value as f64)));
    };
    let help = "Bytes of objects and parts.";
    gauge("store_used_bytes", help, store.bytes_used());
    let help = "The most bytes of objects and parts; 0 without a limit.";
    gauge(
        "store_quota_bytes",
        help,
        node.config.now().store.quota_bytes,
    );
    let help = "Free bytes of the file system beyond those that writes leave.";
    gauge("store_free_bytes", help, free_bytes(node));
    let open_changes = store.open_changes().older_than(Duration::ZERO, None);
    let help = "Prepared changes whose outcome is not known.";
    gauge("store_open_changes", help, open_changes.len() as u64);
}

/// The buckets with a quota, as far as they are shown.
fn add_buckets(node: &Node, metrics: &mut Vec<Metric>) {
    let Some(buckets) = node.limited_buckets() else {
        return;
    };
    let help = "Buckets with a quota. Metrics show the first 100 by name.";
    let count = Value::Gauge(buckets.count as f64);
    metrics.push(Metric::new("buckets_with_quota", help, count));
    for bucket in &buckets.first {
        let quota = bucket.quota;
        let share = bucket.share;
        let bytes = quota.bytes.map(|limit| (share.bytes, limit));
        let objects = quota.objects.map(|limit| (share.objects, limit));
        for (numbers, used_name, used_help, quota_name, quota_help) in [
            (
                bytes,
                "bucket_used_bytes",
                "This backend's share of the bytes of a bucket with a quota; the sum over all \
                 backends counts.",
                "bucket_quota_bytes",
                "The most bytes that a bucket may have.",
            ),
            (
                objects,
                "bucket_used_objects",
                "This backend's share of the objects of a bucket with a quota; the sum over all \
                 backends counts.",
                "bucket_quota_objects",
                "The most objects that a bucket may have.",
            ),
        ] {
            let Some((used, limit)) = numbers else {
                continue;
            };
            for (name, help, value) in [
                (used_name, used_help, used),
                (quota_name, quota_help, limit),
            ] {
                let metric = Metric::new(name, help, Value::Gauge(value as f64));
                metrics.push(metric.with("bucket", bucket.name.as_str()));
            }
        }
    }
}

/// The free bytes that writes may use; 0 if they cannot be read.
pub(super) fn free_bytes(node: &Node) -> u64 {
    let config = node.config.now();
    let settings = config.node(&node.name);
    let free = settings.and_then(|settings| rustix::fs::statvfs(&settings.store).ok());
    let free = free.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    free.saturating_sub(config.store.reserve_bytes)
}
