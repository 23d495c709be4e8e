//! `prism-lab bench long-path`: the first second of a connection over a long path, with
//! requests for objects of alternating backends. The congestion window decides how fast it is.
//!
//! Compared are Prism with windows that move (`congestion_window = carry`), Prism without (by
//! both methods of a hand-off), nginx as a proxy, and *direct*: one connection to one nginx
//! backend, the limit. [`prism_lab::delay`] delays the client's packets. Nodes and switch are
//! near each other.

mod second;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prism_config::{Config, CongestionWindow, HandOffMethod};
use prism_lab::Rate;
use prism_sys::tcp::InitialWindow;

use crate::cluster::System;
use crate::network::{Addresses, Network};
use crate::objects::Sizes;
use crate::plan::{Entry, Kind, Plan, Size};
use crate::rows::Case;
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary, column};
use crate::sweep::OBJECTS;
use crate::turns::{Options, within};

/// A change of the configuration of a cluster.
type Configure = fn(&mut Config);

/// The entries of a cluster: their names in rows, and their systems.
type Entries = &'static [(&'static str, System)];

/// Clusters, their systems, and their entries in the order of the turns.
const CLUSTERS: [(Configure, &[System], Entries); 3] = [
    (
        |_| (),
        &[System::Prism, System::Nginx, System::Direct],
        &[
            ("carry", System::Prism),
            ("nginx", System::Nginx),
            ("direct", System::Direct),
        ],
    ),
    (
        |config| config.service.congestion_window = CongestionWindow::Fresh,
        &[System::Prism],
        &[("fresh", System::Prism)],
    ),
    (
        |config| {
            config.service.congestion_window = CongestionWindow::Fresh;
            config.service.hand_off_method = HandOffMethod::TwoPhase;
        },
        &[System::Prism],
        &[("fresh-two-phase", System::Prism)],
    ),
];

const fn kib(heading: &'static str, value: &'static str) -> Column {
    column(heading, value, 1024.0, 0)
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
    title: "First second of a connection, medians of the rounds; KiB by time after its first packet",
    columns: &[
        column("MB/s", "mb_s", 1.0, 1),
        kib("100 ms", "in_100_ms_bytes"),
        kib("200 ms", "in_200_ms_bytes"),
        kib("300 ms", "in_300_ms_bytes"),
        kib("500 ms", "in_500_ms_bytes"),
        column("connect ms", "connect_us", 1e3, 1),
        column("requests", "requests_s", 1.0, 1),
        column("moves", "moves_s", 1.0, 1),
    ],
    comparisons: &[
        over("Over nginx as a proxy", "nginx"),
        over("Over Prism with a new window", "fresh"),
    ],
};

/// Measure the first second of a connection over a long path.
///
/// Its requests are for objects of alternating backends: by Prism with
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
    #[arg(long, default_value = "1M", value_name = "SIZE")]
    sizes: Sizes,
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
    addresses: Addresses,
    #[command(flatten)]
    options: Options,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    args.options.settle(3, 2)?;
    let network = Network::shaped(args.backends, args.link, args.tls).with(args.addresses);
    network.check()?;
    within("--rtt-ms", args.rtt_ms, 200)?;
    ensure!(
        args.backends > 1,
        "--backends must be at least 2: connections are to move"
    );
    // Without it nodes only warn.
    InitialWindow::new().context("windows cannot be carried here")?;
    let clusters = CLUSTERS.iter().enumerate();
    let entries = clusters.flat_map(|(cluster, (.., entries))| {
        entries
            .iter()
            .map(move |(name, system)| (cluster, *name, *system))
    });
    let entries = entries.map(|(cluster, name, system)| Entry {
        name,
        system,
        cluster,
        case: Case::default().with("rtt_ms", args.rtt_ms),
        what: (),
    });
    let plan = Plan {
        sizes: Size::all(&args.sizes, OBJECTS, None),
        clusters: CLUSTERS
            .iter()
            .map(|(configure, systems, _)| Kind {
                configure: *configure,
                ..Kind::moving(systems)
            })
            .collect(),
        entries: entries.collect(),
        round_trip: Some(Duration::from_millis(args.rtt_ms.try_into()?)),
        has_to_move: true,
        ..Plan::new(&SUMMARY, &network, &args.options)
    };
    plan.run(second::run)
}
