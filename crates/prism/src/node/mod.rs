//! A node: a frontend, a backend, or both, from one configuration.
//!
//! One process, one thread per worker; each worker has its own runtime,
//! listeners (`SO_REUSEPORT`), channels to other nodes and socket to the
//! switch, so that a connection never changes threads.

mod admin;
mod answer;
mod ask;
mod asked;
mod body;
mod bucket;
mod catch_up;
mod certain;
mod commits;
mod copy;
mod counters;
mod documents;
mod errors;
mod expire;
mod fence;
mod fetch;
mod forecast;
mod get;
mod hashing;
mod held;
mod idle;
mod io;
mod listing;
mod mend;
mod merge;
mod meta;
mod multipart;
mod noted;
mod pace;
mod pieces;
mod policy;
mod progress;
mod put;
mod relay;
mod relayed;
mod relaying;
mod replicate;
mod replication;
pub(crate) mod run;
mod scrub;
mod serve;
mod session;
mod sessions;
mod short;
mod source;
mod survey;
mod tls;
mod upload;
mod versions;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use prism_config::{Config, CongestionWindow, HandOffMethod};
use prism_handoff::pki::Identity;
use prism_handoff::{
    Endpoint, EndpointConfig, Handle, Incoming, Method, Peer, Process, SwitchAddress, Transit,
};
use prism_http::RequestHead;
use prism_proto::control::ControlKey;
use prism_s3::Operation;
use prism_store::Store;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::cluster::{Cluster, Directory};
use counters::NodeCounters;
pub(crate) use progress::ProgressReport;
use replication::Replication;
use session::Auth;
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
}

/// One thread of the node.
pub(crate) struct Worker {
    pub(crate) node: Arc<Node>,
    pub(crate) handle: Handle,
    /// `Date` of this second.
    date: RefCell<(u64, Rc<str>)>,
    stopping: watch::Receiver<bool>,
    idle: idle::Idle,
    /// Room for the answer that is being put together.
    answer_room: RefCell<Vec<u8>>,
    policies: RefCell<policy::Policies>,
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
        let replication = Replication::new(name, view.clone(), cluster.lease.clone());
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
        let (counters, process) = (NodeCounters::default(), Arc::new(Process::default()));
        let name = name.to_owned();
        Ok(Self {
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
        })
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
            method: match self.config.service.hand_off_method {
                HandOffMethod::Freeze => Method::Freeze,
                HandOffMethod::TwoPhase => Method::TwoPhase,
            },
            carry_window: self.config.service.congestion_window == CongestionWindow::Carry,
            tls: self.https.as_ref().map(|https| https.service.clone()),
            max_connections: self.config.limits.connections.into(),
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
            let (bucket, key) = operation.object().filter(|_| operation.moves_data())?;
            let (bucket, key) = (bucket.as_str(), key.as_str());
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
    if cluster.is_kept() {
        replication.set_store(store.identity());
        cluster.has_store(store.identity());
    } else {
        store.expect_replicas(config.cluster.replicas.into())?;
    }
    // Where the cluster may change, there may be replicas at any time.
    if replication.is_on() || cluster.is_kept() {
        store.replicate(replication.clone());
        store.set_repair(replication.clone());
    }
    Ok(())
}

impl Worker {
    fn run(
        node: Arc<Node>,
        endpoint: EndpointConfig,
        stopping: watch::Receiver<bool>,
        bound: mpsc::Sender<()>,
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
            let drain = node.config.limits.drain_timeout();
            let date = RefCell::new((0, Rc::from("")));
            let handle = endpoint.handle();
            let refill = pace::Pace::new(node.config.store.refill_bytes_per_s);
            let worker = Rc::new(Self {
                node,
                refill,
                handle,
                date,
                stopping,
                idle: idle::Idle::default(),
                answer_room: RefCell::default(),
                policies: RefCell::default(),
                pieces: pieces::Pieces::default(),
            });
            let (jobs, is_first) = worker.node.replication.join();
            tokio::task::spawn_local(worker.clone().carry_out(jobs));
            if is_first && (worker.node.replication.is_on() || worker.node.cluster.is_kept()) {
                tokio::task::spawn_local(worker.clone().tidy());
                tokio::task::spawn_local(worker.clone().catch_up());
            }
            if is_first {
                tokio::task::spawn_local(worker.clone().expire_uploads());
            }
            tokio::task::spawn_local(worker.clone().follow_directory());
            worker.serve(endpoint, drain).await;
            Ok(())
        })
    }

    /// Serves until told to stop, and then until all requests are answered or
    /// `drain` has passed.
    async fn serve(self: Rc<Self>, mut endpoint: Endpoint, drain: Duration) {
        let mut stopping = self.stopping.clone();
        let mut stop = pin!(stopping.wait_for(|stop| *stop));
        let sessions = Rc::new(Sessions::default());
        loop {
            let incoming = tokio::select! {
                biased;
                _ = &mut stop => break,
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
        self.handle.stop();
        self.idle.wake();
        if tokio::time::timeout(drain, sessions.ended()).await.is_err() {
            tracing::warn!("requests were still under way at the end of the drain time");
        }
    }

    /// Finds the other nodes where they are, whenever that changes.
    async fn follow_directory(self: Rc<Self>) {
        let mut directory = self.node.cluster.directory.clone();
        loop {
            let peers = self.node.peers(&directory.borrow_and_update());
            self.handle.set_peers(&peers);
            if directory.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resolves when the node is to stop.
    pub(crate) async fn stopped(&self) {
        let _ = self.stopping.clone().wait_for(|stop| *stop).await;
    }

    /// The same for those who wait for requests, of whom there are many.
    pub(super) async fn told_to_stop(&self) {
        self.idle.until(|| self.is_stopping()).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
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
