//! Seeded simulation of hand-offs: clients, a switch, a frontend and backends
//! in virtual time, around the real state machines, messages and flow table.
//! Every fault a run meets follows from its seed; a failure prints it, and
//! `PRISM_SIM_SEED=<seed>` repeats that one run of each scenario with a trace.
//! `PRISM_SIM_TIMES=<n>` runs n times as many seeds.
//!
//! Checked at every step:
//! - I1: no connection has two sockets that can send; epochs only grow;
//! - I2: each byte exactly once and in order, both ways; each request served once;
//! - I3: no RST, and no FIN before the last answer, reaches a client, unless a
//!   host crashed that had its connection;
//! - I5: each hand-off ends within its deadlines, no connection is lost or
//!   stands still;
//! - I6: when all is over, the flow table is empty;
//! - I7: a term that a node has made up begins no term, but for a few after a loss of the table.
//!
//! Not here: TLS and nonces (I4), the kernel, the data plane's own code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod announcing;
mod app;
mod client;
mod exporting;
mod faults;
mod frontends;
mod host;
mod importing;
mod leaving;
mod outcome;
mod scenario;
mod service;
mod switch;
mod tcp;
mod terms;
mod world;

use scenario::{Mutation, Scenario};
use world::{Stats, World};

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seed_to_repeat() -> Option<u64> {
    number_from("PRISM_SIM_SEED")
}

/// First failing seed of a scenario and what failed, or what all runs met.
fn explore(scenario: Scenario) -> Result<Stats, (u64, String)> {
    let mut total = Stats::default();
    let times = number_from("PRISM_SIM_TIMES").unwrap_or(1);
    for seed in 0..scenario.seeds * times {
        let stats = World::new(scenario, seed, false).run();
        let stats = stats.map_err(|what| (seed, what))?;
        total.requests += stats.requests;
        total.resets += stats.resets;
        total.given_up += stats.given_up;
        total.terms += stats.terms;
        total.settled += stats.settled;
        total.dropped += stats.dropped;
        total.longest_hand_off_ns = total.longest_hand_off_ns.max(stats.longest_hand_off_ns);
        for (outcome, count) in stats.outcomes {
            *total.outcomes.entry(outcome).or_default() += count;
        }
    }
    Ok(total)
}

/// Runs all seeds; the wanted outcomes of hand-offs must all have occurred.
fn holds(scenario: Scenario, wanted: &[&str]) {
    if let Some(seed) = seed_to_repeat() {
        let result = World::new(scenario, seed, true).run();
        assert!(result.is_ok(), "{}, seed {seed}: {result:?}", scenario.name);
        return;
    }
    let name = scenario.name;
    match explore(scenario) {
        Ok(stats) => {
            println!("{name}: {stats:?}");
            for outcome in wanted {
                let met = stats.outcomes.keys().any(|known| known.contains(outcome));
                assert!(met, "{name}: no hand-off ended as {outcome}: {stats:?}");
            }
        }
        Err((seed, what)) => {
            let _ = World::new(scenario, seed, true).run();
            panic!("{name}: {what}; repeat with PRISM_SIM_SEED={seed}");
        }
    }
}

#[test]
fn every_hand_off_moves_when_nothing_goes_wrong() {
    holds(Scenario::CALM, &["moved"]);
    if seed_to_repeat().is_none() {
        let stats = explore(Scenario::CALM).unwrap();
        assert_eq!(stats.outcomes.len(), 1, "{stats:?}");
    }
}

#[test]
fn nothing_is_lost_with_two_percent_of_control_datagrams_faulty() {
    holds(
        Scenario::LOSSY,
        &["moved", "Busy", "RestoreFailed", "SaveFailed"],
    );
}

#[test]
fn nothing_is_lost_in_a_storm() {
    holds(Scenario::STORMY, &["moved", "TargetSilent"]);
}

#[test]
fn forged_syns_touch_no_connection() {
    holds(Scenario::FORGERIES, &["moved"]);
}

