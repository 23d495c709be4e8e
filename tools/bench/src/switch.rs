//! `prism-lab bench switch`: the time of the switch for a packet.
//!
//! *Time* is that of the tc program, which the kernel runs on one packet repeatedly
//! (`BPF_PROG_TEST_RUN`), with lookups, statistics, next hop, rewriting and checksums.
//! *Throughput* is that of one TCP connection through a switch that rewrites it, and through
//! a plain bridge, alternately.
//!
//! A run rewrites the packet. Two flows rewrite packets into one another, and the TTL limits a
//! measurement to 250 runs. All of it runs in new namespaces.
//!
//! A frame that the program ignores shows the time of the method itself.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use prism_netns::NetNs;
use prism_packets::Verdict;
use prism_switch::{Roles, SwitchConfig};

use crate::family::{Families, Family};
use crate::frames::{foreign_frame, frame, is_foreign};
use crate::rows::{Case, Row, Turn, Values};
use crate::stats::{ascending, median, rank};
use crate::summary::{Summary, column};
use crate::test_switch::{TestSwitch, is_ok, node, own, senders, service};

mod throughput;

/// Frame sizes in bytes, without the frame's checksum.
const SIZES: [usize; 3] = [60, 512, 1514];
/// Runs of one measurement: fewer than the largest TTL.
const RUNS: u32 = 250;
/// Measurements of a round, whose median is its value.
const MEASUREMENTS: usize = 400;

/// Numbers of the addresses; see [`Family::host`].
const CONTROL: ([u8; 4], u16) = ([10, 9, 9, 9], 7171);
const LEFT: ([u8; 4], u16) = ([198, 51, 100, 1], 80);
const RIGHT: ([u8; 4], u16) = ([198, 51, 100, 2], 9000);

pub(crate) const SUMMARY: Summary = Summary {
    result: "switch",
    title: "Time for a packet, and throughput of one connection",
    columns: &[
        column("ns", "ns_median", 1.0, 1),
        column("least", "ns_min", 1.0, 1),
        column("greatest", "ns_max", 1.0, 1),
        column("over IPv4", "over_ipv4_median", 1.0, 3),
        column("least", "over_ipv4_min", 1.0, 3),
        column("greatest", "over_ipv4_max", 1.0, 3),
        column("Gbit/s", "gbit_median", 1.0, 2),
        column("least", "gbit_min", 1.0, 2),
        column("greatest", "gbit_max", 1.0, 2),
    ],
    comparisons: &[],
};

/// Measure the switch: time per packet, and throughput against a plain bridge.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchSwitchArgs {
    /// Rounds of every measurement; the median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Family of the addresses. With both, the times of a packet are measured in turns, and
    /// IPv6 is compared with IPv4 round by round.
    #[arg(long, value_enum, default_value = "4")]
    family: Families,
    /// Also with 1,000 and 1,000,000 flows, each packet of another flow.
    #[arg(long)]
    full: bool,
    /// Leave out the throughput between hosts.
    #[arg(long)]
    no_throughput: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints its report.
pub(crate) fn run(args: &BenchSwitchArgs) -> Result<()> {
    let mut rows = NetNs::anonymous()?.run(|| packet_costs(args))??;
    if !args.no_throughput {
        rows.extend(throughput::measure(args.family, args.rounds)?);
    }
    SUMMARY.tell(&rows, args.json)
}

/// A row with the median, the least and the greatest of `each` name's values.
pub(crate) fn row(case: Case, each: &[(&str, Vec<f64>)]) -> Row {
    let mut values = Values::new();
    for (name, all) in each {
        let ascending = ascending(all.iter().copied());
        for (suffix, percent) in [("median", 50), ("min", 0), ("max", 100)] {
            values.insert(format!("{name}_{suffix}"), rank(&ascending, percent));
        }
    }
    let turn = Turn {
        result: SUMMARY.result.to_owned(),
        case,
        system: "prism".to_owned(),
        round: 0,
    };
    Row { turn, values }
}

fn packet_costs(args: &BenchSwitchArgs) -> Result<Vec<Row>> {
    let families = args.family.list().iter();
    let benches = families.map(|family| Bench::new(*family));
    let benches = benches.collect::<Result<Vec<_>>>()?;
    let cost = |direction, frame_bytes, measure: &dyn Fn(&Bench) -> Result<f64>| {
        costs(&benches, direction, frame_bytes, 2, args.rounds, measure)
    };
    let mut all = Vec::new();
    for bytes in SIZES {
        all.extend(cost("client to owner", bytes, &|bench| {
            bench.hot(&frame(bench.client(0), bench.left(), bytes))
        })?);
    }
    benches.iter().try_for_each(Bench::without_services)?;
    for bytes in SIZES {
        all.extend(cost("owner to client", bytes, &|bench| {
            bench.hot(&frame(bench.left(), bench.client(0), bytes))
        })?);
    }
    all.extend(cost("not for the switch", SIZES[0], &|bench| {
        bench.hot(&foreign_frame(SIZES[0]))
    })?);
    if args.full {
        for flows in [1_000, 1_000_000] {
            all.extend(many(&benches, flows, args.rounds)?);
        }
    }
    Ok(all)
}

