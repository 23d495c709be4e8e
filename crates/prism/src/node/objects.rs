//! The node of the object store.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use prism_common::supervise::{supervise, supervise_thread};
use prism_config::{Config, seconds};
use prism_core::StoreReport;
use prism_figures::StoreState;
use prism_handoff::Transit;
use prism_objects::{Objects, Shared, owner_of_unread};
use prism_process::{Metric, Value as MetricValue};
use prism_replicas::{Node, Replicator, follow_pauses, follow_views, keep_tasks};
use prism_service::Link;
use prism_store::Store;
use serde_json::{Value, json};

use super::quota;
use super::service::{NodeService, Work};
use super::worker::Worker;

/// Time between two seals of the store's log.
const SEAL_EVERY: Duration = Duration::from_secs(2);

/// The object store.
pub(super) struct ObjectNode {
    node: Arc<Node>,
    shared: Arc<Shared>,
}

impl ObjectNode {
    /// The service of a node.
    pub(super) fn new(config: &Config, node: Arc<Node>, link: Arc<Link>) -> Self {
        let users = node.core.cluster.users.borrow().clone();
        Self {
            node,
            shared: Arc::new(Shared::new(config, &users, link)),
        }
    }

    /// The part of a worker in replication, with its tasks.
    pub(super) fn replicator(&self, worker: &Worker) -> Rc<Replicator> {
        let replicator = Rc::new(Replicator::new(self.node.clone(), worker.peers.clone()));
        keep_tasks(&replicator);
        replicator
    }

    /// The service of a worker.
    pub(super) fn service(&self, replicator: Rc<Replicator>) -> Objects {
        Objects::new(self.shared.clone(), replicator)
    }

    /// Gives the service the present users, whenever they change. Never returns.
    async fn follow_users(&self) {
        let mut users = self.node.core.cluster.users.clone();
        loop {
            let present = users.borrow_and_update().clone();
            self.shared.replace_users(&present);
            if users.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Seals the log of the store, if there is one, from time to time. Never returns.
    async fn keep_sealed(&self) {
        if self.node.store.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(SEAL_EVERY).await;
            let node = self.node.clone();
            let sealing = tokio::task::spawn_blocking(move || match &node.store {
                Some(store) => store.seal_log(),
                None => Ok(()),
            });
            if let Ok(Err(error)) = sealing.await {
                tracing::debug!(%error, "cannot seal the log");
            }
        }
    }
}

impl NodeService for ObjectNode {
    fn kind(&self) -> &'static str {
        "objects"
    }

    fn protocol(&self) -> &'static str {
        "s3"
    }

    fn keeps_objects(&self) -> bool {
        true
    }

    fn has_store(&self) -> bool {
        self.node.store.is_some()
    }

    fn not_ready(&self) -> Option<&'static str> {
        let has_no_lease = self.has_store() && self.node.replication.begin().is_none();
        has_no_lease.then_some("the lease in etcd has ended")
    }

    fn transit(&self) -> Transit {
        let node = Arc::downgrade(&self.node);
        let shared = self.shared.clone();
        let limits = move || *shared.limits();
        Arc::new(move |_, unread| owner_of_unread(&*node.upgrade()?, &limits(), unread))
    }

    fn serve(&self, worker: Worker) -> Work<'_> {
        let replicator = self.replicator(&worker);
        Box::pin(worker.run(self.service(replicator)))
    }

    fn follow_cluster(&self) -> Work<'_> {
        Box::pin(async {
            tokio::select! {
                () = supervise("the log's end", async || self.keep_sealed().await) => {}
                () = supervise("views", async || follow_views(&self.node).await) => {}
                () = supervise("callers", async || self.follow_users().await) => {}
                () = supervise("pauses", async || follow_pauses(&self.node).await) => {}
            }
        })
    }

    fn start_thread(self: Arc<Self>) -> io::Result<Option<JoinHandle<()>>> {
        if !self.has_store() {
            return Ok(None);
        }
        let work = move || {
            if let Some(store) = &self.node.store {
                supervise_thread("scrub", || self.node.scrub.run(&self.node, store));
            }
        };
        let thread = std::thread::Builder::new().name("scrub".into());
        thread.spawn(work).map(Some)
    }

    fn end_thread(&self) {
        self.node.scrub.end();
    }

    fn changes_ended(&self) -> Work<'_> {
        Box::pin(self.node.pauses.present_writes_ended())
    }

    fn reconfigure(&self, config: &Config) {
        self.shared.reconfigure(config);
        if let Some(store) = &self.node.store {
            let recheck = seconds(config.store.recheck_s);
            store.set_bounds(config.store.reserve_bytes, quota_of(config), recheck);
        }
        self.node.scrub.look_again();
    }

    fn obey<'s>(&'s self, line: &'s str) -> Option<Work<'s, Value>> {
        if quota::is_meant(line) {
            return Some(Box::pin(quota::answer(&self.node, line)));
        }
        let document = match line.strip_prefix("scrub ") {
            Some(what) => scrub(&self.node, what),
            None if line.starts_with("server ") => {
                json!({ "error": "this service is an object store, and has no servers" })
            }
            None => return None,
        };
        Some(Box::pin(std::future::ready(document)))
    }

    fn add_metrics(&self, metrics: &mut Vec<Metric>) {
        if let Some(store) = &self.node.store {
            add_store(&self.node, store, metrics);
            add_buckets(&self.node, metrics);
        }
    }

    fn store_counters(&self) -> Value {
        let store = self.node.store.as_ref();
        let named = store.map(|store| counters(&self.node, store).into_iter().collect::<Value>());
        named.unwrap_or_default()
    }

    fn report(&self) -> StoreReport {
        self.node.report()
    }

    fn store_state(&self) -> Option<StoreState> {
        let node = &self.node;
        let store = node.store.as_ref()?;
        let open_changes = store.open_changes().older_than(Duration::ZERO, None);
        Some(StoreState {
            used_bytes: store.bytes_used(),
            quota_bytes: node.core.config.now().store.quota_bytes,
            free_bytes: free_bytes(node),
            corrupt_reads: store.integrity().corrupt_reads(),
            scrub_faults: node.scrub.totals().faults,
            open_changes: open_changes.len() as u64,
        })
    }
}

