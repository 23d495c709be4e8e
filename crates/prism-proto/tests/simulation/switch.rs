//! The switch: the reference flow table behind a lossy control path, and the
//! packet filter that the data plane applies.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fastrand::Rng;
use prism_proto::control::{Answer, FlowKey, Ops, Owner, Request, Stamped, Status, Term};
use prism_proto::export::BLOCKED_NS;
use prism_proto::fence::Fence;
use prism_proto::term::{SwitchOfPair, SwitchTerm};
use prism_reference::{FlowTable, SynFate};

use crate::frontends::{Lists, is_frontend};
use crate::host::{FRONTEND, KEY_ID, addr_of, control_key, owner_record};
use crate::scenario::{MS, Mutation, Scenario};
use crate::terms::{Opened, TermEvent};
use crate::world::{Event, HOP_NS, Packet, World};

pub(crate) struct Switch {
    pub(crate) table: FlowTable,
    /// Highest epoch seen of each flow; it may only grow.
    pub(crate) epochs: BTreeMap<FlowKey, u64>,
    pub(crate) blocked_since: BTreeMap<FlowKey, u64>,
    pub(crate) lists: Lists,
    pub(crate) term: SwitchTerm,
    /// The host's clock, less the time since the start of the run.
    pub(crate) tai_ns: u64,
    /// Flows that were announced or decided in this term.
    pub(crate) announced: BTreeSet<FlowKey>,
    /// SYNs of unknown flows in a young term.
    pub(crate) opened: BTreeMap<FlowKey, Opened>,
    /// The terms that hosts have told on their leases, since this switch decides.
    pub(crate) told: BTreeMap<usize, Term>,
    /// When it began to decide.
    pub(crate) leases_since: u64,
    /// The terms since then that have begun for one that no switch has made.
    pub(crate) made_up: u32,
}

impl Switch {
    pub(crate) fn new(scenario: &Scenario, place: SwitchOfPair, rng: &mut Rng) -> Self {
        let ahead_ns = rng.u64(0..=scenario.max_clock_jump_ns);
        let tai_ns = EPOCH_NS + ahead_ns;
        let other_host = host_of_other(scenario, place);
        let other_host = other_host.map(|host| addr_of(host).ip());
        Self {
            term: SwitchTerm::standby(place, Term::NONE).beside(other_host),
            tai_ns,
            announced: BTreeSet::new(),
            opened: BTreeMap::new(),
            told: BTreeMap::new(),
            leases_since: 0,
            made_up: 0,
            table: FlowTable::new(scenario.max_flows),
            epochs: BTreeMap::new(),
            blocked_since: BTreeMap::new(),
            lists: Lists::new(),
        }
    }
}

/// The host of the other arbiter, in host mode: a frontend.
fn host_of_other(scenario: &Scenario, place: SwitchOfPair) -> Option<usize> {
    let is_pair = scenario.fence == Fence::Host && scenario.has_standby;
    let host = usize::from(place == SwitchOfPair::First);
    is_pair.then_some(host)
}

/// The outages of a host's path to the switch, in both directions or in one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outage {
    time: Range<u64>,
    of_answers_only: bool,
}

/// The longest time that a packet takes from an arbiter in host mode to an owner.
const MAX_LATE_NS: u64 = 20 * MS;

/// The switch's clock is far from every host's.
const EPOCH_NS: u64 = 1_800_000_000_000_000_000;

impl World {
    /// Sends a control datagram over a path that loses, doubles and delays.
    pub(crate) fn send_control(&mut self, host: usize, make: impl Fn() -> Event) {
        let outage = &self.hosts[host].outage;
        let is_answer = matches!(make(), Event::ControlAtHost { .. });
        let is_out = outage.time.contains(&self.now) && (is_answer || !outage.of_answers_only);
        let rate = self.scenario.control_faults;
        if is_out || self.chance(rate) {
            return;
        }
        let copies = if self.chance(rate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = HOP_NS;
            if self.chance(rate) {
                delay += self.rng.u64(0..self.scenario.max_delay_ns);
            }
            self.after(delay, make());
        }
    }

    pub(crate) fn is_out_of_reach(&self, host: usize) -> bool {
        let outage = &self.hosts[host].outage;
        outage.time.contains(&self.now)
    }

