//! What the tests of faults share: a lab, clients that sign, and what the
//! switch and the nodes say of themselves.

mod client;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, Placement};
use prism_config::RelayUpTo;
use prism_lab::impair::{Faults, Impairment};
use prism_lab::{Capture, Lab, LabName, LabSpec};
use prism_proto::control::{FlowKey, FlowState, Owner};
use prism_switch::SwitchView;
use prism_sys::netns::NetNs;

use crate::support::wait_for_verdicts;
pub use crate::support::{BUCKET, eventually, say, turn};
pub use client::Client;

/// Where the bad way to the switch listens, in the client's namespace.
const RELAY_PORT: u16 = 7301;
/// How long a client waits for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long flows and sockets may take to go after their clients.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// A lab with one frontend and three backends.
pub struct Bed {
    pub lab: Lab,
    client: NetNs,
    /// The nodes' way to the switch, where it is a bad one.
    pub way: Option<Impairment>,
    pub placement: Placement,
    region: String,
    resets: PathBuf,
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

    pub fn up_with(
        label: &str,
        way: &Way,
        change: impl FnOnce(&mut prism_config::Config) + Send + 'static,
    ) -> Self {
        let name: LabName = format!("{label}-{}", std::process::id()).parse().unwrap();
        let client = format!("prism-{name}-client");
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into()).configure(change);
        spec.relay_up_to = RelayUpTo::Bytes(0);
        let relay: SocketAddr = (spec.address("client").unwrap(), RELAY_PORT).into();
        let SocketAddr::V4(relay_v4) = relay else {
            unreachable!("labs are IPv4")
        };
        let is_direct = matches!(way, Way::Direct);
        let is_blackhole = matches!(way, Way::Blackhole);
        if !is_direct {
            spec = spec.configure_nodes(move |config| {
                config.switch.as_mut().unwrap().control = relay_v4;
            });
        }
        let lab = Lab::up(spec).unwrap();
        let client = NetNs::named(&client).unwrap();
        let switch = lab_control(&lab);
        let start = |faults, seed| {
            let started = client.run(|| Impairment::start(relay, switch, faults, seed));
            started.unwrap().unwrap()
        };
        let way = match *way {
            Way::Direct => None,
            Way::Impaired(faults, seed) => Some(start(faults, seed)),
            Way::Blackhole => {
                let way = start(Faults::default(), 0);
                way.set_blackhole(true);
                Some(way)
            }
        };
        let nodes = backends(&lab).into_iter();
        let nodes = nodes.map(|n| NodeName::new(n).unwrap());
        let placement = Placement::new(nodes.collect()).unwrap();
        let region = prism_config::Config::load(&lab.config_path())
            .unwrap()
            .cluster
            .region;
        let resets = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{label}-resets.pcap"));
        let bed = Self {
            lab,
            client,
            way,
            placement,
            region,
            resets,
        };
        if !is_blackhole {
            bed.wait_for_steering();
        }
        bed
    }

    pub fn way(&self) -> &Impairment {
        self.way.as_ref().unwrap()
    }

    /// Records every reset that the service sends to the client.
    pub fn watch_resets(&self) -> Capture {
        let filter = format!(
            "tcp[tcpflags] & tcp-rst != 0 and src host {}",
            self.lab.service().ip()
        );
        self.lab.capture("client", &self.resets, &filter).unwrap()
    }

    /// Runs `work` in the namespace of `host`.
    pub fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let name = format!("prism-{}-{host}", self.lab.name());
        NetNs::named(&name).unwrap().run(work).unwrap()
    }

    /// A TCP connection of the client to `address`.
    pub fn dial(&self, address: SocketAddr) -> TcpStream {
        let stream = self.client.run(|| TcpStream::connect(address));
        let stream = stream.unwrap().unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Objects 0 to `count`, each [`content`] of its number.
    pub fn fill(&self, count: usize) {
        // The nodes' first handshakes may take longer than a request waits.
        eventually("the bucket is made", DRAIN_TIMEOUT, || {
            let made = self.client().request("PUT", &format!("/{BUCKET}"), b"");
            let made = made.unwrap();
            assert!([200, 503].contains(&made.status), "{}", made.text());
            made.status == 200
        });
        let mut client = self.client();
        for n in 0..count {
            let put = client.request("PUT", &path(n), &content(n)).unwrap();
            assert_eq!(put.status, 200, "{}", put.text());
        }
    }

    /// Until every worker has reached the switch, which the lab does not wait for
    /// where the way there is another than its own.
    fn wait_for_steering(&self) {
        let config = prism_config::Config::load(&self.lab.config_path()).unwrap();
        for host in servers(&self.lab) {
            let workers = match config.node(&host).unwrap().workers {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                n => usize::from(n),
            };
            let all = u64::try_from(workers).unwrap();
            eventually("all workers steer", DRAIN_TIMEOUT, || {
                self.count(&host, "workers_steering") == all
            });
        }
    }

    /// The backend that holds object `n`.
    pub fn owner(&self, n: usize) -> String {
        self.placement
            .owner(BUCKET, &key(n))
            .unwrap()
            .as_str()
            .to_owned()
    }

    /// The first object that `host` holds.
    pub fn object_of(&self, host: &str) -> usize {
        (0..1_000).find(|n| self.owner(*n) == host).unwrap()
    }

    /// A counter of a node's hand-offs.
    pub fn count(&self, host: &str, counter: &str) -> u64 {
        self.lab.admin(host).unwrap()["handoff"][counter]
            .as_u64()
            .unwrap_or_else(|| unreachable!("no counter {counter}"))
    }

    /// The sum of a counter over all nodes that run.
    pub fn total(&self, counter: &str) -> u64 {
        let sum = |counter: &str| {
            servers(&self.lab)
                .iter()
                .filter(|host| self.lab.pid(host).is_some())
                .map(|host| self.count(host, counter))
                .sum()
        };
        wait_for_verdicts(counter, sum);
        sum(counter)
    }

    pub fn view(&self) -> SwitchView {
        let config = prism_config::Config::load(&self.lab.config_path()).unwrap();
        SwitchView::open(&config.switch.unwrap().pin_dir).unwrap()
    }

    /// What the switch knows of every flow, tombstones left out.
    pub fn flows(&self) -> Vec<Known> {
        let view = self.view();
        let mut flows: Vec<Known> = view
            .flows()
            .unwrap()
            .map(Result::unwrap)
            .filter(|record| record.state != FlowState::Absent)
            .map(|record| Known {
                flow: record.flow,
                state: record.state,
                epoch: record.epoch,
                owner: record.owner,
            })
            .collect();
        flows.sort_by_key(|known| known.flow.client);
        flows
    }

    /// After the clients: no flow, no connection, nothing waiting.
    pub fn assert_drained(&self) {
        let start = Instant::now();
        let mut left = Vec::new();
        while start.elapsed() < DRAIN_TIMEOUT {
            left = self.flows();
            if left.is_empty() && self.total("connections_open") == 0 {
                assert_eq!(self.total("flows_closing"), 0);
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(left.is_empty(), "flows are left: {left:#?}");
        assert_eq!(self.total("connections_open"), 0, "connections are left");
    }

    /// A counter of the switch.
    pub fn switch_count(&self, name: &str) -> u64 {
        let counters = self.view().counters().unwrap();
        let found = counters.iter().find(|counter| counter.name == name);
        found.map(|counter| counter.value).unwrap()
    }

    /// What the switch knows of the flow of one client.
    pub fn flow_of(&self, client: SocketAddr) -> Option<Known> {
        let mut flows = self.flows().into_iter();
        flows.find(|known| known.flow.client == client)
    }

    /// What is known of one client's connection, for a failure.
    pub fn story(&self, client: SocketAddr) -> String {
        let mut story = format!("{client}: {:?}", self.flow_of(client));
        let port = format!(":{}", client.port());
        for host in servers(&self.lab) {
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
}

impl Bed {
    /// Lines of the servers' logs that contain `what`, for a failure.
    pub fn lines_with(&self, what: &str) -> String {
        let mut found = String::new();
        for host in servers(&self.lab) {
            let text = std::fs::read_to_string(self.lab.log_path(&host)).unwrap_or_default();
            for line in text.lines().filter(|line| line.contains(what)) {
                found += &format!("\n{host}: {line}");
            }
        }
        found
    }
}

/// What the switch knows of a flow, without what its packets change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub flow: FlowKey,
    pub state: FlowState,
    pub epoch: u64,
    pub owner: Owner,
}

/// The switch's own control address.
pub fn lab_control(lab: &Lab) -> SocketAddr {
    let config = prism_config::Config::load(&lab.config_path()).unwrap();
    config.switch.unwrap().control.into()
}

pub fn servers(lab: &Lab) -> Vec<String> {
    let all = lab.hosts().filter(|h| *h != "switch" && *h != "client");
    all.map(str::to_owned).collect()
}

pub fn backends(lab: &Lab) -> Vec<String> {
    let all = lab.hosts().filter(|h| h.starts_with("be"));
    all.map(str::to_owned).collect()
}

pub fn key(n: usize) -> String {
    format!("object-{n}")
}

pub fn path(n: usize) -> String {
    format!("/{BUCKET}/{}", key(n))
}

/// The bytes of object `n`: 1 to 8,192 of them.
pub fn content(n: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(n as u64);
    let len = random.usize(1..=8_192);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// What clients saw of a run.
#[derive(Debug, Default)]
pub struct Run {
    pub requests: u64,
    pub slowest: Duration,
    pub took: Duration,
}

/// `connections` clients fetch random objects at a time, each until `until`
/// says that it is enough; every answer has to be right.
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
