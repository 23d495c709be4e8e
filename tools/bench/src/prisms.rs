//! Clusters of Prism that differ in little, side by side, which take turns under the
//! same client.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::rows::Case;
use crate::summary::Summary;
use crate::turns::{Job, Options, Turns, within};

/// Objects of each backend.
const OBJECTS: usize = 8;

/// What all of them have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,1K,2K,4K,8K,16K,32K,64K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 100, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

/// What one of them differs in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind<'k> {
    pub(crate) relay_up_to: RelayUpTo,
    /// Another program than that of `--prism`.
    pub(crate) program: Option<&'k Path>,
}

impl Common {
    /// With what `--quick` means, and checked.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.options.quick {
            self.sizes = vec![1 << 10, 4 << 10, 16 << 10];
        }
        self.options.settle(3, 2)?;
        self.network.check()?;
        within("--connections", self.connections, 4_000)?;
        ensure!(
            self.sizes.iter().all(|bytes| u32::try_from(*bytes).is_ok()),
            "--sizes must be below 4 GiB"
        );
        Ok(())
    }

    /// What every row of a size has.
    pub(crate) fn case(&self, bytes: u64) -> Case {
        let case = self.network.case().with("connections", self.connections);
        case.with("bytes", bytes)
    }
}

/// Measures `summary`, and tells what came out. Each of `jobs`, which gives those of a
/// size, is for the cluster of `kinds` with the number that it has.
///
/// # Errors
/// When a cluster cannot be built, or does not answer as it should.
pub(crate) fn run<const N: usize>(
    common: &Common,
    summary: &Summary,
    kinds: [Kind<'_>; N],
    jobs: impl Fn(u64) -> [Job<usize>; N],
) -> Result<()> {
    let sizes = &common.sizes;
    let mut turns = Turns::begin(&common.options, summary.result, sizes.len() * N)?;
    if sizes.iter().any(|bytes| turns.wants(&jobs(*bytes))) {
        measure(common, kinds, &mut turns, jobs)?;
    }
    summary.tell(turns.rows(), common.options.json)
}

fn measure<const N: usize>(
    common: &Common,
    kinds: [Kind<'_>; N],
    turns: &mut Turns,
    jobs: impl Fn(u64) -> [Job<usize>; N],
) -> Result<()> {
    let (network, connections) = (&common.network, common.connections);
    let clusters = kinds.map(|kind| {
        Cluster::up(&Setup {
            network,
            systems: &[System::Prism],
            program: kind.program.or(common.options.prism.as_deref()),
            replicas: 1,
            relay_up_to: kind.relay_up_to,
            configure: |_| (),
            cancel: turns.cancel(),
        })
    });
    let clusters = clusters.into_iter().collect::<Result<Vec<_>>>()?;
    for &bytes in &common.sizes {
        let jobs = jobs(bytes);
        if !turns.wants(&jobs) {
            turns.pass(&jobs);
            continue;
        }
        let objects = Objects::new(network.backends, OBJECTS, bytes)?;
        for cluster in &clusters {
            cluster.store(&objects)?;
            cluster.check(&objects)?;
        }
        let load = Load::of(&objects, connections);
        let turn_s = network.turn_s(common.options.seconds, bytes, connections);
        turns.run(&jobs, |kind, warm_up_s| {
            let cluster = clusters.get(*kind).context("no such cluster")?;
            cluster.load(System::Prism, &load, warm_up_s.unwrap_or(turn_s))
        })?;
        for cluster in &clusters {
            cluster.remove(&objects)?;
        }
    }
    Ok(())
}
