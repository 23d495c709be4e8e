//! Carries out the actions of `Import` on a host, and receives frames.

use prism_proto::export::{CLAIM_DEADLINE_NS, SETTLE_DEADLINE_NS, Verdict};
use prism_proto::import::{self, DEAF_NS, Import};
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, HandOff, Refusal};
use prism_proto::steering::CommandOutcome;

use crate::app::Context;
use crate::host::{Connection, RELEASE_DEADLINE_NS, Role, Waiter, Work, owner_record};
use crate::scenario::{MS, Mutation};
use crate::tcp::{Segment, Tcp};
use crate::world::World;

/// I5: the time that asking the switch may take, and local work.
const IMPORT_BOUND_NS: u64 = CLAIM_DEADLINE_NS + SETTLE_DEADLINE_NS + 10 * MS;
/// A socket that waits for the switch is silenced within this time, on a host
/// with much else to do.
const MAX_SILENCE_NS: u64 = 30 * MS;

pub(crate) struct Importing {
    machine: Import,
    started: u64,
    from: usize,
    generation: u64,
    hand_off: Box<HandOff>,
    /// The command may be on its way.
    pub(crate) owning: bool,
    /// The socket sends nothing.
    is_mute: bool,
    /// The socket takes nothing in.
    pub(crate) is_deaf: bool,
}

impl Importing {
    /// Whether the socket answers nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_deaf || self.is_mute
    }
}

