//! `prism-lab bench flows`: the switch as its table grows, from one flow to a million.
//! Measured are the time of a packet, the time of a command, and kernel memory.
//!
//! Each number of flows has its own switch. All switches are loaded at once and alternate.
//! Each packet and each command is of a random flow, so that with many flows the flow is not
//! in the processor's caches.
//!
//! - The kernel times *packets* and the *rule* in a run of the program on one packet
//!   (`BPF_PROG_TEST_RUN`): a client's, the owner's, and a command that changes the owner.
//!   That includes reading the clock. A frame that the program ignores shows how much.
//! - The *round trip* is that of such a command as a datagram, from a host that a veth pair
//!   joins to the switch.
//! - A *lookup* is a client's packet that the program drops as soon as it has found the flow: all
//!   are blocked meanwhile. It waits for the same memory as a packet that is sent.
//! - *Memory* is the size of both tables by the kernel's account, and the growth of
//!   `/proc/meminfo`, which other programs change too; and the growth of this process while it
//!   registered the flows as a worker does that owns them.

mod bed;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use prism_netns::NetNs;

use crate::family::{Families, Family};
use crate::rows::{Case, Values};
use crate::stats::named;
use crate::summary::{Comparison, Over, Summary, column};
use crate::turns::{Job, Options, Turns, within};
use bed::{Bed, MAX_FLOWS, Samples, Table};

/// The name of the case for the number of flows.
const FLOWS: &str = "flows";
/// The name of the case for the family, unless it is IPv4 alone.
const FAMILY: &str = "family";
/// The name of the case for the room of the table, unless it is one.
const ROOM: &str = "room";

pub(crate) const SUMMARY: Summary = Summary {
    result: "flows",
    title: "The switch by number of flows, medians of the rounds",
    columns: &[
        column("to owner ns", "to_owner_ns", 1.0, 0),
        column("to client ns", "to_client_ns", 1.0, 0),
        column("(ignored ns)", "glance_ns", 1.0, 0),
        column("lookup ns", "lookup_ns", 1.0, 0),
        column("rule ns", "rule_ns", 1.0, 0),
        column("p99", "rule_p99_ns", 1.0, 0),
        column("round trip µs", "round_trip_us", 1.0, 1),
        column("p99", "round_trip_p99_us", 1.0, 1),
        column("B/flow accounted", "accounted_flow_bytes", 1.0, 0),
        column("B/flow taken", "taken_flow_bytes", 1.0, 0),
        column("B/flow registered", "registered_flow_bytes", 1.0, 0),
        column("and at first, MB", "taken_empty_bytes", 1e6, 1),
    ],
    comparisons: &[
        Comparison {
            title: "Over 1,000 flows; net is without the time of an ignored frame",
            dimension: FLOWS,
            base: "1000",
            over: Over::Base,
            values: TIMES,
        },
        Comparison {
            title: "Over the default's room",
            dimension: ROOM,
            base: "1048576",
            over: Over::Base,
            values: TIMES,
        },
        Comparison {
            title: "IPv6 over IPv4",
            dimension: FAMILY,
            base: "IPv4",
            over: Over::Base,
            values: TIMES,
        },
    ],
};

/// The values that are compared.
const TIMES: &[(&str, &str)] = &[
    ("packet", "packet_ns"),
    ("net", "packet_net_ns"),
    ("to owner", "to_owner_ns"),
    ("to client", "to_client_ns"),
    ("lookup", "lookup_ns"),
    ("rule", "rule_ns"),
    ("round trip", "round_trip_us"),
];

