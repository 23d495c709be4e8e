//! Shared parts of the tests of whole clusters: a cluster in a lab that runs the built program,
//! a client that compares every byte, and captures of the client's packets.

pub mod bed;
pub mod client;
mod families;
mod flows;
pub mod netem;
pub mod objects;
pub mod packets;
pub mod plain;
pub mod tls;
pub mod wire;

pub use flows::Known;
pub use prism_lab::testing::{eventually, say, turn};

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, Placement};
use prism_config::{ConfigFile, RelayUpTo};
use prism_lab::{Families, Family, Lab, LabName, LabSpec};
use prism_netns::NetNs;
use prism_proto::control::ControlKey;
use prism_signer::Signer;

use client::{Client, Request};
use objects::Object;

/// The bucket of every test; made with the cluster.
pub const BUCKET: &str = "bucket";
/// The longest time until nodes hand off instead of relaying.
const WARM_UP: Duration = Duration::from_secs(10);
/// The ends of hand-offs, and the longest time until their sources count them.
const ENDS: [&str; 4] = [
    "exports_moved",
    "exports_kept",
    "exports_lost",
    "exports_unknown",
];
const VERDICTS_IN: Duration = Duration::from_secs(1);
/// Lines of each host's log that a failing test shows.
const LOG_LINES: usize = 25;

/// The directory in which `scripts/setup.sh tests` keeps clients that Debian lacks.
pub fn clients() -> PathBuf {
    let home = || std::env::var_os("HOME").unwrap_or_default();
    std::env::var_os("PRISM_TEST_CLIENTS").map_or_else(
        || Path::new(&home()).join(".cache/prism-test-clients"),
        PathBuf::from,
    )
}

/// Python on the client's host, with a boto3 that has the whole tested API. Debian's boto3
/// lacks some.
pub fn python(lab: &Lab) -> Command {
    let mut command = lab.command("client", "python3").unwrap();
    command.env("PYTHONPATH", clients().join("python"));
    command
}

/// The standard output of a command, which has to succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

/// The longest time until a server that listens gets requests again.
const SERVERS_RETURN_IN: Duration = Duration::from_secs(30);

/// A lab whose nodes hand off, and whose bucket exists. Unless a test says otherwise, it has
/// both families of addresses, and each new connection takes the other one.
pub struct Cluster {
    pub lab: Lab,
    /// The service, as requests name it.
    pub service: SocketAddr,
    /// The number of connections so far.
    connections: AtomicUsize,
    pub signer: Signer,
    netns: NetNs,
    placement: Placement,
    /// Ports of the flows of the cluster's first requests. A frontend that refuses a body
    /// closes first, and the flow stays as long as its TIME_WAIT.
    left: Vec<u16>,
}

/// A lab of this process. An emulated processor (scripts/kernels.py) has more time to start it.
pub fn lab_spec() -> LabSpec {
    let name: LabName = format!("e{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    if std::env::var_os("PRISM_TEST_EMULATED").is_some() {
        spec.ready_timeout = Duration::from_secs(120);
    }
    spec
}

impl Cluster {
    /// One frontend and `backends` backends.
    pub fn up(backends: usize) -> Self {
        Self::up_with(backends, |_| {})
    }

    /// The same with changes.
    pub fn up_with(backends: usize, change: impl FnOnce(&mut LabSpec)) -> Self {
        let mut spec = lab_spec();
        spec.family = Families::Dual;
        spec.backends = backends;
        // Connections move whatever the size of an object.
        spec.relay_up_to = RelayUpTo::Bytes(0);
        change(&mut spec);
        Self::of(Lab::up(spec).unwrap())
    }

    /// One frontend and `backends` backends, of which `replicas` have each key.
    pub fn replicated(backends: usize, replicas: u16) -> Self {
        Self::configured(backends, move |config| config.cluster.replicas = replicas)
    }

    /// One frontend and `backends` backends with a changed configuration.
    pub fn configured(
        backends: usize,
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
    ) -> Self {
        Self::up_with(backends, |spec| spec.configure = Some(Box::new(change)))
    }

    /// One frontend and `backends` backends that find no switch and so hand nothing off: every
    /// request for another node's object is relayed.
    pub fn relaying(backends: usize) -> Self {
        Self::relaying_replicated(backends, 1)
    }

    /// As [`Self::relaying`], with `replicas` copies of each key.
    pub fn relaying_replicated(backends: usize, replicas: u16) -> Self {
        let mut spec = lab_spec();
        spec.family = Families::Dual;
        spec.backends = backends;
        spec.configure = Some(Box::new(move |config| config.cluster.replicas = replicas));
        let spec = spec.configure_nodes(|config| {
            if let Some(switch) = &mut config.switch {
                switch.control.port += 1;
            }
        });
        let cluster = Self::around(Lab::up(spec).unwrap());
        cluster.make_bucket();
        cluster
    }

