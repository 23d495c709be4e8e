//! A node's key in wrong hands: every command, field of a lease and message of a lease that it can
//! sign, against the flows and leases of the others. Nothing of theirs changes.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::common::packet::Tcp;
use super::common::*;
use libbpf_rs::MapCore;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{
    Answer, FlowKey, FlowState, MESSAGE_BYTES, Ops, Owner, Pass, Passage, Request, RunId, Status,
    Term,
};
use prism_proto::lease::{
    CHALLENGE_BYTES, Done, LEAVING, LeaseRequest, SPEAKS_OF_TERMS, TAKES_NO_MORE,
};
use prism_proto::term::{SwitchOfPair, UNHEARD_NS};
use prism_switch::{Agent, LEASE_GRACE, SwitchConfig, TermPhase};

/// Another service of the same tenant.
const TLS: SocketAddr = SocketAddr::new(VIP.ip(), 443);
const CLIENT2: SocketAddr = SocketAddr::new(CLIENT.ip(), 40_001);
const CLIENT3: SocketAddr = SocketAddr::new(CLIENT.ip(), 40_002);
/// All bits of operations, those without a meaning too.
const ALL_OPS: std::ops::Range<u8> = 0..64;

/// The address that the owner's sockets are bound to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Switch,
    Host,
}

impl Mode {
    /// The record of a flow that `member` owns.
    fn owner(self, member: Member, vip: SocketAddr) -> Owner {
        let via = member.via();
        let addr = match self {
            Self::Switch if member.owner != VIP => member.owner,
            Self::Switch | Self::Host => vip,
        };
        Owner { addr, via }
    }
}

/// A flow that the holder of the key tries to break.
#[derive(Clone, Copy)]
struct Victim {
    flow: FlowKey,
    /// `None`: the flow has no owner.
    owner: Option<Member>,
    state: Ops,
}

fn key_of(client: SocketAddr, vip: SocketAddr) -> FlowKey {
    FlowKey { client, vip }
}

/// The flows of others than `attacker`, and one without an owner.
fn victims(attacker: Member) -> Vec<Victim> {
    let owned = |client, owner, state| Victim {
        flow: key_of(client, VIP),
        owner: Some(owner),
        state,
    };
    let mut all = vec![
        owned(CLIENT, BE, Ops::UNBLOCK),
        owned(CLIENT2, BE, Ops::BLOCK),
        owned(CLIENT3, FE, Ops::UNBLOCK),
        Victim {
            flow: key_of(CLIENT, TLS),
            owner: None,
            state: Ops::QUERY,
        },
    ];
    all.retain(|victim| victim.owner.is_none_or(|owner| owner.via() != attacker.via()));
    all
}

struct Trial<'l> {
    lab: &'l Lab,
    mode: Mode,
    attacker: Member,
    epoch: u64,
    /// The number of commands so far.
    tried: u32,
}

