//! The state that the threads of a node share.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_config::{Config, ServersFileError, Upstream, seconds};
use prism_figures::ServerState as ServerFigures;
use prism_handoff::Process;
use prism_http::{Limits, RequestHead};
use prism_rules::{AmbiguousPath, RequestPath};
use prism_service::RequestCounters;
use tokio::sync::{mpsc, watch};

use crate::affinity::Affinity;
use crate::backend::Backend;
use crate::duty::{Duties, Duty};
use crate::error::Error;
use crate::figures;
use crate::parcel::{MAX_PARCELS, Parcel};
use crate::park::Parking;
use crate::pool::{Address, Pool};
use crate::sources::{ReportedServers, Sources};

/// The upstreams, in the order in which requests try them.
pub(crate) type Pools = Arc<[Arc<Pool>]>;

/// The state that the threads of a node share to pass requests to servers.
pub struct Shared {
    pub(crate) name: String,
    pub(crate) limits: Limits,
    /// The silence after which a node gives up a request that it relays. Nodes read it when they
    /// start.
    pub(crate) stall_timeout: Duration,
    /// The addresses of the service, and its port of HTTPS.
    services: Vec<SocketAddr>,
    tls_port: Option<u16>,
    frontends: Vec<String>,
    /// The servers that there are. A change of them replaces the pools before the next change.
    sources: Mutex<Sources>,
    /// Replaced by a reload, and when servers come or go.
    pools: watch::Sender<Pools>,
    duties: Duties,
    pub(crate) parcels: mpsc::Sender<Parcel>,
    /// Until a thread has the tasks of the process.
    parcels_to_send: Mutex<Option<mpsc::Receiver<Parcel>>>,
    pub(crate) parking: Parking,
    pub(crate) process: Arc<Process>,
    pub(crate) counters: Arc<RequestCounters>,
}

impl Shared {
    /// For the node called `name` of this configuration. A service without an upstream has none.
    pub fn new(
        config: &Config,
        name: &str,
        process: Arc<Process>,
        counters: Arc<RequestCounters>,
    ) -> Self {
        let (parcels, to_send) = mpsc::channel(MAX_PARCELS);
        let frontends = config.frontends();
        let sources = Sources::new(config, name);
        Self {
            name: name.to_owned(),
            frontends: frontends.map(|node| node.name.clone()).collect(),
            limits: Limits {
                head_bytes: config.limits.head_bytes as usize,
                ..Limits::DEFAULT
            },
            stall_timeout: seconds(config.limits.stall_timeout_s),
            services: config.service.address.iter().collect(),
            tls_port: config.service.tls.as_ref().map(|tls| tls.port),
            pools: watch::Sender::new(pools(&sources, name, &[])),
            sources: sources.into(),
            duties: Duties::default(),
            parcels,
            parcels_to_send: Some(to_send).into(),
            parking: Parking::default(),
            process,
            counters,
        }
    }

