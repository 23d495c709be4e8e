//! `prism-lab bench switch`: what the switch costs per packet.
//!
//! Two measurements. *Time*: the tc program on one packet, again and again
//! (`BPF_PROG_TEST_RUN`), with all it does in service: lookups, statistics, next
//! hop, rewriting, checksums. *Throughput*: one TCP connection through a switch
//! that rewrites it, and through a plain bridge, in turns.
//!
//! A run of the program leaves the packet rewritten, so two flows are set up of
//! which each rewrites a packet into one of the other, and the TTL limits a
//! measurement to 250 runs. Everything happens in namespaces of its own.
//!
//! A frame that is not for the switch, and that the program lets pass after its first
//! look, shows how much of each time is the method's own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use prism_proto::control::{Answer, ControlKey, FlowKey, Ops, Owner, Request, Status};
use prism_switch::bench::{Hook, Verdict};
use prism_switch::{Link, NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig};
use prism_sys::netns::NetNs;
use serde::Serialize;

use crate::frames::{HEADERS_UDP, foreign_frame, frame, is_foreign, udp};

mod throughput;

/// Frame sizes, bytes without the checksum of the frame.
const SIZES: [usize; 3] = [60, 512, 1514];
/// Runs of one measurement: fewer than the largest TTL.
const RUNS: u32 = 250;
/// Measurements of one round; the round is their median.
const MEASUREMENTS: usize = 400;

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 40_000);
const LEFT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80);
const RIGHT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 2), 9000);
const CONTROL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7171);
const KEY_ID: u32 = 1;

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

/// Everything that was measured.
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
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

pub(crate) fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

fn print(report: &Report) {
    println!(
        "{:<18} {:>6} {:>9} {:>22}",
        "direction", "bytes", "flows", "ns/packet (spread)"
    );
    for p in &report.packets {
        println!(
            "{:<18} {:>6} {:>9} {:>8.1} ({:.1} to {:.1})",
            p.direction, p.frame_bytes, p.flows, p.ns_median, p.ns_min, p.ns_max
        );
    }
    for t in &report.throughput {
        println!(
            "{:<18} {:>7.2} Gbit/s ({:.2} to {:.2}) {}",
            t.path, t.gbit_median, t.gbit_min, t.gbit_max, t.direction
        );
    }
}

/// Median, smallest and largest.
pub(crate) fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (
        at(values.len() / 2),
        at(0),
        at(values.len().saturating_sub(1)),
    )
}

/// A switch that no interface is attached to; removed at the end.
struct Bench {
    switch: Switch,
    config: SwitchConfig,
    key: ControlKey,
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(e) = Switch::unload(&self.config.pin_dir) {
            tracing::warn!("{e}");
        }
    }
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

impl Bench {
    fn new() -> Result<Self> {
        let key = ControlKey::new(*b"not a secret key");
        let node = |addr: SocketAddrV4| NodeConfig {
            addr: IpAddr::V4(*addr.ip()),
            tenant: 1,
            roles: Roles::default(),
            link: Some(Link {
                ifindex: 1,
                node_mac: [2, 0, 0, 0, 0, 1],
                own_mac: [2, 0, 0, 0, 0, 2],
                mtu_bytes: 1500,
            }),
        };
        let config = SwitchConfig {
            pin_dir: format!("prism-bench-{}", std::process::id()),
            control: CONTROL,
            services: Vec::new(),
            // Clients are nodes too, for next hops without neighbours.
            nodes: [LEFT, RIGHT]
                .into_iter()
                .chain((0..=MAX_CLIENTS / PORTS).map(|host| client(host * PORTS)))
                .map(node)
                .collect(),
            senders: vec![SenderConfig {
                key_id: KEY_ID,
                key: key.clone(),
                tenant: 1,
            }],
            max_flows: 1 << 21,
            ..SwitchConfig::default()
        };
        let switch = Switch::load(&config)?;
        let bench = Self {
            switch,
            config,
            key,
        };
        bench.with_services()?;
        Ok(bench)
    }

    fn with_services(&self) -> Result<()> {
        let service = |addr: SocketAddrV4| ServiceConfig {
            addr: addr.into(),
            tenant: 1,
            frontends: Vec::new(),
        };
        let config = SwitchConfig {
            services: [LEFT, RIGHT].map(service).into(),
            ..self.config.clone()
        };
        Ok(self.switch.update_tables(&config)?)
    }

    /// From here on the sides send as owners only: of a packet that was rewritten once,
    /// too, the flow is looked for among those that they own.
    fn without_services(&self) -> Result<()> {
        Ok(self.switch.hide_services()?)
    }

    fn send(&self, request: &Request) -> Result<Answer> {
        let from = SocketAddrV4::new(*LEFT.ip(), 1);
        let datagram = udp(from, CONTROL, &request.encode(&self.key));
        let run = self.switch.run_packet(Hook::Tc, &datagram, 1)?;
        let payload = run.packet.get(HEADERS_UDP..).context("no answer")?;
        Ok(Answer::decode(payload, KEY_ID, &self.key)?)
    }

    /// Two flows of `client`: each side's packets become the other's.
    fn pair(&self, client: SocketAddrV4) -> Result<()> {
        let clock = self.send(&request(client, LEFT, RIGHT, 0))?.time_ns;
        for (vip, owner) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
            let answer = self.send(&request(client, vip, owner, clock))?;
            ensure!(answer.status == Status::Ok, "{answer:?}");
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
        let run = self.switch.run_packet(Hook::Tc, frame, runs)?;
        let expected = match is_foreign(frame) {
            true => Verdict::Pass,
            false => Verdict::Send,
        };
        if run.verdict != expected {
            bail!("the program answered {:?}", run.verdict);
        }
        Ok(run.time.as_secs_f64() * 1e9)
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

    /// With `flows` flows, two packets of each in turn: caches are cold, and the
    /// clock's own cost, some 20 ns, is not hidden by repetition.
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

/// Most clients, of this many ports each.
const MAX_CLIENTS: usize = 500_000;
const PORTS: usize = 60_000;

fn client(i: usize) -> SocketAddrV4 {
    let port = u16::try_from(i % PORTS).unwrap_or(0) + 1;
    let host = u8::try_from(i / PORTS).unwrap_or(0);
    SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, host + 1), port)
}

fn request(client: SocketAddrV4, vip: SocketAddrV4, owner: SocketAddrV4, time_ns: u64) -> Request {
    Request {
        key_id: KEY_ID,
        request_id: 1,
        time_ns,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: time_ns,
        flow: FlowKey {
            client: SocketAddr::V4(client),
            vip: SocketAddr::V4(vip),
        },
        owner: Owner {
            addr: SocketAddr::V4(owner),
            via: IpAddr::V4(*owner.ip()),
        },
    }
}
