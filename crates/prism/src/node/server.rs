//! A node with all of its parts, opened by its configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use anyhow::Context;
use prism_acme::Keeper;
use prism_config::{
    AccessLogFormat, Config, CongestionWindow, HandOffMethod, HookMode, Peers, Running, seconds,
};
use prism_core::{Core, Observed, StoreReport};
use prism_gateway::{Challenges, Https, Neighbour, Parts};
use prism_handoff::{
    ClientBounds, ClientLimits, EndpointConfig, Method, NewcomerLimits, Peer, SigningKey,
    SwitchAddress,
};
use prism_membership::{Cluster, Directory};
use prism_pki::Identity;
use prism_process::notify::Notifier;
use prism_proto::control::ControlKey;
use prism_proto::fence::Fence;
use prism_replicas::Node;
use prism_service::{AccessLog, AccessLogForm, AccessLogTo, AuditLog, Link, Requests};
use prism_store::Store;
use tokio::sync::watch;

use super::combined::CombinedNode;
use super::objects::ObjectNode;
use super::service::NodeService;
use super::spans;
use super::state::figures;
use super::upstreams::UpstreamNode;

/// A node with all of its parts.
pub(crate) struct Server {
    /// Its part below the service.
    pub(crate) core: Arc<Core>,
    /// The service that answers requests.
    pub(super) service: Arc<dyn NodeService>,
    /// The connections.
    pub(crate) gateway: Arc<prism_gateway::Shared>,
    pub(crate) https: Option<Https>,
    /// The certificate that comes by ACME, at a frontend.
    pub(crate) acme: Option<Keeper>,
    /// How other nodes know this one; `None` if there are never any.
    pub(crate) identity: Option<Identity>,
    /// The requests that it has answered.
    pub(crate) requests: Arc<Requests>,
    /// The key for commands to the switch; `None` without a switch.
    pub(super) signing: Option<watch::Sender<SigningKey>>,
    pub(super) link: Arc<Link>,
    pub(super) clients: Arc<ClientLimits>,
    /// The number of requests of a million that begin a trace; `None` without a collector.
    pub(super) sampling: Option<Arc<AtomicU32>>,
    /// Tells the followers of files of each reload.
    pub(super) reload_requests: watch::Sender<()>,
    /// The file of its configuration; `None` if the command line is the configuration.
    pub(super) file: Option<PathBuf>,
    /// Tells the service manager about this service.
    pub(crate) notifier: Notifier,
    /// Whether every worker accepts connections.
    pub(crate) accepts: AtomicBool,
    /// When it was opened.
    pub(crate) started: Instant,
}

impl Observed for Server {
    fn report(&self) -> StoreReport {
        self.service.report()
    }

    fn figures(&self) -> serde_json::Value {
        figures(self)
    }
}

impl Server {
    /// Opens what the node called `name` of `cluster` needs besides its store.
    pub(crate) fn open(
        config: Config,
        name: &str,
        cluster: Cluster,
        store: Option<Store>,
        file: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let settings = config.known_node(name)?;
        let running = Arc::new(Running::new(config.clone()));
        let https = Https::load(&config, settings)?;
        let identity = identity(&config.peers, name)?;
        let signing = config.switch.as_ref();
        let signing = signing
            .map(|switch| signing_key(switch, name))
            .transpose()?;
        let link = Arc::new(Link::new(settings.link_mbit_s));
        let core = Arc::new(Core::new(running.clone(), name, cluster));
        let service = service(&config, settings, &core, store, &link, file.is_some())?;
        let receivers = spans::receivers(&config, settings)?;
        let sampling = receivers
            .as_ref()
            .map(|receivers| receivers.sampling.clone());
        if let Some(receivers) = &receivers {
            core.process.trace.observe(receivers.hand_offs.clone());
        }
        let spans = receivers.map(|receivers| receivers.requests);
        let access = access_log(&config)?;
        let audit = audit_log(&config)?;
        let requests = Arc::new(Requests::new(access, audit, spans));
        let directory = core.cluster.directory.clone();
        let own_name = name.to_owned();
        let parts = Parts {
            config: running,
            process: core.process.clone(),
            counters: core.counters.clone(),
            requests: requests.clone(),
            link: link.clone(),
            orders: core.orders.clone(),
            neighbours: Box::new(move || neighbours(&own_name, &directory.borrow())),
            challenges: challenges(&config, &core.cluster),
        };
        let acme = if settings.is_frontend() {
            Keeper::new(&config, name, &core.cluster).context("[service.acme]")?
        } else {
            None
        };
        Ok(Self {
            gateway: Arc::new(prism_gateway::Shared::new(settings, parts)),
            core,
            service,
            https,
            acme,
            identity,
            requests,
            signing: signing.map(watch::Sender::new),
            link,
            clients: Arc::new(ClientLimits::new(client_bounds(&config))),
            sampling,
            reload_requests: watch::Sender::new(()),
            file,
            notifier: Notifier::from_environment(),
            accepts: AtomicBool::new(false),
            started: Instant::now(),
        })
    }

