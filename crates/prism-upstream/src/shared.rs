//! The state that the threads of a node share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use prism_config::Config;
use prism_handoff::Process;
use prism_http::{Limits, RequestHead};
use prism_service::RequestCounters;

use crate::affinity::Affinity;
use crate::matcher;
use crate::park::Parking;
use crate::pool::{Backend, Pool, ServerFigures};

/// The state that the threads of a node share to pass requests to servers.
pub struct Shared {
    pub(crate) name: String,
    pub(crate) limits: Limits,
    /// The addresses of the service.
    pub(crate) services: Vec<SocketAddr>,
    pub(crate) pools: Vec<Arc<Pool>>,
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
        let upstreams = config.service.upstream.iter();
        let upstreams = upstreams.flat_map(|upstreams| upstreams.iter());
        let pools = upstreams.map(|settings| Arc::new(Pool::new(settings, config, name)));
        Self {
            name: name.to_owned(),
            limits: Limits {
                head_bytes: config.limits.head_bytes as usize,
                ..Limits::DEFAULT
            },
            services: config.service.address.iter().collect(),
            pools: pools.collect(),
            parking: Parking::default(),
            process,
            counters,
            has_tasks: AtomicBool::new(false),
        }
    }

    /// Limits of requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The upstream that gets a request, with its place.
    pub(crate) fn pool_of(&self, head: &RequestHead) -> Option<(usize, &Arc<Pool>)> {
        let mut pools = self.pools.iter().enumerate();
        pools.find(|(_, pool)| matcher::fits(&pool.settings, head))
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
        let addresses = self.pools.iter().flat_map(|pool| &pool.addresses);
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
        let (_, pool) = self.pool_of(&head)?;
        let backends = self.backends(pool, &pool.affinity(&head));
        let best = backends.first()?;
        pool.sends(best);
        Some(best.name.clone())
    }
}
