//! The hosts' side of terms: the registry of owned flows, announcements, the lease's connection.

use prism_proto::announce::{Announced, DEADLINE_NS};
use prism_proto::control::{Answer, Ops, Owner, Request, RunId, Stamped, Status, Term};
use prism_proto::lease::{Done, TermNotice};
use prism_proto::registry::OwnedFlow;
use prism_proto::steering::CommandOutcome;

use crate::frontends::is_frontend;
use crate::host::{Host, KEY_ID, Role, Waiter, Work, control_key, owner_record};
use crate::scenario::{MS, Mutation};
use crate::terms::TermEvent;
use crate::world::{Event, HOP_NS, World};

/// The interval at which a host dials its lease again.
const REDIAL_NS: u64 = 50 * MS;

impl World {
    /// An answer as the host hears it: a broken one takes that of a former term for a present one.
    pub(crate) fn as_heard(&self, host: usize, bytes: &[u8]) -> Vec<u8> {
        let is_broken = self.scenario.mutation == Mutation::OldAnswersCount;
        match Stamped::<Answer>::decode(bytes, KEY_ID, &control_key()) {
            Ok(answer) if is_broken => {
                let term = answer.term.max(self.hosts[host].steering.term());
                answer.message.in_term(term).encode(&control_key()).to_vec()
            }
            _ => bytes.to_vec(),
        }
    }

    /// Begins to announce if the host has heard of a new term, from an answer.
    pub(crate) fn on_term(&mut self, host: usize) {
        let h = &self.hosts[host];
        let term = h.steering.term();
        if term <= h.announcer.term() {
            return;
        }
        if h.steering.switch_clock_ns(self.now).is_none() {
            return self.boot(host);
        }
        let waits = h.connections.iter().filter(|(_, c)| match &c.role {
            Role::Importing(import) => import.owning,
            _ => false,
        });
        let waiting: Vec<u64> = waits.map(|(id, _)| *id).collect();
        for id in waiting {
            self.silence(host, id);
        }
        self.hold_unclaimed(host);
        self.log(|| format!("host {host} hears of {term:?}"));
        let h = &mut self.hosts[host];
        h.announcer.begin(term);
        let waiters = h
            .waiters
            .extract_if(.., |_, w| matches!(w, Waiter::Announce(..)));
        for (id, _) in waiters {
            h.steering.forget(id);
        }
        if h.noticed > Term::NONE && h.noticed < term {
            // The lease is from before, or another switch's.
            self.works(host, REDIAL_NS, Work::Lease);
        }
        self.announce(host);
    }

    fn announce(&mut self, host: usize) {
        let now = self.now + self.hosts[host].clock_offset_ns;
        let h = &mut self.hosts[host];
        let mut has_sent = false;
        while let Some(owned) = h.announcer.poll(&h.registry) {
            let (command, until) = (owned.announcement(), now + DEADLINE_NS);
            let term = h.announcer.term();
            let id = h.steering.start_in(term, command, now, until);
            let waiter = Waiter::Announce(term, owned);
            h.waiters.insert(id, waiter);
            has_sent = true;
        }
        if h.announcer.poll_done().is_some() {
            self.say_done(host);
        }
        if has_sent {
            self.run_steering(host);
        }
    }

    pub(crate) fn announced(
        &mut self,
        host: usize,
        term: Term,
        owned: &OwnedFlow,
        outcome: CommandOutcome,
    ) {
        let h = &mut self.hosts[host];
        let announced = h.announcer.handle(term, owned, outcome, &mut h.registry);
        match announced {
            Announced::Known => {
                let all = h.connections.iter_mut();
                let of_flow = all.filter(|(_, c)| {
                    let is_closing = c.epoch == owned.epoch && matches!(c.role, Role::Closing);
                    c.flow == owned.flow && (c.held == Some(owned.epoch) || is_closing)
                });
                for (_, c) in of_flow {
                    c.released_in = c.released_in.map(|known| known.max(term));
                }
                h.steering.restamp(&owned.flow, owned.epoch, term);
            }
            Announced::Lost => {
                if let Some(id) = h.serving(owned) {
                    self.lose(host, id);
                }
            }
            Announced::Outranked { above } => {
                if let Some(id) = h.serving(owned) {
                    if let Some(c) = h.connections.get_mut(&id) {
                        c.epoch = above + 1;
                    }
                    self.hold_unconfirmed(host, id);
                }
            }
            Announced::Void => {}
        }
        self.announce(host);
    }

