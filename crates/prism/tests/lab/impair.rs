//! A bad way to the switch, no way to it, and nodes that die. Every request is answered once,
//! with the right bytes, on a connection without a reset.

mod deaths;
mod rollback;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::bed::{Bed, Way, run};
use crate::support::{Stop, eventually, say, turn};
use prism_lab::Families;
use prism_lab::impair::Faults;

/// The seed of faulty datagrams and requested objects.
const SEED: u64 = 0x5eed_2026;
/// Objects of a run, spread over three backends.
const OBJECTS: usize = 60;
/// Clients at a time.
const CONNECTIONS: u64 = 8;

const DROP: Faults = Faults {
    drop_permille: 20,
    duplicate_permille: 0,
    reorder_permille: 0,
};
const DUPLICATE: Faults = Faults {
    drop_permille: 0,
    duplicate_permille: 20,
    reorder_permille: 0,
};
const REORDER: Faults = Faults {
    drop_permille: 0,
    duplicate_permille: 0,
    reorder_permille: 20,
};
const ALL: Faults = Faults {
    drop_permille: 20,
    duplicate_permille: 20,
    reorder_permille: 20,
};

/// Counters of hand-offs that were rolled back, by reason.
const KEPT: [&str; 5] = [
    "kept_switch_silent",
    "kept_switch_refused",
    "kept_save_failed",
    "kept_target_refused",
    "kept_target_silent",
];

/// At least `hand_offs` over a way to the switch with `faults`.
fn hand_offs_end_right(label: &str, faults: Faults, family: Families, hand_offs: u64) {
    let Some(_turn) = turn() else { return };
    let way = Way::Impaired(Faults::default(), SEED);
    let bed = Bed::up_of(family, label, &way, |_| {});
    bed.fill(OBJECTS);
    let (moved_before, tally_before) = (bed.total("exports_moved"), bed.way().tally());
    bed.way().set_faults(faults);
    let resets = bed.watch_resets();
    // Two of three requests are for another backend than the last.
    let each = (hand_offs * 3).div_ceil(2 * CONNECTIONS) * 21 / 20;
    let run = run(&bed, CONNECTIONS, OBJECTS, SEED, |done| done >= each);
    bed.assert_drained();
    let stats = resets.stop().unwrap();

    let moved = bed.total("exports_moved") - moved_before;
    let (kept, tally) = (bed.total("exports_kept"), bed.way().tally());
    for reason in KEPT {
        match bed.total(reason) {
            0 => {}
            n => say(&format!("{label}: {n} {reason}")),
        }
    }
    say(&format!(
        "{label}: seed {SEED:#x}, {} requests in {:.1?}, slowest {:.1?}; {moved} hand-offs, \
         {kept} rolled back; datagrams {tally:?}",
        run.requests, run.took, run.slowest
    ));
    assert!(moved >= hand_offs, "only {moved} hand-offs");
    assert_eq!(
        bed.total("imported"),
        bed.total("exports_moved"),
        "a connection was taken twice, or by nobody"
    );
    assert_eq!(bed.total("exports_lost"), 0);
    assert_eq!(
        bed.total("imports_refused"),
        0,
        "{}{}",
        bed.lines_with("refused"),
        bed.lines_with("restore")
    );
    assert_eq!(bed.total("releases_failed"), 0);
    assert_eq!(
        bed.total("exports_started"),
        bed.total("exports_moved") + kept
    );
    assert_eq!((stats.captured, stats.dropped), (0, 0), "resets");
    let happened = |rate: u16, count: u64| assert_eq!(rate > 0, count > 0, "{tally:?}");
    happened(faults.drop_permille, tally.dropped - tally_before.dropped);
    happened(faults.duplicate_permille, tally.duplicated);
    happened(faults.reorder_permille, tally.reordered);
}

#[test]
fn hand_offs_end_right_while_control_datagrams_are_lost() {
    hand_offs_end_right("imp-drop", DROP, Families::Dual, 1_500);
}

#[test]
fn hand_offs_end_right_while_control_datagrams_are_doubled() {
    hand_offs_end_right("imp-dup", DUPLICATE, Families::Dual, 1_500);
}

