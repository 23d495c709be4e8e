//! The pages that a node shows its administrator over HTTP.
//!
//! | path | page |
//! |---|---|
//! | `/metrics` | the figures of the node, for Prometheus |
//! | `/-/healthy` | 200 while the process runs |
//! | `/-/ready` | 200 while the node may serve, else 503 with the reason |
//! | `/counters` | the node's counters as JSON |

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_cluster::Status;
use prism_handoff::tasks_restarted;
use prism_handoff::trace::{BUCKETS_NS, Part};
use prism_replicas::Node;
use prism_service::Stage;
use prism_store::Store;
use x509_cert::Certificate;

use super::admin;
use super::server::Server;
use crate::observe::{Metric, Page, Value, build_info, render};

/// The page of a path.
pub(super) fn page(server: &Server, path: &str) -> Option<Page> {
    Some(match path {
        "/metrics" => render(
            |registry| server.requests.register(registry),
            metrics(server),
        ),
        "/-/healthy" => Page::text(200, "healthy\n"),
        "/-/ready" => match not_ready(server) {
            None => Page::text(200, "ready\n"),
            Some(reason) => Page::text(503, format!("{reason}\n")),
        },
        "/counters" => Page::json(&admin::counters(server)),
        _ => return None,
    })
}

/// Why the node may not serve, if that is so.
fn not_ready(server: &Server) -> Option<&'static str> {
    let node = &server.node;
    if !server.accepts.load(Ordering::Relaxed) {
        return Some("starting");
    }
    if node.orders.now().stage != Stage::Serving {
        return Some("leaving");
    }
    if node.process.places_differently() {
        return Some("most nodes have another configuration");
    }
    let has_no_lease = node.store.is_some() && node.replication.begin().is_none();
    has_no_lease.then_some("the lease in etcd has ended")
}

fn metrics(server: &Server) -> Vec<Metric> {
    let node = &server.node;
    let figures = node.process.counters.figures().into_iter();
    let figures = figures
        .chain(node.counters.figures())
        .chain([tasks_restarted()]);
    let kept = |metric: &str| metric == "handoffs_kept";
    let mut metrics: Vec<Metric> = figures
        .filter(|figure| !kept(figure.metric))
        .map(Metric::from)
        .collect();
    metrics.push(build_info("node"));
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
    if let Some(log) = &server.requests.log {
        metrics.push(Metric::new(
            "access_log_dropped_lines",
            "Lines of the access log that were dropped.",
            Value::Counter(log.dropped_lines()),
        ));
    }
    add_hand_offs(node, &mut metrics);
    add_backends(node, &mut metrics);
    add_certificates(server, &mut metrics);
    if let Some(store) = &node.store {
        add_store(node, store, &mut metrics);
    }
    metrics
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

/// The backends as this node sees them.
fn add_backends(node: &Node, metrics: &mut Vec<Metric>) {
    let view = node.replication.view();
    for name in view.backends() {
        let status = view.state().status(name.as_str());
        for (possible, label) in Status::ALL {
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

/// The ends of the certificates in the files of this node.
fn add_certificates(server: &Server, metrics: &mut Vec<Metric>) {
    let config = &server.node.config;
    let of_service = config.service.tls.iter().flat_map(|tls| &tls.certificates);
    let of_service = of_service.map(|certificate| certificate.file.clone());
    let of_node = (!server.is_alone()).then(|| config.peers.cert_file(&server.node.name));
    for file in of_service.chain(of_node) {
        let Some(end_s) = end_of_certificate(&file) else {
            continue;
        };
        let help = "When the first certificate of the file expires, in seconds since 1970.";
        let name = "tls_certificate_expiry_timestamp_seconds";
        let metric = Metric::new(name, help, Value::Gauge(end_s));
        metrics.push(metric.with("file", file.display().to_string()));
    }
}

fn end_of_certificate(file: &Path) -> Option<f64> {
    let chain = Certificate::load_pem_chain(&std::fs::read(file).ok()?).ok()?;
    let validity = chain.first()?.tbs_certificate().validity();
    Some(validity.not_after.to_unix_duration().as_secs_f64())
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
    let (scrub, integrity) = (node.scrub.totals(), store.integrity());
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
    gauge("store_quota_bytes", help, node.config.store.quota_bytes);
    let help = "Free bytes of the file system beyond those that writes leave.";
    gauge("store_free_bytes", help, free_bytes(node));
    let open_changes = store.open_changes().older_than(Duration::ZERO, None);
    let help = "Prepared changes whose outcome is not known.";
    gauge("store_open_changes", help, open_changes.len() as u64);
}

/// The free bytes that writes may use; 0 if they cannot be read.
fn free_bytes(node: &Node) -> u64 {
    let settings = node.config.node(&node.name);
    let free = settings.and_then(|settings| rustix::fs::statvfs(&settings.store).ok());
    let free = free.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    free.saturating_sub(node.config.store.reserve_bytes)
}
