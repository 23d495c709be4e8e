//! A cluster for tests of faults: the nodes' way to the switch may be bad, objects have
//! numbers, and many clients fetch them at a time.

mod client;

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prism_config::{ConfigFile, RelayUpTo};
use prism_lab::impair::{Faults, Impairment};
use prism_lab::{Capture, Families, Family, Lab, LabName, LabSpec};
use prism_switch::TermPhase;

use super::objects::Object;
use super::packets::{RST, one_of};
use super::{BUCKET, Cluster, eventually};
pub use client::NumberedClient;

/// The host with the bad way to the switch. Backends reach other nodes over TCP, but no client.
const RELAY_HOST: &str = "fe0";
/// Its port.
const RELAY_PORT: u16 = 7301;
/// The longest time until every worker has reached the switch.
const STEERING_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest time until flows and sockets are gone after their clients.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// The kernel's `TCP_TIMEWAIT_LEN`.
const TIME_WAIT: Duration = Duration::from_secs(60);

/// A cluster of one frontend and three backends.
pub struct Bed {
    cluster: Cluster,
    /// The nodes' way to the switch, where it is a bad one.
    way: Option<Impairment>,
    resets: PathBuf,
}

impl Deref for Bed {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Bed {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

/// How the nodes reach the switch.
pub enum Way {
    Direct,
    /// Through a relay with these faults and this seed.
    Impaired(Faults, u64),
    /// Through a relay that lets nothing through at first.
    Blackhole,
}

impl Bed {
    pub fn up(label: &str, way: &Way) -> Self {
        Self::up_with(label, way, |_| {})
    }

    /// The same with a changed configuration.
    pub fn up_with(
        label: &str,
        way: &Way,
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
    ) -> Self {
        Self::up_of(Families::Dual, label, way, change)
    }

