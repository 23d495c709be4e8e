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
use serde::Serialize;

use crate::family::{Families, Family};
use crate::frames::{foreign_frame, frame, is_foreign};
use crate::stats::{ascending, rank};
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

/// The whole result.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    cpus: usize,
    rounds: u32,
    packets: Vec<PacketCost>,
    throughput: Vec<throughput::Throughput>,
}

/// Time per packet, nanoseconds, over all rounds.
#[derive(Debug, Serialize)]
struct PacketCost {
    family: &'static str,
    direction: &'static str,
    frame_bytes: usize,
    flows: usize,
    ns_median: f64,
    ns_min: f64,
    ns_max: f64,
    #[serde(flatten)]
    over_ipv4: Option<OverIpv4>,
}

/// The ratio of the two families' times, round by round.
#[derive(Debug, Serialize)]
struct OverIpv4 {
    over_ipv4_median: f64,
    over_ipv4_min: f64,
    over_ipv4_max: f64,
}

/// Runs the benchmark and prints its report.
pub(crate) fn run(args: &BenchSwitchArgs) -> Result<()> {
    let report = Report {
        kernel: kernel_release(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        rounds: args.rounds,
        packets: NetNs::anonymous()?.run(|| packet_costs(args))??,
        throughput: match args.no_throughput {
            true => Vec::new(),
            false => throughput::measure(args.family, args.rounds)?,
        },
    };
    crate::report::tell(&SUMMARY, &report, args.json)
}

pub(crate) fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

/// Median, smallest and largest.
pub(crate) fn spread(values: Vec<f64>) -> (f64, f64, f64) {
    let values = ascending(values.into_iter());
    (rank(&values, 50), rank(&values, 0), rank(&values, 100))
}

fn packet_costs(args: &BenchSwitchArgs) -> Result<Vec<PacketCost>> {
    let families = args.family.list().iter();
    let benches = families.map(|family| Bench::new(*family));
    let benches = benches.collect::<Result<Vec<_>>>()?;
    let cost = |direction, frame_bytes, measure: &dyn Fn(&Bench) -> Result<f64>| {
        costs(&benches, direction, frame_bytes, args.rounds, measure)
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
    rounds: u32,
    measure: &dyn Fn(&Bench) -> Result<f64>,
) -> Result<Vec<PacketCost>> {
    let mut times = vec![Vec::new(); benches.len()];
    for _ in 0..rounds {
        for (bench, times) in benches.iter().zip(&mut times) {
            times.push(measure(bench)?);
        }
    }
    let first = times.first().cloned().unwrap_or_default();
    let cost = |(bench, times): (&Bench, Vec<f64>)| {
        let over_ipv4 = (bench.family == Family::V6 && benches.len() > 1).then(|| {
            let ratios = times.iter().zip(&first).map(|(v6, v4)| v6 / v4);
            let (over_ipv4_median, over_ipv4_min, over_ipv4_max) = spread(ratios.collect());
            OverIpv4 {
                over_ipv4_median,
                over_ipv4_min,
                over_ipv4_max,
            }
        });
        let (ns_median, ns_min, ns_max) = spread(times);
        PacketCost {
            family: bench.family.name(),
            direction,
            frame_bytes,
            flows: 2,
            ns_median,
            ns_min,
            ns_max,
            over_ipv4,
        }
    };
    Ok(benches.iter().zip(times).map(cost).collect())
}

/// Times with `flows` flows, two packets of each. Caches are cold, and the times include some
/// 20 ns for the clock.
fn many(benches: &[Bench], flows: usize, rounds: u32) -> Result<Vec<PacketCost>> {
    let clients = flows / 2;
    for bench in benches {
        bench.with_services()?;
        (0..clients).try_for_each(|i| bench.pair(bench.client(i)))?;
    }
    let step = (clients / 20_000).max(1);
    let all = |bench: &Bench, to_owner: bool| {
        let mut times = Vec::new();
        for i in (0..clients).step_by(step) {
            let (client, left) = (bench.client(i), bench.left());
            let (from, to) = match to_owner {
                true => (client, left),
                false => (left, client),
            };
            times.push(bench.time(&frame(from, to, SIZES[0]), 2)?);
        }
        Ok(spread(times).0)
    };
    let to_owner = |bench: &Bench| all(bench, true);
    let to_client = |bench: &Bench| all(bench, false);
    let mut both = costs(benches, "client to owner", SIZES[0], rounds, &to_owner)?;
    benches.iter().try_for_each(Bench::without_services)?;
    both.extend(costs(
        benches,
        "owner to client",
        SIZES[0],
        rounds,
        &to_client,
    )?);
    both.iter_mut().for_each(|cost| cost.flows = flows);
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
        let (left, right) = (self.left(), self.right());
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
        Ok(spread(means).0)
    }

    fn time(&self, frame: &[u8], runs: u32) -> Result<f64> {
        let expected = match is_foreign(frame) {
            true => Verdict::Pass,
            false => Verdict::Send,
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
