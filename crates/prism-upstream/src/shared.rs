//! The state that the threads of a node share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prism_config::Config;
use prism_handoff::Process;
use prism_http::{Limits, RequestHead};
use prism_service::RequestCounters;
use tokio::sync::watch;

use crate::affinity::Affinity;
use crate::matcher;
use crate::park::Parking;
use crate::pool::{Backend, Pool, ServerFigures};

/// The upstreams, in the order in which requests try them.
pub(crate) type Pools = Arc<[Arc<Pool>]>;

/// The state that the threads of a node share to pass requests to servers.
pub struct Shared {
    pub(crate) name: String,
    pub(crate) limits: Limits,
    /// The silence after which a node gives up a request that it relays. Nodes read it when they
    /// start.
    pub(crate) stall_timeout: Duration,
    /// The addresses of the service.
    pub(crate) services: Vec<SocketAddr>,
    /// Replaced by a reload.
    pools: watch::Sender<Pools>,
    pub(crate) parking: Parking,
    pub(crate) process: Arc<Process>,
    pub(crate) counters: Arc<RequestCounters>,
    /// Whether a thread has the tasks of the process.
    has_tasks: AtomicBool,
}

impl Shared {
    /// For the node called `name` of this configuration. A service without an upstream has none.
    pub fn new(
        config: &Config,
        name: &str,
        process: Arc<Process>,
        counters: Arc<RequestCounters>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            limits: Limits {
                head_bytes: config.limits.head_bytes as usize,
                ..Limits::DEFAULT
            },
            stall_timeout: config.limits.stall_timeout(),
            services: config.service.address.iter().collect(),
            pools: watch::Sender::new(pools(config, name, &[])),
            parking: Parking::default(),
            process,
            counters,
            has_tasks: AtomicBool::new(false),
        }
    }

    /// Makes the upstreams of `config` the present ones. Requests under way end at their servers.
    pub fn reconfigure(&self, config: &Config) {
        let present = self.pools();
        let new = pools(config, &self.name, &present);
        let settings =
            |pools: &Pools| -> Vec<_> { pools.iter().map(|pool| pool.settings.clone()).collect() };
        if settings(&new) != settings(&present) {
            self.pools.send_replace(new);
        }
    }

    /// The present upstreams.
    pub(crate) fn pools(&self) -> Pools {
        self.pools.borrow().clone()
    }

    /// Whether no reload has replaced these upstreams.
    pub(crate) fn is_present(&self, pools: &Pools) -> bool {
        Arc::ptr_eq(pools, &self.pools.borrow())
    }

    /// The present upstreams, and those of later reloads.
    pub(crate) fn follow_pools(&self) -> watch::Receiver<Pools> {
        self.pools.subscribe()
    }

    /// Limits of requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The upstream that gets a request.
    pub(crate) fn pool_of(&self, head: &RequestHead) -> Option<Arc<Pool>> {
        let pools = self.pools.borrow();
        let mut pools = pools.iter();
        pools
            .find(|pool| matcher::fits(&pool.settings, head))
            .cloned()
    }

    /// The backends that may answer a request of `pool`, best first.
    pub(crate) fn backends<'p>(&self, pool: &'p Pool, affinity: &Affinity) -> Vec<&'p Backend> {
        let (process, now) = (&self.process, Instant::now());
        pool.backends(affinity, &|name| {
            process.is_leaving(name) || process.health.comes_last(name, now)
        })
    }

    /// The figures of this node's servers.
    pub fn servers(&self) -> Vec<ServerFigures> {
        let pools = self.pools.borrow();
        let addresses = pools.iter().flat_map(|pool| &pool.addresses);
        addresses.map(|address| address.figures()).collect()
    }

    /// Whether this call is the first one.
    pub(crate) fn takes_tasks(&self) -> bool {
        !self.has_tasks.swap(true, Ordering::Relaxed)
    }

    /// The node to which a connection is handed off for its unread request, if there is one. A
    /// frontend sends a returned connection on to it.
    pub fn owner_of_unread(&self, unread: &[u8]) -> Option<String> {
        let (head, _) = RequestHead::parse(unread, &self.limits).ok()??;
        let pool = self.pool_of(&head)?;
        let backends = self.backends(&pool, &pool.affinity(&head));
        let best = backends.first()?;
        pool.sends(best);
        Some(best.name.clone())
    }
}

/// The upstreams of a configuration, at the node called `name`. Servers that are in the `present`
/// ones too keep their health.
fn pools(config: &Config, name: &str, present: &[Arc<Pool>]) -> Pools {
    let upstreams = config.service.upstream.iter();
    let upstreams = upstreams.flat_map(|upstreams| upstreams.iter()).enumerate();
    let pools = upstreams.map(|(place, settings)| {
        let mut pool = Pool::new(settings, config, name);
        pool.take_over(present, present.get(place));
        Arc::new(pool)
    });
    pools.collect()
}
