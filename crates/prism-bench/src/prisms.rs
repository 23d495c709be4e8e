//! Clusters of Prism that differ in little, side by side, which take turns under the
//! same client.

use std::path::Path;

use anyhow::{Context, Result};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::Objects;
use crate::turns::{Job, Options, Turns};

/// Objects of each backend.
const OBJECTS: usize = 8;

/// What one of them differs in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind<'k> {
    pub(crate) relay_up_to: RelayUpTo,
    /// Another program than this one.
    pub(crate) program: Option<&'k Path>,
}

/// What all of them have in common.
pub(crate) struct Common<'c> {
    pub(crate) network: &'c Network,
    pub(crate) options: &'c Options,
    pub(crate) sizes: &'c [u64],
    pub(crate) connections: usize,
}

/// Measures what is missing of `jobs`, which gives those of a size: each is for the
/// cluster of `kinds` with the number that it has.
///
/// # Errors
/// When a cluster cannot be built, or does not answer as it should.
pub(crate) fn measure<const N: usize>(
    common: &Common<'_>,
    kinds: [Kind<'_>; N],
    turns: &mut Turns,
    jobs: impl Fn(u64) -> [Job<usize>; N],
) -> Result<()> {
    let Common {
        network,
        options,
        sizes,
        connections,
    } = *common;
    if !sizes.iter().any(|bytes| turns.wants(&jobs(*bytes))) {
        return Ok(());
    }
    let clusters = kinds.map(|kind| {
        Cluster::up(&Setup {
            network,
            systems: &[System::Prism],
            program: kind.program,
            replicas: 1,
            relay_up_to: kind.relay_up_to,
            configure: |_| (),
            cancel: turns.cancel(),
        })
    });
    let clusters = clusters.into_iter().collect::<Result<Vec<_>>>()?;
    for &bytes in sizes {
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
        let turn_s = network.turn_s(options.seconds, bytes, connections);
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
