//! The part of a node that all of its threads share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use prism_cluster::MinReplicas;
use prism_config::Config;
use prism_handoff::Process;
use prism_membership::Cluster;
use prism_replica::StampClock;
use prism_s3::S3Error;
use prism_service::{Orders, RequestCounters};
use prism_store::Store;
use tokio::sync::Notify;

use crate::buckets;
use crate::pause::Pauses;
use crate::progress::Progress;
use crate::replication::Replication;
use crate::scrub::Scrubber;

/// A node: its store, if it is a backend, and its place in the cluster. All threads share it.
pub struct Node {
    /// Its name in the configuration.
    pub name: String,
    /// The cluster's configuration.
    pub config: Arc<Config>,
    /// The members, addresses and users of the cluster.
    pub cluster: Cluster,
    /// The nodes that have each key, and the jobs for them.
    pub replication: Arc<Replication>,
    /// The store; `None` at a node that is only a frontend.
    pub store: Option<Store>,
    /// Runs of the scrubber.
    pub scrub: Scrubber,
    /// Writes under way, and pauses between them.
    pub pauses: Pauses,
    /// Counters of requests.
    pub counters: Arc<RequestCounters>,
    /// The hand-off library's part of the process.
    pub process: Arc<Process>,
    /// The orders to the threads of the node.
    pub orders: Orders,
    pub(crate) progress: Progress,
    /// The clock of stamps for buckets' records.
    pub(crate) stamps: StampClock,
    /// Notified when there are remains of a deleted bucket.
    pub(crate) purge: Notify,
    /// Whether this node, as the keeper, has the records of all backends.
    pub(crate) has_all_records: AtomicBool,
}

impl Node {
    /// The node called `name`, with its store, if it has one. Blocks on disk.
    ///
    /// # Errors
    /// The store refuses the cluster's buckets, or has another number of replicas.
    pub fn new(
        config: Arc<Config>,
        name: &str,
        cluster: Cluster,
        store: Option<Store>,
    ) -> anyhow::Result<Self> {
        let process = Arc::new(Process::default());
        let view = cluster.view.borrow().clone();
        let min_replicas = MinReplicas(config.cluster.min_replicas);
        let lease = cluster.lease.clone();
        let health = process.health.clone();
        let replication = Replication::new(name, view, min_replicas, lease, health);
        let node = Self {
            name: name.to_owned(),
            config,
            cluster,
            replication: Arc::new(replication),
            store,
            scrub: Scrubber::default(),
            pauses: Pauses::default(),
            counters: Arc::default(),
            process,
            orders: Orders::default(),
            progress: Progress::default(),
            stamps: StampClock::new(prism_replica::origin(name, fastrand::u64(..))),
            purge: Notify::new(),
            has_all_records: AtomicBool::new(false),
        };
        if let Some(store) = &node.store {
            node.join_store(store)?;
            // Before any request: buckets may have been made and deleted meanwhile.
            if let Some(known) = node.cluster.known() {
                buckets::apply_newer_records(&node, store, &known.buckets)
                    .map_err(refused_buckets)?;
            }
        }
        Ok(node)
    }

    /// Makes a store part of the cluster.
    fn join_store(&self, store: &Store) -> anyhow::Result<()> {
        if self.cluster.is_in_etcd() {
            self.replication.set_store(store.identity());
            self.cluster.has_store(store.identity());
        } else {
            store.expect_replicas(self.config.cluster.replicas.into())?;
        }
        // A cluster in etcd may get replicas at any time.
        if self.replication.is_on() || self.cluster.is_in_etcd() {
            store.replicate(self.replication.clone());
            store.integrity().set_repair(self.replication.clone());
        }
        Ok(())
    }
}

fn refused_buckets(error: S3Error) -> anyhow::Error {
    anyhow::Error::new(error).context("the cluster's buckets")
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
