//! The agent begins and settles terms: by its table, its file, the time, and the runs with a lease.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::common::*;
use libbpf_rs::MapCore;
use prism_packets::Hook;
use prism_proto::control::{Status, Term};
use prism_proto::lease::{Done, TermNotice};
use prism_proto::term::{MOST_TOLD, SwitchOfPair, UNHEARD_NS, YOUNG_NS};
use prism_switch::{Agent, Leases, Switch, TermPhase};

/// The time in which living nodes tell the terms that they know.
const UNHEARD: Duration = Duration::from_nanos(UNHEARD_NS);

fn agent<'a>(switch: &'a Switch, lab: &Lab, leases: Arc<Leases>, file: &TermFile) -> Agent<'a> {
    let mut agent = Agent::new(switch, leases, &lab.config.services).unwrap();
    agent.use_terms(SwitchOfPair::First, Vec::new(), file.path()).unwrap();
    agent
}

fn no_leases() -> Arc<Leases> {
    Arc::new(leases_of([vec![FRONTEND]]))
}

/// Steps until the term is settled, and not long.
fn step_until_settled(lab: &Lab, agent: &mut Agent<'_>) {
    let begun = Instant::now();
    while lab.view.term().unwrap().1 != TermPhase::Settled {
        agent.step(Instant::now()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(2));
        pause(5);
    }
}

fn hear(stream: &mut TcpStream) -> TermNotice {
    let mut bytes = [0; TermNotice::BYTES];
    stream.read_exact(&mut bytes).unwrap();
    TermNotice::decode(bytes).unwrap()
}

fn notice(term: u32, is_settled: bool) -> TermNotice {
    let term = Term(term);
    TermNotice { term, is_settled }
}

fn say_done(stream: &mut TcpStream, term: u32) {
    let term = Term(term);
    stream.write_all(&Done { term, runs: 2 }.encode()).unwrap();
}

#[test]
fn a_term_settles_when_all_runs_have_said_so_on_their_leases() {
    in_lab(
        "lease-terms",
        |_| {},
        |lab| {
            let file = TermFile::new("lease-terms");
            file.store(6);
            let (leases, address) = serve_leases(&[FRONTEND, BACKEND.ip()]);
            let mut agent = agent(&lab.switch, lab, leases, &file);
            assert_eq!(lab.view.term().unwrap(), (Term(6), TermPhase::Standby));
            agent.set_active(true).unwrap();
            assert_eq!(lab.view.term().unwrap(), (Term(7), TermPhase::Young));
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "7\n");
            let mut first = lease_in(address, FRONTEND, 1, Some(Term(6)));
            let mut second = lease_in(address, FRONTEND, 2, Some(Term::NONE));
            // A run of an older release hears nothing, and is done at once.
            let mut old = lease(address, BACKEND.ip(), 3);
            for stream in [&mut first, &mut second] {
                assert_eq!(hear(stream), notice(7, false));
            }
            say_done(&mut first, 7);
            say_done(&mut second, 5);
            pause(50);
            agent.step(Instant::now()).unwrap();
            assert_eq!(lab.view.term().unwrap().1, TermPhase::Young, "of a former term");
            say_done(&mut second, 7);
            step_until_settled(lab, &mut agent);
            for stream in [&mut first, &mut second] {
                assert_eq!(hear(stream), notice(7, true));
            }
            let mut later = lease_in(address, FRONTEND, 4, Some(Term(7)));
            assert_eq!(hear(&mut later), notice(7, true));
            // The only node that knows of terms knows of a greater one: the file was lost. Another
            // one may come in the first 2 s.
            let mut knows = lease_in(address, FRONTEND, 5, Some(Term(10)));
            assert_eq!(hear(&mut knows), notice(7, true));
            agent.step(Instant::now()).unwrap();
            assert_eq!(lab.view.term().unwrap(), (Term(7), TermPhase::Settled));
            agent.step(Instant::now() + UNHEARD).unwrap();
            for stream in [&mut first, &mut knows] {
                assert_eq!(hear(stream), notice(11, false));
            }
            old.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert!(old.read(&mut [0; 1]).is_err(), "it knows no such message");
        },
    );
}

