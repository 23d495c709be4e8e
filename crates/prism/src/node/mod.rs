//! A node: a frontend, a backend, or both, from one configuration.
//!
//! One process, one thread per worker; each worker has its own runtime,
//! listeners (`SO_REUSEPORT`), channels to other nodes and socket to the
//! switch, so that a connection never changes threads.

mod admin;
mod answer;
mod ask;
mod asked;
mod auth;
mod body;
mod bucket;
mod catch_up;
mod certain;
mod commits;
mod copy;
mod cors;
mod counters;
mod documents;
mod elsewhere;
mod errors;
mod expire;
mod fence;
mod fetch;
mod follow;
mod forecast;
mod get;
mod hashing;
mod held;
mod idle;
mod io;
mod leave;
mod listing;
mod mend;
mod merge;
mod meta;
mod multipart;
mod noted;
mod own_request;
mod pace;
mod pause;
mod pieces;
mod policy;
mod prepare;
mod progress;
mod put;
mod registry;
mod relay;
mod relayed;
mod relaying;
mod replicate;
mod replication;
mod request_body;
pub(crate) mod run;
mod scrub;
mod serve;
mod session;
mod sessions;
mod short;
mod source;
mod survey;
mod tasks;
mod tls;
mod upload;
mod versions;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use prism_cluster::MinReplicas;
use prism_config::{Config, CongestionWindow, HandOffMethod};
use prism_handoff::pki::Identity;
use prism_handoff::{
    Endpoint, EndpointConfig, Handle, Incoming, Method, NewcomerLimits, Peer, Process,
    SwitchAddress, Transit,
};
use prism_http::RequestHead;
use prism_proto::control::ControlKey;
use prism_replica::StampClock;
use prism_s3::Operation;
use prism_store::Store;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::LocalSet;

use auth::Auth;
use counters::NodeCounters;
use leave::{Orders, Stage};
use prism_membership::{Cluster, Directory};
pub(crate) use progress::ProgressReport;
use replication::Replication;
use sessions::Sessions;
use tls::Https;

/// Serve clients, objects, or both: one node of a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which of its nodes this is.
    #[arg(long, value_name = "NAME")]
    node: String,
}

/// What all workers of the node share.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) cluster: Cluster,
    pub(crate) replication: Arc<Replication>,
    pub(crate) store: Option<Store>,
    pub(crate) scrub: scrub::Scrubber,
    pub(crate) progress: progress::Progress,
    pub(crate) auth: Auth,
    https: Option<Https>,
    pub(crate) relaying: relaying::Relaying,
    forecast: forecast::Forecast,
    pub(crate) limits: prism_http::Limits,
    pub(crate) counters: NodeCounters,
    pub(crate) hashing: hashing::Hashing,
    pub(crate) commits: commits::Commits,
    pub(crate) process: Arc<Process>,
    pub(crate) pauses: pause::Pauses,
    /// For all workers.
    pub(crate) orders: watch::Sender<Orders>,
    /// The clock of stamps for buckets' records.
    stamps: StampClock,
    /// Notified when remains of a deleted bucket are to be purged.
    purge: Notify,
    /// As the keeper of what is agreed about buckets: what others had is known.
    heard_all: AtomicBool,
}

/// One thread of the node.
pub(crate) struct Worker {
    pub(crate) node: Arc<Node>,
    pub(crate) handle: Handle,
    /// `Date` of this second.
    date: RefCell<(u64, Rc<str>)>,
    orders: watch::Receiver<Orders>,
    /// A permit for each connection that moves away.
    moving: Semaphore,
    idle: idle::Idle,
    /// Room for the answer that is being put together.
    answer_room: RefCell<Vec<u8>>,
    policies: RefCell<policy::Lately<prism_s3::Policy>>,
    cors: RefCell<policy::Lately<prism_s3::cors::CorsConfig>>,
    pieces: pieces::Pieces,
    /// Of catching up.
    refill: pace::Pace,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    crate::log::init(&config.log)?;
    check_name(&config, &args.node)?;
    // The store first: it knows in which state the cluster was.
    let store = open_store(&config, &args.node)?;
    let said = store.as_ref().map(noted::read).transpose()?;
    let cluster = Cluster::open(&config, &args.node, said)?;
    run::until_stopped(Node::open(config, &args.node, cluster, store)?, || {})
}

