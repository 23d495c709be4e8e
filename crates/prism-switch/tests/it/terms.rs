//! Terms: which commands the programs take, and what they do with announcements.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::common::*;
use libbpf_rs::{MapCore, MapFlags};
use prism_packets::Hook;
use prism_proto::control::{Answer, FlowKey, FlowState, Ops, Request, Status, Term};
use prism_proto::term::{Admission, SwitchOfPair, SwitchTerm, YOUNG_NS};
use prism_reference::FlowTable;
use prism_switch::TermPhase;

const HOUR_NS: u64 = 3_600_000_000_000;
fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.ip(), port)
}

#[test]
fn a_command_is_admitted_as_the_rules_say() {
    in_lab(
        "admission",
        |_| {},
        |lab| {
            let mut rules = SwitchTerm::standby(SwitchOfPair::First, Term(4));
            rules.begin([FRONTEND], 0);
            let young = (rules, TermPhase::Young);
            let mut rules = SwitchTerm::standby(SwitchOfPair::First, Term(4));
            rules.begin([FRONTEND], 0);
            assert!(rules.handle_timeout(YOUNG_NS));
            let settled = (rules, TermPhase::Settled);
            let standby = SwitchTerm::standby(SwitchOfPair::First, Term(5));
            for (rules, phase) in [young, settled, (standby, TermPhase::Standby)] {
                for term in [0, 1, 4, 5, 6, Term::MAX.0] {
                    for plain in [Ops::QUERY, OWN, Ops::OWN.and(Ops::BLOCK), Ops::RELEASE] {
                        let all = [plain, plain.and(Ops::ANNOUNCE)];
                        for ops in all.into_iter().filter(|ops| *ops != Ops::ANNOUNCE) {
                            check_admission(lab, (&rules, phase), term, ops);
                        }
                    }
                }
            }
        },
    );
}

/// A command far ahead of the clock, and one for what the flow is.
fn check_admission(lab: &Lab, (rules, phase): (&SwitchTerm, TermPhase), term: u32, ops: Ops) {
    set_term(lab, 5, TermPhase::Settled, 1);
    for hook in BOTH {
        let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
        let epoch = known.map_or(0, |f| f.epoch) + 1;
        let state = ops.without(Ops::ANNOUNCE);
        let state = if state == Ops::QUERY { OWN } else { state };
        let before = lab.in_term(hook, 5, stating(state, CLIENT, BACKEND, epoch));
        assert_eq!(before.unwrap().message.status, Status::Ok);
        set_term(lab, 5, phase, 1);
        let admission = rules.admit(Term(term), ops);
        let name = format!("{hook:?} {phase:?} {term} {ops:?}: {admission:?}");
        let silent = lab.counter("control_silent");
        let same = lab.in_term(hook, term, stating(ops, CLIENT, BACKEND, epoch));
        let far = stating(ops, CLIENT, BACKEND2, tai_ns() + HOUR_NS);
        let far = lab.in_term(hook, term, far);
        let (same_status, far_status) = match admission {
            Admission::Judge if ops == Ops::QUERY => (Status::Ok, Status::Ok),
            Admission::Judge => (Status::Ok, Status::Ahead),
            Admission::Merge => (Status::Ok, Status::Ok),
            Admission::Compare => (Status::Ok, Status::OldTerm),
            Admission::Refuse(status) => (status, status),
            Admission::Silence => {
                assert_eq!((same, far), (None, None), "{name}");
                assert_eq!(lab.counter("control_silent"), silent + 2, "{name}");
                set_term(lab, 5, TermPhase::Settled, 1);
                continue;
            }
        };
        for (answer, status) in [(same, same_status), (far, far_status)] {
            let answer = answer.unwrap();
            assert_eq!((answer.message.status, answer.message.ops), (status, ops), "{name}");
            assert_eq!(answer.term, Term(5), "{name}");
        }
        let now = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
        assert_eq!(now.epoch != epoch, admission == Admission::Merge, "{name}");
        set_term(lab, 5, TermPhase::Settled, 1);
    }
}