impl Trial<'_> {
    /// Makes the victims, as their owners do.
    fn set_up(&self, victims: &[Victim], announces: bool) {
        for victim in victims {
            let Some(owner) = victim.owner else { continue };
            let ops = Ops::OWN.and(victim.state);
            let mut own = request(ops, self.epoch, victim.flow, 0);
            if announces {
                own.ops = ops.and(Ops::ANNOUNCE);
            }
            own.owner = self.mode.owner(owner, victim.flow.vip);
            own.run = RunId(7);
            let answer = self.lab.in_term(Hook::Tc, TERM, own).unwrap();
            assert_eq!(answer.message.status, Status::Ok);
        }
    }

    /// Ends the flow without an owner, which the holder of the key may have got.
    fn release(&self, victims: &[Victim]) {
        let free = victims.iter().find(|victim| victim.owner.is_none()).unwrap();
        let record = self.lab.view.flow_of(&free.flow).unwrap();
        let epoch = record.map_or(0, |record| record.epoch) + 1;
        for ops in [Ops::RELEASE, Ops::RELEASE.and(Ops::ANNOUNCE)] {
            self.lab.in_term(Hook::Tc, TERM, request(ops, epoch, free.flow, 0));
        }
        let record = self.lab.view.flow_of(&free.flow).unwrap();
        assert!(record.is_none_or(|record| record.state == FlowState::Absent));
    }

    /// The switch's records of the victims' flows.
    fn records(&self, victims: &[Victim]) -> Vec<Option<(FlowState, u64, Owner)>> {
        let read = |victim: &Victim| {
            let record = self.lab.view.flow_of(&victim.flow).unwrap()?;
            Some((record.state, record.epoch, record.owner))
        };
        victims.iter().filter(|v| v.owner.is_some()).map(read).collect()
    }

    /// The packets of both directions go where they went.
    fn packets_go_on(&self) {
        for hook in BOTH {
            if self.mode == Mode::Host && hook == Hook::Xdp {
                continue;
            }
            let (service, socket) = match self.mode {
                Mode::Switch => (VIP, BACKEND),
                Mode::Host => (VIP, VIP),
            };
            let tcp = Tcp::new(CLIENT, service);
            let out = (mac_of(BACKEND.ip()), CLIENT, socket);
            check_sent(&self.lab.run(hook, &tcp.build()), &tcp, out, "to the owner");
            let blocked = self.lab.run(hook, &Tcp::new(CLIENT2, service).build());
            assert_eq!(blocked.verdict, Verdict::Drop);
            if self.mode == Mode::Switch {
                let tcp = Tcp::new(BACKEND, CLIENT);
                let out = (CLIENT_MAC, VIP, CLIENT);
                check_sent(&self.lab.run(hook, &tcp.build()), &tcp, out, "to the client");
            }
        }
    }

    /// Every record of an owner that a command can have.
    fn owners(&self, vip: SocketAddr) -> Vec<Owner> {
        let own = self.attacker.via();
        let port = self.attacker.owner.port();
        let mut owners = Vec::new();
        for via in [own, BE.via(), FE.via()] {
            for addr in [
                SocketAddr::new(own, port),
                BACKEND,
                SocketAddr::new(FE.via(), vip.port()),
                vip,
                SocketAddr::new(vip.ip(), BACKEND.port()),
            ] {
                owners.push(Owner { addr, via });
            }
        }
        for stranger in [FOREIGN, CLIENT] {
            let (addr, via) = (stranger, stranger.ip());
            owners.extend([Owner { addr, via }, Owner { addr, via: own }]);
        }
        owners
    }

    /// Passes that the holder of the key can have or make: none, a forged one, a used one, one that
    /// is for another node, and one for another flow.
    fn passes(&self, flow: FlowKey) -> Vec<Option<Pass>> {
        let to = |flow, epoch, member: Member| Passage {
            flow,
            epoch,
            via: member.via(),
        };
        let (own, next) = (self.attacker, self.epoch + 1);
        let other = key_of(CLIENT3, TLS);
        let forged = Pass::new(&own.key(), &to(flow, next, own));
        vec![
            None,
            Some(forged),
            forged.onward(own.key_id(), &own.key(), &to(flow, next, own)),
            Some(Pass::new(&BE.key(), &to(flow, self.epoch, own))),
            Some(Pass::new(&BE.key(), &to(flow, next, member_besides(own)))),
            Some(Pass::new(&BE.key(), &to(other, next, own))),
        ]
    }

    fn try_one(&mut self, request: Request, term: u32, pass: Option<Pass>) -> Option<Answer> {
        self.tried += 1;
        let hook = BOTH[(self.tried % 2) as usize];
        let hook = if self.mode == Mode::Host { Hook::Tc } else { hook };
        let by = self.attacker;
        let signed = Request {
            key_id: by.key_id(),
            time_ns: tai_ns(),
            ..request
        };
        let datagram = signed.in_term(Term(term)).encode_with(pass, &by.key());
        let answer = self.lab.command_under(CONTROL, hook, &datagram, by.key_id(), &by.key());
        answer.map(|answer| answer.message)
    }

    /// Tries everything on one flow.
    fn try_all_on(&mut self, victim: &Victim) {
        let epochs = [self.epoch, self.epoch + 1, u64::MAX];
        for ops in ALL_OPS.map(Ops) {
            let (owners, passes) = match ops.has(Ops::OWN) {
                true => (self.owners(victim.flow.vip), self.passes(victim.flow)),
                false => (vec![Owner::NONE], vec![None]),
            };
            for owner in owners {
                for pass in &passes {
                    let with_pass = pass.is_some() && ops.has(Ops::PASS);
                    if pass.is_some() && !with_pass {
                        continue;
                    }
                    for (epoch, term) in epochs.into_iter().flat_map(|epoch| {
                        [0, TERM - 1, TERM, TERM + 1].map(|term| (epoch, term))
                    }) {
                        let mut request = request(ops, epoch, victim.flow, 0);
                        request.owner = owner;
                        request.run = RunId(if ops.has(Ops::OWN) { 7 } else { 0 });
                        let answer = self.try_one(request, term, *pass);
                        self.check(victim, &request, answer);
                    }
                }
            }
        }
    }

    /// A command that was carried out is about a flow of nobody else, and names its sender alone.
    fn check(&self, victim: &Victim, request: &Request, answer: Option<Answer>) {
        let Some(record) = self.lab.view.flow_of(&victim.flow).unwrap() else {
            return;
        };
        if victim.owner.is_some() || record.state == FlowState::Absent {
            return;
        }
        let (own, vip) = (self.attacker.via(), victim.flow.vip);
        let Owner { addr, via } = record.owner;
        let names_itself = via == own && (addr.ip() == own || addr == vip);
        assert!(names_itself, "{request:?} {answer:?} {record:?}");
    }
}