    /// Keeps the duties of this node's servers in `file`, and acts by those that are there. Without
    /// a file they end with the process.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn with_duties(self, file: &Path) -> io::Result<Self> {
        let shared = Self {
            duties: Duties::open(file)?,
            ..self
        };
        shared.apply_duties(&shared.pools());
        Ok(shared)
    }

    /// Reads the files of servers that the upstreams name. One that does not exist has no server.
    ///
    /// # Errors
    /// A file cannot be read, or has a fault.
    pub fn with_servers_files(self) -> Result<Self, ServersFileError> {
        self.change_sources(|sources| (sources.open_files(), true))?;
        Ok(self)
    }

    /// Keeps the servers that operators add to this node in `file`, and has those that are there.
    /// Without a file they end with the process.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn with_additions(self, file: &Path) -> io::Result<Self> {
        self.change_sources(|sources| (sources.open_additions(file), true))?;
        Ok(self)
    }

    /// Looks for servers that have come or gone in the files of servers, or by another process of
    /// this node.
    pub(crate) fn refresh_servers(&self) {
        self.change_sources(|sources| ((), sources.refresh()));
    }

    /// Learns the servers of another backend by its report.
    pub(crate) fn learn_servers(&self, backend: &str, reported: ReportedServers) {
        self.change_sources(|sources| ((), sources.learn(backend, reported)));
    }

    /// Changes the sources of servers. `change` also says whether servers may have come or gone.
    /// Requests under way end at their servers.
    pub(crate) fn change_sources<T>(&self, change: impl FnOnce(&mut Sources) -> (T, bool)) -> T {
        let mut sources = self.sources.lock();
        let (outcome, is_new) = change(&mut sources);
        if is_new {
            let present = self.pools();
            let new = pools(&sources, &self.name, &present);
            let is_alike = new.len() == present.len()
                && new.iter().zip(present.iter()).all(|(a, b)| a.is_alike(b));
            if !is_alike {
                self.pools.send_modify(|present| {
                    self.apply_duties(&new);
                    *present = new;
                });
            }
        }
        outcome
    }

    /// Sets the duty of servers of this node.
    ///
    /// # Errors
    /// The file of duties cannot be written.
    pub(crate) fn set_duties(&self, servers: &[SocketAddr], duty: Duty) -> io::Result<()> {
        self.duties.set(servers, duty)?;
        self.duties_have_changed();
        Ok(())
    }

    /// Acts by the duties that another process of this node has set.
    pub(crate) fn refresh_duties(&self) {
        match self.duties.refresh() {
            Ok(false) => {}
            Ok(true) => self.duties_have_changed(),
            Err(error) => tracing::warn!(%error, "the file of servers' duties is not read"),
        }
    }

    fn duties_have_changed(&self) {
        self.pools.send_modify(|pools| {
            self.apply_duties(pools);
            // Each thread ends idle connections when it sees another list.
            *pools = pools.iter().cloned().collect();
        });
    }

    fn apply_duties(&self, pools: &Pools) {
        for address in pools.iter().flat_map(|pool| &pool.addresses) {
            address.set_duty(self.duties.of(address.address));
        }
    }

    pub(crate) fn is_frontend(&self, name: &str) -> bool {
        self.frontends.iter().any(|frontend| frontend == name)
    }

    /// Makes the upstreams of `config` the present ones. Requests under way end at their servers.
    pub fn reconfigure(&self, config: &Config) {
        self.change_sources(|sources| (sources.reconfigure(config), true));
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

    /// The upstream that gets a request. `is_redirected`: a server has named the resource, so it
    /// may be an internal one, and these come first.
    ///
    /// # Errors
    /// There is none, or the path does not tell which.
    pub(crate) fn pool_of(
        &self,
        head: &RequestHead,
        is_redirected: bool,
    ) -> Result<Arc<Pool>, Error> {
        let path = RequestPath::of(head);
        let pools = self.pools.borrow();
        let internal = pools
            .iter()
            .filter(|pool| is_redirected && pool.settings.internal);
        let open = pools.iter().filter(|pool| !pool.settings.internal);
        for pool in internal.chain(open) {
            match pool.matcher.fit(head, &path) {
                Ok(Some(_)) => return Ok(pool.clone()),
                Ok(None) => {}
                Err(AmbiguousPath) => return Err(Error::AmbiguousPath),
            }
        }
        Err(Error::NoUpstream)
    }

    /// The upstream of this name.
    pub(crate) fn pool_named(&self, name: &str) -> Option<Arc<Pool>> {
        let pools = self.pools.borrow();
        let mut pools = pools.iter();
        pools.find(|pool| pool.name == name).cloned()
    }

    /// The backends that may answer a request of `pool`, best first.
    pub(crate) fn backends<'p>(&self, pool: &'p Pool, affinity: &Affinity) -> Vec<&'p Backend> {
        let process = &self.process;
        let now = Instant::now();
        pool.backends(affinity, &|name| {
            process.is_leaving(name) || process.comes_last(name, now)
        })
    }

    /// The address of the service that a client of another node has connected to, as far as its
    /// family and TLS tell.
    pub(crate) fn service_of(&self, client: IpAddr, is_tls: bool) -> Option<SocketAddr> {
        let mut services = self.services.iter().copied();
        let mut service = services.find(|service| service.is_ipv4() == client.is_ipv4())?;
        if let Some(port) = self.tls_port.filter(|_| is_tls) {
            service.set_port(port);
        }
        Some(service)
    }

    /// The figures of this node's servers, in the order of the upstreams.
    pub fn servers(&self) -> Vec<ServerFigures> {
        let pools = self.pools();
        pools.iter().flat_map(|pool| pool.figures()).collect()
    }

    /// The servers of the backend called `backend`, of which this node knows nothing.
    pub fn unknown_servers_of(&self, backend: &str) -> Vec<ServerFigures> {
        let pools = self.pools();
        let all = pools.iter().flat_map(|pool| {
            let backends = pool.backends.iter().filter(|one| one.name == backend);
            let servers = backends.flat_map(|one| &one.servers);
            servers.map(|one| figures::unknown(&pool.name, one.address, one.source))
        });
        all.collect()
    }

    /// The names of the upstreams, in their order.
    pub fn upstream_names(&self) -> Vec<String> {
        self.pools().iter().map(|pool| pool.name.clone()).collect()
    }

    /// The assignments to other nodes; `None` after the first call.
    pub(crate) fn take_parcels(&self) -> Option<mpsc::Receiver<Parcel>> {
        self.parcels_to_send.lock().take()
    }

    /// The node to which a connection is handed off for its unread request, if there is one. A
    /// frontend sends a returned connection on to it.
    pub fn owner_of_unread(&self, unread: &[u8]) -> Option<String> {
        let (head, _) = RequestHead::parse(unread, &self.limits).ok()??;
        let pool = self.pool_of(&head, false).ok()?;
        let backends = self.backends(&pool, &pool.affinity(&head));
        let best = backends.first()?;
        pool.sends(best);
        Some(best.name.clone())
    }
}