#[test]
fn a_term_that_one_node_tells_changes_nothing_until_most_nodes_know_it() {
    in_lab(
        "told-terms",
        |_| {},
        |lab| {
            let file = TermFile::new("told-terms");
            file.store(6);
            let nodes = [FRONTEND, BACKEND.ip(), BACKEND2.ip()];
            let (leases, address) = serve_leases(&nodes);
            let mut agent = agent(&lab.switch, lab, leases.clone(), &file);
            agent.set_active(true).unwrap();
            let mut held = nodes.map(|node| lease_in(address, node, 1, Some(Term::NONE)));
            for stream in &mut held {
                assert_eq!(hear(stream), notice(7, false));
                stream.write_all(&Done { term: Term(7), runs: 1 }.encode()).unwrap();
            }
            step_until_settled(lab, &mut agent);
            // The key of one node is in wrong hands: it has more runs, and says what it likes.
            for (run, term) in [(2, 8), (3, 17), (4, MOST_TOLD.0), (5, Term::MAX.0)] {
                let mut liar = lease_in(address, FRONTEND, run, Some(Term(term)));
                assert_eq!(hear(&mut liar), notice(7, true));
                liar.write_all(&Done { term: Term(term), runs: u16::MAX }.encode()).unwrap();
                pause(20);
                for later in [Duration::ZERO, UNHEARD] {
                    agent.step(Instant::now() + later).unwrap();
                    assert_eq!(lab.view.term().unwrap(), (Term(7), TermPhase::Settled), "{term}");
                }
                assert!(leases.has_disbelieved());
            }
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "7\n");
            // The other switch has been active: two of three nodes know its term.
            for (node, run) in [(FRONTEND, 6), (BACKEND.ip(), 2)] {
                let mut knows = lease_in(address, node, run, Some(Term(8)));
                assert_eq!(hear(&mut knows), notice(7, true));
            }
            agent.step(Instant::now()).unwrap();
            assert_eq!(lab.view.term().unwrap(), (Term(9), TermPhase::Young));
            assert!(!leases.has_disbelieved());
        },
    );
}

#[test]
fn a_run_that_says_what_has_no_meaning_loses_its_lease() {
    in_lab(
        "lease-bytes",
        |_| {},
        |lab| {
            let file = TermFile::new("lease-bytes");
            let (leases, address) = serve_leases(&[FRONTEND]);
            let mut agent = agent(&lab.switch, lab, leases, &file);
            agent.set_active(true).unwrap();
            for (speaks, bytes) in [
                (true, &[Done::CODE, 0, 0, 1, 0, 0][..]),
                (true, &[9]),
                (false, &[Done::CODE, 0, 0, 1, 0, 1]),
            ] {
                let mut stream = lease_in(address, FRONTEND, 1, speaks.then_some(Term::NONE));
                if speaks {
                    hear(&mut stream);
                }
                stream.write_all(bytes).unwrap();
                assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "{bytes:?}");
            }
        },
    );
}

#[test]
fn an_agent_that_starts_again_keeps_the_term_of_a_table_that_is_whole() {
    in_lab(
        "kept-term",
        |_| {},
        |lab| {
            let file = TermFile::new("kept-term");
            file.store(1);
            let now = |lab: &Lab| lab.view.term().unwrap();
            agent(&lab.switch, lab, no_leases(), &file).set_active(true).unwrap();
            assert_eq!(now(lab), (Term(3), TermPhase::Young));
            // Nobody knows what has been announced to it.
            agent(&lab.switch, lab, no_leases(), &file).set_active(true).unwrap();
            assert_eq!(now(lab), (Term(5), TermPhase::Young));
            let (leases, address) = serve_leases(&[FRONTEND]);
            let mut third = agent(&lab.switch, lab, leases, &file);
            third.set_active(true).unwrap();
            assert_eq!(now(lab), (Term(7), TermPhase::Young));
            let _old = lease(address, FRONTEND, 1);
            step_until_settled(lab, &mut third);
            let own = lab.in_term(Hook::Tc, 7, stating(OWN, CLIENT, BACKEND, 5)).unwrap();
            assert_eq!((own.message.status, own.term), (Status::Ok, Term(7)));
            drop(third);
            let switch = Switch::load(&lab.config).unwrap();
            let mut fourth = agent(&switch, lab, no_leases(), &file);
            assert_eq!(now(lab), (Term(7), TermPhase::Settled));
            fourth.set_active(true).unwrap();
            assert_eq!(now(lab), (Term(7), TermPhase::Settled));
            assert_eq!(fourth.step(Instant::now()).unwrap().expired, 0);
            assert_eq!(lab.live(), 1);
        },
    );
}

