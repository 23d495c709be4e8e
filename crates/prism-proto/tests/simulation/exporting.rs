//! Carries out the actions of `Export` on a host.

use prism_proto::control::{Ops, Term};
use prism_proto::export::{
    self, ASK_INTERVAL_NS, Export, Kept, Method, Outcome, VERDICT_DEADLINE_NS, Verdict,
};
use prism_proto::fence::Fence;
use prism_proto::import;
use prism_proto::node::{Frame, HandOff};
use prism_proto::steering::CommandOutcome;

use crate::app::{Context, Plan};
use crate::host::{Connection, Role, Waiter, Work, owner_record};
use crate::scenario::Mutation;
use crate::tcp::Tcp;
use crate::world::{Event, World};

const FRAME_DELAY_NS: u64 = 40_000;

pub(crate) struct Exporting {
    machine: Export,
    pub(crate) started: u64,
    target: usize,
    plan: Plan,
    freezes: bool,
    saved: Option<Box<HandOff>>,
    /// The deaf and mute socket, if it is kept until the verdict.
    frozen: Option<Tcp>,
    /// The term of the flow when the state was sent.
    sent_in: Option<Term>,
    /// The identifier of this hand-off. A late verdict of an earlier one of the same connection
    /// must not count for it.
    hand_off_id: u64,
    /// The channel on which it waits for a verdict.
    awaiting: Option<u64>,
    /// The host that it asks, and the deadline.
    asking: Option<(usize, u64)>,
}

impl Exporting {
    pub(crate) fn bound_to(&self) -> Option<Term> {
        self.sent_in.filter(|_| self.machine.is_bound_to_term())
    }

    /// The term of the flow when its state was sent, if it was: another host may have it since.
    pub(crate) fn sent_in(&self) -> Option<Term> {
        self.sent_in
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    pub(crate) fn is_hand_off(&self, id: u64) -> bool {
        self.hand_off_id == id
    }
}

impl World {
    pub(crate) fn steered(&mut self, host: usize, waiter: Waiter, outcome: CommandOutcome) {
        match waiter {
            Waiter::Clock if outcome == CommandOutcome::Unanswered => self.boot(host),
            Waiter::Clock => {}
            Waiter::Export(id) => self.export_event(host, id, export::Event::Steered(outcome)),
            Waiter::Import(id) => self.import_event(host, id, import::Event::Steered(outcome)),
            Waiter::Release(id) => self.released(host, id, outcome),
            Waiter::Remains(id) => self.on_remains(host, id, outcome),
            Waiter::Settle(id, epoch) => self.settled(host, id, epoch, outcome),
            Waiter::Claim(id, epoch) => self.claimed(host, id, epoch, outcome),
            Waiter::Announce(term, owned) => self.announced(host, term, &owned, outcome),
        }
    }

    pub(crate) fn work(&mut self, host: usize, work: Work) {
        match work {
            Work::Save(id) => self.save(host, id),
            Work::Rebuild(id) => self.rebuild(host, id),
            Work::Restore(id) => self.restore(host, id),
            Work::VerdictDeadline(id) => self.verdict(host, id, Verdict::Unknown, u64::MAX),
            Work::Retransmit(id) => self.retransmit(host, id),
            Work::Idle(id) => self.idle(host, id),
            Work::Silence(id) => self.silence(host, id),
            Work::EndDeaf(id) => self.end_deaf(host, id),
            Work::Ask(id) => self.ask(host, id),
            Work::Leave => self.go_on_leaving(host),
            Work::Claim(id) => self.claim(host, id),
            Work::Lease => self.dial_lease(host),
            Work::Done => self.say_done_again(host),
        }
    }

    pub(crate) fn start_export(&mut self, host: usize, id: u64, target: usize, plan: Plan) {
        let (started, hand_off_id) = (self.now, self.new_id());
        self.forget_claims(host, id);
        let method = match self.rng.bool() {
            true => Method::Freeze,
            false => Method::TwoPhase,
        };
        let h = &self.hosts[host];
        let clock = h.steering.switch_clock_ns(self.now + h.clock_offset_ns);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        c.commanded = true;
        // A claim that is under way is outranked, unless its epoch is of a former switch's clock.
        c.claims = false;
        if !c.steered {
            c.epoch = c.epoch.max(clock.unwrap_or(0));
        }
        let here = owner_record(host);
        let fence = match self.scenario.mutation {
            Mutation::RefusedIsEnough => Fence::Switch,
            _ => self.scenario.fence,
        };
        let (machine, action) = Export::start(fence, method, c.flow, here, c.epoch, !c.steered);
        let (saved, frozen, awaiting, asking) = (None, None, None, None);
        c.role = Role::Exporting(Exporting {
            machine,
            started,
            target,
            plan,
            freezes: false,
            saved,
            frozen,
            sent_in: None,
            hand_off_id,
            awaiting,
            asking,
        });
        let of = c.of;
        self.log(|| format!("host {host} hands {of:?} to {target} as {hand_off_id}"));
        self.export_action(host, id, action);
    }

