//! `prism-lab bench connections`: the cost of kept connections, by Prism and by nginx and
//! HAProxy as proxies. It is the memory of the frontend, the backends and the kernel, and the
//! time of a request over one of many connections.
//!
//! A process seldom returns memory, so each turn starts new servers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::client::{self, Connection};
use crate::cluster::{Cluster, System};
use crate::http;
use crate::memory::kernel_bytes;
use crate::network::{Addresses, Network};
use crate::objects::Objects;
use crate::plan::Kind;
use crate::rows::Values;
use crate::stats::Stats;
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary, column};
use crate::turns::{Job, Options, Turns, within};

/// Objects are small, because the connection is measured.
const OBJECT_BYTES: u64 = 64;
const OBJECTS: usize = 4;
/// Most connections: the proxies are configured for this many, and a client has the ports.
const MOST_CONNECTIONS: usize = 8_000;
/// Time after which processes and kernel no longer allocate memory.
const SETTLING: Duration = Duration::from_millis(500);

pub(crate) const SUMMARY: Summary = Summary {
    result: "connections",
    title: "Kept connections; memory for each, in bytes",
    columns: &[
        whole("frontend", "frontend_bytes"),
        whole("backends", "backends_bytes"),
        whole("kernel", "kernel_bytes"),
        whole("opened in, µs", "open_us"),
        whole("request, µs", "p50_us"),
        whole("p99", "p99_us"),
    ],
    comparisons: &[Comparison {
        title: "The other system over Prism",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[
            ("frontend", "frontend_bytes"),
            ("kernel", "kernel_bytes"),
            ("request", "p50_us"),
            ("p99", "p99_us"),
        ],
    }],
};

const fn whole(heading: &'static str, value: &'static str) -> Column {
    column(heading, value, 1.0, 0)
}

/// Measure memory and request times of kept connections.
///
/// In the state `silent` nothing has been asked over them yet, in `served` one small object, so
/// that each of Prism's is with a backend. `frontend` and `backends` are what the memory of their
/// processes grew by for each connection, `kernel` what the kernel's did, with the
/// client's end and all in between. Then requests go over one connection after the other, chosen
/// at random. Needs root, `nginx` and `haproxy` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Connections at once.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,8000",
        value_name = "N",
        conflicts_with = "quick"
    )]
    connections: Vec<usize>,
    /// States of the connections: without a request, or with one answered.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "silent,served",
        value_name = "STATE"
    )]
    states: Vec<State>,
    /// Systems to measure.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "prism,nginx,haproxy",
        value_name = "SYSTEM"
    )]
    systems: Vec<System>,
    /// Backends.
    #[arg(long, default_value_t = 2, value_name = "N")]
    backends: usize,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    addresses: Addresses,
    #[command(flatten)]
    options: Options,
}

/// The use of a connection so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    /// No request.
    Silent,
    /// One request for a small object.
    Served,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Served => "served",
        }
    }
}

/// One turn.
struct What {
    system: System,
    connections: usize,
    state: State,
}