    /// Another signer of the lab's user.
    pub fn new_signer(&self) -> Signer {
        signer_of(&self.lab)
    }

    /// Makes the bucket, and waits until connections move.
    pub fn of(lab: Lab) -> Self {
        let mut cluster = Self::around(lab);
        cluster.make_bucket();
        cluster.warm_up();
        if cluster.try_view().is_ok() {
            cluster.left = cluster.flows_left(&[]);
        }
        cluster
    }

    /// A lab as it is, whatever its service.
    pub fn around(lab: Lab) -> Self {
        let namespace = lab.namespace("client").unwrap();
        let namespace = namespace.file_name().unwrap().to_str().unwrap().to_owned();
        // The first of several services, which has the lab's addresses.
        let config = ConfigFile::load(&lab.config_path())
            .unwrap()
            .parts()
            .remove(0);
        let names = config.backends().map(|node| NodeName::new(&node.name));
        Self {
            service: lab.service(),
            signer: signer_of(&lab),
            netns: NetNs::named(&namespace).unwrap(),
            placement: Placement::new(&names.map(Result::unwrap).collect()),
            left: Vec::new(),
            connections: AtomicUsize::new(0),
            lab,
        }
    }

    /// On a slow processor the nodes' first handshakes come all at once, and may take longer
    /// than a request waits.
    fn make_bucket(&self) {
        eventually("the bucket is made", WARM_UP, || {
            let made = self.connect().call(&self.request("PUT", ""));
            assert!([200, 503].contains(&made.status()), "{}", made.text());
            made.status() == 200
        });
    }

    /// Nodes relay until they have heard from the switch and from each other. They refuse
    /// writes while they cannot reach all replicas.
    fn warm_up(&self) {
        let objects = self.one_on_each("warm", |_| 1);
        eventually("every backend writes", WARM_UP, || {
            objects.iter().all(|object| {
                let answer = self.connect().try_to_put(self, object);
                assert!([200, 503].contains(&answer.status()), "{}", answer.text());
                answer.status() == 200
            })
        });
        eventually("every backend hands off", WARM_UP, || {
            let mut client = self.connect();
            let mut objects = objects.iter().chain(objects.iter().rev());
            // Writes are handed off, whatever their size.
            let are_well = objects.all(|object| client.try_to_put(self, object).status() == 200);
            drop(client);
            let members = self.members();
            let mut moved = members
                .iter()
                .map(|host| self.counter(host, "handoff", "exports_moved"));
            are_well && moved.all(|moved| moved > 0)
        });
    }

    /// A connection of the client's host to the service.
    pub fn connect(&self) -> Client {
        self.connect_with(|_| {})
    }

    /// The same, from this port of the client. A port has one family, so that connections from
    /// it follow each other: in a lab of both, an even port has IPv4 and an odd one IPv6.
    pub fn connect_from(&self, port: u16) -> Client {
        let service = self.nth_service(port.into());
        let local = SocketAddr::new(self.address_like("client", service.ip()), port);
        self.connect_to(service, |socket| {
            socket.set_reuse_address(true).unwrap();
            socket.bind(&local.into()).unwrap();
        })
    }

    /// The same, with the socket prepared.
    pub fn connect_with(&self, prepare: impl FnOnce(&socket2::Socket) + Send) -> Client {
        self.connect_to(self.next_service(), prepare)
    }

    /// A connection of `family`.
    pub fn connect_over(&self, family: Family) -> Client {
        self.connect_to(self.service_of(family), |_| {})
    }

    /// A connection to another address, with the socket prepared.
    pub fn connect_to(
        &self,
        address: SocketAddr,
        prepare: impl FnOnce(&socket2::Socket) + Send,
    ) -> Client {
        self.in_client(|| {
            use socket2::{Domain, Socket, Type};
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            prepare(&socket);
            socket.connect(&address.into()).unwrap();
            Client::new(socket.into())
        })
    }