/// Opens the store of the node called `name`, if it is a backend that keeps objects.
pub(crate) fn open_store(config: &Config, name: &str) -> anyhow::Result<Option<Store>> {
    let node = config.known_node(name)?;
    if !node.is_backend() || !config.service.keeps_objects() {
        return Ok(None);
    }
    let limits = &config.limits;
    let settings = prism_store::Config {
        max_object_len: limits.max_object_bytes,
        durability: match node.durability {
            prism_config::Durability::Fsync => prism_store::Durability::Fsync,
            prism_config::Durability::None => prism_store::Durability::None,
        },
        node: node.name.clone(),
        quota_bytes: quota_of(config),
        reserve_bytes: config.store.reserve_bytes,
        recheck: seconds(config.store.recheck_s),
        ..prism_store::Config::default()
    };
    let store = Store::open(&node.store, settings).map_err(|error| {
        let path = node.store.display().to_string();
        let error = anyhow::Error::new(error);
        // Some errors name the directory themselves.
        if error.to_string().contains(&path) {
            error
        } else {
            error.context(format!("the store {path}"))
        }
    })?;
    tracing::info!(recovery = ?store.recovery(), "store opened");
    Ok(Some(store))
}

/// The quota of a store.
fn quota_of(config: &Config) -> Option<u64> {
    Some(config.store.quota_bytes).filter(|bytes| *bytes > 0)
}

fn counters(node: &Node, store: &Store) -> Vec<(&'static str, u64)> {
    let scrub = node.scrub.totals();
    let open_changes = store.open_changes().older_than(Duration::ZERO, None).len() as u64;
    vec![
        ("bytes_used", store.bytes_used()),
        ("corrupt_reads", store.integrity().corrupt_reads()),
        ("scrub_runs", scrub.runs),
        ("scrub_bytes", scrub.bytes),
        ("scrub_faults", scrub.faults),
        ("mended_blocks", scrub.repaired),
        ("open_changes", open_changes),
    ]
}

fn scrub(node: &Node, what: &str) -> Value {
    if node.store.is_none() {
        return json!({ "error": "this node stores nothing" });
    }
    let rate = what.strip_prefix("start").map(|rate| match rate.trim() {
        "" => Ok(0),
        rate => rate.parse(),
    });
    match (what, rate) {
        ("status", _) => {
            let mut status = node.scrub.status();
            if let Some(fields) = status.as_object_mut() {
                fields.insert("node".into(), node.core.name.clone().into());
            }
            status
        }
        (_, Some(Ok(rate))) => json!({ "node": node.core.name, "run": node.scrub.ask(rate) }),
        _ => json!({ "error": "try: scrub start BYTES_PER_S, scrub status" }),
    }
}

fn add_store(node: &Node, store: &Store, metrics: &mut Vec<Metric>) {
    let mut counter = |name, help, value| {
        metrics.push(Metric::new(name, help, MetricValue::Counter(value)));
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
        metrics.push(Metric::new(name, help, MetricValue::Gauge(value as f64)));
    };
    let help = "Bytes of objects and parts.";
    gauge("store_used_bytes", help, store.bytes_used());
    let help = "The most bytes of objects and parts; 0 without a limit.";
    gauge(
        "store_quota_bytes",
        help,
        node.core.config.now().store.quota_bytes,
    );
    let help = "Free bytes of the file system beyond those that writes leave.";
    gauge("store_free_bytes", help, free_bytes(node));
    let open_changes = store.open_changes().older_than(Duration::ZERO, None);
    let help = "Prepared changes whose outcome is not known.";
    gauge("store_open_changes", help, open_changes.len() as u64);
}

/// The buckets with a quota. Everybody who reaches the metrics may read them, so they have numbers
/// and no names.
fn add_buckets(node: &Node, metrics: &mut Vec<Metric>) {
    let Some(buckets) = node.limited_buckets() else {
        return;
    };
    let near = buckets.iter().filter(|bucket| bucket.is_near_quota());
    for (name, help, count) in [
        ("buckets_with_quota", "Buckets with a quota.", buckets.len()),
        (
            "buckets_near_quota",
            "Buckets that have 90 % of their quota, if each backend has as much of them as this one.",
            near.count(),
        ),
    ] {
        metrics.push(Metric::new(name, help, MetricValue::Gauge(count as f64)));
    }
}

/// The free bytes that writes may use; 0 if they cannot be read.
fn free_bytes(node: &Node) -> u64 {
    let config = node.core.config.now();
    let settings = config.node(&node.core.name);
    let free = settings.and_then(|settings| rustix::fs::statvfs(&settings.store).ok());
    let free = free.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    free.saturating_sub(config.store.reserve_bytes)
}
