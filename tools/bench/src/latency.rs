//! `prism-lab bench latency`: the steps of one request, one at a time and each over a
//! connection of its own, by Prism, by nginx and HAProxy as proxies, and *direct*. As
//! in Table 1 of SoCC'17: time until the first byte of the answer, time after its
//! last, and the whole; and for Prism what the time until the first byte consists of.
//!
//! Links are as fast as the machine goes. All processes of one machine share the
//! monotonic clock, so what the client and Prism's nodes note fits together.

mod fetch;
mod steps;

use anyhow::Result;
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::{Job, Options, Turns};

/// In the order of their turns.
const SYSTEMS: [System; 4] = [
    System::Prism,
    System::Nginx,
    System::Haproxy,
    System::Direct,
];
/// Objects of each backend.
const OBJECTS: usize = 8;

const fn us(heading: &'static str, value: &'static str) -> Column {
    Column {
        heading,
        value,
        unit: 1.0,
        digits: 0,
    }
}

pub(crate) const SUMMARY: Summary = Summary {
    result: "latency",
    title: "One request after the other, medians of p50, in µs",
    columns: &[
        us("connect", "connect_us"),
        us("TLS", "handshake_us"),
        us("parse", "parse_us"),
        us("hand-off", "hand_off_us"),
        us("answer", "answer_us"),
        us("startup", "startup_us"),
        us("σ", "startup_stddev_us"),
        us("transfer", "transfer_us"),
        us("teardown", "teardown_us"),
        us("total", "total_us"),
        us("total p99", "total_p99_us"),
    ],
    comparisons: &[Comparison {
        title: "Theirs over Prism's",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[
            ("total", "total_us"),
            ("startup", "startup_us"),
            ("transfer", "transfer_us"),
            ("teardown", "teardown_us"),
        ],
    }],
};

/// Measure the steps of one request, beside nginx, HAProxy and direct.
///
/// `startup` is from the first packet of the connection to the first byte of the
/// answer, `transfer` from there to the last, and `teardown` until the server has
/// closed the connection. Of Prism's startup, `parse` is from the request until the
/// frontend begins to hand the connection off, `hand-off` until the backend has it, and `answer`
/// until its first byte is with the client. Needs root, `nginx` and `haproxy`
/// (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "4K,64K,2M",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
    /// Backends.
    #[arg(long, default_value_t = 2, value_name = "N")]
    backends: usize,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner. The
    /// handshake is part of the startup.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn jobs(&self, network: &Network, bytes: u64) -> [Job<System>; 4] {
        let case = network.case().with("bytes", bytes);
        SYSTEMS.map(|system| Job {
            case: case.clone(),
            system: system.name(),
            what: system,
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = vec![4 << 10, 2 << 20];
    }
    args.options.settle(3, 2)?;
    let network = Network::unshaped(args.backends, args.tls)?;
    network.check()?;
    let jobs = args.sizes.len() * SYSTEMS.len();
    let mut turns = Turns::begin(&args.options, SUMMARY.result, jobs)?;
    let mut sizes = args.sizes.iter();
    if sizes.any(|bytes| turns.wants(&args.jobs(&network, *bytes))) {
        measure(&args, &network, &mut turns)?;
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

fn measure(args: &Args, network: &Network, turns: &mut Turns) -> Result<()> {
    let cluster = Cluster::up(&Setup {
        network,
        systems: &SYSTEMS,
        program: args.options.prism.as_deref(),
        replicas: 1,
        // Whatever the size: it is about connections that move.
        relay_up_to: RelayUpTo::Bytes(0),
        configure: |_| (),
        cancel: turns.cancel(),
    })?;
    for &bytes in &args.sizes {
        let jobs = args.jobs(network, bytes);
        if !turns.wants(&jobs) {
            turns.pass(&jobs);
            continue;
        }
        let objects = Objects::new(network.backends, OBJECTS, bytes)?;
        cluster.store(&objects)?;
        cluster.check(&objects)?;
        cluster.until_moving(&objects)?;
        turns.run(&jobs, |system, warm_up_s| {
            let seconds = warm_up_s.unwrap_or(args.options.seconds);
            steps::run(&cluster, *system, &objects, seconds)
        })?;
        cluster.remove(&objects)?;
    }
    Ok(())
}