    /// The same with addresses of these families.
    pub fn up_of(
        family: Families,
        label: &str,
        way: &Way,
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
    ) -> Self {
        let name: LabName = format!("{label}-{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into()).configure(change);
        spec.family = family;
        spec.relay_up_to = RelayUpTo::Bytes(0);
        let relay: SocketAddr = (spec.address(RELAY_HOST).unwrap(), RELAY_PORT).into();
        if !matches!(way, Way::Direct) {
            spec = spec.configure_nodes(move |config| {
                config.switch.as_mut().unwrap().control = relay.into();
            });
        }
        let cluster = Cluster::around(Lab::up(spec).unwrap());
        let switch = cluster.control(Family::of(relay.ip()));
        let start = |faults, seed| {
            let started = cluster.on(RELAY_HOST, || {
                Impairment::start(relay, switch, faults, seed)
            });
            started.unwrap()
        };
        let impairment = match *way {
            Way::Direct => None,
            Way::Impaired(faults, seed) => Some(start(faults, seed)),
            Way::Blackhole => {
                let impairment = start(Faults::default(), 0);
                impairment.set_blackhole(true);
                Some(impairment)
            }
        };
        let resets = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{label}-resets.pcap"));
        let bed = Self {
            cluster,
            way: impairment,
            resets,
        };
        if !matches!(way, Way::Blackhole) {
            bed.wait_for_steering();
        }
        bed
    }

    /// The bad way to the switch.
    pub fn way(&self) -> &Impairment {
        self.way.as_ref().unwrap()
    }

    /// Records every reset that the service sends to the client.
    pub fn watch_resets(&self) -> Capture {
        let filter = format!("{} and {RST}", one_of("src host", &self.vips()));
        self.lab.capture("client", &self.resets, &filter).unwrap()
    }

    /// A client of the service.
    pub fn client(&self) -> NumberedClient {
        NumberedClient::new(self, self.connect())
    }

    /// A client of the service over `family`.
    pub fn client_over(&self, family: Family) -> NumberedClient {
        NumberedClient::new(self, self.connect_over(family))
    }

    /// A client of the service from this port.
    pub fn client_from(&self, port: u16) -> NumberedClient {
        NumberedClient::new(self, self.connect_from(port))
    }

    /// Stores the objects 0 to `count`.
    pub fn fill(&self, count: usize) {
        self.make_bucket();
        let objects: Vec<Object> = (0..count).map(object).collect();
        self.put_all(&objects);
    }

    /// Waits until every worker has reached the switch, and the switch knows their flows. The lab
    /// does not wait for it where the way to the switch is not its own.
    fn wait_for_steering(&self) {
        let config = ConfigFile::load(&self.lab.config_path()).unwrap();
        for host in self.nodes() {
            let workers = match config.node(&host).unwrap().workers {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                n => usize::from(n),
            };
            let all = u64::try_from(workers).unwrap();
            eventually("all workers steer", STEERING_TIMEOUT, || {
                self.count(&host, "workers_steering") == all
            });
        }
        eventually("the term is settled", STEERING_TIMEOUT, || {
            matches!(self.view().term(), Ok((_, TermPhase::Settled)))
        });
    }

    /// The backend that holds object `n`.
    pub fn owner_of(&self, n: usize) -> &str {
        self.owner(&key(n))
    }

    /// The first object that `host` holds.
    pub fn object_of(&self, host: &str) -> usize {
        (0..1_000).find(|n| self.owner_of(*n) == host).unwrap()
    }

    /// A counter of a node's hand-offs.
    pub fn count(&self, host: &str, counter: &str) -> u64 {
        self.counter(host, "handoff", counter)
    }

    /// The sum of a counter of hand-offs over all nodes that run.
    pub fn total(&self, counter: &str) -> u64 {
        self.sum("handoff", counter)
    }

    /// After the clients: no flow, no connection, nothing waiting.
    pub fn assert_drained(&self) {
        self.assert_drained_within(DRAIN_TIMEOUT);
    }

    /// The same where nodes have closed connections first. Their sockets, and with them
    /// their flows, stay for the 60 s of TIME_WAIT.
    pub fn assert_drained_after_time_wait(&self) {
        self.assert_drained_within(TIME_WAIT + DRAIN_TIMEOUT);
    }

    fn assert_drained_within(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let is_drained = || self.flows().is_empty() && self.total("connections_open") == 0;
        while !is_drained() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let left = self.flows();
        let story = left.first().map(|known| self.story(known.flow.client));
        assert!(left.is_empty(), "{} flows are left: {story:?}", left.len());
        assert_eq!(self.total("connections_open"), 0, "connections are left");
        assert_eq!(self.total("flows_closing"), 0);
    }

    /// The facts about one client's connection, for a failure.
    pub fn story(&self, client: SocketAddr) -> String {
        let mut story = format!("{client}: {:?}", self.flow_of(client));
        let port = format!(":{}", client.port());
        for host in self.nodes() {
            let text = std::fs::read_to_string(self.lab.log_path(&host)).unwrap_or_default();
            let lines = text.lines().rev().filter(|line| line.contains(&port));
            for line in lines.take(12) {
                story += &format!("\n{host}: {line}");
            }
            let handoff = &self.lab.admin(&host).unwrap_or_default()["handoff"];
            story += &format!("\n{host}: {handoff}");
        }
        story
    }

    /// Lines of the nodes' logs that contain `text`, for a failure.
    pub fn lines_with(&self, text: &str) -> String {
        let mut found = String::new();
        for host in self.nodes() {
            let log = std::fs::read_to_string(self.lab.log_path(&host)).unwrap_or_default();
            for line in log.lines().filter(|line| line.contains(text)) {
                found += &format!("\n{host}: {line}");
            }
        }
        found
    }
}

fn key(n: usize) -> String {
    format!("object-{n}")
}

/// The path of object `n` in requests.
pub fn path(n: usize) -> String {
    format!("/{BUCKET}/{}", key(n))
}

/// Object `n`, of 1 to 8,192 bytes.
pub fn object(n: usize) -> Object {
    let len = fastrand::Rng::with_seed(n as u64).u64(1..=8_192);
    Object::new(key(n), len)
}

/// The bytes of object `n`.
pub fn content(n: usize) -> &'static [u8] {
    object(n).bytes()
}

/// The requests of [`run`].
#[derive(Debug, Default)]
pub struct Run {
    pub requests: u64,
    pub slowest: Duration,
    pub took: Duration,
}

/// `connections` clients at a time fetch random objects, each until `until` says that it is
/// enough. Every answer has to be right.
pub fn run(
    bed: &Bed,
    connections: u64,
    objects: usize,
    seed: u64,
    until: impl Fn(u64) -> bool + Sync,
) -> Run {
    let start = Instant::now();
    let one = |number: u64| {
        let mut random = fastrand::Rng::with_seed(seed ^ number << 32);
        let mut client = bed.client();
        let (mut requests, mut slowest) = (0, Duration::ZERO);
        while !until(requests) {
            let asked = Instant::now();
            if let Err(fault) = client.try_get(random.usize(..objects)) {
                panic!("{fault}\n{}", bed.story(client.local()));
            }
            slowest = slowest.max(asked.elapsed());
            requests += 1;
        }
        (requests, slowest)
    };
    let results = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..connections)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Vec<_>>()
    });
    Run {
        requests: results.iter().map(|(requests, _)| requests).sum(),
        slowest: results.iter().map(|(_, s)| *s).max().unwrap_or_default(),
        took: start.elapsed(),
    }
}
