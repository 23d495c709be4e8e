//! Seeded simulation of one cluster of which any component is put back from an earlier copy: etcd,
//! one store, several, or etcd and stores at once. There are 3 or 4 backends, 1 or 2 frontends,
//! clients, and an administrator who changes users and recovers the cluster. Copies are taken of
//! running and of stopped components. Nodes are killed, cut off from etcd, and hear of it late. A
//! restored etcd is changed by nodes and commands that have not noticed. Every event follows from
//! the seed. A failure prints it, and `PRISM_SIM_SEED=<seed>` repeats that one history.
//! `PRISM_SIM_TIMES=<n>` runs n times as many.
//!
//! Checked:
//! - no node admits a user by an older copy of the users than it has acted by. After a recovery
//!   no user is open again that a claiming node knows to be deleted, limited or renewed;
//! - no node goes on against the claim of a store for longer than it takes to hear of it;
//! - an answered write is neither missing nor old at a backend that serves it;
//! - no backend in sync removes the objects of a life of the bucket that has not ended, and
//!   answered records of the bucket are in the registry in the end;
//! - what keeps the contents causes no fault: a new revision of etcd, the same contents put back,
//!   restarts, a store that is moved. Only stores that have been reverted become other ones;
//! - after each phase of faults everything serves again. The administrator decides about lost
//!   writes only if `recover` refuses.
//!
//! The rules are those of the crate. What `prism-membership`, `prism-replicas` and `prism ctl` do
//! with them is mirrored in small functions, which name what they mirror. What is not promised is
//! forgiven exactly where it happens, with the reason: see `forgive_*`, and the functions that
//! call them. `steps` has changes of the placing in depth, `simulation` has single objects, and
//! `buckets` has the steps of a deletion.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod administrator;
mod buckets;
mod etcd;
mod membership;
mod node;
mod objects;
mod restore;
mod world;

use std::ops::Range;
use std::time::Instant;

use world::{Met, World};

/// A rule that a history breaks, to see whether the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A node does not compare the lineage.
    LineageIgnored,
    /// Only the counts of two lineages are compared.
    CountOnly,
    /// A node acts by a change before it notes it.
    NotedAfter,
    /// A node changes contents that do not descend from those that it has acted by.
    ChangeUnconditional,
    /// A recovery does not found another lineage.
    RecoverKeepsLineage,
    /// A recovery takes the users as etcd has them.
    RecoverKeepsUsers,
    /// A node does not note that a user was deleted.
    DeletionsNotNoted,
    /// A store is not compared with its mark.
    MarkIgnored,
    /// Only the commits of a store and its mark are compared.
    CommitsOnly,
    /// A backend gets a lease without reporting its mark.
    LeaseBeforeMark,
    /// Stores do not note the marks of others.
    MarksNotNoted,
    /// A node does not hear what others claim.
    ClaimsUnheard,
    /// An older copy of a store keeps its identity.
    KeepsIdentity,
    /// The living one of two copies of a store that have both reported marks stays.
    BranchesKept,
    /// While the state is in doubt, a node puts back marks by its own store's state.
    OwnStateCounts,
    /// A backend that has caught up says so before it reports its mark.
    CaughtUpUnmarked,
    /// A store that the state does not name is one of another cluster.
    UnnamedForeign,
    /// A backend deletes the objects of a life although nothing proves that it has ended.
    UnprovenPurge,
    /// A backend does not compare what the asking node has heard.
    AskerIgnored,
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The events of all histories, or the first seed that failed, with its fault.
fn explore(seeds: Range<u64>, mutation: Option<Mutation>) -> Result<Met, String> {
    let range = match number_from("PRISM_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    let mut met = Met::default();
    for seed in range {
        let run = World::new(seed, mutation).run();
        met += run.map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(met)
}

#[test]
fn nothing_comes_back_from_the_past_whichever_component_is_restored() {
    let begun = Instant::now();
    let times = number_from("PRISM_SIM_TIMES").unwrap_or(1);
    let met = explore(0..1_000 * times, None).unwrap();
    println!("{met:?}, {:.1?}", begun.elapsed());
    if number_from("PRISM_SIM_SEED").is_none() {
        check_met(&met);
    }
}

/// Every kind of event has happened.
fn check_met(met: &Met) {
    let counts = [
        ("restores of etcd", met.etcd_restored, 500),
        ("restores of a store", met.store_restored, 500),
        ("restores of several stores", met.stores_restored, 250),
        ("restores of etcd and stores", met.both_restored, 500),
        ("restores of the same contents", met.same_restored, 500),
        ("silent operations", met.silent, 2_000),
        ("restored etcds with writes or steps", met.forked, 100),
        ("faults heard", met.faults, 10_000),
        ("recoveries", met.recoveries, 500),
        ("recoveries with decisions", met.decisions, 200),
        ("recoveries refused", met.refused_recoveries, 1_000),
        ("stores renewed", met.renewed, 500),
        ("marks put back", met.marks_put_back, 1_000),
        ("catch-ups", met.caught_up, 2_000),
        ("steps", met.steps, 2_000),
        ("leases", met.leases, 5_000),
        ("writes", met.writes, 5_000),
        ("reads", met.reads, 10_000),
        ("askers that know more", met.behind, 50),
        ("changes of users", met.users, 5_000),
        ("changes of the bucket", met.buckets, 2_000),
        ("records put back", met.corrections, 300),
        ("lives refused", met.refused, 50),
    ];
    let rare: Vec<_> = counts
        .iter()
        .filter(|(_, met, least)| met < least)
        .collect();
    assert!(rare.is_empty(), "too few: {rare:?}");
    // Losses that are forgiven stay rare beside those that are noticed.
    let forgiven = met.raced + met.misled + met.contrary + met.out_of_range + met.deleted_again;
    assert!(10 * forgiven < met.renewed + met.recoveries, "{met:?}");
}

#[test]
fn broken_rules_are_found() {
    use Mutation::*;
    for mutation in [
        LineageIgnored,
        CountOnly,
        NotedAfter,
        ChangeUnconditional,
        RecoverKeepsLineage,
        RecoverKeepsUsers,
        DeletionsNotNoted,
        MarkIgnored,
        CommitsOnly,
        LeaseBeforeMark,
        MarksNotNoted,
        ClaimsUnheard,
        KeepsIdentity,
        BranchesKept,
        OwnStateCounts,
        CaughtUpUnmarked,
        UnnamedForeign,
        UnprovenPurge,
        AskerIgnored,
    ] {
        let begun = Instant::now();
        let found = explore(0..20_000, Some(mutation));
        println!(
            "{mutation:?}: {:?}, {:.1?}",
            found.as_ref().err(),
            begun.elapsed()
        );
        assert!(found.is_err(), "{mutation:?} was not found");
    }
}