    /// Whether there are never other nodes. A configuration from a file names an authority, and
    /// may get more nodes.
    pub(super) fn is_alone(&self) -> bool {
        self.identity.is_none()
    }

    pub(crate) fn settings(&self) -> anyhow::Result<prism_config::Node> {
        Ok(self
            .core
            .config
            .now()
            .known_node(&self.core.name)
            .cloned()?)
    }

    /// The name of a thread. With several services the service's name is in front.
    pub(super) fn thread_name(&self, role: &str) -> String {
        let config = self.core.config.now();
        if config.is_of_several() {
            format!("{}/{role}", config.service.name)
        } else {
            role.to_owned()
        }
    }

    /// The addresses that clients connect to.
    pub(super) fn services(&self) -> Vec<SocketAddr> {
        let tls = self.https.iter().flat_map(|https| &https.service.addresses);
        let plain = &self.core.config.now().service.address;
        plain.iter().chain(tls.copied()).collect()
    }

    pub(crate) fn endpoint_config(&self) -> anyhow::Result<EndpointConfig> {
        let settings = self.settings()?;
        let core = &self.core;
        let config = &*core.config.now();
        let service = &config.service;
        Ok(EndpointConfig {
            name: core.name.clone(),
            addresses: settings.address.iter().collect(),
            services: service.address.iter().collect(),
            listen: settings.is_frontend(),
            peer_port: config.peers.port,
            peers: other_nodes(&core.name, &core.cluster.directory.borrow()),
            identity: self.identity.clone(),
            switch: match (&config.switch, &self.signing) {
                (Some(switch), Some(keys)) => {
                    Some(switch_address(switch, &settings, keys.subscribe())?)
                }
                _ => None,
            },
            placement: core.cluster.placement_digest(config),
            fence: match config.switch.as_ref().map(|switch| switch.mode) {
                Some(HookMode::Host) => Fence::Host,
                _ => Fence::Switch,
            },
            tunnel_mtu_bytes: config
                .switch
                .as_ref()
                .map_or(0, |switch| switch.tunnel_mtu_bytes),
            method: match service.hand_off_method {
                HandOffMethod::Freeze => Method::Freeze,
                HandOffMethod::TwoPhase => Method::TwoPhase,
            },
            carry_window: service.congestion_window == CongestionWindow::Carry,
            tls: self.https.as_ref().map(|https| https.service.clone()),
            clients: self.clients.clone(),
            transit: Some(self.service.transit()),
        })
    }

    /// Reads the key for commands again. Returns whether it is another one.
    pub(super) fn read_signing_key(&self) -> Result<bool, prism_config::SecretError> {
        let config = self.core.config.now();
        let (Some(switch), Some(signing)) = (&config.switch, &self.signing) else {
            return Ok(false);
        };
        let read = signing_key(switch, &self.core.name)?;
        Ok(signing.send_if_modified(|present| {
            let is_new = *present != read;
            *present = read;
            is_new
        }))
    }
}

/// The service of the node `core`. `keeps_duties`: `prism serve` has no file, and leaves none.
fn service(
    config: &Config,
    settings: &prism_config::Node,
    core: &Arc<Core>,
    store: Option<Store>,
    link: &Arc<Link>,
    keeps_duties: bool,
) -> anyhow::Result<Arc<dyn NodeService>> {
    let objects = || -> anyhow::Result<ObjectNode> {
        let node = Arc::new(Node::new(core.clone(), store)?);
        Ok(ObjectNode::new(config, node, link.clone()))
    };
    if config.service.upstream.is_none() {
        return Ok(Arc::new(objects()?));
    }
    let upstreams = UpstreamNode::open(config, settings, core.clone(), keeps_duties)?;
    if !config.service.keeps_objects() {
        return Ok(Arc::new(upstreams));
    }
    Ok(Arc::new(CombinedNode::new(config, upstreams, objects()?)))
}