    /// Runs `work` inside the client's namespace, with all threads it starts.
    pub fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(work).unwrap()
    }

    /// Runs `work` inside the namespace of `host`.
    pub fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let name = format!("prism-{}-{host}", self.lab.name());
        NetNs::named(&name).unwrap().run(work).unwrap()
    }

    /// Resident memory of the process of `host`, in KiB.
    pub fn resident_kib(&self, host: &str) -> u64 {
        let status = format!("/proc/{}/status", self.lab.pid(host).unwrap());
        let text = std::fs::read_to_string(status).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.unwrap().parse().unwrap()
    }

    /// A signed request without a body; `target` follows the bucket's name.
    pub fn request(&self, method: &str, target: &str) -> Vec<u8> {
        Request::new(method, target).encode(self)
    }

    /// Stores objects over one connection.
    pub fn put_all(&self, objects: &[Object]) {
        let mut client = self.connect();
        for object in objects {
            client.put(self, object);
        }
    }

    /// One object for each backend, in the backends' order.
    pub fn one_on_each(&self, label: &str, len: impl Fn(usize) -> u64) -> Vec<Object> {
        let backends = self.members();
        let one = |(n, host): (usize, &String)| Object::new(self.key_on(host, label), len(n));
        backends.iter().enumerate().map(one).collect()
    }

    /// A key that placement gives to `backend`.
    pub fn key_on(&self, backend: &str, label: &str) -> String {
        (0..10_000)
            .map(|n| format!("{label}-{n}"))
            .find(|key| self.owner(key) == backend)
            .unwrap()
    }

    /// The backend that holds `key`.
    pub fn owner(&self, key: &str) -> &str {
        self.placement.owner(BUCKET, key).unwrap().as_str()
    }

    /// Names of all backends.
    pub fn backends(&self) -> Vec<String> {
        self.hosts_of("be")
    }

    /// Names of the backends with which the cluster began.
    fn members(&self) -> Vec<String> {
        let members = self.placement.nodes();
        members.map(NodeName::to_string).collect()
    }

    /// Names of all frontends.
    pub fn frontends(&self) -> Vec<String> {
        self.hosts_of("fe")
    }

    /// Names of all frontends and backends.
    pub fn nodes(&self) -> Vec<String> {
        [self.frontends(), self.backends()].concat()
    }

    fn hosts_of(&self, kind: &str) -> Vec<String> {
        let hosts = self.lab.hosts().filter(|host| host.starts_with(kind));
        hosts.map(str::to_owned).collect()
    }

    /// One of a node's counters, as in `("be0", "handoff", "exports_moved")`.
    pub fn counter(&self, host: &str, group: &str, name: &str) -> u64 {
        let counters = self.lab.admin(host).unwrap();
        counters[group][name].as_u64().unwrap()
    }

    /// Waits until all backends hold all their HTTP servers for well, and all nodes know it. A node
    /// that was asked before its servers ran has ejected them.
    pub fn await_servers(&self) {
        for host in self.backends() {
            eventually("all servers are in", SERVERS_RETURN_IN, || {
                let mut curl = self.lab.command(&host, "curl").unwrap();
                let metrics = output(curl.args(["--silent", "http://127.0.0.1:9464/metrics"]));
                let is_of_server = |line: &&str| line.starts_with("prism_upstream_up{");
                let servers: Vec<&str> = metrics.lines().filter(is_of_server).collect();
                !servers.is_empty() && servers.iter().all(|line| line.contains("} 1"))
            });
        }
        // Nodes tell each other twice a second.
        std::thread::sleep(Duration::from_secs(1));
    }

    /// A counter summed over all nodes that run. Ends of hand-offs are read when all
    /// hand-offs have ended, or after some time: a source hears of an end a little after
    /// the client is served.
    pub fn sum(&self, group: &str, name: &str) -> u64 {
        let nodes = self.nodes();
        let sum = |name: &str| -> u64 {
            let running = nodes.iter().filter(|host| self.lab.pid(host).is_some());
            running.map(|host| self.counter(host, group, name)).sum()
        };
        if group == "handoff" && ENDS.contains(&name) {
            let deadline = Instant::now() + VERDICTS_IN;
            let ended = || ENDS.iter().map(|name| sum(name)).sum::<u64>();
            while ended() < sum("exports_started") && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        sum(name)
    }

    /// The bytes over the frontends' links so far, in both directions.
    pub fn frontend_bytes(&self) -> u64 {
        let frontends = self.frontends();
        let bytes = frontends.iter().map(|host| {
            let bytes = self.lab.interface_bytes(host).unwrap();
            bytes.rx + bytes.tx
        });
        bytes.sum()
    }

    fn show_logs(&self) {
        let hosts: Vec<String> = self.lab.hosts().map(str::to_owned).collect();
        for host in hosts {
            let text = std::fs::read_to_string(self.lab.log_path(&host)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.len().saturating_sub(LOG_LINES);
            for line in lines.get(last..).unwrap_or_default() {
                say(&format!("{host}: {line}"));
            }
            if let Ok(counters) = self.lab.admin(&host) {
                say(&format!("{host}: {counters}"));
            }
        }
    }
}

fn signer_of(lab: &Lab) -> Signer {
    let (credential, config) = (
        lab.credential(),
        ConfigFile::load(&lab.config_path()).unwrap(),
    );
    let (key, secret) = (&credential.access_key, &credential.secret_key);
    Signer::new(
        key.as_str(),
        secret.as_str(),
        config.cluster.region.as_str(),
    )
}

/// Sets the flag when dropped, also by a panic: threads that work until then end.
pub struct Stop<'f>(pub &'f AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

/// The key by which a node signs, with its number.
pub fn node_key(switch: &prism_config::Switch, node: &str) -> (u32, ControlKey) {
    let key = switch.load_node_key(node).unwrap();
    (key.key_id, ControlKey::new(*key.key.bytes()))
}
