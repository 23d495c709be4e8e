//! `prism-lab bench long-path`: the first second of a connection to servers that are far
//! away, whose requests are for objects of one backend after the other. How fast a
//! connection is then is a matter of its congestion window, and each move might cost it
//! that: by Prism with windows that move (`congestion_window = carry`), by Prism without, whose
//! hand-offs freeze the socket or take two phases, by nginx as a proxy, and *direct*, over one
//! connection to one nginx backend, which is the limit.
//!
//! The way is long in the client's network ([`prism_lab::delay`]); nodes are as near to each other
//! and to the switch as ever.

mod second;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prism_config::{Config, CongestionWindow, HandOffMethod, RelayUpTo};
use prism_lab::Rate;
use prism_sys::tcp::InitialWindow;

use crate::cluster::{Cluster, Setup, System};
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::{Job, Options, Turns, within};

/// Changes the configuration of a cluster.
type Configure = fn(&mut Config);

/// Clusters, and who is asked in each, in the order of their turns.
const CLUSTERS: [(Configure, &[(&str, System)]); 3] = [
    (
        |_| (),
        &[
            ("carry", System::Prism),
            ("nginx", System::Nginx),
            ("direct", System::Direct),
        ],
    ),
    (
        |config| config.service.congestion_window = CongestionWindow::Fresh,
        &[("fresh", System::Prism)],
    ),
    (
        |config| {
            config.service.congestion_window = CongestionWindow::Fresh;
            config.service.hand_off_method = HandOffMethod::TwoPhase;
        },
        &[("fresh-two-phase", System::Prism)],
    ),
];
/// Objects of each backend.
const OBJECTS: usize = 8;

const fn kib(heading: &'static str, value: &'static str) -> Column {
    Column {
        heading,
        value,
        unit: 1024.0,
        digits: 0,
    }
}

const fn over(title: &'static str, base: &'static str) -> Comparison {
    Comparison {
        title,
        dimension: SYSTEM,
        base,
        over: Over::Base,
        values: &[
            ("throughput", "mb_s"),
            ("in 100 ms", "in_100_ms_bytes"),
            ("in 200 ms", "in_200_ms_bytes"),
            ("in 500 ms", "in_500_ms_bytes"),
        ],
    }
}

pub(crate) const SUMMARY: Summary = Summary {
    result: "long-path",
    title: "First second of a connection, medians of the rounds; KiB until so long after its first packet",
    columns: &[
        Column {
            heading: "MB/s",
            value: "mb_s",
            unit: 1.0,
            digits: 1,
        },
        kib("100 ms", "in_100_ms_bytes"),
        kib("200 ms", "in_200_ms_bytes"),
        kib("300 ms", "in_300_ms_bytes"),
        kib("500 ms", "in_500_ms_bytes"),
        Column {
            heading: "connect ms",
            value: "connect_us",
            unit: 1e3,
            digits: 1,
        },
        Column {
            heading: "requests",
            value: "requests_s",
            unit: 1.0,
            digits: 1,
        },
        Column {
            heading: "moves",
            value: "moves_s",
            unit: 1.0,
            digits: 1,
        },
    ],
    comparisons: &[
        over("Over nginx's as a proxy", "nginx"),
        over("Over Prism's whose connections begin anew", "fresh"),
    ],
};

/// Measure the first second of a connection to servers that are far away.
///
/// Its requests are for objects of one backend after the other: by Prism with
/// `congestion_window` at `carry`, at `fresh`, and at `fresh` with `hand_off_method` at
/// `two-phase`, by nginx as a proxy, and by one of the nginx backends itself, for its own
/// objects. A turn has a connection for each of its seconds. Needs root and `nginx`
/// (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Round trip between the client and all servers.
    #[arg(long, default_value_t = 20, value_name = "N")]
    rtt_ms: usize,
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "1M",
        value_name = "SIZE"
    )]
    sizes: Vec<u64>,
    /// Backends; the client's link has as many times the speed of one server's.
    #[arg(long, default_value_t = 2, value_name = "N")]
    backends: usize,
    /// Speed of each server's link, each way.
    #[arg(long, default_value = "1gbit", value_name = "RATE")]
    link: Rate,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner. The
    /// handshake is part of the second.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn network(&self) -> Result<Network> {
        let network = Network::shaped(self.backends, self.link, self.tls);
        network.check()?;
        within("--rtt-ms", self.rtt_ms, 200)?;
        ensure!(
            self.backends > 1,
            "--backends must be at least 2: connections are to move"
        );
        Ok(network)
    }

    fn jobs(&self, network: &Network, bytes: u64) -> Vec<Job<(usize, System)>> {
        let case = network.case().with("rtt_ms", self.rtt_ms);
        let clusters = CLUSTERS.iter().enumerate();
        let systems = clusters.flat_map(|(n, (_, systems))| systems.iter().map(move |s| (n, s)));
        let jobs = systems.map(|(n, (name, system))| Job {
            case: case.clone().with("bytes", bytes),
            system: name,
            what: (n, *system),
        });
        jobs.collect()
    }
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    args.options.settle(3, 2)?;
    let network = args.network()?;
    let of_sizes = args.sizes.iter().map(|bytes| args.jobs(&network, *bytes));
    let of_sizes: Vec<_> = of_sizes.collect();
    let jobs = of_sizes.iter().map(Vec::len).sum();
    let mut turns = Turns::begin(&args.options, SUMMARY.result, jobs)?;
    if of_sizes.iter().any(|jobs| turns.wants(jobs)) {
        measure(&args, &network, &mut turns)?;
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

fn measure(args: &Args, network: &Network, turns: &mut Turns) -> Result<()> {
    // Nodes would go on without and only warn.
    InitialWindow::new().context("windows cannot be carried here")?;
    let clusters = CLUSTERS.iter().map(|(configure, systems)| {
        let systems: Vec<System> = systems.iter().map(|(_, system)| *system).collect();
        Cluster::up(&Setup {
            network,
            systems: &systems,
            program: args.options.prism.as_deref(),
            replicas: 1,
            // Whatever the size: it is about connections that move.
            relay_up_to: RelayUpTo::Bytes(0),
            configure: *configure,
            cancel: turns.cancel(),
        })
    });
    let clusters = clusters.collect::<Result<Vec<_>>>()?;
    let rtt = Duration::from_millis(args.rtt_ms.try_into()?);
    let far = clusters.iter().map(|cluster| cluster.far_away(rtt));
    let far = far.collect::<Result<Vec<_>>>()?;
    for &bytes in &args.sizes {
        let jobs = args.jobs(network, bytes);
        if !turns.wants(&jobs) {
            turns.pass(&jobs);
            continue;
        }
        let objects = Objects::new(network.backends, OBJECTS, bytes)?;
        for cluster in &clusters {
            cluster.store(&objects)?;
            cluster.check(&objects)?;
            cluster.until_moving(&objects)?;
        }
        turns.run(&jobs, |(cluster, system), warm_up_s| {
            let cluster = clusters.get(*cluster).context("no such cluster")?;
            let connections = warm_up_s.unwrap_or(args.options.seconds);
            let values = second::run(cluster, *system, &objects, connections)?;
            let dropped = far.iter().flatten().any(|way| way.tally().dropped > 0);
            ensure!(!dropped, "packets were lost on the long path");
            Ok(values)
        })?;
        for cluster in &clusters {
            cluster.remove(&objects)?;
        }
    }
    Ok(())
}