/// The address of the switch for `node`, and the keys for it.
pub(super) fn switch_address(
    switch: &prism_config::Switch,
    node: &prism_config::Node,
    key: watch::Receiver<SigningKey>,
) -> anyhow::Result<SwitchAddress> {
    let way = switch.control.from_node(&node.address);
    let (_, control) = way.with_context(|| {
        format!(
            "{} ({}) and switch.control ({}) have no family in common; give both an address \
             of one",
            node.name, node.address, switch.control
        )
    })?;
    let own = switch.hosts.iter();
    let own = own.filter_map(|host| host.address.of(control.ip()));
    Ok(SwitchAddress {
        control,
        key,
        hosts: own.map(|own| (own, control.port()).into()).collect(),
    })
}

/// The key by which the node `name` signs its commands.
pub(super) fn signing_key(
    switch: &prism_config::Switch,
    name: &str,
) -> Result<SigningKey, prism_config::SecretError> {
    let found = switch.load_node_key(name)?;
    Ok(SigningKey {
        key_id: found.key_id,
        key: ControlKey::new(*found.key.bytes()),
        is_own: found.is_own,
    })
}

/// The identity of the node `name`. A configuration without an authority is for a single node.
fn identity(peers: &Peers, name: &str) -> anyhow::Result<Option<Identity>> {
    if peers.ca_file.as_os_str().is_empty() {
        return Ok(None);
    }
    let identity = Identity::load(
        &peers.ca_file,
        &peers.cert_file(name),
        &peers.key_file(name),
    );
    let identity = identity.context("this node's certificate (`prism pki` makes them)")?;
    Ok(Some(identity))
}

/// The bounds on newcomers.
pub(super) fn client_bounds(config: &Config) -> ClientBounds {
    ClientBounds {
        connections: config.limits.connections.into(),
        newcomers: NewcomerLimits {
            per_address: config.limits.unauthenticated_per_address,
            timeout: seconds(config.limits.unauthenticated_timeout_s),
            unknown_per_address: config.limits.unknown_per_address(),
        },
        proxies: config.service.trusted_proxies.all().to_vec(),
        proxies_send_headers: config.service.accept_proxy_protocol,
    }
}

/// The answers to challenges, if a certificate comes by ACME.
fn challenges(config: &Config, cluster: &Cluster) -> Option<Challenges> {
    config.service.acme.as_ref()?;
    let challenges = prism_acme::Challenges::of(cluster)?;
    Some(Box::new(move |path| challenges.answer(path)))
}

/// The place of the access log.
pub(super) fn access_log_to(config: &Config) -> AccessLogTo {
    match &config.log.access {
        path if path.as_os_str().is_empty() => AccessLogTo::Nowhere,
        _ if config.logs_access_to_stdout() => AccessLogTo::Stdout,
        path => AccessLogTo::File(path.clone()),
    }
}

/// The form of its lines.
pub(super) fn access_log_form(config: &Config) -> AccessLogForm {
    match config.log.access_format {
        AccessLogFormat::Json => AccessLogForm::Json,
        AccessLogFormat::Combined => AccessLogForm::Combined,
    }
}

fn access_log(config: &Config) -> anyhow::Result<AccessLog> {
    let path = config.log.access.display();
    AccessLog::open(&access_log_to(config), access_log_form(config))
        .with_context(|| format!("cannot open log.access {path}"))
}

fn audit_log(config: &Config) -> anyhow::Result<AuditLog> {
    let path = &config.log.audit;
    let log = AuditLog::new(&config.log.audit);
    log.check()
        .with_context(|| format!("cannot open log.audit {}", path.display()))?;
    Ok(log)
}

/// The other nodes, for the hand-off library.
pub(super) fn other_nodes(own_name: &str, directory: &Directory) -> Vec<Peer> {
    let others = directory.iter().filter(|(name, _)| *name != own_name);
    let peers = others.map(|(name, host)| Peer {
        name: name.to_owned(),
        addresses: host.address.iter().collect(),
    });
    peers.collect()
}

/// The other nodes, for connections that move when this node ends.
fn neighbours(own_name: &str, directory: &Directory) -> Vec<Neighbour> {
    let others = directory.iter().filter(|(name, _)| *name != own_name);
    let neighbours = others.map(|(name, host)| Neighbour {
        name: name.to_owned(),
        is_frontend: host.is_frontend(),
    });
    neighbours.collect()
}