#[test]
fn without_a_term_nothing_of_terms_is_known() {
    in_lab(
        "no-term",
        |_| {},
        |lab| {
            for (term, ops) in [(0, FACT), (1, OWN), (0, Ops::RELEASE.and(Ops::ANNOUNCE))] {
                let answer = lab.in_term(Hook::Tc, term, stating(ops, CLIENT, BACKEND, 5));
                let answer = answer.unwrap();
                assert_eq!(answer.message.status, Status::BadRequest, "{term} {ops:?}");
                assert_eq!(answer.term, Term::NONE);
            }
            assert_eq!(lab.view.term().unwrap(), (Term::NONE, TermPhase::None));
        },
    );
}

#[test]
fn announcements_that_state_nothing_are_refused() {
    in_lab(
        "no-fact",
        |_| {},
        |lab| {
            set_term(lab, 5, TermPhase::Young, 1);
            let block = Ops::BLOCK.and(Ops::ANNOUNCE);
            for (ops, epoch) in [(block, 5), (FACT, 1 << 63), (FACT, u64::MAX)] {
                let answer = lab.in_term(Hook::Tc, 5, stating(ops, CLIENT, BACKEND, epoch));
                assert_eq!(answer.unwrap().message.status, Status::BadRequest, "{ops:?}");
            }
            let (mut late, mut foreign) = [stating(FACT, CLIENT, BACKEND, 5); 2].into();
            late.time_ns = 1;
            let late = late.in_term(Term(5)).encode(&key());
            assert_eq!(lab.raw_command(Hook::Tc, &late).unwrap().status, Status::Late);
            foreign.owner = owned(FOREIGN);
            let foreign = lab.in_term(Hook::Tc, 5, foreign).unwrap();
            assert_eq!(foreign.message.status, Status::Denied);
            assert!(lab.flows().is_empty());
        },
    );
}

/// The answer by the reference and the flows that are known in this term.
struct Model {
    table: FlowTable,
    announced: HashSet<FlowKey>,
    phase: TermPhase,
}

impl Model {
    fn answer(&mut self, request: &Request, now_ns: u64) -> Answer {
        let flow = request.flow;
        if request.ops.has(Ops::ANNOUNCE) {
            let remembered = !self.announced.contains(&flow);
            self.announced.insert(flow);
            return match self.phase {
                TermPhase::Young => self.table.announce(request, remembered, now_ns),
                _ if self.table.has(request) => self.table.answer(request, Status::Ok, now_ns),
                _ => self.table.answer(request, Status::OldTerm, now_ns),
            };
        }
        match self.phase {
            TermPhase::Young => self.table.answer(request, Status::Young, now_ns),
            _ => {
                self.announced.insert(flow);
                self.table.apply(request, now_ns)
            }
        }
    }

    fn settle(&mut self, now_ns: u64) {
        let live: Vec<FlowKey> = self.table.flows().map(|(flow, _)| *flow).collect();
        for flow in live.iter().filter(|flow| !self.announced.contains(flow)) {
            self.table.expire(flow, now_ns);
        }
        self.phase = TermPhase::Settled;
    }
}

