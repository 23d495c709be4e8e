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

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use clap::Args;
use prism_netns::NetNs;
use prism_packets::Verdict;
use prism_switch::{Roles, SwitchConfig};
use serde::Serialize;

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

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 40_000);
const LEFT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80);
const RIGHT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 2), 9000);
const CONTROL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7171);

pub(crate) const SUMMARY: Summary = Summary {
    result: "switch",
    title: "Time for a packet, and throughput of one connection",
    columns: &[
        column("ns", "ns_median", 1.0, 1),
        column("least", "ns_min", 1.0, 1),
        column("greatest", "ns_max", 1.0, 1),
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
    direction: &'static str,
    frame_bytes: usize,
    flows: usize,
    ns_median: f64,
    ns_min: f64,
    ns_max: f64,
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
            false => throughput::measure(args.rounds)?,
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
    let bench = Bench::new()?;
    bench.pair(CLIENT)?;
    let mut costs = Vec::new();
    for frame_bytes in SIZES {
        costs.push(
            bench.cost("client to owner", frame_bytes, args.rounds, |size| {
                bench.hot(&frame(CLIENT, LEFT, size))
            })?,
        );
    }
    bench.without_services()?;
    for frame_bytes in SIZES {
        costs.push(
            bench.cost("owner to client", frame_bytes, args.rounds, |size| {
                bench.hot(&frame(LEFT, CLIENT, size))
            })?,
        );
    }
    costs.push(
        bench.cost("not for the switch", SIZES[0], args.rounds, |size| {
            bench.hot(&foreign_frame(size))
        })?,
    );
    if args.full {
        for flows in [1_000, 1_000_000] {
            costs.extend(bench.many(flows, args.rounds)?);
        }
    }
    Ok(costs)
}

/// A switch that no interface is attached to.
struct Bench(TestSwitch);

impl Bench {
    fn new() -> Result<Self> {
        // Clients are nodes too, for next hops without neighbours.
        let clients = (0..=MAX_CLIENTS / PORTS).map(|host| client(host * PORTS));
        let nodes = [LEFT, RIGHT].into_iter().chain(clients);
        let bench = Self(TestSwitch::load(SwitchConfig {
            pin_dir: format!("prism-bench-{}", std::process::id()),
            control: CONTROL,
            nodes: nodes
                .map(|addr| node(*addr.ip(), Roles::default()))
                .collect(),
            senders: senders(),
            max_flows: 1 << 21,
            ..SwitchConfig::default()
        })?);
        bench.with_services()?;
        Ok(bench)
    }

    fn with_services(&self) -> Result<()> {
        let config = SwitchConfig {
            services: [LEFT, RIGHT].map(service).into(),
            ..self.0.config.clone()
        };
        Ok(self.0.switch.update_tables(&config)?)
    }

    /// Hides the services, so that both sides send as owners only. The program then finds the
    /// flow of a rewritten packet by its owner.
    fn without_services(&self) -> Result<()> {
        Ok(prism_packets::hide_services(&self.0.switch)?)
    }

    /// Makes two flows of `client`; packets of each are rewritten to the other.
    fn pair(&self, client: SocketAddrV4) -> Result<()> {
        let clock = self.0.command(&own(client, LEFT, RIGHT, 0))?.0.time_ns;
        for (vip, owner) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
            is_ok(&self.0.command(&own(client, vip, owner, clock))?.0)?;
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
        Ok(self.0.time(frame, runs, expected)?.as_secs_f64() * 1e9)
    }

    fn cost(
        &self,
        direction: &'static str,
        frame_bytes: usize,
        rounds: u32,
        measure: impl Fn(usize) -> Result<f64>,
    ) -> Result<PacketCost> {
        let values: Result<Vec<f64>> = (0..rounds).map(|_| measure(frame_bytes)).collect();
        let (ns_median, ns_min, ns_max) = spread(values?);
        Ok(PacketCost {
            direction,
            frame_bytes,
            flows: 2,
            ns_median,
            ns_min,
            ns_max,
        })
    }

    /// Times with `flows` flows, two packets of each. Caches are cold, and the times include
    /// some 20 ns for the clock.
    fn many(&self, flows: usize, rounds: u32) -> Result<Vec<PacketCost>> {
        self.with_services()?;
        let clients: Vec<_> = (0..flows / 2).map(client).collect();
        clients.iter().try_for_each(|client| self.pair(*client))?;
        let step = (clients.len() / 20_000).max(1);
        let all = |to_owner: bool| {
            let mut times = Vec::new();
            for client in clients.iter().step_by(step) {
                let (from, to) = if to_owner {
                    (*client, LEFT)
                } else {
                    (LEFT, *client)
                };
                times.push(self.time(&frame(from, to, 60), 2)?);
            }
            Ok(spread(times).0)
        };
        let mut costs = vec![self.cost("client to owner", 60, rounds, |_| all(true))?];
        self.without_services()?;
        costs.push(self.cost("owner to client", 60, rounds, |_| all(false))?);
        costs.iter_mut().for_each(|cost| cost.flows = flows);
        Ok(costs)
    }
}

/// Most clients, and the ports of one address.
const MAX_CLIENTS: usize = 500_000;
const PORTS: usize = 60_000;

fn client(i: usize) -> SocketAddrV4 {
    let port = u16::try_from(i % PORTS).unwrap_or(0) + 1;
    let host = u8::try_from(i / PORTS).unwrap_or(0);
    SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, host + 1), port)
}