impl Node {
    /// Opens what the node called `name` of `cluster` needs besides its store.
    pub(crate) fn open(
        config: Config,
        name: &str,
        cluster: Cluster,
        store: Option<Store>,
    ) -> anyhow::Result<Self> {
        let settings = check_name(&config, name)?;
        let view = cluster.view.borrow().clone();
        let process = Arc::new(Process::default());
        let lease = cluster.lease.clone();
        let by = (view.clone(), MinReplicas(config.cluster.min_replicas));
        let replication = Replication::new(name, by, lease, process.health.clone());
        let replication = Arc::new(replication);
        if let Some(store) = &store {
            tie(store, &config, &cluster, &replication)?;
        }
        let auth = Auth::new(&config, &cluster.users.borrow());
        let https = Https::load(&config, settings)?;
        let limits = prism_http::Limits {
            head_bytes: config.limits.head_bytes as usize,
            body_bytes: config.limits.max_object_bytes,
            ..prism_http::Limits::DEFAULT
        };
        let link_mbit_s = (config.nodes.iter())
            .find(|node| node.name == name)
            .map_or(0, |node| node.link_mbit_s);
        let relaying = relaying::Relaying::new(config.service.relay_up_to, link_mbit_s);
        let counters = NodeCounters::default();
        let stamps = StampClock::new(prism_replica::origin(name, fastrand::u64(..)));
        let name = name.to_owned();
        let node = Self {
            name,
            config,
            cluster,
            replication,
            store,
            scrub: scrub::Scrubber::default(),
            progress: progress::Progress::default(),
            auth,
            https,
            relaying,
            forecast: forecast::Forecast::new(),
            limits,
            counters,
            hashing: hashing::Hashing::default(),
            commits: commits::Commits::default(),
            process,
            pauses: pause::Pauses::default(),
            orders: leave::first_orders(),
            stamps,
            purge: Notify::new(),
            heard_all: AtomicBool::new(false),
        };
        // Before anybody is served: buckets may have been made and deleted meanwhile.
        if let (Some(store), Some(known)) = (&node.store, node.cluster.known()) {
            follow::take_newer(&node, store, &known.buckets)?;
        }
        Ok(node)
    }

    /// Plain HTTP is answered with a redirect.
    pub(crate) fn redirects(&self) -> bool {
        let tls = self.config.service.tls.as_ref();
        tls.is_some_and(|tls| tls.redirect_http)
    }

    /// There is no other node and never will be: a configuration that was read
    /// from a file has an authority, and may be given more nodes.
    fn is_alone(&self) -> bool {
        self.config.peers.ca_file.as_os_str().is_empty()
    }

    fn settings(&self) -> anyhow::Result<&prism_config::Node> {
        self.config
            .node(&self.name)
            .context("the node is gone from its configuration")
    }

    fn endpoint_config(self: &Arc<Self>) -> anyhow::Result<EndpointConfig> {
        let settings = self.settings()?;
        let peers = &self.config.peers;
        let identity = match self.is_alone() {
            true => None,
            false => {
                let (cert, key) = (peers.cert_file(&self.name), peers.key_file(&self.name));
                let identity = Identity::load(&peers.ca_file, &cert, &key);
                Some(identity.context("this node's certificate (make one with `prism pki init`)")?)
            }
        };
        let switch = match &self.config.switch {
            Some(switch) => Some(SwitchAddress {
                control: switch.control.into(),
                key_id: switch.key_id,
                key: ControlKey::new(*switch.load_key()?.bytes()),
            }),
            None => None,
        };
        Ok(EndpointConfig {
            name: self.name.clone(),
            address: settings.address.into(),
            service: self.config.service.address.into(),
            listen: settings.is_frontend(),
            peer_port: peers.port,
            peers: self.peers(&self.cluster.directory.borrow()),
            identity,
            switch,
            placement: self.cluster.placement_digest(&self.config),
            method: match self.config.service.hand_off_method {
                HandOffMethod::Freeze => Method::Freeze,
                HandOffMethod::TwoPhase => Method::TwoPhase,
            },
            carry_window: self.config.service.congestion_window == CongestionWindow::Carry,
            tls: self.https.as_ref().map(|https| https.service.clone()),
            max_connections: self.config.limits.connections.into(),
            newcomers: NewcomerLimits {
                per_address: self.config.limits.unauthenticated_per_address,
                timeout: self.config.limits.unauthenticated_timeout(),
            },
            transit: Some(self.transit()),
        })
    }
}

impl Node {
    /// The other nodes.
    fn peers(&self, directory: &Directory) -> Vec<Peer> {
        let others = directory.iter().filter(|(name, _)| *name != self.name);
        others
            .map(|(name, host)| Peer {
                name: name.to_owned(),
                address: host.address.into(),
            })
            .collect()
    }

    /// Where a connection goes whose next request this node only has to look at,
    /// as a frontend does to which backends return connections.
    fn transit(self: &Arc<Self>) -> Transit {
        let node = Arc::downgrade(self);
        Arc::new(move |_, unread| {
            let node = node.upgrade()?;
            let (head, _) = RequestHead::parse(unread, &node.limits).ok()??;
            let operation = Operation::parse(&head, None).ok()?;
            let object = operation.object().filter(|_| operation.moves_data())?;
            let (bucket, key) = (object.bucket.as_str(), object.key.as_str());
            let answerers = node.replication.answerers(&operation, bucket, key);
            answerers
                .into_iter()
                .next()
                .filter(|name| *name != node.name)
        })
    }
}

/// The node's part of the configuration.
fn check_name<'a>(config: &'a Config, name: &str) -> anyhow::Result<&'a prism_config::Node> {
    let Some(settings) = config.node(name) else {
        let names: Vec<&str> = config.nodes.iter().map(|n| n.name.as_str()).collect();
        bail!(
            "no [[node]] is called {name:?}; there are: {}",
            names.join(", ")
        );
    };
    Ok(settings)
}

