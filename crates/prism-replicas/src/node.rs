//! The part of a node that all of its threads share, and the part of one thread.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::{Mutex, MutexGuard};
use prism_cluster::ProgressReport;
use prism_cluster::replica::StampClock;
use prism_core::{Core, StoreReport, send_reply};
use prism_http::{Method, RequestHead};
use prism_proto::facts::Facts;
use prism_s3::{Code, S3Error};
use prism_service::{Exchange, NodeRequests, Peers};
use prism_store::Store;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::framed::MAX_HEADER_BYTES;
use crate::limited::Limited;
use crate::pace::Pace;
use crate::pause::Pauses;
use crate::question::Reply;
use crate::quotas::Quotas;
use crate::replication::Replication;
use crate::scrub::Scrubber;

/// A node of the object store: its store, if it is a backend, and its part in replication. All
/// threads share it.
pub struct Node {
    /// Its part below the service.
    pub core: Arc<Core>,
    /// The nodes that have each key, and the jobs for them.
    pub replication: Arc<Replication>,
    /// The store; `None` at a node that is only a frontend.
    pub store: Option<Store>,
    /// Runs of the scrubber.
    pub scrub: Scrubber,
    /// Writes under way, and pauses between them.
    pub pauses: Pauses,
    progress: Mutex<ProgressReport>,
    /// The quotas of buckets.
    pub(crate) quotas: Quotas,
    /// The buckets with a quota.
    pub(crate) limited: Limited,
    /// The epoch before which no change is open anywhere. Fetches may begin in it.
    pub(crate) settled: AtomicU64,
    /// The clock of stamps for buckets' records.
    pub(crate) stamps: StampClock,
    /// Notified when there are remains of a deleted bucket.
    pub(crate) purge: Notify,
    /// Notified when the store has refused a record of the registry.
    pub(crate) registry_doubted: Notify,
    /// Whether this node, as the keeper, has the records of all backends.
    pub(crate) has_all_records: AtomicBool,
}

impl Node {
    /// The node with this core, and its store, if it has one. Blocks on disk.
    ///
    /// # Errors
    /// The store refuses the cluster's buckets, or has another number of replicas.
    pub fn new(core: Arc<Core>, store: Option<Store>) -> anyhow::Result<Self> {
        let origin = prism_cluster::replica::origin(&core.name, fastrand::u64(..));
        let node = Self {
            replication: Arc::new(Replication::new(core.clone())),
            core,
            store,
            scrub: Scrubber::default(),
            pauses: Pauses::default(),
            progress: Mutex::default(),
            quotas: Quotas::default(),
            limited: Limited::default(),
            settled: AtomicU64::new(0),
            stamps: StampClock::new(origin),
            purge: Notify::new(),
            registry_doubted: Notify::new(),
            has_all_records: AtomicBool::new(false),
        };
        if let Some(store) = &node.store {
            node.join_store(store)?;
            // Before any request: buckets may have been made and deleted meanwhile.
            if let Some(known) = node.core.cluster.known()
                && node.core.cluster.fault().is_none()
            {
                let applied = node.apply_newer_records(store, &known.buckets);
                applied.context("the cluster's buckets")?;
            }
        }
        Ok(node)
    }

    /// Makes a store part of the cluster.
    fn join_store(&self, store: &Store) -> anyhow::Result<()> {
        if let Some(identity) = self.core.cluster.store_identity() {
            self.replication.set_store(identity);
            self.core
                .cluster
                .report(|report| report.store = store.identity());
        } else {
            store.expect_replicas(self.core.config.now().cluster.replicas.into())?;
        }
        if self.may_replicate() {
            store.replicate(self.replication.clone());
            store.integrity().set_repair(self.replication.clone());
        }
        Ok(())
    }

    /// Whether keys have several replicas. A cluster in etcd may get replicas at any time.
    pub(crate) fn may_replicate(&self) -> bool {
        self.replication.view().is_replicated() || self.core.cluster.is_in_etcd()
    }

    /// Runs `work` on this node's store, on a thread that may block.
    ///
    /// # Errors
    /// Fails as `work` does. A panic or a missing store is an internal error.
    pub async fn on_store<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Store) -> Result<T, S3Error> + Send + 'static,
    ) -> Result<T, S3Error> {
        joined(blocking(self, |node| work(node, node.store()?))).await
    }

    /// The report of this node's store, for an administrator.
    pub fn report(&self) -> StoreReport {
        let Some(store) = &self.store else {
            return StoreReport::default();
        };
        let open_changes = store.open_changes().older_than(Duration::ZERO, None);
        StoreReport {
            open_changes: open_changes.len() as u64,
            bytes_used: store.bytes_used(),
            progress: self.progress().clone(),
        }
    }

    /// This node's progress in catching up, to read or to change it.
    pub(crate) fn progress(&self) -> MutexGuard<'_, ProgressReport> {
        self.progress.lock()
    }

    /// This node's store. A frontend has none, and is not asked for it.
    pub(crate) fn store(&self) -> Result<&Store, S3Error> {
        self.store.as_ref().ok_or(Code::InternalError.into())
    }
}

/// One thread's exchange with other backends.
pub struct Replicator {
    /// The node, which all threads share.
    pub node: Arc<Node>,
    /// The streams to other nodes.
    pub peers: Rc<Peers>,
    /// The pace of catching up.
    pub(crate) pace: Pace,
}

impl Replicator {
    /// The replicator of the calling thread.
    #[must_use]
    pub fn new(node: Arc<Node>, peers: Rc<Peers>) -> Self {
        Self {
            pace: Pace::new(node.core.config.now().store.refill_bytes_per_s),
            node,
            peers,
        }
    }
}

impl NodeRequests for Replicator {
    const HEADER_BYTES: u64 = MAX_HEADER_BYTES as u64 + 4;

    async fn serve_node(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        peer: &str,
        facts: &Facts,
    ) -> io::Result<()> {
        if let Err(error) = self.node.hear_of(facts).await {
            return send_reply(exchange, &Reply::from_result(Err(error))).await;
        }
        // Nodes prepare changes with PUT and ask questions with POST.
        match *head.method() {
            Method::PUT => self.serve_prepare(exchange, peer).await,
            _ => self.serve_question(exchange).await,
        }
    }
}

/// Runs `work` on a thread that may block.
pub fn blocking<T: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, S3Error> + Send + 'static,
) -> JoinHandle<Result<T, S3Error>> {
    let node = node.clone();
    tokio::task::spawn_blocking(move || work(&node))
}

/// The result of a blocking task; its panic is an internal error.
pub async fn joined<T>(task: JoinHandle<Result<T, S3Error>>) -> Result<T, S3Error> {
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a blocking task failed");
        Err(Code::InternalError.into())
    })
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}