/// Measures all switches in turns.
fn costs(
    benches: &[Bench],
    direction: &'static str,
    frame_bytes: usize,
    flows: usize,
    rounds: u32,
    measure: &dyn Fn(&Bench) -> Result<f64>,
) -> Result<Vec<Row>> {
    let mut times = vec![Vec::new(); benches.len()];
    for _ in 0..rounds {
        for (bench, times) in benches.iter().zip(&mut times) {
            times.push(measure(bench)?);
        }
    }
    let first = times.first().cloned().unwrap_or_default();
    let cost = |(bench, times): (&Bench, Vec<f64>)| {
        let case = Case::default()
            .with("family", bench.family.name())
            .with("direction", direction)
            .with("frame_bytes", frame_bytes)
            .with("flows", flows);
        let ratios = times.iter().zip(&first).map(|(v6, v4)| v6 / v4).collect();
        let mut each = vec![("ns", times)];
        if bench.family == Family::V6 && benches.len() > 1 {
            each.push(("over_ipv4", ratios));
        }
        row(case, &each)
    };
    Ok(benches.iter().zip(times).map(cost).collect())
}

/// Times with `flows` flows, two packets of each. Caches are cold, and the times include some
/// 20 ns for the clock.
fn many(benches: &[Bench], flows: usize, rounds: u32) -> Result<Vec<Row>> {
    let clients = flows / 2;
    for bench in benches {
        bench.with_services()?;
        (0..clients).try_for_each(|i| bench.pair(bench.client(i)))?;
    }
    let step = (clients / 20_000).max(1);
    let all = |bench: &Bench, to_owner: bool| {
        let mut times = Vec::new();
        for i in (0..clients).step_by(step) {
            let frame = if to_owner {
                frame(bench.client(i), bench.left(), SIZES[0])
            } else {
                frame(bench.left(), bench.client(i), SIZES[0])
            };
            times.push(bench.time(&frame, 2)?);
        }
        Ok(median(&ascending(times.into_iter())))
    };
    let to_owner = |bench: &Bench| all(bench, true);
    let to_client = |bench: &Bench| all(bench, false);
    let mut both = costs(
        benches,
        "client to owner",
        SIZES[0],
        flows,
        rounds,
        &to_owner,
    )?;
    benches.iter().try_for_each(Bench::without_services)?;
    let others = costs(
        benches,
        "owner to client",
        SIZES[0],
        flows,
        rounds,
        &to_client,
    )?;
    both.extend(others);
    Ok(both)
}

/// A switch that no interface is attached to.
struct Bench {
    test: TestSwitch,
    family: Family,
}

impl Bench {
    fn new(family: Family) -> Result<Self> {
        let at = |(numbers, port)| family.at(numbers, port);
        // Clients are nodes too, for next hops without neighbours.
        let clients = (0..=MAX_CLIENTS / PORTS).map(|host| client(family, host * PORTS));
        let nodes = [at(LEFT), at(RIGHT)].into_iter().chain(clients);
        let test = TestSwitch::load(SwitchConfig {
            pin_dir: format!("prism-bench-{}-{}", std::process::id(), family.name()),
            control: vec![at(CONTROL)],
            nodes: nodes
                .map(|addr| node(addr.ip(), Roles::default()))
                .collect(),
            senders: senders(),
            max_flows: 1 << 21,
            ..SwitchConfig::default()
        })?;
        let bench = Self { test, family };
        bench.with_services()?;
        bench.pair(bench.client(0))?;
        Ok(bench)
    }

    fn client(&self, i: usize) -> SocketAddr {
        client(self.family, i)
    }

    fn left(&self) -> SocketAddr {
        self.family.at(LEFT.0, LEFT.1)
    }

    fn right(&self) -> SocketAddr {
        self.family.at(RIGHT.0, RIGHT.1)
    }

    fn with_services(&self) -> Result<()> {
        let config = SwitchConfig {
            services: [self.left(), self.right()].map(service).into(),
            ..self.test.config.clone()
        };
        Ok(self.test.switch.update_tables(&config)?)
    }

    /// Hides the services, so that both sides send as owners only. The program then finds the
    /// flow of a rewritten packet by its owner.
    fn without_services(&self) -> Result<()> {
        Ok(prism_packets::hide_services(&self.test.switch)?)
    }

    /// Makes two flows of `client`; packets of each are rewritten to the other.
    fn pair(&self, client: SocketAddr) -> Result<()> {
        let left = self.left();
        let right = self.right();
        let clock = self.test.command(&own(client, left, right, 0))?.0.time_ns;
        for (vip, owner) in [(left, right), (right, left)] {
            is_ok(&self.test.command(&own(client, vip, owner, clock))?.0)?;
        }
        Ok(())
    }

    /// Mean time of a run with warm caches.
    fn hot(&self, frame: &[u8]) -> Result<f64> {
        let mut means = Vec::with_capacity(MEASUREMENTS);
        for _ in 0..MEASUREMENTS {
            means.push(self.time(frame, RUNS)?);
        }
        Ok(median(&ascending(means.into_iter())))
    }

    fn time(&self, frame: &[u8], runs: u32) -> Result<f64> {
        let expected = if is_foreign(frame) {
            Verdict::Pass
        } else {
            Verdict::Send
        };
        Ok(self.test.time(frame, runs, expected)?.as_secs_f64() * 1e9)
    }
}

/// Most clients, and the ports of one address.
const MAX_CLIENTS: usize = 500_000;
const PORTS: usize = 60_000;

fn client(family: Family, i: usize) -> SocketAddr {
    let port = u16::try_from(i % PORTS).unwrap_or(0) + 1;
    let host = u8::try_from(i / PORTS).unwrap_or(0);
    family.at([192, 0, 2, host + 1], port)
}
