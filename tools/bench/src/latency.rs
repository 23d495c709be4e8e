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

use crate::cluster::System;
use crate::network::{Addresses, Network};
use crate::objects::Sizes;
use crate::plan::{Entry, Kind, Plan, Size};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary, column};
use crate::sweep::OBJECTS;
use crate::turns::Options;

/// In the order of their turns.
const SYSTEMS: [System; 4] = [
    System::Prism,
    System::Nginx,
    System::Haproxy,
    System::Direct,
];

const fn us(heading: &'static str, value: &'static str) -> Column {
    column(heading, value, 1.0, 0)
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
        title: "The other system over Prism",
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
        default_value = "4K,64K,2M",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    /// Backends.
    #[arg(long, default_value_t = 2, value_name = "N")]
    backends: usize,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner. The
    /// handshake is part of the startup.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    addresses: Addresses,
    #[command(flatten)]
    options: Options,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![4 << 10, 2 << 20]);
    }
    args.options.settle(3, 2)?;
    let network = Network::unshaped(args.backends, args.tls)?.with(args.addresses);
    network.check()?;
    let plan = Plan {
        sizes: Size::all(&args.sizes, OBJECTS, None),
        clusters: vec![Kind::moving(&SYSTEMS)],
        entries: Entry::all(&SYSTEMS, &()),
        has_to_move: true,
        ..Plan::new(&SUMMARY, &network, &args.options)
    };
    plan.run(steps::run)
}