#[test]
fn a_table_of_a_release_without_terms_keeps_its_flows() {
    in_lab(
        "upgraded",
        |_| {},
        |lab| {
            assert_eq!(lab.own(CLIENT, BACKEND, 5).status, Status::Ok);
            let file = TermFile::new("upgraded");
            file.store(8);
            let mut agent = agent(&lab.switch, lab, no_leases(), &file);
            agent.set_active(true).unwrap();
            assert_eq!(lab.view.term().unwrap(), (Term(9), TermPhase::Settled));
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "9\n");
            assert_eq!(agent.step(Instant::now()).unwrap().expired, 0);
            let moved = lab.in_term(Hook::Tc, 0, stating(OWN, CLIENT, BACKEND2, 6));
            assert_eq!(moved.unwrap().message.status, Status::Ok);
        },
    );
}

#[test]
fn a_standby_grants_no_leases_and_decides_nothing() {
    in_lab(
        "standby",
        |_| {},
        |lab| {
            let file = TermFile::new("standby");
            file.store(2);
            let (leases, address) = serve_leases(&[FRONTEND]);
            let mut agent = agent(&lab.switch, lab, leases.clone(), &file);
            let refused = |address| {
                let mut stream = TcpStream::connect(address).unwrap();
                assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed without a byte");
            };
            refused(address);
            agent.set_active(true).unwrap();
            let mut held = lease_in(address, FRONTEND, 1, Some(Term::NONE));
            assert_eq!(hear(&mut held), notice(3, false));
            agent.step(Instant::now()).unwrap();
            agent.set_active(false).unwrap();
            assert_eq!(lab.view.term().unwrap(), (Term(3), TermPhase::Standby));
            assert_eq!(held.read(&mut [0; 1]).unwrap(), 0);
            refused(address);
            assert_eq!(lab.in_term(Hook::Tc, 3, stating(OWN, CLIENT, BACKEND, 5)), None);
            pause(600);
            agent.step(Instant::now()).unwrap();
            let ended = &lab.switch.skeleton().maps.ended_runs;
            assert_eq!(ended.keys().count(), 0, "the agent has ended the leases itself");
            agent.set_active(true).unwrap();
            let mut again = lease_in(address, FRONTEND, 1, Some(Term(3)));
            assert_eq!(hear(&mut again), notice(5, false));
            let fact = lab.in_term(Hook::Tc, 5, stating(FACT, CLIENT, BACKEND, 5));
            assert_eq!(fact.unwrap().message.status, Status::Ok);
        },
    );
}

#[test]
fn a_node_that_does_not_come_is_awaited_for_10_s() {
    in_lab(
        "awaited",
        |_| {},
        |lab| {
            let file = TermFile::new("awaited");
            let mut agent = agent(&lab.switch, lab, no_leases(), &file);
            agent.set_active(true).unwrap();
            let begun = Instant::now();
            agent.step(begun + Duration::from_secs(9)).unwrap();
            assert_eq!(lab.view.term().unwrap().1, TermPhase::Young);
            agent.step(begun + Duration::from_nanos(YOUNG_NS)).unwrap();
            assert_eq!(lab.view.term().unwrap().1, TermPhase::Settled);
        },
    );
}