/// Another node than `own`, and than the owner of most flows.
fn member_besides(own: Member) -> Member {
    if own.via() == BE2.via() { FE } else { BE2 }
}

fn all_commands_break_nothing(name: &str, mode: Mode, phase: TermPhase) {
    let adjust = |config: &mut SwitchConfig| {
        let mut tls = config.services[0].clone();
        tls.addr = TLS;
        config.services.push(tls);
        let members = [FE, BE, BE2];
        config.senders.extend(members.map(Member::sender));
        if mode == Mode::Host {
            config.host_mode = Some([FRONTEND].into());
        }
    };
    in_lab(name, adjust, |lab| {
        set_term(lab, TERM, phase, 0);
        let announces = phase == TermPhase::Young;
        for attacker in [BE2, FE] {
            let mut trial = Trial {
                lab,
                mode,
                attacker,
                epoch: tai_ns(),
                tried: 0,
            };
            let victims = victims(attacker);
            trial.set_up(&victims, announces);
            let before = trial.records(&victims);
            trial.packets_go_on();
            let denied = lab.counter("control_foreign");
            for victim in &victims {
                trial.try_all_on(victim);
                assert_eq!(trial.records(&victims), before);
                trial.packets_go_on();
            }
            assert!(lab.counter("control_foreign") > denied + 300);
            trial.release(&victims);
        }
    });
}

#[test]
fn no_command_of_one_key_changes_a_flow_of_others() {
    all_commands_break_nothing("one-key", Mode::Switch, TermPhase::Settled);
}

#[test]
fn no_command_of_one_key_changes_an_announced_flow_in_a_young_term() {
    all_commands_break_nothing("one-key-young", Mode::Switch, TermPhase::Young);
}

#[test]
fn no_command_of_one_key_changes_a_flow_of_others_in_host_mode() {
    all_commands_break_nothing("one-key-host", Mode::Host, TermPhase::Settled);
}

/// The leases of three nodes, each with a key of its own, and the agent that grants them.
struct Others<'l> {
    lab: &'l Lab,
    agent: Agent<'l>,
    leases: std::sync::Arc<prism_switch::Leases>,
    address: SocketAddr,
    held: Vec<TcpStream>,
}

const MEMBERS: [Member; 3] = [FE, BE, BE2];
const DIGEST: u64 = 77;

fn lease_request(node: IpAddr, run: u16) -> LeaseRequest {
    LeaseRequest {
        challenge: [0; CHALLENGE_BYTES],
        node,
        run: RunId(run),
        digest: DIGEST,
        term: Some(Term(TERM)),
    }
}

