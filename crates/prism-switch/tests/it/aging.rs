//! Aging: the agent removes unused flows, and never one that is in use.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::common::packet::Tcp;
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{FlowState, Ops, Status};
use prism_switch::{Aged, Switch, SwitchConfig};

fn quick(config: &mut SwitchConfig) {
    config.idle = Duration::from_millis(600);
    config.blocked = Duration::from_millis(200);
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.ip(), port)
}

#[test]
fn idle_and_long_blocked_flows_end_and_used_ones_stay() {
    in_lab("idle", quick, |lab| {
        let mut agent = lab.agent();
        lab.own(client(1), BACKEND, 5);
        lab.own(client(2), BACKEND, 5);
        lab.own(client(3), BACKEND, 5);
        lab.plain(Ops::BLOCK, client(3), 6);
        assert_eq!(agent.step(Instant::now()).unwrap(), Aged::default());
        let state = |port| {
            let f = lab.view.flow_of(&flow(client(port))).unwrap().unwrap();
            (f.state, f.epoch)
        };
        let (mut expired, mut reset) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(400) {
            lab.run(Hook::Tc, &Tcp::new(client(1), VIP).build());
            // Dropped packets do not keep a blocked flow.
            lab.run(Hook::Tc, &Tcp::new(client(3), VIP).build());
            let aged = agent.step(Instant::now()).unwrap();
            (expired, reset) = (expired + aged.expired, reset + aged.reset);
            pause(10);
        }
        // The hand-off of this flow never ended: its client is reset.
        assert_eq!((expired, reset), (1, 1));
        assert_eq!(state(3), (FlowState::Absent, 6));
        assert_eq!(state(2).0, FlowState::Forward);
        while start.elapsed() < Duration::from_millis(1000) {
            lab.run(Hook::Tc, &Tcp::new(client(1), VIP).build());
            expired += agent.step(Instant::now()).unwrap().expired;
            pause(10);
        }
        assert_eq!((expired, state(2)), (2, (FlowState::Absent, 5)));
        assert_eq!(state(1), (FlowState::Forward, 5));
        assert_eq!(lab.counter("flow_expired"), 1);
        assert_eq!(lab.counter("flow_reset"), 1);
        let late = lab.run(Hook::Tc, &Tcp::new(BACKEND, client(2)).build());
        assert_eq!(late.verdict, Verdict::Drop, "its owner is nobody now");
    });
}

#[test]
fn no_command_outlives_the_tombstone_that_outranks_it() {
    in_lab("tombstone", quick, |lab| {
        let mut agent = lab.agent();
        lab.own(client(1), BACKEND, 5);
        lab.plain(Ops::RELEASE, client(1), 6);
        let start = Instant::now();
        let mut collected = 0;
        while collected == 0 && start.elapsed() < Duration::from_secs(10) {
            pause(50);
            collected = agent.step(Instant::now()).unwrap().collected;
        }
        assert_eq!(collected, 1);
        assert!(
            start.elapsed() >= lab.config.tombstone,
            "{:?}",
            start.elapsed()
        );
        assert!(lab.flows().is_empty(), "the table is empty");
        assert_eq!(lab.counter("flow_collected"), 1);
        // A source that was cut off claims its flow again, which was released meanwhile.
        let late = lab.own(client(1), BACKEND2, 5);
        assert_eq!((late.status, late.epoch), (Status::Stale, 6));
        assert_eq!(lab.own(client(2), BACKEND2, 6).status, Status::Stale);
        let new = Switch::load(&lab.config).unwrap();
        assert_eq!(lab.own(client(1), BACKEND2, 6).status, Status::Stale);
        drop(new);
        assert_eq!(lab.own(client(1), BACKEND2, 7).status, Status::Ok);
    });
}

#[test]
fn many_flows_are_listed_and_aged_completely() {
    let count = 3000;
    in_lab("many", quick, |lab| {
        for port in 1..=count {
            assert_eq!(lab.own(client(port), BACKEND, 5).status, Status::Ok);
        }
        let mut ports: Vec<_> = lab.flows().iter().map(|f| f.flow.client.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), usize::from(count));
        pause(700);
        let mut agent = lab.agent();
        let mut expired = 0;
        for _ in 0..3 {
            expired += agent.step(Instant::now()).unwrap().expired;
        }
        assert_eq!((expired, lab.live()), (u32::from(count), 0));
    });
}

