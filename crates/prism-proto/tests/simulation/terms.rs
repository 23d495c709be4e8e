//! The switches' side of terms: lost tables, take-overs, young terms, and what they let pass.

use prism_proto::control::{
    Answer, FlowKey, FlowState, Ops, Owner, Request, RunId, Stamped, Status, Term,
};
use prism_proto::fence::Fence;
use prism_proto::lease::{Done, TermNotice};
use prism_proto::term::{
    ABSENT_NS, Admission, KnownTerms, LONE_STEP, LONE_WORDS, UNHEARD_NS, YOUNG_NS,
};
use prism_reference::FlowTable;

use crate::frontends::is_frontend;
use crate::host::{Connection, Role, Work, addr_of, owner_record};
use crate::scenario::{MS, Mutation, Scenario};
use crate::tcp::Segment;
use crate::world::{Event, HOP_NS, World};

/// The longest time until a host has a lease in a new term.
const MAX_LEASE_NS: u64 = 500 * MS;
/// The longest time for which the former switch still decides.
const MAX_SPLIT_NS: u64 = 50 * MS;

#[derive(Clone, Debug)]
pub(crate) enum TermEvent {
    Fails,
    Begins,
    Splits,
    Settles,
    ClockJumps,
    Copy(Stamped<Request>),
    LeaseAtSwitch {
        host: usize,
        boot: u32,
        told: Term,
    },
    NoticeAtHost {
        host: usize,
        boot: u32,
        notice: TermNotice,
    },
    DoneAtSwitch {
        host: usize,
        boot: u32,
        done: Done,
    },
    LeaseEnds {
        host: usize,
        boot: u32,
    },
    /// The key of a node without connections is in wrong hands, and gets a lease.
    LieAtSwitch,
}

/// A SYN of an unknown flow in a young term. It may be forged.
pub(crate) struct Opened {
    host: usize,
    /// The time of the SYN by the switch's clock.
    since: u64,
    /// The initial sequence number of the frontend's answer.
    isn: Option<u32>,
    /// The client has acknowledged that, so it has no other connection.
    is_confirmed: bool,
}

fn run_of(boot: u32) -> RunId {
    RunId(boot as u16 + 1)
}

impl Scenario {
    /// The time by which losses of the switch prolong everything.
    pub(crate) fn young_ns(&self) -> u64 {
        let each_ns = YOUNG_NS + self.max_boot_ns + 2 * MAX_LEASE_NS;
        // The last term begins at the start.
        (self.losses as u64 + u64::from(self.losses > 0)) * each_ns
    }
}

impl World {
    pub(crate) fn schedule_losses(&mut self) {
        if self.scenario.losses == 0 {
            return;
        }
        self.begin_term();
        for _ in 0..self.scenario.losses {
            let delay = self.scenario.peace_ns + self.rng.u64(0..400 * MS);
            self.after(delay, Event::Term(TermEvent::Fails));
            let delay = self.rng.u64(0..400 * MS);
            self.after(delay, Event::Term(TermEvent::ClockJumps));
        }
        for _ in 0..self.scenario.term_lies {
            let delay = self.rng.u64(0..3000 * MS);
            self.after(delay, Event::Term(TermEvent::LieAtSwitch));
        }
    }