/// The store of the node called `name`, if it is to have one.
pub(crate) fn open_store(config: &Config, name: &str) -> anyhow::Result<Option<Store>> {
    let node = check_name(config, name)?;
    if !node.is_backend() {
        return Ok(None);
    }
    let settings = prism_store::Config {
        max_object_len: config
            .limits
            .max_object_bytes
            .min(prism_store::OBJECT_LEN_LIMIT),
        durability: match node.durability {
            prism_config::Durability::Fsync => prism_store::Durability::Fsync,
            prism_config::Durability::None => prism_store::Durability::None,
        },
        node: node.name.clone(),
        quota_bytes: Some(config.store.quota_bytes).filter(|bytes| *bytes > 0),
        reserve_bytes: config.store.reserve_bytes,
        recheck: Duration::from_secs(config.store.recheck_s.into()),
        ..prism_store::Config::default()
    };
    let store = Store::open(&node.store, settings)
        .with_context(|| format!("the store {}", node.store.display()))?;
    tracing::info!(recovery = ?store.recovery(), "store opened");
    Ok(Some(store))
}

/// Has a store be one of its cluster's.
fn tie(
    store: &Store,
    config: &Config,
    cluster: &Cluster,
    replication: &Arc<Replication>,
) -> anyhow::Result<()> {
    if cluster.is_in_etcd() {
        replication.set_store(store.identity());
        cluster.has_store(store.identity());
    } else {
        store.expect_replicas(config.cluster.replicas.into())?;
    }
    // Where the cluster may change, there may be replicas at any time.
    if replication.is_on() || cluster.is_in_etcd() {
        store.replicate(replication.clone());
        store.integrity().set_repair(replication.clone());
    }
    Ok(())
}

impl Worker {
    fn run(
        node: Arc<Node>,
        endpoint: EndpointConfig,
        bound: mpsc::Sender<()>,
        farewell: leave::Farewell,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        LocalSet::new().block_on(&runtime, async {
            let service = endpoint.service;
            let opened = Endpoint::bind(endpoint, node.process.clone()).await;
            let endpoint = opened.with_context(|| {
                format!(
                    "binding the service {service} or the node port of {}",
                    node.name
                )
            })?;
            let _ = bound.send(()).await;
            drop(bound);
            let date = RefCell::new((0, Rc::from("")));
            let handle = endpoint.handle();
            let refill = pace::Pace::new(node.config.store.refill_bytes_per_s);
            let worker = Rc::new(Self {
                orders: node.orders.subscribe(),
                moving: Semaphore::new(leave::MOVES_AT_ONCE),
                node,
                refill,
                handle,
                date,
                idle: idle::Idle::default(),
                answer_room: RefCell::default(),
                policies: RefCell::default(),
                cors: RefCell::default(),
                pieces: pieces::Pieces::default(),
            });
            worker.keep_tasks(farewell);
            worker.serve(endpoint).await;
            Ok(())
        })
    }

    /// Serves until the node ends, and then until all requests are answered or their time
    /// has passed.
    async fn serve(self: Rc<Self>, mut endpoint: Endpoint) {
        let mut orders = self.orders.clone();
        let mut left = pin!(async {
            let _ = orders
                .wait_for(|orders| orders.stage >= Stage::Leaving)
                .await;
            let drain = self.node.config.limits.drain_timeout();
            let deadline = tokio::time::Instant::now() + drain + leave::CLOSED_IN;
            let _ = orders
                .wait_for(|orders| orders.stage == Stage::Ending)
                .await;
            self.handle.stop();
            deadline
        });
        let (sessions, mut deadline) = (Rc::new(Sessions::default()), None);
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
                Some(Incoming::Client(client)) => sessions.run(worker.serve_client(client)),
                Some(Incoming::Relay { stream, peer }) => {
                    sessions.run(worker.serve_relay(stream, peer));
                }
                None => break,
            }
        }
        let deadline = deadline.unwrap_or_else(tokio::time::Instant::now);
        let ended = tokio::time::timeout_at(deadline, sessions.ended()).await;
        if ended.is_err() {
            tracing::warn!("requests were still under way at the end of the drain time");
        }
    }

    /// Resolves when the node begins to leave.
    pub(crate) async fn stopped(&self) {
        let mut orders = self.orders.clone();
        let _ = orders
            .wait_for(|orders| orders.stage > Stage::Serving)
            .await;
    }

    /// Resolves when what waits for a request is to end.
    pub(super) async fn told_to_stop(&self) {
        self.idle.until(|| self.is_ending()).await;
    }

    fn is_ending(&self) -> bool {
        self.orders.borrow().stage == Stage::Ending
    }

    /// Connections end behind their next answer.
    pub(crate) fn is_stopping(&self) -> bool {
        self.orders.borrow().stage >= Stage::Closing
    }

    /// The value of `Date`, made once a second.
    pub(crate) fn date(&self) -> Rc<str> {
        let seconds = now_ms() / 1000;
        let mut date = self.date.borrow_mut();
        if date.0 != seconds {
            *date = (seconds, Rc::from(answer::http_date(seconds)));
        }
        date.1.clone()
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