    /// Registers what the switch has confirmed, and copies it to the standby.
    pub(crate) fn note(&mut self, host: usize, waiter: Waiter, outcome: CommandOutcome) {
        let (id, CommandOutcome::Answered(answer)) = (waiter.connection(), outcome) else {
            return;
        };
        let h = &mut self.hosts[host];
        let term = h.steering.term();
        if matches!(answer.status, Status::Ok | Status::Stale) && answer.ops == Ops::RELEASE {
            let epoch = id.and_then(|id| Some(h.connections.get(&id)?.epoch + 1));
            return self.copy(host, answer.ops, epoch.unwrap_or(answer.epoch), &answer);
        }
        let Some(c) = id.and_then(|id| h.connections.get_mut(&id)) else {
            return;
        };
        if matches!(c.role, Role::Closing) {
            return;
        }
        if h.registry.note(&answer, term, owner_record(host)) == Ok(true) {
            c.held = Some(answer.epoch);
            let blocked = answer.state == prism_proto::control::FlowState::Blocked;
            let state = if blocked { Ops::BLOCK } else { Ops::UNBLOCK };
            self.copy(host, Ops::OWN.and(state), answer.epoch, &answer);
        }
    }

    /// Sends a confirmed state to the standby, once. It may be outdated when it arrives, and the
    /// standby may have become the arbiter or have been it.
    fn copy(&mut self, host: usize, ops: Ops, epoch: u64, answer: &Answer) {
        if !self.scenario.has_standby || self.chance(0.3) {
            return;
        }
        let has_owner = ops.has(Ops::OWN);
        let request = Request {
            key_id: KEY_ID,
            request_id: 0,
            time_ns: 0,
            ops: ops.and(Ops::ANNOUNCE),
            epoch,
            flow: answer.flow,
            owner: if has_owner { answer.owner } else { Owner::NONE },
            run: RunId::NONE,
        };
        let copy = request.in_term(self.hosts[host].steering.term());
        let late_ns = match self.chance(0.3) {
            true => self.rng.u64(0..DEADLINE_NS),
            false => 0,
        };
        self.after(HOP_NS + late_ns, Event::Term(TermEvent::Copy(copy)));
    }

    /// Registers the connections that a frontend has not claimed yet. No other host has them.
    fn hold_unclaimed(&mut self, host: usize) {
        if self.scenario.mutation == Mutation::UnclaimedWait || !is_frontend(host) {
            return;
        }
        let all = self.hosts[host].connections.iter();
        let unclaimed = all.filter(|(_, c)| {
            let is_open = c.live && !c.killed && !c.syn_ack.syn;
            // State is sent only after a confirmed block.
            let is_here = matches!(c.role, Role::Serving | Role::Exporting(_));
            is_open && is_here && !c.steered && c.held.is_none()
        });
        let unclaimed: Vec<u64> = unclaimed.map(|(id, _)| *id).collect();
        for id in unclaimed {
            let h = &mut self.hosts[host];
            if let Some(c) = h.connections.get_mut(&id) {
                let clock = h.steering.switch_clock_ns(c.since + h.clock_offset_ns);
                // A hand-off that has begun goes by the epoch before it.
                if c.epoch == 0 {
                    c.epoch = clock.unwrap_or(0);
                }
                c.commanded = true;
            }
            self.hold_unconfirmed(host, id);
        }
    }

    /// Registers a flow that no other host can have, though the switch has not confirmed it.
    pub(crate) fn hold_unconfirmed(&mut self, host: usize, id: u64) {
        let h = &mut self.hosts[host];
        let Some(c) = h.connections.get_mut(&id) else {
            return;
        };
        let (flow, epoch) = (c.flow, c.epoch);
        c.held = Some(epoch);
        let known = h.registry.get(&flow).map(|owned| owned.term);
        let owned = OwnedFlow {
            flow,
            owner: owner_record(host),
            epoch,
            is_blocked: false,
            is_confirmed: false,
            term: known.unwrap_or(h.steering.term()),
        };
        if h.registry.hold(owned).is_ok() {
            h.announcer.touch(flow);
            self.announce(host);
        }
    }