    fn forget_claims(&mut self, host: usize, id: u64) {
        let h = &mut self.hosts[host];
        let is_claim = |w: &mut Waiter| matches!(w, Waiter::Claim(of, _) if *of == id);
        for (command, _) in h.waiters.extract_if(.., |_, w| is_claim(w)) {
            h.steering.forget(command);
        }
    }

    pub(crate) fn exporting(&mut self, host: usize, id: u64) -> Option<&mut Exporting> {
        match &mut self.hosts[host].connections.get_mut(&id)?.role {
            Role::Exporting(exporting) => Some(exporting),
            _ => None,
        }
    }

    fn export_event(&mut self, host: usize, id: u64, event: export::Event) {
        let Some(exporting) = self.exporting(host, id) else {
            return;
        };
        let action = exporting.machine.handle(event);
        self.export_action(host, id, action);
    }

    fn export_action(&mut self, host: usize, id: u64, action: export::Action) {
        let delay = self.rng.u64(1000..50_000);
        match action {
            // A dead connection does not outbid its successor.
            export::Action::Steer { command, .. }
                if command.ops.has(Ops::BLOCK) && self.is_dead(host, id) =>
            {
                self.close(host, id);
            }
            export::Action::Steer {
                command,
                deadline_ns,
            } => {
                self.steer(host, command, deadline_ns, Waiter::Export(id));
            }
            export::Action::Save { freezes } => {
                let must_freeze = self.scenario.fence == Fence::Host;
                if let Some(exporting) = self.exporting(host, id) {
                    exporting.freezes = freezes || must_freeze;
                }
                self.works(host, delay, Work::Save(id));
            }
            export::Action::Send { epoch } => self.send_hand_off(host, id, epoch),
            export::Action::Rebuild => self.works(host, delay, Work::Rebuild(id)),
            export::Action::Ask { owner, deadline_ns } => {
                let owner = owner.map(|owner| self.host_at(owner));
                let until = self.now + deadline_ns;
                if let Some(exporting) = self.exporting(host, id) {
                    let whom = owner.unwrap_or(exporting.target);
                    exporting.asking = Some((whom, until));
                }
                self.ask(host, id);
            }
            export::Action::Finish(outcome) => self.finish_export(host, id, outcome),
        }
    }

    /// Asks on a new channel of its own.
    fn ask(&mut self, host: usize, id: u64) {
        let now = self.now;
        let Some(exporting) = self.exporting(host, id) else {
            return;
        };
        let (hand_off, Some((whom, until))) = (exporting.hand_off_id, exporting.asking) else {
            return;
        };
        if now >= until {
            exporting.asking = None;
            return self.export_event(host, id, export::Event::Told(Verdict::Unknown));
        }
        let generation = self.channels.get(&Self::channel(host, whom)).copied();
        self.send_frame_on(
            host,
            whom,
            generation.unwrap_or(0),
            &Frame::Ask { id: hand_off },
        );
        self.works(host, ASK_INTERVAL_NS, Work::Ask(id));
    }

    fn is_dead(&self, host: usize, id: u64) -> bool {
        self.hosts[host]
            .connections
            .get(&id)
            .is_some_and(|c| c.killed)
    }

    fn save(&mut self, host: usize, id: u64) {
        let fails = self.chance(self.scenario.refusals);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Exporting(exporting) = &mut c.role else {
            return;
        };
        if fails || c.socket.is_none() {
            return self.export_event(host, id, export::Event::SaveFailed);
        }
        let Some(socket) = c.socket.take() else {
            return;
        };
        c.live = false;
        if exporting.freezes {
            exporting.frozen = Some(socket.clone());
        }
        if self.scenario.mutation == Mutation::FrozenSends {
            (c.live, c.socket) = (true, Some(socket.clone()));
        }
        let (plan, next_request, incarnation) = (exporting.plan, c.next_request, c.of);
        let context = Context {
            plan,
            next_request,
            incarnation,
        };
        exporting.saved = Some(Box::new(HandOff {
            id: exporting.hand_off_id,
            epoch: 0,
            moves: 1,
            origin: "fe0".into(),
            context: context.encode(),
            input: std::mem::take(&mut c.input),
            output: std::mem::take(&mut c.output),
            tls: None,
            tcp: socket.save(c.flow),
            proxied: None,
            permit: None,
        }));
        self.export_event(host, id, export::Event::Saved);
    }