impl World {
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
                Frame::Accepted { id, .. } => self.told(to, id, Verdict::Accepted, generation),
                Frame::Refused { id, reason, .. } => {
                    self.told(to, id, Verdict::Refused(reason), generation);
                }
                Frame::Unknown { id } => self.told(to, id, Verdict::Unknown, generation),
                Frame::Ask { id } => self.asked(to, from, generation, id),
                // The simulated hosts read the phase of others directly.
                Frame::Leaving { .. } | Frame::Heard { .. } => {}
            },
            _ => self.fail("a frame cannot be read"),
        }
    }

    fn start_import(&mut self, host: usize, from: usize, generation: u64, hand_off: Box<HandOff>) {
        let Some(context) = Context::decode(&hand_off.context) else {
            return self.fail("I2: the context is damaged");
        };
        let refusal = match self.refuses_all(host) {
            true => Some(Refusal::Unwilling),
            false => self.chance(self.scenario.refusals).then_some(Refusal::Busy),
        };
        if let Some(reason) = refusal {
            let id = hand_off.id;
            return self.send_frame_on(
                host,
                from,
                generation,
                &Frame::Refused {
                    id,
                    reason,
                    pass: None,
                },
            );
        }
        let flow = self.clients[context.incarnation.client].flow;
        let outranks = u64::from(self.scenario.mutation == Mutation::TargetOutranksSource);
        let epoch = hand_off.epoch + outranks;
        let mut c = Connection::new(context.incarnation, flow, epoch, self.now);
        (c.steered, c.commanded) = (true, true);
        (c.plan, c.next_request) = (context.plan, context.next_request);
        let (machine, action) = Import::start(self.scenario.fence, flow, epoch);
        let (started, owning) = (self.now, false);
        let import = Importing {
            machine,
            started,
            from,
            generation,
            hand_off,
            owning,
            is_mute: false,
            is_deaf: false,
        };
        c.role = Role::Importing(import);
        let id = self.new_id();
        self.hosts[host].connections.insert(id, c);
        self.works(host, 40_000 * MS, Work::Idle(id));
        self.import_action(host, id, action);
    }

    fn importing(&mut self, host: usize, id: u64) -> Option<&mut Importing> {
        match &mut self.hosts[host].connections.get_mut(&id)?.role {
            Role::Importing(importing) => Some(importing),
            _ => None,
        }
    }

    pub(crate) fn import_event(&mut self, host: usize, id: u64, event: import::Event) {
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
            import::Action::Restore { is_mute } => {
                let is_heard = self.scenario.mutation == Mutation::TargetIsHeard;
                if let Some(import) = self.importing(host, id) {
                    import.is_mute = is_mute && !is_heard;
                }
                self.works(host, delay, Work::Restore(id));
            }
            import::Action::Steer {
                command,
                deadline_ns,
            } => {
                self.steer(host, command, deadline_ns, Waiter::Import(id));
                let within = self.rng.u64(0..MAX_SILENCE_NS);
                self.works(host, within, Work::Silence(id));
            }
            import::Action::GoLive => self.finish_import(host, id, None),
            import::Action::Refuse(reason) => self.finish_import(host, id, Some(reason)),
            import::Action::GiveUp(reason) => match self.scenario.mutation {
                Mutation::TargetClosesAtOnce => self.finish_import(host, id, Some(reason)),
                Mutation::TargetIsLiveUnanswered => self.finish_import(host, id, None),
                _ => self.give_up(host, id, reason),
            },
        }
    }

    /// Tells the source; the socket stays as it is.
    fn give_up(&mut self, host: usize, id: u64, reason: Refusal) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Role::Importing(import) = &c.role else {
            return;
        };
        let (hand_off, from, generation) = (import.hand_off.id, import.from, import.generation);
        let remains = import.machine.remains();
        c.role = Role::Deaf { hand_off, remains };
        self.stats.given_up += 1;
        self.log(|| format!("host {host} gives {hand_off} up"));
        let refused = Frame::Refused {
            id: hand_off,
            reason,
            pass: None,
        };
        self.send_frame_on(host, from, generation, &refused);
        self.works(host, DEAF_NS, Work::EndDeaf(id));
    }

    /// Closes a deaf socket, and asks the arbiter for its flow in host mode.
    pub(crate) fn end_deaf(&mut self, host: usize, id: u64) {
        let is_broken = self.scenario.mutation == Mutation::RemainsStay;
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        match c.role {
            Role::Deaf {
                remains: Some(remains),
                ..
            } if !is_broken => {
                c.socket = None;
                let waiter = Waiter::Remains(id);
                self.steer(host, remains.query(), RELEASE_DEADLINE_NS, waiter);
            }
            _ => self.forget(host, id),
        }
    }

    pub(crate) fn on_remains(&mut self, host: usize, id: u64, outcome: CommandOutcome) {
        let CommandOutcome::Answered(answer) = outcome else {
            return self.end_deaf(host, id);
        };
        let h = &self.hosts[host];
        let is_left = h.connections.get(&id).is_some_and(|c| match &c.role {
            Role::Deaf { remains, .. } => {
                let is_here = h.registry.get(&c.flow).is_some();
                remains.is_some_and(|remains| remains.is_left(&answer)) && !is_here
            }
            _ => false,
        });
        match is_left {
            true => self.close(host, id),
            false => self.forget(host, id),
        }
    }

    /// Answers a source that asks for the outcome of its hand-off. There is no answer while that is
    /// open; it asks again.
    fn asked(&mut self, host: usize, from: usize, generation: u64, id: u64) {
        let mut all = self.hosts[host].connections.values();
        let found = all.find_map(|c| match &c.role {
            Role::Importing(import) if import.hand_off.id == id => Some(false),
            Role::Deaf { hand_off, .. } if *hand_off == id => Some(true),
            _ => None,
        });
        let frame = match found {
            Some(false) => return,
            Some(true) => Frame::Refused {
                id,
                reason: Refusal::SwitchFailed,
                pass: None,
            },
            None => Frame::Unknown { id },
        };
        self.send_frame_on(host, from, generation, &frame);
    }

    /// Silences the socket. The source does not have the bytes that it took before.
    pub(crate) fn silence(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let (Role::Importing(import), Some(socket)) = (&mut c.role, &c.socket) else {
            return;
        };
        if import.is_deaf {
            return;
        }
        import.is_deaf = true;
        let hears_before =
            !import.is_mute && self.scenario.mutation != Mutation::TargetForgetsWhatItHeard;
        if hears_before && socket.next_expected() != import.hand_off.tcp.receive_seq {
            import.machine.must_insist();
            self.hold_unconfirmed(host, id);
        }
    }

    /// A segment at a restored socket that does not own the flow yet: the kernel takes and
    /// acknowledges it.
    pub(crate) fn segment_at_import(&mut self, host: usize, id: u64, segment: &Segment) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let (Role::Importing(import), Some(socket)) = (&c.role, &mut c.socket) else {
            return;
        };
        if import.is_deaf || segment.rst {
            return;
        }
        match socket.receive(segment) {
            Ok(true) if import.is_mute => {}
            Ok(true) => {
                let (of, segment) = (c.of, socket.ack());
                self.host_sends(host, of, vec![segment]);
            }
            Ok(false) => {}
            Err(what) => self.fail(format!("{what} (import at host {host})")),
        }
    }

    /// A socket of an older hand-off or connection makes room for a newer one,
    /// never the reverse. One that is being opened may be a forgery's, and makes room too.
    pub(crate) fn make_room(&mut self, host: usize, id: u64) -> bool {
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return false;
        };
        let rank = (c.of, c.epoch);
        match self.hosts[host].with_socket(&c.flow) {
            Some((_, other)) if !other.syn_ack.syn && (other.of, other.epoch) >= rank => {
                return false;
            }
            Some((other, _)) => self.kill(host, other),
            None => {}
        }
        true
    }

    pub(crate) fn restore(&mut self, host: usize, id: u64) {
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
            None => Frame::Accepted {
                id: hand_off_id,
                spent_ns: 0,
            },
            Some(reason) => Frame::Refused {
                id: hand_off_id,
                reason,
                pass: None,
            },
        };
        // The kernel acknowledges what came while the socket was mute.
        let socket = c.socket.as_ref().filter(|_| import.is_mute);
        let ack = socket.map(Tcp::ack).filter(|_| refusal.is_none());
        c.role = Role::Serving;
        c.live = refusal.is_none();
        let (of, flow, epoch) = (c.of, c.flow, c.epoch);
        if refusal.is_none() {
            self.check_right(host, &flow, epoch);
        }
        self.host_sends(host, of, ack.into_iter().collect());
        if took > IMPORT_BOUND_NS + self.scenario.young_ns() {
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
