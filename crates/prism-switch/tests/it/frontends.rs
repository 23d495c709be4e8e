//! New connections go to frontends with a lease. Open connections stay at their frontend while the
//! list changes.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::common::packet::{SYN, Tcp};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{Ops, Owner, Status};
use prism_proto::lease::{LEAVING, TAKES_NO_MORE};
use prism_proto::term::SwitchOfPair;
use prism_switch::{Agent, LEASE_GRACE, SwitchConfig, TermPhase};

const OTHER: IpAddr = host([10, 0, 0, 2]);
const THIRD: IpAddr = host([10, 0, 0, 3]);
/// A time longer than the wait of an agent that starts, and than a change of the list.
const WAIT: Duration = Duration::from_millis(2_100);
/// The time in which frontends come back to an agent that has started.
const RETURNING: Duration = Duration::from_secs(1);

fn two_frontends(config: &mut SwitchConfig) {
    config.nodes.push(node(OTHER, 1, true, false));
    config.services[0].frontends.push(OTHER);
}

/// The frontends that get a packet of each client: a SYN, or a packet of an open connection.
fn sent(lab: &Lab, ports: Range<u16>, is_syn: bool) -> Vec<IpAddr> {
    ports
        .map(|port| {
            let mut tcp = Tcp::new(SocketAddr::new(CLIENT.ip(), port), VIP);
            if is_syn {
                tcp.flags = SYN;
            }
            let run = lab.run(Hook::Tc, &tcp.build());
            assert_eq!(run.verdict, Verdict::Send);
            let mac = &run.packet[..6];
            let to = [FRONTEND, OTHER, THIRD].into_iter().find(|ip| mac_of(*ip) == mac);
            to.unwrap()
        })
        .collect()
}

fn opened(lab: &Lab, ports: Range<u16>) -> Vec<IpAddr> {
    sent(lab, ports, true)
}

fn open(lab: &Lab, ports: Range<u16>) -> Vec<IpAddr> {
    sent(lab, ports, false)
}

