//! The metrics of a node.

use prism_cluster::Status;
use prism_core::Core;
use prism_handoff::observe::tasks_restarted;
use prism_handoff::trace::{BUCKETS_NS, Part};
use prism_process::{Metric, Value, build_info};
use prism_service::BUCKETS_S;

use super::certificates::ends;
use super::pages::not_ready;
use super::server::Server;

/// Counters that only the object store has.
const OF_OBJECTS: [&str; 4] = [
    "changes_prepared",
    "object_received_bytes",
    "object_sent_bytes",
    "requests_unauthenticated",
];

/// The figures of a node for Prometheus.
pub(super) fn metrics(server: &Server) -> Vec<Metric> {
    let node = &server.core;
    let figures = node.process.counters.figures().into_iter();
    let figures = figures
        .chain(node.counters.figures())
        .chain([tasks_restarted()]);
    let has_objects = server.service.keeps_objects();
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
    for (limit, count) in server.gateway.above_limits() {
        let help = "Requests of clients that were above a limit of the configuration.";
        let metric = Metric::new("requests_above_limit", help, Value::Counter(count));
        metrics.push(metric.with("limit", limit));
    }
    add_spans(server, &mut metrics);
    add_hand_offs(node, &mut metrics);
    add_moves(node, &mut metrics);
    add_backends(node, has_objects, &mut metrics);
    add_certificates(server, &mut metrics);
    add_orders(server, &mut metrics);
    add_etcd(node, &mut metrics);
    server.service.add_metrics(&mut metrics);
    metrics
}

fn add_requests(server: &Server, metrics: &mut Vec<Metric>) {
    let totals = server.requests.totals();
    let service = server.service.protocol();
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

fn add_spans(server: &Server, metrics: &mut Vec<Metric>) {
    let outcomes = server.requests.spans().map(|spans| spans.outcomes());
    for (outcome, count) in outcomes.unwrap_or_default() {
        let help = "Spans of traces by their outcome.";
        let metric = Metric::new("trace_spans", help, Value::Counter(count));
        metrics.push(metric.with("outcome", outcome));
    }
}

fn add_hand_offs(node: &Core, metrics: &mut Vec<Metric>) {
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

fn add_moves(node: &Core, metrics: &mut Vec<Metric>) {
    for (peer, count) in node.process.moves.by_peer() {
        let help = "Connections that have moved from this node to another one.";
        let metric = Metric::new("moved_connections", help, Value::Counter(count));
        metrics.push(metric.with("node", peer));
    }
}

/// The backends as this node sees them.
fn add_backends(node: &Core, has_objects: bool, metrics: &mut Vec<Metric>) {
    let view = node.view.now();
    for name in view.backends() {
        let status = view.state().status(name.as_str());
        for (possible, label) in Status::ALL.into_iter().filter(|_| has_objects) {
            let value = f64::from(u8::from(status == Some(possible)));
            let help = "1 for the status of each backend by the state that this node acts by.";
            let metric = Metric::new("backend_state", help, Value::Gauge(value));
            metrics.push(metric.with("backend", name.as_str()).with("state", label));
        }
        let is_suspect = node.process.health.lock().is_suspect(name.as_str());
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

/// The database of etcd, if the cluster's state is there.
fn add_etcd(node: &Core, metrics: &mut Vec<Metric>) {
    let Some(database) = node.cluster.database() else {
        return;
    };
    let mut add = |name, help, value: f64| {
        metrics.push(Metric::new(name, help, Value::Gauge(value)));
    };
    let help = "The size of etcd's database.";
    add("etcd_database_bytes", help, database.size_bytes as f64);
    let help = "The part of etcd's database that has data.";
    let in_use = database.in_use_bytes as f64;
    add("etcd_database_in_use_bytes", help, in_use);
    let help = "The size from which on etcd takes no change; its default before etcd 3.6.";
    add(
        "etcd_database_quota_bytes",
        help,
        database.quota_bytes as f64,
    );
    let help = "1 while etcd takes no change because its database is full.";
    add("etcd_full", help, f64::from(u8::from(database.is_full)));
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