    pub(crate) fn unregister(&mut self, host: usize, id: u64) {
        let h = &mut self.hosts[host];
        if let Some(c) = h.connections.get_mut(&id)
            && let Some(epoch) = c.held.take()
        {
            h.registry.forget(&c.flow, epoch);
        }
    }

    /// Whether a release was refused for its term, though this host has announced the flow since,
    /// or because its epoch is of a former switch's clock.
    pub(crate) fn is_left(&mut self, host: usize, id: u64, answer: &Answer) -> bool {
        let h = &mut self.hosts[host];
        let term = h.steering.term();
        let Some(c) = h.connections.get_mut(&id) else {
            return false;
        };
        // The flow of a later connection is not this one's to release.
        if h.registry.get(&c.flow).is_some() {
            return false;
        }
        let is_refused = matches!(answer.status, Status::OldTerm | Status::Ahead);
        let is_left = is_refused && answer.owner == owner_record(host) && answer.epoch <= c.epoch;
        if is_left {
            (c.released_in, c.epoch) = (Some(term), answer.epoch);
        }
        is_left
    }

    pub(crate) fn dial_lease(&mut self, host: usize) {
        if self.scenario.losses == 0 {
            return;
        }
        let told = self.hosts[host].steering.term();
        match self.is_out_of_reach(host) {
            true => self.works(host, REDIAL_NS, Work::Lease),
            false => {
                let boot = self.hosts[host].boot;
                let event = TermEvent::LeaseAtSwitch { host, boot, told };
                self.after(HOP_NS, Event::Term(event));
            }
        }
    }

    pub(crate) fn notice_at_host(&mut self, host: usize, boot: u32, notice: TermNotice) {
        if self.hosts[host].boot != boot {
            return;
        }
        let h = &mut self.hosts[host];
        h.noticed = notice.term;
        if notice.term < h.steering.term() {
            // The agent is to hear that its term is not the greatest.
            return self.works(host, REDIAL_NS, Work::Lease);
        }
        if notice.term > h.steering.term() {
            // Its first answer tells the clock, without which nothing is announced.
            h.steering.observe_term(notice.term);
            return self.boot(host);
        }
        if notice.is_settled {
            if h.announcer.is_done() {
                h.steering.settle(notice.term);
            }
            h.announcer.settle(notice.term);
            return self.run_steering(host);
        }
        self.say_done_again(host);
    }

    /// Says once more that all flows are announced, if they are.
    pub(crate) fn say_done_again(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.announcer.on_new_lease();
        if h.announcer.poll_done().is_some() {
            self.say_done(host);
        }
    }

    /// Says that all flows are announced, on a connection that loses nothing but ends in outages.
    fn say_done(&mut self, host: usize) {
        let term = self.hosts[host].announcer.term();
        if self.is_out_of_reach(host) {
            return self.works(host, REDIAL_NS, Work::Done);
        }
        let (boot, done) = (self.hosts[host].boot, Done { term, runs: 1 });
        let event = TermEvent::DoneAtSwitch { host, boot, done };
        self.after(HOP_NS, Event::Term(event));
    }

    pub(crate) fn lease_breaks(&mut self, host: usize) {
        let boot = self.hosts[host].boot;
        let event = TermEvent::LeaseEnds { host, boot };
        self.after(500 * MS, Event::Term(event));
    }
}

impl Host {
    /// The connection that serves, and that the registry has as `owned`.
    fn serving(&self, owned: &OwnedFlow) -> Option<u64> {
        let mut all = self.connections.iter();
        let found = all.find(|(_, c)| {
            let is_held = c.held == Some(owned.epoch) && c.flow == owned.flow;
            is_held && c.live && matches!(c.role, Role::Serving)
        });
        found.map(|(id, _)| *id)
    }
}

impl Waiter {
    /// The connection that it belongs to.
    fn connection(self) -> Option<u64> {
        match self {
            Self::Export(id) | Self::Import(id) | Self::Release(id) => Some(id),
            Self::Settle(id, _) | Self::Claim(id, _) => Some(id),
            Self::Clock | Self::Remains(_) | Self::Announce(..) => None,
        }
    }
}
