//! `prism ctl`: shows and changes a running cluster. It reads the switch's pinned tables,
//! asks the nodes of this host through their admin sockets, and writes the cluster's state
//! in etcd.

mod cluster;
mod connections;
mod credentials;
mod members;
mod reach;
mod recover;
mod scrub;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use clap::{Args, Subcommand};
use prism_proto::control::FlowState;
use prism_switch::{FlowRecord, SwitchView};
use serde::Serialize;

/// Show flows, counters and backends; scrub, drain and rebalance backends; change users.
#[derive(Args, Clone, Debug)]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum CtlCommand {
    /// List the switch's flows: state, epoch, owner, idle time, packets and bytes.
    Flows {
        #[command(flatten)]
        common: Common,
        /// Also list tombstones: flows that have ended, whose epoch is still remembered.
        #[arg(long)]
        all: bool,
    },
    /// List the switch's counters of packets and of commands.
    ///
    /// Each reason for which a packet is forwarded, left to the kernel or dropped has a
    /// counter, and so has each outcome of a command.
    Counters {
        #[command(flatten)]
        common: Common,
        /// Also list counters that are zero.
        #[arg(long)]
        all: bool,
    },
    Scrub(scrub::ScrubArgs),
    Cluster(cluster::ClusterArgs),
    Drain(members::DrainArgs),
    DrainConnections(connections::DrainConnectionsArgs),
    Rebalance(members::RebalanceArgs),
    Credentials(credentials::CredentialsArgs),
}

#[derive(Args, Clone, Debug)]
struct Common {
    /// Directory below /sys/fs/bpf where the switch is pinned.
    #[arg(long, value_name = "DIR", default_value = "prism")]
    pin: String,
    /// Print JSON: an array of flows, or an object of counters.
    #[arg(long)]
    json: bool,
}

/// A flow in JSON.
#[derive(Serialize)]
struct Flow {
    client: String,
    vip: String,
    state: &'static str,
    epoch: u64,
    owner: Option<String>,
    via: Option<String>,
    idle_ms: u128,
    packets_to_owner: u64,
    bytes_to_owner: u64,
    packets_to_client: u64,
    bytes_to_client: u64,
}

impl From<FlowRecord> for Flow {
    fn from(f: FlowRecord) -> Self {
        let (state, owned) = match f.state {
            FlowState::Absent => ("absent", false),
            FlowState::Forward => ("forward", true),
            FlowState::Blocked => ("blocked", true),
        };
        Self {
            client: f.flow.client.to_string(),
            vip: f.flow.vip.to_string(),
            state,
            epoch: f.epoch,
            owner: owned.then(|| f.owner.addr.to_string()),
            via: owned.then(|| f.owner.via.to_string()),
            idle_ms: f.idle.as_millis(),
            packets_to_owner: f.to_owner.packets,
            bytes_to_owner: f.to_owner.bytes,
            packets_to_client: f.to_client.packets,
            bytes_to_client: f.to_client.bytes,
        }
    }
}

/// Runs the subcommand, and prints its result.
pub(crate) fn run(args: &CtlArgs) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match &args.command {
        CtlCommand::Flows { common, all } => flows(common, *all, &mut out),
        CtlCommand::Counters { common, all } => counters(common, *all, &mut out),
        CtlCommand::Scrub(args) => scrub::run(args, &mut out),
        CtlCommand::Cluster(args) => cluster::run(args, &mut out),
        CtlCommand::Drain(args) => members::drain(args, &mut out),
        CtlCommand::DrainConnections(args) => connections::run(args, &mut out),
        CtlCommand::Rebalance(args) => members::rebalance(args, &mut out),
        CtlCommand::Credentials(args) => credentials::run(args, &mut out),
    };
    printed.and_then(|()| Ok(out.flush()?))
}

fn flows(common: &Common, all: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let view = SwitchView::open(&common.pin)?;
    if common.json {
        write!(out, "[")?;
    }
    let mut separator = "\n";
    for record in view.flows()? {
        let record = record?;
        if !all && record.state == FlowState::Absent {
            continue;
        }
        let flow = Flow::from(record);
        if common.json {
            // Flows are printed one by one, because there may be millions.
            write!(out, "{separator}{}", serde_json::to_string(&flow)?)?;
            separator = ",\n";
        } else {
            print_flow(&flow, out)?;
        }
    }
    if common.json {
        writeln!(out, "\n]")?;
    }
    Ok(())
}

fn print_flow(f: &Flow, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{} > {}  {}  owner {}  via {}  epoch {}  idle {:.1} s  \
         to owner {} packets {} bytes  to client {} packets {} bytes",
        f.client,
        f.vip,
        f.state,
        f.owner.as_deref().unwrap_or("-"),
        f.via.as_deref().unwrap_or("-"),
        f.epoch,
        f.idle_ms as f64 / 1e3,
        f.packets_to_owner,
        f.bytes_to_owner,
        f.packets_to_client,
        f.bytes_to_client,
    )
}

fn counters(common: &Common, all: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let counters = SwitchView::open(&common.pin)?.counters()?;
    if common.json {
        let named = counters.into_iter().map(|c| (c.name, c.value));
        return reach::print_json(out, &named.collect::<BTreeMap<_, _>>());
    }
    for c in counters.iter().filter(|c| all || c.value > 0) {
        writeln!(out, "{:<24} {:>14}", c.name, c.value)?;
    }
    Ok(())
}