/// Terms begin and settle, and a term begins again before it has settled.
#[test]
fn random_announcements_and_commands_do_what_the_reference_says() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    in_lab(
        "merge",
        |config| config.tombstone = Duration::from_hours(1),
        |lab| {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut term, mut model) = (1, Model {
                table: FlowTable::new(usize::MAX),
                announced: HashSet::new(),
                phase: TermPhase::Settled,
            });
            set_term(lab, 1, TermPhase::Settled, 1);
            let mut begun = 0;
            for step in 0..20_000 {
                if random.u8(0..20) == 0 {
                    // The programs tell four terms apart.
                    let settles = begun == 3 || random.u8(0..4) > 0;
                    if model.phase == TermPhase::Young && settles {
                        model.settle(tai_ns());
                        begun = 0;
                    } else {
                        // Commands have found flows that are over before the agent does.
                        lab.agent().step(Instant::now()).unwrap();
                        model.phase = TermPhase::Young;
                        model.announced.clear();
                        (begun, term) = (begun + 1, term + 1);
                    }
                    set_term(lab, term, model.phase, (term % 4) as u8);
                }
                let hook = if random.bool() { Hook::Tc } else { Hook::Xdp };
                let mut ops = [OWN, Ops::OWN, Ops::OWN.and(Ops::BLOCK), Ops::RELEASE]
                    [random.usize(0..4)];
                if random.bool() {
                    ops = ops.and(Ops::ANNOUNCE);
                }
                let owner = [BACKEND, BACKEND2, VIP][random.usize(0..3)];
                let mut request = stating(ops, client(random.u16(1..6)), owner, 0);
                let known = model.table.epoch(&request.flow);
                request.epoch = (known + random.u64(0..5)).saturating_sub(2);
                let got = lab.in_term(hook, term, request).unwrap();
                request.time_ns = got.message.time_ns;
                let wanted = model.answer(&request, got.message.time_ns);
                assert_eq!(got.message, wanted, "step {step}: {request:?} {:?}", model.phase);
                assert_eq!(got.term, Term(term));
            }
        },
    );
}

#[test]
fn the_settling_of_a_term_ends_what_nobody_has_announced_and_nothing_before_it() {
    let quick = |config: &mut prism_switch::SwitchConfig| {
        config.idle = Duration::from_millis(300);
        config.blocked = Duration::from_millis(300);
    };
    in_lab("settling", quick, |lab| {
        for port in 1..=4 {
            assert_eq!(lab.own(client(port), BACKEND, 5).status, Status::Ok);
        }
        let state = |port| {
            let f = lab.view.flow_of(&flow(client(port))).unwrap().unwrap();
            (f.state, f.epoch, f.owner)
        };
        set_term(lab, 5, TermPhase::Young, 1);
        for (port, ops, epoch) in [(1, FACT, 4), (2, Ops::OWN.and(Ops::BLOCK), 6)] {
            let fact = stating(ops.and(Ops::ANNOUNCE), client(port), BACKEND2, epoch);
            let answer = lab.in_term(Hook::Tc, 5, fact).unwrap().message;
            assert_eq!((answer.status, answer.epoch), (Status::Ok, epoch));
        }
        pause(400);
        let mut agent = lab.agent();
        let aged = agent.step(Instant::now()).unwrap();
        assert_eq!((aged.expired, aged.reset, lab.live()), (0, 0, 4));
        set_term(lab, 5, TermPhase::Settled, 1);
        // A command finds it ended before the agent does.
        let late = lab.in_term(Hook::Tc, 5, stating(Ops::UNBLOCK, client(4), BACKEND, 6));
        assert_eq!(late.unwrap().message.status, Status::BadRequest);
        let epoch = 7;
        let kept = lab.in_term(Hook::Tc, 5, stating(OWN, client(1), BACKEND, epoch));
        assert_eq!(kept.unwrap().message.status, Status::Ok);
        let aged = agent.step(Instant::now()).unwrap();
        assert_eq!((aged.expired, aged.reset), (1, 0), "without a reset");
        assert_eq!(state(3).0, FlowState::Absent);
        assert_eq!(state(4).0, FlowState::Absent);
        assert_eq!(state(1), (FlowState::Forward, epoch, owned(BACKEND)));
        assert_eq!(state(2), (FlowState::Blocked, 6, owned(BACKEND2)), "hand-offs begin again");
        pause(400);
        assert_eq!(agent.step(Instant::now()).unwrap().reset, 1);
    });
}

#[test]
fn an_entry_of_the_map_that_has_no_meaning_is_no_term() {
    in_lab(
        "odd-term",
        |_| {},
        |lab| {
            let map = &lab.switch.skeleton().maps.term_state;
            map.update(&[0; 4], &[0xff; 16], MapFlags::ANY).unwrap();
            assert_eq!(lab.view.term().unwrap().1, TermPhase::None);
        },
    );
}