    fn send_hand_off(&mut self, host: usize, id: u64, epoch: u64) {
        let Some(exporting) = self.exporting(host, id) else {
            return;
        };
        let hand_off_id = exporting.hand_off_id;
        let (target, Some(saved)) = (exporting.target, &exporting.saved) else {
            return;
        };
        let frame = Frame::HandOff(Box::new(HandOff {
            epoch,
            ..(**saved).clone()
        }));
        let generation = self.send_frame(host, target, &frame);
        let h = &self.hosts[host];
        let flow = h.connections.get(&id).map(|c| c.flow);
        let held = flow.and_then(|flow| h.registry.get(&flow));
        let term = held.map_or(h.steering.term(), |owned| owned.term);
        if let Some(exporting) = self.exporting(host, id) {
            exporting.sent_in = Some(term);
            exporting.awaiting = Some(generation);
        }
        self.works(
            host,
            VERDICT_DEADLINE_NS,
            Work::VerdictDeadline(hand_off_id),
        );
    }

    /// Sends on the channel that `from` believes in.
    fn send_frame(&mut self, from: usize, to: usize, frame: &Frame) -> u64 {
        let generation = self.hosts[from].channels.get(&to).copied().unwrap_or(0);
        self.send_frame_on(from, to, generation, frame);
        generation
    }

    pub(crate) fn send_frame_on(&mut self, from: usize, to: usize, generation: u64, frame: &Frame) {
        let bytes = frame.encode();
        self.after(
            FRAME_DELAY_NS,
            Event::Frame {
                from,
                to,
                generation,
                bytes,
            },
        );
    }

    /// A verdict in a frame may answer a question as well.
    pub(crate) fn told(&mut self, host: usize, hand_off: u64, verdict: Verdict, generation: u64) {
        let mut all = self.hosts[host].connections.iter_mut();
        let asked = all.find_map(|(id, c)| match &mut c.role {
            Role::Exporting(e) if e.hand_off_id == hand_off => e.asking.take().map(|_| *id),
            _ => None,
        });
        match asked {
            Some(id) => self.export_event(host, id, export::Event::Told(verdict)),
            None => self.verdict(host, hand_off, verdict, generation),
        }
    }

    /// A verdict counts only while it is waited for, and on its channel.
    pub(crate) fn verdict(
        &mut self,
        host: usize,
        hand_off: u64,
        verdict: Verdict,
        generation: u64,
    ) {
        let mut all = self.hosts[host].connections.iter_mut();
        let found = all.find_map(|(id, c)| match &mut c.role {
            Role::Exporting(e) if e.hand_off_id == hand_off => Some((*id, e)),
            _ => None,
        });
        let Some((id, exporting)) = found else { return };
        if exporting
            .awaiting
            .is_some_and(|sent_on| sent_on <= generation)
        {
            exporting.awaiting = None;
            self.export_event(host, id, export::Event::Verdict(verdict));
        }
    }

    pub(crate) fn channel_gone(&mut self, host: usize, peer: usize, generation: u64) {
        let known = self.hosts[host].channels.entry(peer).or_default();
        *known = (*known).max(generation);
        let Some(before) = generation.checked_sub(1) else {
            return;
        };
        let connections = self.hosts[host].connections.values();
        let waits = |c: &Connection| match &c.role {
            Role::Exporting(e) if e.target == peer => Some(e.hand_off_id),
            _ => None,
        };
        let waiting: Vec<u64> = connections.filter_map(waits).collect();
        for id in waiting {
            self.verdict(host, id, Verdict::Unknown, before);
        }
    }

    fn rebuild(&mut self, host: usize, id: u64) {
        let taken = !self.make_room(host, id);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Exporting(exporting) = &mut c.role else {
            return;
        };
        let frozen = exporting.frozen.take();
        let (false, Some(saved)) = (taken || c.killed, exporting.saved.take()) else {
            let returned = taken && !c.killed;
            c.killed = true;
            let event = match returned {
                true => export::Event::Returned,
                false => export::Event::RebuildFailed,
            };
            return self.export_event(host, id, event);
        };
        c.socket = Some(frozen.unwrap_or_else(|| Tcp::restore(&saved.tcp)));
        (c.input, c.output) = (saved.input, saved.output);
        if self.scenario.mutation == Mutation::SourceDoesNotAsk {
            let (epoch, reason) = (c.epoch + 2, Kept::TargetSilent);
            let outcome = Outcome::Kept {
                epoch,
                reason,
                settled: true,
            };
            return self.finish_export(host, id, outcome);
        }
        self.export_event(host, id, export::Event::Rebuilt);
    }
}