/// The upstreams with their servers, at the node called `name`. Servers and backends that are in
/// the `present` ones too keep what is known of them.
fn pools(sources: &Sources, name: &str, present: &[Arc<Pool>]) -> Pools {
    let upstreams = sources.upstreams().into_iter();
    let mut pools: Vec<Pool> = upstreams
        .map(|(of, settings)| {
            let mut former = present.iter();
            let former = former.find(|one| one.settings.conditions() == settings.conditions());
            let placed = sources.placed(&of, settings);
            Pool::new(of, settings, placed, name, former.map(|one| &**one))
        })
        .collect();
    take_over_addresses(&mut pools, present);
    pools.into_iter().map(Arc::new).collect()
}

/// Gives each address of the `present` upstreams to at most one of `pools`: to one for the same
/// requests if there is one, else to any. Each upstream has checks of its own for its addresses.
fn take_over_addresses(pools: &mut [Pool], present: &[Arc<Pool>]) {
    let former = present.iter().flat_map(|pool| {
        let settings = &pool.settings;
        pool.addresses
            .iter()
            .map(move |address| Placed { settings, address })
    });
    let mut former: Vec<Placed<'_, &Arc<Address>>> = former.collect();
    let new = pools.iter_mut().flat_map(|pool| {
        let settings = &pool.settings;
        let addresses = pool.addresses.iter_mut();
        addresses.map(move |address| Placed { settings, address })
    });
    let mut new: Vec<Placed<'_, &mut Arc<Address>>> = new.collect();
    for is_any in [false, true] {
        new.retain_mut(|one| {
            let same = former.iter().position(|known| {
                known.address.is_same(one.address)
                    && (is_any || known.settings.conditions() == one.settings.conditions())
            });
            let same = same.map(|place| former.remove(place).address.clone());
            let is_known = same.is_some();
            if let Some(same) = same {
                *one.address = same;
            }
            !is_known
        });
    }
}