    /// A command arrives; for a moment after a take-over at either switch.
    pub(crate) fn control_at_switch(&mut self, host: usize, bytes: &[u8]) {
        let both_decide = self.standby.term.is_arbiter()
            || self.scenario.mutation == Mutation::StandbyDecides && self.scenario.has_standby;
        if self.is_down() {
            return;
        }
        if !both_decide || self.rng.bool() {
            return self.command_at_switch(host, bytes);
        }
        std::mem::swap(&mut self.switch, &mut self.standby);
        self.command_at_switch(host, bytes);
        std::mem::swap(&mut self.switch, &mut self.standby);
    }

    fn command_at_switch(&mut self, host: usize, bytes: &[u8]) {
        let Ok(stamped) = Stamped::<Request>::decode(bytes, KEY_ID, &control_key()) else {
            return self.fail("a host sent a datagram that the switch cannot read");
        };
        let (stamp, mut request) = (stamped.term, stamped.message);
        let is_peace = self.now < self.scenario.peace_ns || request.ops == Ops::QUERY;
        let is_strike = !is_peace && self.chance(self.scenario.strikes);
        let moment = if is_strike { self.rng.u8(0..3) } else { 0 };
        if is_strike && moment == 0 {
            return self.strike();
        }
        let now = self.switch.tai_ns + self.now;
        if self.scenario.mutation == Mutation::SwitchIgnoresEpochs && request.ops != Ops::QUERY {
            let current = self.switch.table.epoch(&request.flow);
            request.epoch = request.epoch.max(current + 1);
        }
        self.switch.table.collect(now);
        if self.scenario.mutation == Mutation::TombstonesAreForgotten
            && !self.switch.table.is_known(&request.flow)
        {
            let forgotten = self.switch.table.epoch(&request.flow);
            request.epoch = request.epoch.max(forgotten + 1);
        }
        let before = self.switch.table.entry(&request.flow).copied();
        let Some((answer, is_decided)) = self.decide(&request.in_term(stamp)) else {
            return;
        };
        let after = self.switch.table.entry(&request.flow).copied();
        if is_decided && answer.status == Status::Ok && request.ops.has(Ops::UNBLOCK) {
            self.rights.insert((host, request.flow, answer.epoch));
        }
        let (since, now_blocked) = (
            &mut self.switch.blocked_since,
            after.is_some_and(|a| a.blocked),
        );
        match now_blocked {
            true => {
                since.entry(request.flow).or_insert(self.now);
            }
            false => {
                since.remove(&request.flow);
            }
        }
        if self.scenario.mutation == Mutation::None && is_decided {
            let highest = self.switch.epochs.entry(request.flow).or_default();
            let grew = answer.epoch > *highest;
            if answer.epoch < *highest || (before != after && !grew) {
                return self.fail("I1: an epoch did not grow");
            }
            *highest = answer.epoch;
        }
        self.log(|| {
            format!(
                "switch: host {host} {stamp:?} {:?} epoch {} of {} via {}: {:?} {:?} at {}",
                request.ops,
                request.epoch,
                request.flow.client,
                request.owner.via,
                answer.status,
                answer.state,
                answer.epoch
            )
        });
        let (boot, bytes) = (self.hosts[host].boot, self.answer_bytes(answer));
        if is_strike && moment == 1 {
            return self.strike();
        }
        self.send_control(host, || {
            let bytes = bytes.clone();
            Event::ControlAtHost { host, boot, bytes }
        });
        if is_strike {
            self.strike();
        }
    }

    fn answer_bytes(&self, answer: Answer) -> Vec<u8> {
        let term = match self.scenario.losses {
            0 => Term::NONE,
            _ => self.switch.term.term(),
        };
        answer.in_term(term).encode(&control_key()).to_vec()
    }

    /// The switch fails in the middle of a step.
    fn strike(&mut self) {
        self.after(0, Event::Term(TermEvent::Fails));
    }

