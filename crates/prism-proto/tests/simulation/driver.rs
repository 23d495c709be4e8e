//! What carries out the actions of `Export` and `Import` on a host.

use prism_proto::control::{FlowState, Ops, Status};
use prism_proto::export::{
    self, BLOCK_DEADLINE_NS, Export, Kept, Outcome, SETTLE_DEADLINE_NS, VERDICT_DEADLINE_NS,
    Verdict,
};
use prism_proto::import::{self, Import};
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, HandOff, Refusal};
use prism_proto::steering::{Command, CommandOutcome};

use crate::app::{Context, Plan};
use crate::host::{Connection, Role, Waiter, Work, owner_record};
use crate::scenario::{MS, Mutation};
use crate::tcp::Tcp;
use crate::world::{Event, World};

/// I5: one retry of the block, then the verdict, then the reclaiming; and the
/// time that local work takes.
const EXPORT_BOUND_NS: u64 =
    2 * BLOCK_DEADLINE_NS + VERDICT_DEADLINE_NS + SETTLE_DEADLINE_NS + 10 * MS;
const IMPORT_BOUND_NS: u64 = SETTLE_DEADLINE_NS + 10 * MS;
const FRAME_DELAY_NS: u64 = 40_000;

pub(crate) struct Exporting {
    machine: Export,
    started: u64,
    target: usize,
    plan: Plan,
    saved: Option<Box<HandOff>>,
    /// Names this hand-off, among all of this connection too: a late verdict of
    /// an earlier one must not be taken for its own.
    hand_off_id: u64,
    /// Waits for a verdict on that channel.
    awaiting: Option<u64>,
}

pub(crate) struct Importing {
    machine: Import,
    started: u64,
    from: usize,
    generation: u64,
    hand_off: Box<HandOff>,
    /// The command may be on its way.
    pub(crate) owning: bool,
}

impl World {
    pub(crate) fn steered(&mut self, host: usize, waiter: Waiter, outcome: CommandOutcome) {
        match waiter {
            Waiter::Clock => {}
            Waiter::Export(id) => self.export_event(host, id, export::Event::Steered(outcome)),
            Waiter::Import(id) => self.import_event(host, id, import::Event::Steered(outcome)),
            Waiter::Release(id) => self.released(host, id, outcome),
            Waiter::Settle(id) => self.settled(host, id, outcome),
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
        }
    }

    pub(crate) fn start_export(&mut self, host: usize, id: u64, target: usize, plan: Plan) {
        let (started, hand_off_id) = (self.now, self.new_id());
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        c.commanded = true;
        let here = owner_record(host);
        let (machine, action) = Export::start(c.flow, here, c.epoch, !c.steered);
        let (saved, awaiting) = (None, None);
        c.role = Role::Exporting(Exporting {
            machine,
            started,
            target,
            plan,
            saved,
            hand_off_id,
            awaiting,
        });
        let of = c.of;
        self.log(|| format!("host {host} hands {of:?} to {target} as {hand_off_id}"));
        self.export_action(host, id, action);
    }

