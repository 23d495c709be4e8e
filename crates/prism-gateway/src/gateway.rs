//! One thread that serves connections, and the data that these threads share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use prism_config::{Config, Running, RunningOfThread, seconds};
use prism_handoff::{Endpoint, Handle, Incoming, Process};
use prism_service::{
    DateCache, Link, Order, Orders, Peers, RequestCounters, Requests, RequestsOfThread, Service,
    Stage,
};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::challenge::Challenges;
use crate::connections::Connections;
use crate::forecast::Forecast;
use crate::leave::{CLOSED_IN, MOVES_AT_ONCE, PASSED_IN};
use crate::limits::{LimitUse, Limits};
use crate::rules::Rules;
use crate::threshold::Threshold;

/// Another node, to which connections may move when this one ends.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// Whether it accepts clients.
    pub is_frontend: bool,
}

/// The data that the threads of a node share to serve connections.
pub struct Shared {
    pub(crate) config: Arc<Running>,
    pub(crate) name: String,
    pub(crate) is_frontend: bool,
    pub(crate) is_backend: bool,
    pub(crate) process: Arc<Process>,
    pub(crate) counters: Arc<RequestCounters>,
    pub(crate) requests: Arc<Requests>,
    /// The open connections.
    pub connections: Arc<Connections>,
    pub(crate) link: Arc<Link>,
    pub(crate) threshold: Threshold,
    pub(crate) forecast: Forecast,
    pub(crate) orders: Orders,
    pub(crate) neighbours: Box<dyn Fn() -> Vec<Neighbour> + Send + Sync>,
    pub(crate) challenges: Option<Challenges>,
    pub(crate) limits: LimitUse,
}

/// The parts of a node that [`Shared::new`] needs.
pub struct Parts {
    /// The configuration of the cluster.
    pub config: Arc<Running>,
    /// The hand-off library's part of the process.
    pub process: Arc<Process>,
    /// Counters of requests.
    pub counters: Arc<RequestCounters>,
    /// The answered requests.
    pub requests: Arc<Requests>,
    /// The load of the node's link.
    pub link: Arc<Link>,
    /// The orders to the node's threads.
    pub orders: Orders,
    /// The other nodes.
    pub neighbours: Box<dyn Fn() -> Vec<Neighbour> + Send + Sync>,
    /// The answers to an authority's challenges, if a certificate comes by ACME.
    pub challenges: Option<Challenges>,
}

impl Shared {
    /// The shared data of the node that is configured as `node`.
    pub fn new(node: &prism_config::Node, parts: Parts) -> Self {
        let relay_up_to = parts.config.now().service.relay_up_to;
        Self {
            name: node.name.clone(),
            is_frontend: node.is_frontend(),
            is_backend: node.is_backend(),
            threshold: Threshold::new(relay_up_to, parts.link.is_known()),
            forecast: Forecast::new(),
            config: parts.config,
            process: parts.process,
            counters: parts.counters,
            requests: parts.requests,
            connections: Arc::default(),
            link: parts.link,
            orders: parts.orders,
            neighbours: parts.neighbours,
            challenges: parts.challenges,
            limits: LimitUse::default(),
        }
    }

    /// Longest answer that is relayed, in bytes.
    pub fn relay_up_to_bytes(&self) -> u32 {
        self.threshold.up_to_bytes()
    }

    /// Processor time that relaying an answer took lately, in ns; 0 if it is unknown.
    pub fn relay_ns(&self) -> f64 {
        self.threshold.relay_ns()
    }

    /// Requests that were above a limit, by the name of each limit of this process.
    pub fn above_limits(&self) -> BTreeMap<String, u64> {
        let mut refused = self.limits.refused();
        for limit in &self.config.now().service.limit {
            refused.entry(limit.name.clone()).or_default();
        }
        refused
    }

    /// Relays by the present configuration, and by the present speed of the link.
    pub fn reconfigure(&self) {
        let up_to = self.config.now().service.relay_up_to;
        self.threshold.set(up_to, self.link.is_known());
    }
}

/// The parts of a configuration that come before the service, ready for requests.
pub(crate) struct Policy {
    config: Rc<Config>,
    pub(crate) rules: Rules,
    pub(crate) limits: Limits,
}

impl Policy {
    fn of(config: Rc<Config>) -> Self {
        Self {
            rules: Rules::of(&config),
            limits: Limits::of(&config),
            config,
        }
    }

    fn is_of(&self, config: &Rc<Config>) -> bool {
        Rc::ptr_eq(&self.config, config)
    }
}