/// An address in the upstream of these settings.
struct Placed<'p, A> {
    settings: &'p Upstream,
    address: A,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use prism_config::{Node, Role, Tls};

    use super::*;
    use crate::pool::tests::REFUSED;

    /// The upstreams for these paths, all with one server at a backend.
    fn config(paths: &[&str]) -> Config {
        let upstream = |path: &&str| Upstream {
            address: SocketAddr::from(([127, 0, 0, 1], 9)).into(),
            paths: vec![(*path).to_owned()],
            ..Upstream::default()
        };
        let mut config: Config = Config::default();
        let upstreams: Vec<Upstream> = paths.iter().map(upstream).collect();
        config.service.upstream = Some(upstreams.into());
        config.nodes.push(Node {
            name: "be0".into(),
            roles: vec![Role::Backend],
            ..Node::default()
        });
        config
    }

    fn shared(config: &Config) -> Shared {
        Shared::new(config, "be0", Arc::default(), Arc::default())
    }

    #[test]
    fn an_address_goes_to_one_upstream_after_a_reload() {
        let shared = shared(&config(&["/a"]));
        let former = shared.pools()[0].addresses[0].clone();
        let is_former = |shared: &Shared| -> Vec<bool> {
            let pools = shared.pools();
            let addresses = pools.iter().flat_map(|pool| &pool.addresses);
            addresses
                .map(|address| Arc::ptr_eq(address, &former))
                .collect()
        };
        for (paths, expected) in [
            (&["/new", "/a"][..], &[false, true][..]),
            (&["/a", "/new"], &[true, false]),
            // Nobody has its requests any more.
            (&["/b", "/new"], &[true, false]),
            (&["/new", "/b"], &[false, true]),
        ] {
            shared.reconfigure(&config(paths));
            assert_eq!(is_former(&shared), expected, "{paths:?}");
        }
    }

    #[test]
    fn each_upstream_judges_a_server_for_itself() {
        let shared = shared(&config(&["/a", "/b"]));
        let pool = shared.pools()[1].clone();
        pool.learn(&pool.addresses[0], REFUSED);
        let servers = shared.servers();
        let seen = servers.iter().map(|server| {
            let errors: u64 = server.errors.values().sum();
            (
                server.upstream.as_str(),
                server.state.as_str(),
                server.gets_requests,
                errors,
            )
        });
        let expected = [("/a", "unknown", true, 0), ("/b", "unhealthy", false, 1)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        let fault = servers[1].last_fault.as_ref().unwrap();
        assert_eq!(fault.reason, "connection refused");
        assert_eq!(fault.by, "request");
    }

    #[test]
    fn a_duty_outlives_reloads_and_restarts_and_is_of_all_upstreams_of_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers-be0.json");
        let node = |paths: &[&str]| shared(&config(paths)).with_duties(&file).unwrap();
        let states = |shared: &Shared| -> Vec<String> {
            shared.servers().into_iter().map(|one| one.state).collect()
        };
        let first = node(&["/a", "/b"]);
        let server = first.pools()[0].addresses[0].address;
        first.set_duties(&[server], Duty::Down).unwrap();
        assert_eq!(states(&first), ["down"; 2]);
        first.reconfigure(&config(&["/c"]));
        assert_eq!(states(&first), ["down"]);
        let second = node(&["/a"]);
        assert_eq!(states(&second), ["down"]);
        second.set_duties(&[server], Duty::Up).unwrap();
        assert_eq!(states(&second), ["unknown"]);
        assert_eq!(states(&node(&["/a"])), ["unknown"]);
    }

    #[test]
    fn nothing_is_known_of_the_servers_of_a_silent_backend() {
        let shared = shared(&config(&["/a", "/b"]));
        let servers = shared.unknown_servers_of("be0");
        let names: Vec<&str> = servers.iter().map(|one| one.upstream.as_str()).collect();
        assert_eq!(names, ["/a", "/b"]);
        let is_unknown = |one: &ServerFigures| one.state == "unknown";
        assert!(
            servers
                .iter()
                .all(|one| is_unknown(one) && !one.gets_requests)
        );
        assert!(shared.unknown_servers_of("fe0").is_empty());
    }

    #[test]
    fn a_client_of_another_node_has_connected_by_its_family_and_tls() {
        let mut config = config(&["/"]);
        let services = ["203.0.113.10:80", "[2001:db8::10]:80"];
        let services = services.map(|service| service.parse::<SocketAddr>().unwrap());
        config.service.address = services.into_iter().take(1).collect();
        config.service.tls = Some(Tls::default());
        let [four, six] = services.map(|service| service.ip());
        let near = shared(&config);
        assert_eq!(near.service_of(four, false), Some(services[0]));
        assert_eq!(near.service_of(four, true), Some((four, 443).into()));
        assert_eq!(near.service_of(six, true), None);
        config.service.address = services.into_iter().collect();
        let both = shared(&config);
        assert_eq!(both.service_of(six, true), Some((six, 443).into()));
    }
}