    fn exporting(&mut self, host: usize, id: u64) -> Option<&mut Exporting> {
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
            export::Action::SaveAndClose => self.works(host, delay, Work::Save(id)),
            export::Action::Send { epoch } => self.send_hand_off(host, id, epoch),
            export::Action::Rebuild => self.works(host, delay, Work::Rebuild(id)),
            export::Action::Finish(outcome) => self.finish_export(host, id, outcome),
        }
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
        let (plan, next_request, incarnation) = (exporting.plan, c.next_request, c.of);
        let context = Context {
            plan,
            next_request,
            incarnation,
        };
        exporting.saved = Some(Box::new(HandOff {
            id: exporting.hand_off_id,
            epoch: 0,
            origin: "fe0".into(),
            context: context.encode(),
            input: std::mem::take(&mut c.input),
            output: std::mem::take(&mut c.output),
            tcp: socket.save(c.flow),
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
        if let Some(exporting) = self.exporting(host, id) {
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

    fn send_frame_on(&mut self, from: usize, to: usize, generation: u64, frame: &Frame) {
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

    /// A verdict counts only while it is waited for, and on its channel.
    fn verdict(&mut self, host: usize, hand_off: u64, verdict: Verdict, generation: u64) {
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
        let (false, Some(saved)) = (taken || c.killed, exporting.saved.take()) else {
            c.killed = true;
            return self.export_event(host, id, export::Event::RebuildFailed);
        };
        c.socket = Some(Tcp::restore(&saved.tcp));
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

    fn finish_export(&mut self, host: usize, id: u64, outcome: Outcome) {
        let Some(started) = self.exporting(host, id).map(|e| e.started) else {
            return;
        };
        let took = self.now - started;
        self.log(|| format!("connection {id} of host {host}: {outcome:?}"));
        self.stats.longest_hand_off_ns = self.stats.longest_hand_off_ns.max(took);
        if took > EXPORT_BOUND_NS {
            return self.fail(format!("I5: a hand-off took {took} ns"));
        }
        let name = match outcome {
            Outcome::Moved => "moved".into(),
            Outcome::Lost => "lost".into(),
            Outcome::Kept { reason, .. } => format!("kept: {reason:?}"),
        };
        *self.stats.outcomes.entry(name).or_default() += 1;
        match outcome {
            Outcome::Moved => self.forget(host, id),
            Outcome::Lost => self.lose(host, id),
            Outcome::Kept {
                epoch,
                settled,
                reason,
            } => {
                let refused = matches!(reason, Kept::SwitchRefused(_));
                self.keep(host, id, epoch, settled, settled && !refused);
            }
        }
    }

    fn forget(&mut self, host: usize, id: u64) {
        self.hosts[host].connections.remove(&id);
    }

    /// A connection may be lost only to a newer one, or to a crash.
    fn lose(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.remove(&id) else {
            return;
        };
        let elsewhere = self
            .hosts
            .iter()
            .flat_map(|h| h.connections.values())
            .any(|o| o.of == c.of);
        let over = self.clients[c.of.client].is_over(c.of);
        if !(c.killed || over || elsewhere || self.excused.contains(&c.of)) {
            self.fail(format!("I5: {:?} is lost", c.of));
        }
    }

    fn keep(&mut self, host: usize, id: u64, epoch: u64, settled: bool, steered: bool) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        c.role = Role::Serving;
        (c.epoch, c.steered) = (epoch, c.steered || steered);
        if c.socket.is_none() {
            return self.close(host, id);
        }
        (c.live, c.plan, c.settling) = (true, Plan::Serve, !settled);
        if !settled {
            self.settle(host, id);
        }
        self.pump(host, id);
    }

    /// Repeats that the flow is here, until the switch has answered.
    fn settle(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return;
        };
        let (epoch, flow, owner) = (c.epoch, c.flow, owner_record(host));
        let ops = Ops::OWN.and(Ops::UNBLOCK);
        let command = Command {
            ops,
            epoch,
            flow,
            owner,
        };
        self.steer(host, command, BLOCK_DEADLINE_NS, Waiter::Settle(id));
    }

    fn settled(&mut self, host: usize, id: u64, outcome: CommandOutcome) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        if !matches!(c.role, Role::Serving) {
            return;
        }
        match outcome {
            CommandOutcome::Unanswered => self.settle(host, id),
            CommandOutcome::Answered(answer) => {
                let stale = answer.status == Status::Stale;
                if stale && !c.steered && answer.owner == owner_record(host) {
                    c.epoch = answer.epoch + 1;
                    return self.settle(host, id);
                }
                if stale && (c.steered || answer.state != FlowState::Absent) {
                    return self.lose(host, id);
                }
                c.settling = false;
                (c.epoch, c.steered) = (
                    answer.epoch.max(c.epoch),
                    c.steered || answer.status == Status::Ok,
                );
                self.pump(host, id);
            }
        }
    }

    pub(crate) fn frame_at_host(&mut self, from: usize, to: usize, generation: u64, bytes: &[u8]) {
        let current = self
            .channels
            .get(&Self::channel(from, to))
            .copied()
            .unwrap_or(0);
        if generation != current {
            return;
        }
        self.hosts[to].channels.insert(from, generation);
        let body = &bytes[FRAME_PREFIX_BYTES..];
        match (Frame::announced_len(bytes), Frame::decode(body)) {
            (Ok(Some(len)), Ok(frame)) if len == body.len() => match frame {
                Frame::HandOff(hand_off) => self.start_import(to, from, generation, hand_off),
                Frame::Accepted { id } => self.verdict(to, id, Verdict::Accepted, generation),
                Frame::Refused { id, reason } => {
                    self.verdict(to, id, Verdict::Refused(reason), generation);
                }
            },
            _ => self.fail("a frame cannot be read"),
        }
    }

    fn start_import(&mut self, host: usize, from: usize, generation: u64, hand_off: Box<HandOff>) {
        let Some(context) = Context::decode(&hand_off.context) else {
            return self.fail("I2: the context is damaged");
        };
        if self.chance(self.scenario.refusals) {
            let (id, reason) = (hand_off.id, Refusal::Busy);
            return self.send_frame_on(host, from, generation, &Frame::Refused { id, reason });
        }
        let flow = self.clients[context.incarnation.client].flow;
        let outranks = u64::from(self.scenario.mutation == Mutation::TargetOutranksSource);
        let epoch = hand_off.epoch + outranks;
        let mut c = Connection::new(context.incarnation, flow, epoch, self.now);
        (c.steered, c.commanded) = (true, true);
        (c.plan, c.next_request) = (context.plan, context.next_request);
        let (machine, action) = Import::start(flow, epoch);
        let (started, owning) = (self.now, false);
        let import = Importing {
            machine,
            started,
            from,
            generation,
            hand_off,
            owning,
        };
        c.role = Role::Importing(import);
        let id = self.new_id();
        self.hosts[host].connections.insert(id, c);
        self.works(host, 40_000 * MS, Work::Idle(id));
        self.import_action(host, id, action);
    }

    fn import_event(&mut self, host: usize, id: u64, event: import::Event) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Importing(import) = &mut c.role else {
            return;
        };
        let action = import.machine.handle(event);
        self.import_action(host, id, action);
    }

    fn import_action(&mut self, host: usize, id: u64, action: import::Action) {
        let delay = self.rng.u64(1000..50_000);
        match action {
            import::Action::Restore => self.works(host, delay, Work::Restore(id)),
            import::Action::Steer {
                command,
                deadline_ns,
            } => {
                self.steer(host, command, deadline_ns, Waiter::Import(id));
            }
            import::Action::GoLive => self.finish_import(host, id, None),
            import::Action::Refuse(reason) => self.finish_import(host, id, Some(reason)),
        }
    }

    /// A socket of an older hand-off or connection makes room for a newer one,
    /// never the reverse.
    fn make_room(&mut self, host: usize, id: u64) -> bool {
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return false;
        };
        let rank = (c.of, c.epoch);
        match self.hosts[host].with_socket(&c.flow) {
            Some((_, other)) if (other.of, other.epoch) >= rank => return false,
            Some((other, _)) => self.kill(host, other),
            None => {}
        }
        true
    }

    fn restore(&mut self, host: usize, id: u64) {
        let fails = self.chance(self.scenario.refusals);
        let taken = !self.make_room(host, id);
        if fails || taken {
            return self.import_event(host, id, import::Event::RestoreFailed);
        }
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Importing(import) = &mut c.role else {
            return;
        };
        c.socket = Some(Tcp::restore(&import.hand_off.tcp));
        c.input = std::mem::take(&mut import.hand_off.input);
        c.output = std::mem::take(&mut import.hand_off.output);
        import.owning = true;
        let owner = owner_record(host);
        self.import_event(host, id, import::Event::Restored(owner));
    }

    fn finish_import(&mut self, host: usize, id: u64, refusal: Option<Refusal>) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Importing(import) = &c.role else {
            return;
        };
        let (from, generation, hand_off_id) = (import.from, import.generation, import.hand_off.id);
        let took = self.now - import.started;
        let frame = match refusal {
            None => Frame::Accepted { id: hand_off_id },
            Some(reason) => Frame::Refused {
                id: hand_off_id,
                reason,
            },
        };
        c.role = Role::Serving;
        c.live = refusal.is_none();
        if took > IMPORT_BOUND_NS {
            return self.fail(format!("I5: taking a connection took {took} ns"));
        }
        self.log(|| format!("host {host} ends import of {hand_off_id}: {frame:?}"));
        self.send_frame_on(host, from, generation, &frame);
        if refusal.is_some() {
            return self.forget(host, id);
        }
        match self.hosts[host]
            .connections
            .get(&id)
            .is_some_and(|c| c.socket.is_some())
        {
            true => self.pump(host, id),
            false => self.close(host, id),
        }
    }
}
