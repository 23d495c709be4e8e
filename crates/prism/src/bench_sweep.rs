//! `prism bench sweep`: GETs of objects of one size after the other, by Prism, by
//! nginx and HAProxy as proxies before the same nginx backends, and *direct*, where
//! each request is sent to the backend that has the object: the limit. As in
//! Figures 2 and 9 of NSDI'21.
//!
//! Two labs of the same shape stand side by side: one of Prism, one of the others.
//! They take turns under the same client (`wrk`, unmodified), and a ratio is that of
//! two turns of one round.

mod load;
mod proxies;
mod report;
mod rows;
mod systems;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use prism_lab::Rate;

use load::Objects;
use rows::{Row, Rows, Turn};
use systems::{Labs, System};

/// Length of the turn of each system that does not count.
const WARM_UP_S: u64 = 1;

/// Measure throughput, latency and CPU time of GETs by size, beside nginx and HAProxy.
///
/// Needs root, `wrk`, `nginx` and `haproxy` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,1K,4K,16K,64K,256K,512K,1M,4M",
        value_name = "SIZE"
    )]
    sizes: Vec<u64>,
    /// Backends; the client's link has as many times the speed of one server's.
    #[arg(long, default_value_t = 5, value_name = "N")]
    backends: usize,
    /// Speed of each server's link, each way.
    #[arg(long, default_value = "100mbit", value_name = "RATE")]
    link: Rate,
    /// Links as fast as the machine goes: CPU time decides then, not links.
    #[arg(long, conflicts_with = "link")]
    unshaped: bool,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner.
    #[arg(long)]
    tls: bool,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 100, value_name = "N")]
    connections: usize,
    /// Rounds in which every system has its turn.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Length of a turn; more, where the slowest system could not give every
    /// connection two objects within it.
    #[arg(long, default_value_t = 5, value_name = "N")]
    seconds: u64,
    /// A first look in minutes: fewer sizes and rounds, shorter turns.
    #[arg(long, conflicts_with_all = ["sizes", "rounds", "seconds"])]
    quick: bool,
    /// Where each turn is noted, one JSON object a line. What is there already is
    /// not measured again: an interrupted sweep goes on.
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Print JSON with every turn instead of a table.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        if self.quick {
            self.sizes = vec![4 << 10, 64 << 10, 512 << 10];
            (self.rounds, self.seconds) = (3, 3);
        }
        let within = |what: &str, value: usize, most: usize| {
            ensure!((1..=most).contains(&value), "{what} must be 1 to {most}");
            Ok(())
        };
        within("--backends", self.backends, 20)?;
        within("--rounds", self.rounds, 100)?;
        within("--seconds", usize::try_from(self.seconds)?, 600)?;
        within("--connections", self.connections, 4_000)?;
        ensure!(
            self.connections.is_multiple_of(self.backends),
            "--connections must be a multiple of --backends: direct, each backend has its share"
        );
        Ok(self)
    }

    /// Length of a turn with objects of so many bytes. A proxy has one link.
    fn turn_s(&self, bytes: u64) -> u64 {
        let bits = bytes.saturating_mul(8 * 2 * self.connections as u64);
        let proxied_s = self
            .link()
            .map_or(0, |link| bits.div_ceil(link.bits_per_s()));
        self.seconds.max(proxied_s)
    }

    fn link(&self) -> Option<Rate> {
        (!self.unshaped).then_some(self.link)
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let labs = Labs::up(&args)?;
    let mut rows = Rows::open(args.rows.as_deref())?;
    for &bytes in &args.sizes {
        let objects = Objects::new(args.backends, bytes)?;
        labs.store(&objects)?;
        for system in System::ALL {
            labs.check(system, &objects)
                .with_context(|| format!("what {} serves", system.name()))?;
        }
        let mut is_warm = false;
        for round in 0..args.rounds {
            for system in System::ALL {
                let turn = Turn::of(&args, bytes, round, system.name());
                if rows.has(&turn) {
                    continue;
                }
                if !is_warm {
                    for system in System::ALL {
                        labs.load(system, &objects, args.connections, WARM_UP_S)?;
                    }
                    is_warm = true;
                }
                let ran = labs.load(system, &objects, args.connections, args.turn_s(bytes))?;
                ensure!(
                    ran.requests > 0,
                    "{}: no answer of {bytes} bytes ended within {} s",
                    system.name(),
                    args.turn_s(bytes)
                );
                let row = Row { turn, ran };
                eprintln!("{row}");
                rows.add(row)?;
            }
        }
        labs.remove(&objects)?;
    }
    match args.json {
        true => println!("{}", report::json(&rows)?),
        false => report::print(&rows),
    }
    Ok(())
}

/// Reads `4096`, `4K` or `4M`.
fn parse_size(text: &str) -> Result<u64, String> {
    let fault = || format!("{text:?} is not a size as in 4096, 4K or 4M");
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        _ => (Some(text), 0),
    };
    let number: u64 = number.unwrap_or_default().parse().map_err(|_| fault())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(fault)?;
    match (1..=64 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("{text:?} is not within 1 and 64M")),
    }
}