    pub(crate) fn term_event(&mut self, event: TermEvent) {
        match event {
            TermEvent::Fails => self.switch_fails(),
            TermEvent::Begins => self.begin_term(),
            TermEvent::Splits => self.standby.term.step_down(),
            TermEvent::Settles => self.settle_term(),
            TermEvent::ClockJumps => {
                let max_ns = self.scenario.max_clock_jump_ns;
                self.switch.tai_ns = self.switch.tai_ns + self.rng.u64(0..=2 * max_ns) - max_ns;
            }
            TermEvent::Copy(copy) => self.copy_at_standby(copy),
            TermEvent::LeaseAtSwitch { host, boot, told } => self.lease_at_switch(host, boot, told),
            TermEvent::NoticeAtHost { host, boot, notice } => {
                self.notice_at_host(host, boot, notice);
            }
            TermEvent::DoneAtSwitch { host, boot, done } => {
                let node = addr_of(host).ip();
                let known = self.switch.told.entry(host).or_default();
                *known = done.term.max(*known);
                self.switch.term.run_is_done(node, run_of(boot), done);
                self.settle_term();
            }
            TermEvent::LieAtSwitch => self.lie_at_switch(),
            TermEvent::LeaseEnds { host, boot } => {
                for switch in [&mut self.switch, &mut self.standby] {
                    switch.term.lease_ends(addr_of(host).ip(), run_of(boot));
                }
                if self.hosts[host].boot != boot {
                    self.switch.told.remove(&host);
                }
                if self.scenario.fence == Fence::Host {
                    self.end_flows_of(host);
                }
                self.settle_term();
            }
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.now < self.down_until
    }

    /// The switch loses its table, or its standby takes over.
    pub(crate) fn switch_fails(&mut self) {
        if self.losses_left == 0 || self.is_down() {
            return;
        }
        self.losses_left -= 1;
        let is_taken_over = self.scenario.has_standby && self.rng.u8(0..4) > 0;
        let is_dead = !is_taken_over || self.rng.bool();
        self.log(|| format!("the switch fails: taken over {is_taken_over}, dead {is_dead}"));
        if is_dead {
            self.switch.table = FlowTable::new(self.scenario.max_flows);
        }
        if self.scenario.breaks_channels {
            self.break_all_channels();
        }
        let max_ns = self.scenario.max_boot_ns;
        if is_taken_over {
            std::mem::swap(&mut self.switch, &mut self.standby);
            std::mem::swap(&mut self.switch.lists, &mut self.standby.lists);
        }
        self.switch.told.clear();
        self.switch.made_up = 0;
        self.switch.leases_since = self.now;
        if is_taken_over && !is_dead {
            let split_ns = self.rng.u64(0..MAX_SPLIT_NS);
            self.after(split_ns, Event::Term(TermEvent::Splits));
            return self.begin_term();
        }
        if is_taken_over {
            self.standby.term.step_down();
        }
        let down_ns = self.rng.u64(0..=max_ns);
        self.down_until = self.now + down_ns;
        self.switch.leases_since = self.down_until;
        self.after(down_ns, Event::Term(TermEvent::Begins));
    }

    fn begin_term(&mut self) {
        let now = self.now;
        let nodes = (0..self.hosts.len()).map(|host| addr_of(host).ip());
        let s = &mut self.switch;
        let term = s.term.begin(nodes, now);
        s.announced.clear();
        if self.scenario.mutation == Mutation::CopiesCount {
            s.announced.extend(s.table.flows().map(|(flow, _)| *flow));
        }
        s.opened.clear();
        s.lists.begin_again();
        s.epochs.clear();
        s.blocked_since.clear();
        self.excuse_half_open();
        self.stats.terms += 1;
        self.log(|| format!("{term:?} begins"));
        self.last_term = self.last_term.max(term);
        if self.scenario.mutation == Mutation::SettlesAtOnce {
            self.switch.term.handle_timeout(u64::MAX);
        }
        for young_ns in [ABSENT_NS, YOUNG_NS] {
            self.after(young_ns, Event::Term(TermEvent::Settles));
        }
        for host in 0..self.hosts.len() {
            let delay = self.rng.u64(0..MAX_LEASE_NS);
            self.works(host, delay, Work::Lease);
        }
    }

    /// A connection that is being opened is found by the hash alone. A take-over may cost it if the
    /// list has changed since its SYN; a change of the list may, when clients are spread.
    pub(crate) fn excuse_half_open(&mut self) {
        let mut excused = Vec::new();
        for (host, h) in self.hosts.iter().enumerate() {
            let half_open = h.connections.values().filter(|c| c.syn_ack.syn);
            let is_lost =
                |c: &&Connection| self.scenario.is_spread || self.frontend_of(&c.flow) != host;
            excused.extend(half_open.filter(is_lost));
        }
        let excused: Vec<_> = excused.into_iter().map(|c| c.of).collect();
        self.excused.extend(excused);
    }

    /// A host that could not announce anything in a young term loses its connections.
    fn excuse_isolated(&mut self) {
        for host in 0..self.hosts.len() {
            let announcer = &self.hosts[host].announcer;
            let has_announced = announcer.term() == self.switch.term.term() && announcer.is_done();
            if !has_announced && self.scenario.max_outage_ns > YOUNG_NS {
                let lost = self.hosts[host].irreplaceable();
                self.excused.extend(lost);
            }
        }
    }

    fn settle_term(&mut self) {
        let is_late = self.switch.term.next_timeout_ns() <= Some(self.now);
        let now = match self.scenario.mutation {
            Mutation::AbsentAtOnce => self.now + ABSENT_NS,
            _ => self.now,
        };
        if self.is_down() || !self.switch.term.handle_timeout(now) {
            return;
        }
        self.excuse_isolated();
        self.stats.settled += u64::from(!is_late);
        self.log(|| "the term is settled".into());
        let now = self.switch.tai_ns + self.now;
        let flows = self.switch.table.flows().map(|(flow, _)| *flow);
        let unannounced: Vec<FlowKey> = flows
            .filter(|flow| !self.switch.announced.contains(flow))
            .collect();
        for flow in unannounced {
            self.switch.table.expire(&flow, now);
        }
        for since in self.switch.blocked_since.values_mut() {
            *since = self.now;
        }
        let s = &mut self.switch;
        let opened = s.opened.iter().map(|(flow, opened)| (*flow, opened.host));
        s.lists.settle(opened, self.now);
        if !is_late && self.scenario.mutation == Mutation::None {
            self.check_all_are_known();
        }
        for host in 0..self.hosts.len() {
            self.send_notice(host);
        }
    }

    /// Every live flow that was known is known again, with its owner.
    fn check_all_are_known(&mut self) {
        let mut wrong = Vec::new();
        for (host, h) in self.hosts.iter().enumerate() {
            let serves = h.connections.values().filter(|c| {
                c.live && c.steered && !c.settling && !c.killed && matches!(c.role, Role::Serving)
            });
            for c in serves.filter(|c| !self.clients[c.of.client].is_over(c.of)) {
                let entry = self.switch.table.entry(&c.flow);
                if entry.is_none_or(|entry| entry.owner != owner_record(host)) {
                    wrong.push(format!("I1: {:?} of host {host} is {entry:?}", c.of));
                }
            }
        }
        if let Some(what) = wrong.first() {
            self.fail(format!("{what} after settling"));
        }
    }

    fn send_notice(&mut self, host: usize) {
        let boot = self.hosts[host].boot;
        let Some(notice) = self.switch.term.notice() else {
            return;
        };
        match self.is_out_of_reach(host) {
            true => self.works(host, 50 * MS, Work::Lease),
            false => {
                let event = TermEvent::NoticeAtHost { host, boot, notice };
                self.after(HOP_NS, Event::Term(event));
            }
        }
    }

    /// The agent ends the flows of a run that has died. No refusal of a SYN passes the arbiter in
    /// host mode.
    fn end_flows_of(&mut self, host: usize) {
        let connections = &self.hosts[host].connections;
        let lives = |flow: &FlowKey| connections.values().any(|c| c.flow == *flow);
        let now = self.switch.tai_ns + self.now;
        for switch in [&mut self.switch, &mut self.standby] {
            let owned = switch
                .table
                .flows()
                .filter(|(_, entry)| entry.owner == owner_record(host));
            let over: Vec<FlowKey> = owned.map(|(flow, _)| *flow).filter(|f| !lives(f)).collect();
            for flow in over {
                switch.table.expire(&flow, now);
            }
        }
    }

    fn lease_at_switch(&mut self, host: usize, boot: u32, told: Term) {
        if self.hosts[host].boot != boot {
            return;
        }
        if self.is_down() {
            return self.works(host, 50 * MS, Work::Lease);
        }
        if self.hear_word(host, told) {
            return;
        }
        for switch in [&mut self.switch, &mut self.standby] {
            switch.term.lease_begins(addr_of(host).ip(), run_of(boot));
        }
        self.send_notice(host);
    }

    /// A host's word about terms. Returns whether a term has begun for it.
    fn hear_word(&mut self, host: usize, told: Term) -> bool {
        self.switch.told.insert(host, told);
        let (last, was_settled) = (self.last_term, self.switch.term.is_settled());
        let told = self.told_by_hosts();
        if !self.switch.term.observe(&told, self.now) {
            return false;
        }
        self.begin_term();
        // Each switch makes every second term.
        let term = self.switch.term.term();
        if term.0 > last.0 + 2 {
            self.switch.made_up += 1;
            let is_few = self.switch.made_up <= u32::from(LONE_WORDS);
            let is_bounded = is_few && term.0 <= last.0 + LONE_STEP + 2;
            if was_settled || !is_bounded {
                self.fail(format!(
                    "I7: {term:?} follows {last:?}, which no switch has made"
                ));
            }
        }
        true
    }

    /// The hosts' terms, as far as the switch knows them.
    fn told_by_hosts(&self) -> KnownTerms {
        let s = &self.switch;
        let known = s.told.iter().filter(|(_, term)| **term > Term::NONE);
        let known = known.map(|(host, term)| (addr_of(*host).ip(), *term));
        let is_waiting = self.now < s.leases_since + UNHEARD_NS;
        let nodes = self.hosts.len() + usize::from(self.scenario.term_lies > 0);
        let told = KnownTerms {
            known: known.collect(),
            expected: if is_waiting { nodes } else { 0 },
        };
        match self.scenario.mutation {
            Mutation::OneNodeIsBelieved => KnownTerms {
                known: vec![(addr_of(0).ip(), told.greatest())],
                expected: 0,
            },
            _ => told,
        }
    }

    /// A lease of a node that has no connections tells a term that no switch has made.
    fn lie_at_switch(&mut self) {
        let liar = self.hosts.len();
        if self.is_down() {
            return;
        }
        let by = [1, 10, 1000, Term::MAX.0][self.rng.usize(0..4)];
        let lie = Term(
            self.switch
                .term
                .term()
                .0
                .saturating_add(by)
                .min(Term::MAX.0),
        );
        self.log(|| format!("host {liar} tells {lie:?}"));
        self.hear_word(liar, lie);
    }

    fn copy_at_standby(&mut self, copy: Stamped<Request>) {
        let s = &mut self.standby;
        if s.term.admit(copy.term, copy.message.ops) == Admission::Merge {
            let now = s.tai_ns + self.now;
            let message = Request {
                time_ns: now,
                ..copy.message
            };
            s.table.announce(&message, false, now);
        }
    }

    /// The answer of the switch that decides; `None` if it is silent.
    pub(crate) fn decide(&mut self, request: &Stamped<Request>) -> Option<(Answer, bool)> {
        let Stamped { term, message } = *request;
        let is_known = self.switch.table.is_known(&message.flow);
        let now = self.switch.tai_ns + self.now;
        let plain = Request {
            ops: message.ops.without(Ops::ANNOUNCE),
            ..message
        };
        let mutation = self.scenario.mutation;
        let admission = match self.switch.term.admit(term, message.ops) {
            _ if self.scenario.losses == 0 => Admission::Judge,
            Admission::Refuse(Status::Young) if mutation == Mutation::YoungDecides => {
                Admission::Judge
            }
            Admission::Silence if mutation == Mutation::StandbyDecides => Admission::Judge,
            admission => admission,
        };
        match admission {
            Admission::Silence => None,
            Admission::Refuse(status) => {
                Some((self.switch.table.answer(&message, status, now), false))
            }
            Admission::Judge => {
                let answer = self.switch.table.apply(&plain, now);
                let ops = message.ops;
                self.switch.announced.insert(message.flow);
                Some((Answer { ops, ..answer }, plain.ops != Ops::QUERY))
            }
            Admission::Merge => Some(self.merge(message, is_known, now)),
            Admission::Compare => {
                let status = match self.switch.table.has(&message) {
                    true => Status::Ok,
                    false => Status::OldTerm,
                };
                Some((self.switch.table.answer(&message, status, now), false))
            }
        }
    }

    fn merge(&mut self, mut message: Request, is_known: bool, now: u64) -> (Answer, bool) {
        // The new connection may have been handed off by the former switch.
        let is_new = self.switch.opened.get(&message.flow).is_some_and(|opened| {
            let is_older = message.epoch < opened.since;
            opened.is_confirmed && is_older && owner_record(opened.host) != message.owner
        });
        if is_new {
            let answer = message.answer(Status::Stale, FlowState::Absent, 0, Owner::NONE, now);
            return (answer, false);
        }
        if self.scenario.mutation == Mutation::AnnouncementsWin && is_known {
            let current = self.switch.table.epoch(&message.flow);
            message.epoch = message.epoch.max(current + 1);
        }
        let remembered = !self.switch.announced.contains(&message.flow);
        let answer = self.switch.table.announce(&message, remembered, now);
        if answer.status != Status::Late {
            self.switch.announced.insert(message.flow);
        }
        (answer, answer.status != Status::Late)
    }

    pub(crate) fn is_young(&self) -> bool {
        self.scenario.losses > 0 && !self.switch.term.is_settled()
    }

    /// The frontend of a SYN of an unknown flow in a young term: that of the SYN before it, whose
    /// kernel can tell them apart.
    pub(crate) fn opened_at(&mut self, flow: &FlowKey) -> usize {
        if let Some(opened) = self.switch.opened.get(flow) {
            return opened.host;
        }
        let host = self.open_at_frontend(flow);
        let opened = Opened {
            host,
            since: self.switch.tai_ns + self.now,
            isn: None,
            is_confirmed: false,
        };
        self.switch.opened.insert(*flow, opened);
        host
    }

    /// The frontend of a packet of an unknown flow in a young term; most are dropped.
    pub(crate) fn frontend_while_young(&mut self, flow: &FlowKey, s: &Segment) -> Option<usize> {
        if self.scenario.mutation == Mutation::NoDropWhileYoung {
            return Some(self.frontend_of(flow));
        }
        let accepts_all = self.scenario.mutation == Mutation::AnyPacketOpens;
        let found = self.switch.opened.get_mut(flow).filter(|opened| {
            let acknowledges = |isn: u32| s.ack == isn.wrapping_add(1) && !s.rst;
            opened.is_confirmed || accepts_all || opened.isn.is_some_and(acknowledges)
        });
        match found {
            Some(opened) => {
                opened.is_confirmed = true;
                Some(opened.host)
            }
            None => {
                self.stats.dropped += 1;
                None
            }
        }
    }

    /// Whether a packet of a host may pass in a young term.
    pub(crate) fn passes_while_young(&mut self, flow: &FlowKey, host: usize, s: &Segment) -> bool {
        if s.syn
            && is_frontend(host)
            && let Some(opened) = self.switch.opened.get_mut(flow)
            && opened.host == host
        {
            opened.isn = Some(s.seq);
        }
        !s.rst || self.scenario.mutation == Mutation::NoDropWhileYoung
    }
}