#[test]
fn hand_offs_end_right_while_control_datagrams_change_places() {
    hand_offs_end_right("imp-order", REORDER, Families::Dual, 1_500);
}

#[test]
fn five_thousand_hand_offs_end_right_under_all_faults_at_once() {
    hand_offs_end_right("imp-all", ALL, Families::Dual, 5_000);
}

#[test]
fn hand_offs_end_right_without_ipv4_under_all_faults_at_once() {
    hand_offs_end_right("imp-six", ALL, Families::V6, 2_000);
}

#[test]
fn a_switch_out_of_reach_from_the_start_means_relaying_until_it_is_there() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up("imp-never", &Way::Blackhole);
    let resets = bed.watch_resets();
    bed.fill(OBJECTS);
    let relayed = run(&bed, 4, OBJECTS, SEED, |done| done >= 150);
    assert_eq!(bed.total("exports_moved"), 0);
    assert!(bed.total("kept_switch_silent") >= relayed.requests);
    assert_eq!(bed.flows(), [], "nobody could have told the switch");
    // The run may end before a node asks again.
    eventually("a node asks for the switch", Duration::from_secs(5), || {
        bed.way().tally().blackholed > 0
    });

    let mut waiting = bed.client();
    waiting.get(0);
    bed.way().set_blackhole(false);
    let back = Instant::now();
    // Each node asks for the switch by itself.
    let (nodes, backends) = (bed.nodes(), bed.backends());
    eventually("every node hands off", Duration::from_secs(5), || {
        let objects = backends.iter().map(|backend| bed.object_of(backend));
        objects.for_each(|n| waiting.get(n));
        nodes
            .iter()
            .all(|node| bed.count(node, "exports_moved") > 0)
    });
    let begun = back.elapsed();
    let moved_before = bed.total("exports_moved");
    let after = run(&bed, 4, OBJECTS, SEED + 1, |done| done >= 100);
    let moved = bed.total("exports_moved") - moved_before;
    assert!(moved > after.requests / 2, "only {moved} hand-offs");
    drop(waiting);
    bed.assert_drained();
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
    say(&format!(
        "relayed {} in {:.1?}, slowest {:.1?}; hand-offs {begun:.1?} after the switch was there",
        relayed.requests, relayed.took, relayed.slowest
    ));
}

#[test]
fn a_switch_that_falls_silent_in_a_run_costs_time_and_no_request() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up_with(
        "imp-gap",
        &Way::Impaired(Faults::default(), SEED),
        |config| {
            config.log.level = "debug".into();
        },
    );
    bed.fill(OBJECTS);
    let resets = bed.watch_resets();
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let (outcome, gaps) = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            run(&bed, CONNECTIONS, OBJECTS, SEED, |_| {
                served.fetch_add(1, Ordering::Relaxed);
                stop.load(Ordering::Relaxed)
            })
        });
        let stopping = Stop(&stop);
        let mut gaps = Vec::new();
        for length in [1_000, 1_500, 2_000] {
            std::thread::sleep(Duration::from_millis(700));
            bed.way().set_blackhole(true);
            let (moved, before) = (bed.total("exports_moved"), served.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(length));
            let in_gap = served.load(Ordering::Relaxed) - before;
            bed.way().set_blackhole(false);
            let back = Instant::now();
            if running.is_finished() {
                break;
            }
            eventually("hand-offs resume", Duration::from_secs(5), || {
                bed.total("exports_moved") > moved + 50
            });
            gaps.push((length, in_gap, back.elapsed()));
        }
        drop(stopping);
        let joined = running.join();
        (
            joined.unwrap_or_else(|p| std::panic::resume_unwind(p)),
            gaps,
        )
    });
    say(&format!(
        "{} requests, slowest {:.1?}; gaps (ms, requests answered within, hand-offs again after) \
         {gaps:.1?}; {} rolled back",
        outcome.requests,
        outcome.slowest,
        bed.total("exports_kept")
    ));
    assert!(gaps.iter().all(|(_, in_gap, _)| *in_gap > 0), "{gaps:?}");
    assert!(bed.total("kept_switch_silent") > 0);
    bed.assert_drained();
    assert_eq!(bed.total("exports_lost"), 0);
    assert_eq!(bed.total("imported"), bed.total("exports_moved"));
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}