impl Args {
    fn jobs(&self, network: &Network) -> Vec<Job<What>> {
        let mut jobs = Vec::new();
        for &connections in &self.connections {
            for &state in &self.states {
                let case = network.case().with("connections", connections);
                let case = case.with("state", state.name());
                jobs.extend(self.systems.iter().map(|system| Job {
                    case: case.clone(),
                    system: system.name(),
                    what: What {
                        system: *system,
                        connections,
                        state,
                    },
                }));
            }
        }
        jobs
    }
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.connections = vec![1_000];
    }
    args.options.settle(1, 2)?;
    for &connections in &args.connections {
        within("--connections", connections, MOST_CONNECTIONS)?;
    }
    let network = Network::unshaped(args.backends, args.tls)?.with(args.addresses);
    network.check()?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")?;
    let jobs = args.jobs(&network);
    let mut turns = Turns::begin(&args.options, SUMMARY.result, jobs.len())?;
    let cancel = turns.cancel();
    turns.run_cold(&jobs, |what| {
        let kind = Kind {
            program: args.options.prism.as_deref(),
            // Silent connections are measured, too.
            configure: |config| {
                config.limits.unauthenticated_per_address = 1_000_000;
                config.limits.unknown_per_address = Some(1_000_000);
                config.limits.unauthenticated_timeout_s = 3_600;
            },
            ..Kind::moving(std::slice::from_ref(&what.system))
        };
        measure(&Cluster::up(&network, &kind, cancel.clone())?, what, &args)
    })?;
    SUMMARY.tell(turns.rows(), args.options.json)
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn measure(cluster: &Cluster, what: &What, args: &Args) -> Result<Values> {
    let objects = Objects::new(args.backends, OBJECTS, OBJECT_BYTES)?;
    cluster.store(&objects)?;
    cluster.check(&objects)?;
    if what.system == System::Prism {
        cluster.until_moving(&objects)?;
    }
    let client = Client {
        addresses: (0..args.backends)
            .map(|backend| cluster.address(what.system, backend))
            .collect::<Result<_>>()?,
        cluster,
        objects: &objects,
    };
    let before = memory(cluster, what.system)?;
    let begun = Instant::now();
    let mut connections = cluster
        .clients(what.system)?
        .run(|| client.open(what.connections, what.state))??;
    let opened = begun.elapsed();
    let after = memory(cluster, what.system)?;
    let each = what.connections as f64;
    let mut values = Values::new();
    let names = ["frontend_bytes", "backends_bytes", "kernel_bytes"];
    for ((name, before), after) in names.into_iter().zip(before).zip(after) {
        values.insert(name.to_owned(), (after as f64 - before as f64) / each);
    }
    values.insert("open_us".to_owned(), opened.as_secs_f64() * 1e6 / each);
    let took = client.ask(&mut connections, Duration::from_secs(args.options.seconds))?;
    values.insert("requests".to_owned(), took.len() as f64);
    let took = Stats::of(took);
    values.insert("p50_us".to_owned(), took.p50);
    values.insert("p99_us".to_owned(), took.p99);
    Ok(values)
}

/// Memory of the frontend, the backends and the kernel, in bytes.
fn memory(cluster: &Cluster, system: System) -> Result<[u64; 3]> {
    std::thread::sleep(SETTLING);
    let [frontend, backends] = cluster.memory(system)?;
    Ok([frontend, backends, kernel_bytes()?])
}

/// The client of a turn.
struct Client<'c> {
    cluster: &'c Cluster,
    objects: &'c Objects,
    /// The address for requests for the objects of each backend.
    addresses: Vec<SocketAddr>,
}

impl Client<'_> {
    /// Opens connections one by one.
    fn open(&self, count: usize, state: State) -> Result<Vec<Connection>> {
        let address = self.addresses.first().context("no backend")?;
        let mut connections = Vec::with_capacity(count);
        for n in 0..count {
            let opened = client::connect(*address, self.cluster.trust());
            let mut opened = opened.with_context(|| format!("opening connection {n}"))?;
            if state == State::Served {
                self.get(&mut opened, n)?;
            }
            connections.push(opened);
        }
        Ok(connections)
    }

    /// Fetches an object of the `n`th backend, modulo their number.
    fn get(&self, connection: &mut Connection, n: usize) -> Result<()> {
        let backend = n % self.addresses.len();
        let (Some(address), Some(object)) =
            (self.addresses.get(backend), self.objects.of(backend).next())
        else {
            anyhow::bail!("no object to ask for");
        };
        let target = object.target();
        let request = http::anonymous(*address, &target);
        connection.stream.write_all(&request)?;
        let answer = http::answer(&mut *connection.stream)?;
        anyhow::ensure!(answer.body == object.body, "{target} has other bytes");
        Ok(())
    }

    /// Sends requests over random connections. Gives the time of each, in µs.
    fn ask(&self, connections: &mut [Connection], time: Duration) -> Result<Vec<f64>> {
        let mut rng = fastrand::Rng::with_seed(7);
        let (begun, mut took_us) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let (at, backend) = (rng.usize(..connections.len()), rng.usize(..));
            let connection = connections.get_mut(at).context("no connection")?;
            let asked = Instant::now();
            self.get(connection, backend)?;
            took_us.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        Ok(took_us)
    }
}
