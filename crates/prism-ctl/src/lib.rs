//! The commands of operators: `prism ctl`, which shows and changes a running cluster, and
//! `prism pki`. `ctl` reads the switch's pinned tables, asks the nodes of this host through their
//! admin sockets, and writes the cluster's state in etcd.
//!
//! Not here: commands that prepare and check a host (`prism-host`).
#![forbid(unsafe_code)]

mod backup;
mod bucket;
mod certificate;
mod cluster;
mod connections;
mod key;
mod keys;
mod members;
pub mod pki;
mod placings;
mod progress;
mod quota;
mod reach;
mod recover;
mod recovered_users;
mod reload;
mod scrub;
mod server;
mod servers;
mod state_sources;
mod status;
mod switch;
mod switch_keys;
mod table;
mod take_over;
mod top;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use prism_proto::control::{FlowState, Owner};
use prism_switch::{FlowRecord, SwitchView, ViewError};
use serde_json::{Value, json};

use crate::reach::Common;
use crate::table::{Paint, count, number, table, text};

/// Show the cluster, flows, counters and servers; scrub, drain and rebalance backends; change keys.
///
/// --config and --json may stand at any place behind `ctl`.
#[derive(Args, Clone, Debug)]
pub struct CtlArgs {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum CtlCommand {
    /// List the switch's flows: state, epoch, owner, idle time, packets and bytes.
    Flows {
        #[command(flatten)]
        pin: Pin,
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
        pin: Pin,
        /// Also list counters that are zero.
        #[arg(long)]
        all: bool,
    },
    Status(status::StatusArgs),
    Switch(switch::SwitchArgs),
    Top(top::TopArgs),
    Scrub(scrub::ScrubArgs),
    Cluster(cluster::ClusterArgs),
    Drain(members::DrainArgs),
    DrainConnections(connections::DrainConnectionsArgs),
    Rebalance(members::RebalanceArgs),
    Server(server::ServerArgs),
    Reload(reload::ReloadArgs),
    TakeOver(take_over::TakeOverArgs),
    Key(key::KeyArgs),
    Bucket(bucket::BucketArgs),
    Backup(backup::BackupArgs),
    Certificate(certificate::CertificateArgs),
}

#[derive(Args, Clone, Debug)]
struct Pin {
    /// Directory below /sys/fs/bpf where the switch is pinned.
    #[arg(long, value_name = "DIR", default_value = "prism")]
    pin: String,
}

/// Runs the subcommand, and prints its result.
///
/// # Errors
/// The command cannot do its work.
pub fn run(args: &CtlArgs) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout());
    let common = &args.common;
    let mut status = ExitCode::SUCCESS;
    let printed = match &args.command {
        CtlCommand::Flows { pin, all } => flows(common, pin, *all, &mut out),
        CtlCommand::Counters { pin, all } => counters(common, pin, *all, &mut out),
        CtlCommand::Status(args) => {
            status::run(args, common, &mut out).map(|health| status = health)
        }
        CtlCommand::Switch(args) => switch::run(args, common, &mut out),
        CtlCommand::Top(args) => top::run(args, common),
        CtlCommand::Scrub(args) => scrub::run(args, common, &mut out),
        CtlCommand::Cluster(args) => cluster::run(args, common, &mut out),
        CtlCommand::Drain(args) => members::drain(args, common, &mut out),
        CtlCommand::DrainConnections(args) => connections::run(args, common, &mut out),
        CtlCommand::Rebalance(args) => members::rebalance(args, common, &mut out),
        CtlCommand::Server(args) => server::run(args, common, &mut out),
        CtlCommand::Reload(args) => reload::run(args, common, &mut out),
        CtlCommand::TakeOver(args) => take_over::run(args, common, &mut out),
        CtlCommand::Key(args) => key::run(args, common, &mut out),
        CtlCommand::Bucket(args) => bucket::run(args, common, &mut out),
        CtlCommand::Backup(args) => backup::run(args, common, &mut out),
        CtlCommand::Certificate(args) => certificate::run(args, common, &mut out),
    };
    printed?;
    out.flush()?;
    Ok(status)
}

/// The tables of the switch on this host.
fn open_switch(Pin { pin }: &Pin) -> anyhow::Result<SwitchView> {
    SwitchView::open(pin).map_err(|error| match error {
        ViewError::NoSwitch { .. } => anyhow!(
            "{error}; run this on the host of the switch, after `prism switch` has loaded it, and \
             with --pin if switch.pin_dir is not \"prism\""
        ),
        error => error.into(),
    })
}

fn flows(common: &Common, pin: &Pin, all: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let view = open_switch(pin)?;
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

fn counters(common: &Common, pin: &Pin, all: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let counters = open_switch(pin)?.counters()?;
    if common.json {
        let named = counters.into_iter().map(|c| (c.name, c.value));
        return reach::print_json(out, &named.collect::<BTreeMap<_, _>>());
    }
    let shown = counters.iter().filter(|c| all || c.value > 0);
    let rows = shown.map(|c| [text(c.name.clone()), number(count(c.value))]);
    let rows: Vec<_> = rows.collect();
    let header = ["COUNTER", "VALUE"];
    write!(out, "{}", table(Paint::of_stdout(), header, &rows))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    enum Program {
        Ctl(CtlArgs),
    }

    #[test]
    fn the_common_options_stand_at_any_place_behind_ctl() {
        for line in [
            "prism ctl --config FILE --json flows",
            "prism ctl flows --json --config FILE",
            "prism ctl --json cluster --config FILE",
            "prism ctl cluster --config FILE recover --json",
            "prism ctl cluster --config FILE --json",
            "prism ctl drain be0 --config FILE --json",
            "prism ctl rebalance --json --config FILE --replicas 2",
            "prism ctl server drain be0 --json --config FILE",
            "prism ctl server add app be0/127.0.0.1:9000 --json --config FILE",
            "prism ctl scrub --config FILE --json --node be0",
            "prism ctl drain-connections --json be0 --config FILE",
            "prism ctl key --config FILE list --json",
            "prism ctl bucket --json info photos --config FILE",
        ] {
            let Program::Ctl(args) = Program::try_parse_from(line.split(' ')).unwrap();
            assert!(args.common.json && args.common.names_file(), "{line}");
        }
    }
}