/// Measure the switch by the number of flows in its table: packets, commands, memory.
///
/// A command changes the owner of a flow, as the last step of each hand-off does. "taken" is
/// the growth of the kernel's memory while the switch was loaded and its table filled; it
/// tells little about few flows. Needs root. A million flows take some 400 MB of the kernel's
/// memory, and all numbers together the sum.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of flows, up to 4,000,000.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,1000,10000,100000,1000000",
        value_name = "N",
        conflicts_with = "quick"
    )]
    flows: Vec<u32>,
    /// Room of the tables, in flows; more if they have more. The default is that of a switch. With
    /// several, each number of flows has a switch for each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1048576",
        value_name = "N"
    )]
    room: Vec<u32>,
    /// Measure lookups too. That takes a million flows ten seconds a turn.
    #[arg(long)]
    lookups: bool,
    /// Family of the addresses. With both, each number of flows has a switch for each.
    #[arg(long, value_enum, default_value = "4")]
    family: Families,
    /// Rounds in which every number of flows has its turn.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// A first look in seconds: up to 100,000 flows, fewer rounds and samples.
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// File for the turns, one JSON object a line. A turn that it has already is not
    /// measured again, so an interrupted run continues.
    #[arg(long, value_name = "FILE")]
    rows: Option<std::path::PathBuf>,
    /// Print JSON with every turn instead of tables.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        if self.quick {
            (self.flows, self.rounds) = (vec![1, 1_000, 100_000], 2);
        }
        self.flows.sort_unstable();
        self.flows.dedup();
        within("--rounds", self.rounds, 100)?;
        for flows in &self.flows {
            within("--flows", usize::try_from(*flows)?, MAX_FLOWS)?;
        }
        Ok(self)
    }

    fn options(&self) -> Options {
        Options {
            rounds: self.rounds,
            seconds: 1,
            quick: self.quick,
            rows: self.rows.clone(),
            prism: None,
            json: self.json,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let families = self.family.list().iter();
        let kinds = families.flat_map(|family| self.room.iter().map(|room| (*family, *room)));
        let table = |flows: u32, (family, room): (Family, u32)| Table {
            family,
            flows,
            room: flows.max(room),
        };
        let tables =
            { self.flows.iter() }.flat_map(|flows| kinds.clone().map(|kind| table(*flows, kind)));
        tables.collect()
    }

    fn jobs(&self) -> Vec<Job<usize>> {
        let tables = self.tables();
        let jobs = tables.iter().enumerate().map(|(n, table)| {
            let case = Case::default().with(FLOWS, table.flows);
            let case = match self.room.as_slice() {
                [_] => case,
                _ => case.with(ROOM, table.room),
            };
            Job {
                case: match self.family {
                    Families::V4 => case,
                    _ => case.with(FAMILY, table.family.name()),
                },
                system: "switch",
                what: n,
            }
        });
        jobs.collect()
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let jobs = args.jobs();
    let mut turns = Turns::begin(&args.options(), SUMMARY.result, jobs.len())?;
    if turns.wants(&jobs) {
        let samples = match args.quick {
            true => Samples::FEW,
            false => Samples::MANY,
        };
        let network = NetNs::anonymous()?;
        network.run(|| measure(&args, samples, &mut turns, &jobs))??;
    }
    SUMMARY.tell(turns.rows(), args.json)
}

/// Measures in the network namespace of the switches.
fn measure(args: &Args, samples: Samples, turns: &mut Turns, jobs: &[Job<usize>]) -> Result<()> {
    bed::remove_abandoned();
    let mut beds = fill(&args.tables(), &turns.cancel())?;
    turns.run(jobs, |n, warm_up| {
        let bed = beds.get_mut(*n).context("no such switch")?;
        if warm_up.is_some() {
            return measured(bed, Samples::FEW);
        }
        let mut values = measured(bed, samples)?;
        if args.lookups {
            let lookup = bed.lookups(samples.packets)?;
            values.insert("lookup_ns".into(), lookup.p50_ns);
        }
        Ok(values)
    })
}

fn fill(tables: &[Table], cancel: &Arc<AtomicBool>) -> Result<Vec<Bed>> {
    let network = NetNs::current()?;
    let mut beds = Vec::new();
    for (n, table) in tables.iter().enumerate() {
        eprintln!("filling a table with {} flows", table.flows);
        beds.push(Bed::filled(&network, *table, n, cancel)?);
    }
    Ok(beds)
}

/// The values of one turn.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
fn measured(bed: &mut Bed, samples: Samples) -> Result<Values> {
    let flows = f64::from(bed.flows());
    let glance = bed.glances(samples.packets)?;
    let to_owner = bed.packets_to_owner(samples.packets)?;
    let to_client = bed.packets_to_client(samples.packets)?;
    let rule = bed.rules(samples.rules)?;
    let round_trip = bed.round_trips(samples.round_trips)?;
    let packet_ns = f64::midpoint(to_owner.p50_ns, to_client.p50_ns);
    let memory = bed.memory();
    let registered = bed.registered().max(1) as f64;
    Ok(named([
        ("glance_ns", glance.p50_ns),
        ("to_owner_ns", to_owner.p50_ns),
        ("to_owner_p99_ns", to_owner.p99_ns),
        ("to_client_ns", to_client.p50_ns),
        ("to_client_p99_ns", to_client.p99_ns),
        ("packet_ns", packet_ns),
        ("packet_net_ns", packet_ns - glance.p50_ns),
        ("rule_ns", rule.p50_ns),
        ("rule_p99_ns", rule.p99_ns),
        ("round_trip_us", round_trip.p50_ns / 1e3),
        ("round_trip_p99_us", round_trip.p99_ns / 1e3),
        ("accounted_bytes", memory.accounted as f64),
        ("accounted_flow_bytes", memory.accounted as f64 / flows),
        ("taken_empty_bytes", memory.taken_empty as f64),
        ("taken_full_bytes", memory.taken_full as f64),
        ("taken_flow_bytes", memory.taken_full as f64 / flows),
        ("registered_flow_bytes", memory.registry as f64 / registered),
    ]))
}