/// Steps until new connections go to `wanted` frontends, which takes less than a second.
fn step_until(lab: &Lab, agent: &mut Agent<'_>, wanted: usize) {
    let begun = Instant::now();
    loop {
        agent.step(Instant::now()).unwrap();
        let mut to = opened(lab, 60_000..60_064);
        to.sort_unstable();
        to.dedup();
        if to.len() == wanted {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{to:?}");
        pause(50);
    }
}

#[test]
fn only_living_frontends_get_new_connections_and_open_ones_stay_where_they_are() {
    in_lab("liveness", two_frontends, |lab| {
        let (leases, address) = serve_leases(&[FRONTEND, OTHER]);
        let mut agent = Agent::new(&lab.switch, leases, &lab.config.services).unwrap();
        let _one = lease(address, FRONTEND, 1);
        let first = lease(address, OTHER, 2);
        let before = opened(lab, 1..65);
        assert!(before.contains(&FRONTEND) && before.contains(&OTHER));
        std::thread::sleep(WAIT);
        step_until(lab, &mut agent, 2);

        // The second frontend dies. An agent that starts leaves it out too.
        drop(first);
        std::thread::sleep(LEASE_GRACE);
        step_until(lab, &mut agent, 1);
        let (leases, address) = serve_leases(&[FRONTEND, OTHER]);
        let _one = lease(address, FRONTEND, 1);
        let switch = prism_switch::Switch::load(&lab.config).unwrap();
        let mut agent = Agent::new(&switch, leases, &lab.config.services).unwrap();
        agent.step(Instant::now()).unwrap();
        assert_eq!(opened(lab, 1..65), [FRONTEND; 64]);
        agent.update_tables(&lab.config).unwrap();
        assert_eq!(opened(lab, 1..65), [FRONTEND; 64]);
        std::thread::sleep(WAIT);

        // It returns. Open connections stay, also those that open during the change.
        let mut second = lease(address, OTHER, 3);
        step_until(lab, &mut agent, 2);
        assert_eq!(open(lab, 1..65), [FRONTEND; 64]);
        let since = opened(lab, 101..165);
        assert!(since.contains(&OTHER));
        assert_eq!(open(lab, 101..165), since);
        assert_eq!(open(lab, 1..65), [FRONTEND; 64]);
        std::thread::sleep(WAIT);
        assert_eq!(open(lab, 101..165), since, "as new ones go");

        // It takes no more clients, and still serves those that it has.
        second.write_all(&[TAKES_NO_MORE]).unwrap();
        step_until(lab, &mut agent, 1);
        assert_eq!(open(lab, 101..165), since);
        second.write_all(&[LEAVING]).unwrap();
        drop(second);
        std::thread::sleep(WAIT);
        agent.step(Instant::now()).unwrap();
        assert_eq!(opened(lab, 101..165), [FRONTEND; 64]);
    });
}

/// Steps until a lease that has ended is beyond its grace, as long as the wait after `begun` allows.
/// A slow machine notices late that it has ended.
fn step_beyond_the_grace(agent: &mut Agent<'_>, begun: Instant) {
    while begun.elapsed() < RETURNING - Duration::from_millis(100) {
        agent.step(Instant::now()).unwrap();
        pause(20);
    }
    assert!(begun.elapsed() < RETURNING, "the wait of the start was too short for this test");
}

#[test]
fn a_frontend_that_dies_right_after_the_start_or_in_a_young_term_gets_no_more_connections() {
    for (name, has_terms) in [("dies-early", false), ("dies-young", true)] {
        in_lab(name, two_frontends, |lab| {
            let file = TermFile::new(name);
            let (leases, address) = serve_leases(&[FRONTEND, OTHER]);
            let mut agent = Agent::new(&lab.switch, leases, &lab.config.services).unwrap();
            if has_terms {
                agent.use_terms(SwitchOfPair::First, Vec::new(), file.path()).unwrap();
                agent.set_active(true).unwrap();
            }
            let begun = Instant::now();
            let dying = lease(address, OTHER, 1);
            agent.step(Instant::now()).unwrap();
            drop(dying);
            step_beyond_the_grace(&mut agent, begun);
            assert_eq!(opened(lab, 1..65), [FRONTEND; 64], "it may be reconnecting");
            std::thread::sleep(WAIT);

            // Nobody has a lease.
            agent.step(Instant::now()).unwrap();
            let listed = opened(lab, 101..165);
            assert!(listed.contains(&FRONTEND) && listed.contains(&OTHER));
        });
    }
}

#[test]
fn a_frontend_that_died_before_the_start_leaves_the_list_while_another_change_is_pending() {
    let three = |config: &mut SwitchConfig| {
        two_frontends(config);
        config.nodes.push(node(THIRD, 1, true, false));
        config.services[0].frontends.push(THIRD);
    };
    in_lab("died-before", three, |lab| {
        let (leases, address) = serve_leases(&[FRONTEND, OTHER, THIRD]);
        let mut agent = Agent::new(&lab.switch, leases, &lab.config.services).unwrap();
        let begun = Instant::now();
        let _one = lease(address, FRONTEND, 1);
        let dying = lease(address, OTHER, 2);
        agent.step(Instant::now()).unwrap();
        drop(dying);
        step_beyond_the_grace(&mut agent, begun);
        let listed = opened(lab, 1..65);
        assert!(listed.contains(&THIRD) && !listed.contains(&OTHER), "it may be reconnecting");
        std::thread::sleep(RETURNING.saturating_sub(begun.elapsed()));
        pause(100);
        agent.step(Instant::now()).unwrap();
        assert_eq!(opened(lab, 101..165), [FRONTEND; 64], "long before the change has passed");
    });
}

#[test]
fn a_frontend_that_accepts_a_syn_while_it_releases_the_flow_has_the_connection() {
    in_lab("accepting", two_frontends, |lab| {
        // The list leads the client to one frontend, and this flow is at the other.
        let listed = opened(lab, CLIENT.port()..CLIENT.port() + 1)[0];
        let via = if listed == FRONTEND { OTHER } else { FRONTEND };
        let mut own = request(Ops::OWN.and(Ops::UNBLOCK), lab.clock(), flow(CLIENT), 0);
        own.owner = Owner {
            addr: VIP,
            via,
        };
        assert_eq!(lab.command(Hook::Tc, own).status, Status::Ok);
        let at = |is_syn| sent(lab, CLIENT.port()..CLIENT.port() + 1, is_syn);
        assert_eq!(at(true), [via], "it is to challenge the SYN");
        let released = lab.plain(Ops::RELEASE, CLIENT, own.epoch + 1);
        assert_eq!(released.status, Status::Ok);
        assert_eq!(at(false), [via], "but may have accepted it");
        assert_eq!(at(true), [via], "another one may be forged or repeated");
        assert_eq!(at(false), [via]);
        let leases = Arc::new(leases_of([vec![listed]]));
        let mut agent = Agent::new(&lab.switch, leases, &lab.config.services).unwrap();
        let mut config = lab.config.clone();
        config.services[0].frontends = vec![listed];
        agent.update_tables(&config).unwrap();
        assert_eq!(at(false), [via]);
        assert_eq!(at(true), [listed], "the other takes no new clients");
        assert_eq!(at(false), [listed]);
    });
}

#[test]
fn connections_of_a_young_term_stay_where_they_are_after_it_while_the_list_changes() {
    in_lab("young-lists", two_frontends, |lab| {
        let file = TermFile::new("young-lists");
        let leases = Arc::new(leases_of([vec![FRONTEND]]));
        let mut agent = Agent::new(&lab.switch, leases, &lab.config.services).unwrap();
        agent.use_terms(SwitchOfPair::First, Vec::new(), file.path()).unwrap();
        agent.set_active(true).unwrap();
        let begun = Instant::now();
        let before = opened(lab, 1..65);
        assert!(before.contains(&FRONTEND) && before.contains(&OTHER));
        let mut config = lab.config.clone();
        config.services[0].frontends = vec![FRONTEND];
        agent.update_tables(&config).unwrap();
        assert_eq!(opened(lab, 1..65), before, "a repeated SYN");
        assert_eq!(opened(lab, 101..165), [FRONTEND; 64]);
        agent.step(begun + Duration::from_secs(11)).unwrap();
        assert_eq!(lab.view.term().unwrap().1, TermPhase::Settled);
        assert_eq!(open(lab, 1..65), before);
        std::thread::sleep(WAIT);
        assert_eq!(open(lab, 1..65), [FRONTEND; 64]);
    });
}