#[test]
fn nothing_is_lost_while_the_switch_is_out_of_reach() {
    holds(
        Scenario::OUTAGES,
        &["moved", "SwitchSilent", "TargetSilent", "SwitchFailed"],
    );
}

#[test]
fn a_change_of_the_frontends_touches_no_connection() {
    holds(Scenario::FRONTENDS, &["moved"]);
}

#[test]
fn nothing_comes_back_after_its_tombstone_is_gone() {
    holds(Scenario::ISOLATED, &["moved", "TargetSilent"]);
}

#[test]
fn nothing_is_lost_when_all_faults_but_crashes_meet() {
    holds(Scenario::WORST, &["moved", "SwitchSilent", "TargetSilent"]);
}

#[test]
fn a_crash_costs_only_the_connections_of_its_host() {
    holds(Scenario::CRASHES, &["moved", "TargetSilent"]);
}

#[test]
fn a_host_that_stops_in_order_costs_nobody_anything() {
    holds(Scenario::LEAVES, &["passed over", "stopped", "Unwilling"]);
}

#[test]
fn a_full_table_means_relaying_and_no_loss() {
    holds(Scenario::FULL_TABLE, &["moved", "SwitchRefused(Full)"]);
}

#[test]
fn a_switch_far_away_only_costs_time() {
    holds(Scenario::FAR_SWITCH, &["moved"]);
}

#[test]
fn nothing_is_lost_when_the_switch_loses_its_table() {
    holds(Scenario::REBOOTS, &["moved", "SwitchSilent"]);
}

#[test]
fn nothing_is_lost_when_another_switch_takes_over() {
    holds(
        Scenario::TAKEOVERS,
        &["moved", "SwitchSilent", "SwitchFailed"],
    );
}

#[test]
fn clocks_that_jump_change_no_order_of_epochs() {
    holds(Scenario::CLOCKS, &["moved"]);
}

#[test]
fn a_node_that_is_late_in_a_young_term_loses_nothing() {
    holds(Scenario::LOST_REACH, &["moved", "SwitchSilent"]);
}

#[test]
fn a_node_that_makes_terms_up_costs_nobody_anything() {
    holds(Scenario::LIES, &["moved", "SwitchSilent"]);
}

#[test]
fn a_node_that_dies_in_a_young_term_costs_only_its_own_connections() {
    holds(Scenario::YOUNG_DEATHS, &["moved"]);
}

#[test]
fn nothing_is_lost_when_the_switch_fails_in_the_middle_of_a_step() {
    holds(Scenario::STRIKES, &["moved", "SwitchSilent"]);
}

#[test]
fn a_change_of_the_frontends_in_a_young_term_touches_no_connection() {
    holds(Scenario::YOUNG_LISTS, &["moved"]);
}

#[test]
fn nothing_is_lost_in_host_mode() {
    holds(
        Scenario::HOST_WORST,
        &["moved", "SwitchSilent", "TargetSilent"],
    );
}

#[test]
fn a_crash_in_host_mode_leaves_no_flow_behind() {
    holds(Scenario::HOST_CRASHES, &["moved", "TargetSilent"]);
}

#[test]
fn nothing_is_lost_when_another_frontend_becomes_the_arbiter() {
    holds(Scenario::HOST_TAKEOVERS, &["moved", "SwitchSilent"]);
}

#[test]
fn no_host_sends_without_a_right_while_the_arbiter_is_out_of_reach() {
    holds(Scenario::HOST_ISOLATED, &["moved", "SwitchSilent"]);
}

#[test]
fn nothing_is_lost_when_several_frontends_accept() {
    holds(Scenario::HOST_SPREAD, &["moved", "SwitchSilent"]);
}