    pub(crate) fn packet_from_client(&mut self, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        if let Some(host) = self.taken_by_frontend(&flow, &packet.segment) {
            return self.after(HOP_NS, Event::AtHost { host, packet });
        }
        if self.is_down() {
            return;
        }
        let now = self.switch.tai_ns + self.now;
        self.switch.table.collect(now);
        let blocked_since = self.switch.blocked_since.get(&flow).copied();
        let is_young = self.is_young();
        if blocked_since.is_some_and(|since| self.now - since > BLOCKED_NS) && !is_young {
            self.switch.table.expire(&flow, now);
            self.switch.blocked_since.remove(&flow);
        }
        if packet.segment.syn && self.scenario.mutation == Mutation::SynEndsFlow {
            self.switch.table.close(&flow);
        }
        let host = match (packet.segment.syn, self.switch.table.entry(&flow)) {
            // A SYN may be forged, and its flow's owner may announce it yet: no tombstone is
            // raised.
            (true, None) if is_young => self.opened_at(&flow),
            (true, _) => match self.switch.table.syn(&flow, now) {
                SynFate::Frontend => self.open_at_frontend(&flow),
                SynFate::Owner(owner) => {
                    let host = self.host_at(owner);
                    self.switch.lists.note(&flow, host);
                    host
                }
                SynFate::Dropped => return,
            },
            (false, None) if is_young => match self.frontend_while_young(&flow, &packet.segment) {
                Some(host) => host,
                None => return,
            },
            // The arbiter knows no more than that frontend.
            (false, None) if self.scenario.is_spread => self.entry_of(&flow),
            (false, None) => self.frontend_of(&flow),
            (false, Some(entry)) if entry.blocked => return,
            (false, Some(entry)) => self.host_at(entry.owner),
        };
        let is_late = self.scenario.fence == Fence::Host && self.chance(self.scenario.data_loss);
        let late_ns = if is_late {
            self.rng.u64(0..MAX_LATE_NS)
        } else {
            0
        };
        self.after(HOP_NS + late_ns, Event::AtHost { host, packet });
    }

    pub(crate) fn host_at(&self, owner: Owner) -> usize {
        let hosts = 0..self.hosts.len();
        hosts
            .into_iter()
            .find(|h| addr_of(*h).ip() == owner.via)
            .unwrap_or(FRONTEND)
    }

    /// Only the owner's packets pass; of an unknown flow, the frontend's.
    pub(crate) fn packet_from_host(&mut self, host: usize, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        let answers_syn = packet.segment.is_refusal() || packet.segment.syn;
        let now = self.switch.tai_ns + self.now;
        let is_young = self.is_young();
        if self.scenario.fence == Fence::Host {
            return self.packet_past_arbiter(host, packet);
        }
        if self.is_down() || is_young && !self.passes_while_young(&flow, host, &packet.segment) {
            return;
        }
        if answers_syn
            && !is_young
            && self
                .switch
                .table
                .syn_answered(&flow, &owner_record(host), now)
            && packet.segment.rst
        {
            return;
        }
        let passes = match self.switch.table.entry(&flow) {
            None => is_frontend(host),
            Some(entry) => !entry.blocked && self.host_at(entry.owner) == host,
        };
        if !passes || self.chance(self.scenario.data_loss) {
            return;
        }
        self.after(HOP_NS, Event::AtClient(packet));
    }

    /// In host mode the arbiter sees its own frontend's answers to SYNs, and stops nothing.
    fn packet_past_arbiter(&mut self, host: usize, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        if self.is_young() && !self.is_down() {
            self.passes_while_young(&flow, host, &packet.segment);
        }
        if !self.chance(self.scenario.data_loss) {
            self.after(HOP_NS, Event::AtClient(packet));
        }
    }

    /// Whether a host's program drops a packet of a flow without a socket there, which the kernel
    /// would answer with a reset. Only the frontend of an unknown flow resets its client.
    pub(crate) fn is_stranger(&self, host: usize, flow: &FlowKey) -> bool {
        let is_undecided = self.is_young() || self.is_down();
        let is_known = self.switch.table.entry(flow).is_some() || is_undecided;
        let is_fenced = self.scenario.fence == Fence::Host;
        let drops = is_fenced && self.scenario.mutation != Mutation::StrangersReset;
        let may_be_elsewhere =
            self.scenario.is_spread && self.scenario.mutation != Mutation::UnclaimedReset;
        drops && (!is_frontend(host) || is_known || may_be_elsewhere)
    }

    /// Draws the outages of each host's path to the switch.
    pub(crate) fn random_outage(scenario: &Scenario, rng: &mut fastrand::Rng) -> Outage {
        if scenario.max_outage_ns == 0 || rng.bool() {
            return Outage::default();
        }
        let from = scenario.peace_ns + rng.u64(0..100 * MS);
        Outage {
            time: from..from + rng.u64(scenario.min_outage_ns..scenario.max_outage_ns),
            of_answers_only: rng.u8(0..4) == 0,
        }
    }
}
