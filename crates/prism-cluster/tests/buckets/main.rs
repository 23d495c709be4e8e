//! Seeded simulation of a bucket's lives around the real decisions. There are three backends, and
//! clients that create and delete one bucket, change its settings, and write and delete its
//! objects. Backends are killed, cut off from the registry, taken out of the cluster and taken
//! back. The registry loses its records, or an earlier copy replaces it. The node that makes an
//! operation dies at any step. Messages come late, twice or never.
//! Backends compare their objects, and deletions are forgotten. Every fault follows from the seed.
//! A failure prints it, and `PRISM_SIM_SEED=<seed>` repeats that one run.
//!
//! Checked:
//! - every backend that serves says that the bucket exists if and only if that is agreed;
//! - an answered change of a document is in force at every node;
//! - an answered object is there for as long as the bucket lives, and no longer: none is
//!   lost with a deletion, and none is found in another life;
//! - when all is well again, all backends have the same record and the same objects.
//!
//! `simulation` is about the replication of single objects. Here a write is made at all backends at
//! once, or at none.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod operations;
mod world;

use world::World;

/// A rule that a run breaks, to see whether the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A bucket that another backend lacks is removed.
    DeleteByAbsence,
    /// A bucket that is gone leaves no record.
    NoTombstone,
    /// The record is forgotten although a backend is away that has not seen it.
    ForgetEarly,
    /// A creation is answered before it is agreed.
    AnsweredEarly,
    /// A backend takes a bucket that it does not know for missing.
    MissIsAbsence,
    /// A deletion does not wait until every backend refuses writes.
    Unsealed,
    /// A change of a document is answered before every backend acts by it.
    DocumentsEarly,
    /// Objects of any life are taken in.
    StaleLife,
    /// A backend accepts the next life with objects of the one before.
    KeepsOldLife,
    /// A record counts though a later one is known.
    OldRecords,
    /// A backend deletes the objects of a life although nothing proves that it has ended.
    UnprovenPurge,
    /// An earlier life replaces a later one.
    EarlierLife,
    /// A backend that is not in sync puts back what it takes for lost.
    CorrectedByAny,
}

fn explore(seeds: std::ops::Range<u64>, mutation: Option<Mutation>) -> Result<u64, String> {
    let seed = std::env::var("PRISM_SIM_SEED").ok();
    let range = match seed.and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    let mut answered = 0;
    for seed in range {
        let run = World::new(seed, mutation).run();
        answered += run.map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(answered)
}

#[test]
fn whatever_fails_all_backends_agree_and_no_answered_object_is_lost() {
    let answered = explore(0..10_000, None).unwrap();
    println!("{answered} operations answered");
    let is_one = std::env::var("PRISM_SIM_SEED").is_ok();
    assert!(is_one || answered > 100_000, "{answered}");
}

#[test]
fn broken_rules_are_found() {
    use Mutation::*;
    for mutation in [
        DeleteByAbsence,
        NoTombstone,
        ForgetEarly,
        AnsweredEarly,
        MissIsAbsence,
        Unsealed,
        DocumentsEarly,
        StaleLife,
        KeepsOldLife,
        OldRecords,
        UnprovenPurge,
        EarlierLife,
        CorrectedByAny,
    ] {
        let found = explore(0..60_000, Some(mutation));
        println!("{mutation:?}: {:?}", found.as_ref().err());
        assert!(found.is_err(), "{mutation:?} was not found");
    }
}