#[test]
fn the_checks_find_a_broken_rule_of_host_mode() {
    finds(&[
        (Mutation::TargetIsHeard, Scenario::HOST_WORST),
        (Mutation::TargetIsLiveUnanswered, Scenario::HOST_WORST),
        (Mutation::SourceDoesNotAsk, Scenario::HOST_WORST),
        (Mutation::RefusedIsEnough, Scenario::HOST_WORST),
        (Mutation::FrozenSends, Scenario::HOST_WORST),
        (Mutation::StrangersReset, Scenario::HOST_WORST),
        (Mutation::DoubtOutlivesTerm, Scenario::HOST_ISOLATED),
        (Mutation::OldAnswersCount, Scenario::HOST_TAKEOVERS),
        (Mutation::StandbyDecides, Scenario::HOST_TAKEOVERS),
        (Mutation::YoungDecides, Scenario::HOST_ISOLATED),
        (Mutation::NoDropWhileYoung, Scenario::HOST_TAKEOVERS),
        (Mutation::MuteSocketsTake, Scenario::HOST_SPREAD),
        (Mutation::UnclaimedReset, Scenario::HOST_SPREAD),
        (Mutation::AbsentAtOnce, Scenario::HOST_TAKEOVERS),
        (Mutation::RemainsStay, Scenario::HOST_CRASHES),
    ]);
}

#[test]
fn the_checks_find_a_broken_rule_of_terms() {
    finds(&[
        (Mutation::AnnouncementsWin, Scenario::TAKEOVERS),
        (Mutation::SettlesAtOnce, Scenario::REBOOTS),
        (Mutation::YoungDecides, Scenario::STRIKES),
        (Mutation::StandbyDecides, Scenario::TAKEOVERS),
        (Mutation::OneNodeIsBelieved, Scenario::LIES),
        (Mutation::CopiesCount, Scenario::TAKEOVERS),
        (Mutation::OldAnswersCount, Scenario::YOUNG_LISTS),
        (Mutation::NoDropWhileYoung, Scenario::REBOOTS),
        (Mutation::AnyPacketOpens, Scenario::YOUNG_LISTS),
        (Mutation::UnclaimedWait, Scenario::YOUNG_LISTS),
    ]);
}

/// Each mutation fails in its scenario.
fn finds(broken: &[(Mutation, Scenario)]) {
    if seed_to_repeat().is_some() {
        return;
    }
    let unfound: Vec<_> = broken
        .iter()
        .filter(|(mutation, scenario)| {
            let found = explore(Scenario {
                mutation: *mutation,
                ..*scenario
            });
            println!("{mutation:?}: {found:?}");
            found.is_ok()
        })
        .map(|(mutation, _)| *mutation)
        .collect();
    assert!(unfound.is_empty(), "{unfound:?} were not found");
}

#[test]
fn the_checks_find_a_broken_rule() {
    if seed_to_repeat().is_some() {
        return;
    }
    for (mutation, scenario) in [
        (Mutation::SwitchIgnoresEpochs, Scenario::OUTAGES),
        (Mutation::TargetOutranksSource, Scenario::OUTAGES),
        (Mutation::SourceDoesNotAsk, Scenario::OUTAGES),
        (Mutation::TargetClosesAtOnce, Scenario::OUTAGES),
        (Mutation::TargetForgetsWhatItHeard, Scenario::OUTAGES),
        (Mutation::TombstonesAreForgotten, Scenario::ISOLATED),
        (Mutation::SynEndsFlow, Scenario::LOSSY),
        (Mutation::SynForgetsFrontend, Scenario::FORGERIES),
        (Mutation::NobodyClaims, Scenario::FRONTENDS),
        (Mutation::ListChangesAtOnce, Scenario::FRONTENDS),
    ] {
        let found = explore(Scenario {
            mutation,
            ..scenario
        });
        println!("{mutation:?}: {found:?}");
        assert!(found.is_err(), "{mutation:?} was not found");
    }
    let mutation = Mutation::LeaverTakes;
    let found = explore(Scenario {
        mutation,
        ..Scenario::LEAVES
    });
    println!("{mutation:?}: {found:?}");
    assert!(found.is_err(), "{mutation:?} was not found");
}