impl Others<'_> {
    /// Asks for a lease with a request that `change` has made of an ordinary one. Returns the
    /// connection and the answer's status; `None`: there is no answer.
    fn ask(&self, by: Member, change: impl FnOnce(&mut Request)) -> Option<(TcpStream, Status)> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).unwrap();
        let ordinary = LeaseRequest {
            challenge,
            ..lease_request(by.via(), 900)
        };
        let ordinary = ordinary.encode(by.key_id(), &by.key());
        let mut request = Request::decode(&ordinary, by.key_id(), &by.key()).unwrap();
        let mut term = Term(TERM);
        change(&mut request);
        // The field of the term is not of the request; tests put it here.
        if request.time_ns > 0 {
            term = Term(u32::try_from(std::mem::take(&mut request.time_ns)).unwrap());
        }
        stream.write_all(&request.in_term(term).encode(&by.key())).unwrap();
        let mut answer = [0; MESSAGE_BYTES];
        stream.read_exact(&mut answer).ok()?;
        let answer = Answer::decode(&answer, by.key_id(), &by.key()).unwrap();
        Some((stream, answer.status))
    }

    /// Nothing of the others has changed: their leases, their verdicts, the lists and the term.
    fn go_on(&mut self, attacker: Member, what: &str) {
        for later in [Duration::ZERO, Duration::from_nanos(UNHEARD_NS)] {
            self.agent.step(Instant::now() + later).unwrap();
            let term = self.lab.view.term().unwrap();
            assert_eq!(term, (Term(TERM), TermPhase::Settled), "{what}");
        }
        let living = self.leases.living();
        for member in MEMBERS {
            assert!(living.contains(&member.via()) || member.via() == attacker.via(), "{what}");
        }
        for stream in &mut self.held {
            stream.set_nonblocking(true).unwrap();
            let mut byte = [0; 1];
            match stream.read(&mut byte) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("{what}: {other:?} {byte:?}"),
            }
        }
        let ended = &self.lab.switch.skeleton().maps.ended_runs;
        let own = prism_proto::wire::ip_bytes(attacker.via());
        for key in ended.keys() {
            assert_eq!(key[..16], own, "{what}");
        }
        let new = Tcp {
            flags: packet::SYN,
            ..Tcp::new(CLIENT3, VIP)
        };
        let out = (mac_of(FRONTEND), CLIENT3, VIP);
        check_sent(&self.lab.run(Hook::Tc, &new.build()), &new, out, what);
    }
}

fn among_others(name: &str, test: impl Fn(&mut Others<'_>) + Sync) {
    in_lab(name, |_| {}, |lab| {
        let file = TermFile::new(name);
        file.store(TERM - 2);
        let (leases, address) = serve_leases(&MEMBERS.map(Member::via));
        leases.set_keys(MEMBERS.map(|member| prism_switch::LeaseKey {
            key_id: member.key_id(),
            key: member.key(),
            nodes: HashSet::from([member.via()]),
        }));
        let mut agent = Agent::new(&lab.switch, leases.clone(), &lab.config.services).unwrap();
        agent.use_terms(SwitchOfPair::First, Vec::new(), file.path()).unwrap();
        agent.set_active(true).unwrap();
        let mut others = Others {
            lab,
            agent,
            leases,
            address,
            held: Vec::new(),
        };
        for member in MEMBERS {
            let (mut stream, status) = others.ask(member, |request| request.run = RunId(1)).unwrap();
            assert_eq!(status, Status::Ok);
            let done = Done { term: Term(TERM), runs: 1 };
            stream.write_all(&done.encode()).unwrap();
            others.held.push(stream);
        }
        let begun = Instant::now();
        let settled = |lab: &Lab| lab.view.term().unwrap().1 == TermPhase::Settled;
        while !settled(lab) || begun.elapsed() < Duration::from_millis(2100) {
            others.agent.step(Instant::now()).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(5));
            pause(20);
        }
        // The news so far: a young term, a settled one, and the verdict on the placement.
        for stream in &mut others.held {
            stream.read_exact(&mut [0; 4 + 4 + 1]).unwrap();
        }
        test(&mut others);
    });
}

type Change = Box<dyn Fn(&mut Request)>;