/// One thread that serves connections.
pub struct Gateway<S> {
    pub(crate) shared: Arc<Shared>,
    config: RunningOfThread,
    /// That of the configuration that was present last.
    policy: RefCell<Option<Rc<Policy>>>,
    pub(crate) service: S,
    pub(crate) handle: Handle,
    pub(crate) peers: Rc<Peers>,
    pub(crate) requests: RequestsOfThread,
    pub(crate) date: DateCache,
    /// The buffer of the next answer.
    pub(crate) buffer: RefCell<Vec<u8>>,
    pub(crate) following: watch::Receiver<Order>,
    /// A permit for each connection that moves away.
    pub(crate) moving: Semaphore,
    /// Wakes the connections that wait for a request, which then look at the present order.
    pub(crate) ordered: Notify,
}

impl<S: Service> Gateway<S> {
    /// The gateway of the calling thread, whose connections arrive at the endpoint of `handle`.
    pub fn new(shared: Arc<Shared>, service: S, handle: Handle, peers: Rc<Peers>) -> Self {
        Self {
            following: shared.orders.follow(),
            requests: shared.requests.of_thread(),
            config: shared.config.of_thread(),
            policy: RefCell::default(),
            shared,
            service,
            handle,
            peers,
            date: DateCache::default(),
            buffer: RefCell::default(),
            moving: Semaphore::new(MOVES_AT_ONCE),
            ordered: Notify::new(),
        }
    }

    /// Serves until the node ends and all requests are answered, or the drain time has passed.
    pub async fn run(self: Rc<Self>, mut endpoint: Endpoint) {
        self.keep_reports();
        let mut orders = self.following.clone();
        let mut left = pin!(async {
            let _ = orders
                .wait_for(|orders| orders.stage >= Stage::Leaving)
                .await;
            let drain = if self.following.borrow().to_successor {
                PASSED_IN
            } else {
                seconds(self.config().limits.drain_timeout_s)
            };
            let deadline = tokio::time::Instant::now() + drain + CLOSED_IN;
            let _ = orders
                .wait_for(|orders| orders.stage == Stage::Ending)
                .await;
            self.handle.stop();
            deadline
        });
        let (open, mut all_ended) = mpsc::channel(1);
        let mut deadline = None;
        loop {
            let incoming = tokio::select! {
                biased;
                until = &mut left, if deadline.is_none() => {
                    deadline = Some(until);
                    continue;
                }
                incoming = endpoint.next() => incoming,
            };
            let worker = self.clone();
            match incoming {
                Some(Incoming::Client(client)) => begin(&open, worker.serve_client(client)),
                Some(Incoming::Relay { stream, peer }) => {
                    begin(&open, worker.serve_relay(stream, peer));
                }
                None => break,
            }
        }
        drop(open);
        let deadline = deadline.unwrap_or_else(tokio::time::Instant::now);
        let ended = tokio::time::timeout_at(deadline, all_ended.recv()).await;
        if ended.is_err() {
            tracing::warn!("closed requests that were under way at the end of the drain time");
        }
    }

    /// The present configuration.
    pub(crate) fn config(&self) -> Rc<Config> {
        self.config.now()
    }

    /// The rules and limits of the present configuration; `None` if it has none.
    pub(crate) fn policy(&self) -> Option<Rc<Policy>> {
        let config = self.config();
        if config.service.rule.is_empty() && config.service.limit.is_empty() {
            return None;
        }
        let mut policy = self.policy.borrow_mut();
        if policy.as_ref().is_none_or(|policy| !policy.is_of(&config)) {
            *policy = Some(Rc::new(Policy::of(config)));
        }
        policy.clone()
    }

    /// Resolves when an order has made `stops` true.
    pub(crate) async fn ordered_until(&self, stops: impl Fn() -> bool) {
        loop {
            let ordered = self.ordered.notified();
            if stops() {
                return;
            }
            ordered.await;
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.following.borrow().stage == Stage::Ending
    }

    /// Whether connections end after their next answer.
    pub(crate) fn is_stopping(&self) -> bool {
        self.following.borrow().stage >= Stage::Closing
    }
}

/// Runs a session in a task of its own, which holds `open` until its end, also by a panic.
fn begin(open: &mpsc::Sender<Infallible>, session: impl Future<Output = ()> + 'static) {
    // Boxed, because `spawn_local` moves a task some six times before it begins.
    let open = open.clone();
    let session = Box::pin(session);
    tokio::task::spawn_local(async move {
        let _open = open;
        session.await;
    });
}
