//! A process that is killed at any moment loses no answered write, and leaves none half done.

use std::time::Duration;

use crate::common::workload::{From, Model, run_and_kill, write_until_killed};

/// The number of kills, which `PRISM_CRASH_KILLS=300` sets.
fn kills() -> u64 {
    let asked = std::env::var("PRISM_CRASH_KILLS").ok();
    asked.map_or(40, |kills| kills.parse().unwrap())
}

#[test]
fn answered_writes_survive_sigkill_and_others_happen_entirely_or_not_at_all() {
    let base_seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(base_seed);
    let parent = tempfile::tempdir().unwrap();
    // The directory is missing, so that the first kills also hit its creation.
    let dir = parent.path().join("store");
    let mut model = Model::default();
    let kills = kills();
    for kill in 0..kills {
        let (from, longest) = match kill {
            0..8 => (From::Start, 40_000),
            _ => (From::FirstWrite, 80_000),
        };
        let after = Duration::from_micros(rng.u64(..longest));
        let context = format!("seed {base_seed}, kill {kill}, after {after:?}");
        run_and_kill(
            &mut model,
            "crash::writer",
            &dir,
            rng.u64(..1 << 32),
            (from, after),
            None,
        );
        model.judge(&dir, &context);
    }
    println!(
        "{} answers over {kills} kills, seed {base_seed}",
        model.answers
    );
    assert!(model.answers > kills, "the writer hardly got to write");
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "started by the test above"]
fn writer() {
    write_until_killed();
}
