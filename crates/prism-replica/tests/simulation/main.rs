//! Seeded simulation of replicas: three nodes, clients that write, delete, change
//! and read three keys, in virtual time, around the real decisions. Messages are
//! lost, doubled, late and out of order; nodes are cut off, crash, lose what was
//! not on their disk yet, and come back with another clock. Every fault follows
//! from the seed; a failure prints it, and `PRISM_SIM_SEED=<seed>` repeats that one
//! run. `PRISM_SIM_TIMES=<n>` runs n times as many seeds.
//!
//! Checked:
//! - what clients saw of each key is linearizable, whichever replica they read;
//! - when all is well again, the replicas are identical, nothing is pending, and
//!   no deletion is remembered;
//! - with no faults, every operation is answered.
//!
//! Not here: what the changes are, disks, and the messages' form.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod client;
mod node;
mod protocol;
mod world;

use std::time::Instant;

use world::{Faults, World};

/// A rule that a run breaks, to see whether the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A replica serves what it holds although something is pending.
    ReadWithoutAsking,
    /// The primary does not wait for the last replica.
    CommitEarly,
    /// A replica applies what it is asked to prepare.
    ApplyAtOnce,
    /// A change that the primary does not know is taken to have happened.
    PresumeCommitted,
    /// An older pending change is dropped, whatever became of it.
    DropOlder,
    /// The primary calls a change under way until everybody has heard of it.
    UnderWayTooLong,
    /// Deletions leave nothing behind.
    NoTombstones,
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What all runs met, or the first seed that failed, and how.
fn explore(seeds: u64, faults: Faults, mutation: Option<Mutation>) -> Result<[u64; 3], String> {
    let times = number_from("PRISM_SIM_TIMES").unwrap_or(1);
    let range = match number_from("PRISM_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds * times,
    };
    let mut met = [0; 3];
    for seed in range {
        let run = World::new(seed, faults, mutation).run();
        let stats = run.map_err(|what| format!("seed {seed}: {what}"))?;
        met.iter_mut().zip(stats).for_each(|(sum, n)| *sum += n);
    }
    Ok(met)
}

#[test]
fn without_faults_everything_is_answered_and_all_replicas_agree() {
    let [answered, given_up, crashes] = explore(100, Faults::None, None).unwrap();
    assert_eq!((given_up, crashes), (0, 0));
    assert!(answered > 0);
}

#[test]
fn whatever_fails_histories_are_linearizable_and_replicas_end_up_identical() {
    let begun = Instant::now();
    let [answered, given_up, crashes] = explore(1_000, Faults::All, None).unwrap();
    println!(
        "{answered} answered, {given_up} given up, {crashes} crashes, {:.1?}",
        begun.elapsed()
    );
    let is_one = number_from("PRISM_SIM_SEED").is_some();
    assert!(is_one || (answered > 10_000 && given_up > 1_000 && crashes > 1_000));
}

#[test]
fn broken_rules_are_found() {
    use Mutation::*;
    let all = [
        ReadWithoutAsking,
        CommitEarly,
        ApplyAtOnce,
        PresumeCommitted,
        DropOlder,
        UnderWayTooLong,
        NoTombstones,
    ];
    for mutation in all {
        let found = explore(4_000, Faults::All, Some(mutation));
        println!("{mutation:?}: {found:?}");
        assert!(found.is_err(), "{mutation:?} was not found");
    }
}