/// Requests for leases, and the status of each answer.
fn requests(own: Member) -> Vec<(&'static str, Change, Status)> {
    let row = |name, status, change: fn(&mut Request, Member)| -> (_, Change, _) {
        (name, Box::new(move |request: &mut Request| change(request, own)), status)
    };
    vec![
        row("ordinary", Status::Ok, |_, _| {}),
        row("the run of another node", Status::Ok, |r, _| r.run = RunId(1)),
        row("another digest", Status::Ok, |r, _| r.epoch = DIGEST + 1),
        row("no digest", Status::Ok, |r, _| r.epoch = 0),
        // A term; see Others::ask.
        row("the next term", Status::Ok, |r, _| r.time_ns = u64::from(TERM) + 1),
        row("a later term", Status::Ok, |r, _| r.time_ns = u64::from(TERM) + 10),
        row("the last term", Status::Ok, |r, _| r.time_ns = u64::from(Term::MAX.0)),
        row("another node", Status::Denied, |r, _| r.owner.via = BE.via()),
        row("another node at both places", Status::Denied, |r, _| {
            r.owner = Owner { addr: SocketAddr::new(BE.via(), SPEAKS_OF_TERMS), via: BE.via() };
        }),
        row("no node", Status::Denied, |r, _| r.owner.via = CLIENT.ip()),
        row("another owner", Status::Ok, |r, _| {
            r.owner.addr = SocketAddr::new(BE.via(), SPEAKS_OF_TERMS);
        }),
        row("a flow", Status::Ok, |r, _| r.flow = flow(CLIENT)),
        row("no run", Status::BadRequest, |r, _| r.run = RunId::NONE),
        row("an old challenge", Status::BadRequest, |r, _| r.request_id ^= 1),
        row("a command", Status::BadRequest, |r, _| r.ops = OWN),
        row("a release", Status::BadRequest, |r, _| r.ops = Ops::RELEASE),
        row("an announcement", Status::BadRequest, |r, _| r.ops = Ops::ANNOUNCE),
    ]
}

#[test]
fn no_request_for_a_lease_by_one_key_touches_another_node() {
    among_others("one-lease", |others| {
        others.go_on(BE2, "before");
        for (name, change, status) in requests(BE2) {
            // Held, held again, and over.
            for _ in 0..2 {
                let (_stream, answered) = others.ask(BE2, |request| change(request)).unwrap();
                assert_eq!(answered, status, "{name}");
                pause(20);
                others.go_on(BE2, name);
            }
        }
        pause(u64::try_from(LEASE_GRACE.as_millis()).unwrap() + 50);
        others.go_on(BE2, "after all");
    });
}

#[test]
fn no_message_on_a_lease_of_one_key_touches_another_node() {
    let done = |term: u32, runs| Done { term: Term(term), runs }.encode().to_vec();
    let messages = [
        ("leaves", vec![LEAVING]),
        ("takes no more", vec![TAKES_NO_MORE]),
        ("takes no more, often", vec![TAKES_NO_MORE; 1000]),
        ("done in a later term", done(TERM + 2, 1)),
        ("done in the last term", done(Term::MAX.0, u16::MAX)),
        ("done in a former term", done(1, 1)),
        ("done without runs", vec![Done::CODE, 0, 0, 1, 0, 0]),
        ("a part of done", vec![Done::CODE, 0, 0]),
        ("the agent's words", vec![4, 5, 6, 7, 8]),
        ("zeros", vec![0; 200]),
    ];
    among_others("one-word", |others| {
        for (name, message) in &messages {
            for _ in 0..2 {
                let (mut stream, status) = others.ask(BE2, |_| {}).unwrap();
                assert_eq!(status, Status::Ok, "{name}");
                // The agent may have closed it in the middle.
                let _ = stream.write_all(message);
                pause(20);
                others.go_on(BE2, name);
            }
        }
        // Many runs at once, none of which announces anything.
        let many: Vec<_> = (1000..1300u16)
            .map(|run| others.ask(BE2, |request| request.run = RunId(run)).unwrap())
            .collect();
        others.go_on(BE2, "many runs");
        drop(many);
        pause(u64::try_from(LEASE_GRACE.as_millis()).unwrap() + 50);
        others.go_on(BE2, "many runs that have ended");
    });
}
