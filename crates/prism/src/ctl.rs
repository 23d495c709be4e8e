//! `prism ctl`: shows and changes a running cluster. It reads the switch's pinned tables,
//! asks the nodes of this host through their admin sockets, and writes the cluster's state
//! in etcd.

mod bucket;
mod cluster;
mod connections;
mod key;
mod keys;
mod members;
mod reach;
mod recover;
mod scrub;
mod take_over;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use clap::{Args, Subcommand};
use prism_proto::control::{FlowState, Owner};
use prism_switch::{FlowRecord, SwitchView};
use serde_json::{Value, json};

/// Show flows, counters and backends; scrub, drain and rebalance backends; change keys.
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
    TakeOver(take_over::TakeOverArgs),
    Key(key::KeyArgs),
    Bucket(bucket::BucketArgs),
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
        CtlCommand::TakeOver(args) => take_over::run(args, &mut out),
        CtlCommand::Key(args) => key::run(args, &mut out),
        CtlCommand::Bucket(args) => bucket::run(args, &mut out),
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
        if common.json {
            // Flows are printed one by one, because there may be millions.
            write!(out, "{separator}{}", flow_json(&record))?;
            separator = ",\n";
        } else {
            print_flow(&record, out)?;
        }
    }
    if common.json {
        writeln!(out, "\n]")?;
    }
    Ok(())
}

/// The owner of a flow that is no tombstone.
fn owner(f: &FlowRecord) -> Option<Owner> {
    (f.state != FlowState::Absent).then_some(f.owner)
}

fn state(f: &FlowRecord) -> &'static str {
    match f.state {
        FlowState::Absent => "absent",
        FlowState::Forward => "forward",
        FlowState::Blocked => "blocked",
    }
}

fn flow_json(f: &FlowRecord) -> Value {
    json!({
        "client": f.flow.client,
        "vip": f.flow.vip,
        "state": state(f),
        "epoch": f.epoch,
        "owner": owner(f).map(|owner| owner.addr),
        "via": owner(f).map(|owner| owner.via),
        "idle_ms": f.idle.as_millis() as u64,
        "packets_to_owner": f.to_owner.packets,
        "bytes_to_owner": f.to_owner.bytes,
        "packets_to_client": f.to_client.packets,
        "bytes_to_client": f.to_client.bytes,
    })
}

fn print_flow(f: &FlowRecord, out: &mut impl Write) -> io::Result<()> {
    let shown = owner(f).map(|owner| (owner.addr.to_string(), owner.via.to_string()));
    let (owner, via) = shown.unwrap_or_else(|| ("-".into(), "-".into()));
    writeln!(
        out,
        "{} > {}  {}  owner {owner}  via {via}  epoch {}  idle {:.1} s  \
         to owner {} packets {} bytes  to client {} packets {} bytes",
        f.flow.client,
        f.flow.vip,
        state(f),
        f.epoch,
        f.idle.as_secs_f64(),
        f.to_owner.packets,
        f.to_owner.bytes,
        f.to_client.packets,
        f.to_client.bytes,
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