#[test]
fn walks_count_the_flows_of_each_node() {
    in_lab(
        "census",
        |_| {},
        |lab| {
            let mut agent = lab.agent();
            let last = agent.census();
            assert_eq!(last.get(), None, "no walk has ended");
            let mut counted = || {
                agent.step(Instant::now()).unwrap();
                let census = last.get().unwrap();
                let of = |node: &SocketAddr| census.of_nodes.get(&node.ip()).copied();
                (of(&BACKEND), of(&BACKEND2), census.tombstones)
            };
            assert_eq!(counted(), (None, None, 0));
            for port in 1..=2000 {
                let owner = if port % 4 == 0 { BACKEND2 } else { BACKEND };
                lab.own(client(port), owner, 5);
            }
            assert_eq!(counted(), (Some(1500), Some(500), 0));
            lab.own(client(4), BACKEND, 6);
            lab.plain(Ops::RELEASE, client(1), 6);
            lab.plain(Ops::RELEASE, client(8), 6);
            assert_eq!(counted(), (Some(1500), Some(498), 2));
            assert_eq!(last.get().unwrap().entries(), 2000);
        },
    );
}

/// Packets, commands and aging on several CPUs at once, with limits so short that flows expire
/// meanwhile. In any order, a flow with an acknowledged command works until it is ended, and both
/// tables agree.
#[test]
fn commands_packets_and_aging_race_without_losing_a_flow() {
    let adjust = |config: &mut SwitchConfig| {
        quick(config);
        config.idle = Duration::from_millis(1);
        config.blocked = Duration::from_millis(1);
    };
    in_lab("race", adjust, |lab| {
        let stop = AtomicBool::new(false);
        let expired = AtomicU64::new(0);
        let epoch = AtomicU64::new(1);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut agent = lab.agent();
                while !stop.load(Ordering::Relaxed) {
                    let aged = agent.step(Instant::now()).unwrap();
                    expired.fetch_add(aged.expired.into(), Ordering::Relaxed);
                }
            });
            for owner in [BACKEND, BACKEND2] {
                let (stop, epoch) = (&stop, &epoch);
                s.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(u64::from(owner.port()));
                    while !stop.load(Ordering::Relaxed) {
                        let to = client(random.u16(1..4));
                        let next = epoch.fetch_add(1, Ordering::Relaxed);
                        let first = lab.own(to, owner, next);
                        lab.run(Hook::Tc, &Tcp::new(to, VIP).build());
                        lab.run(Hook::Tc, &Tcp::new(owner, to).build());
                        if first.status == Status::Ok {
                            assert_eq!(first.epoch, next);
                        }
                    }
                });
            }
            pause(3000);
            stop.store(true, Ordering::Relaxed);
        });
        assert!(expired.load(Ordering::Relaxed) > 100, "{expired:?}");
        // All threads have ended: the owner of each flow can answer, and nobody else.
        for port in 1..4 {
            let next = epoch.fetch_add(2, Ordering::Relaxed);
            assert_eq!(lab.own(client(port), BACKEND, next).status, Status::Ok);
            let answer = |from| {
                lab.run(Hook::Tc, &Tcp::new(from, client(port)).build())
                    .verdict
            };
            assert_eq!(
                (answer(BACKEND), answer(BACKEND2)),
                (Verdict::Send, Verdict::Drop)
            );
        }
    });
}

/// Tombstones are deleted while commands for the same flows arrive. No command is lost, and no
/// entry of a command is deleted.
#[test]
fn commands_win_against_the_collection_of_tombstones() {
    const CLIENTS: u16 = 1500;
    let adjust = |config: &mut SwitchConfig| {
        quick(config);
        config.idle = Duration::from_secs(60);
    };
    in_lab("collect", adjust, |lab| {
        for port in 1..=CLIENTS {
            lab.own(client(port), BACKEND, 5);
            lab.plain(Ops::RELEASE, client(port), 6);
        }
        pause(4800);
        let stop = AtomicBool::new(false);
        let collected = std::thread::scope(|s| {
            let agent = s.spawn(|| {
                let mut agent = lab.agent();
                let mut collected = 0;
                while !stop.load(Ordering::Relaxed) {
                    collected += agent.step(Instant::now()).unwrap().collected;
                }
                collected
            });
            // Each flow becomes due while this runs.
            for port in 1..=CLIENTS {
                assert_eq!(lab.own(client(port), BACKEND2, 7).status, Status::Ok);
                let there = lab.run(Hook::Tc, &Tcp::new(client(port), VIP).build());
                assert_eq!(there.verdict, Verdict::Send);
                pause(u64::from(port % 4 == 0));
            }
            stop.store(true, Ordering::Relaxed);
            agent.join().unwrap()
        });
        println!(
            "{collected} collected, {} commands waited",
            lab.counter("control_busy")
        );
        assert_eq!(
            (lab.live(), lab.flows().len()),
            (CLIENTS.into(), CLIENTS.into())
        );
        for port in 1..=CLIENTS {
            let back = lab.run(Hook::Tc, &Tcp::new(BACKEND2, client(port)).build());
            assert_eq!(back.verdict, Verdict::Send, "{port}");
        }
    });
}
