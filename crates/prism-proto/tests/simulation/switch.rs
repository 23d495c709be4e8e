//! The switch: the reference flow table behind a lossy control path, and the
//! packet filter that the data plane applies.

use std::collections::BTreeMap;
use std::ops::Range;

use prism_proto::control::{FlowKey, Ops, Owner, Request};
use prism_proto::export::BLOCKED_NS;
use prism_reference::{FlowTable, SynFate};

use crate::frontends::{Lists, is_frontend};
use crate::host::{FRONTEND, KEY_ID, addr_of, control_key, owner_record};
use crate::scenario::{MS, Mutation, Scenario};
use crate::world::{Event, HOP_NS, Packet, World};

pub(crate) struct Switch {
    pub(crate) table: FlowTable,
    /// Highest epoch seen of each flow; it may only grow.
    epochs: BTreeMap<FlowKey, u64>,
    blocked_since: BTreeMap<FlowKey, u64>,
    pub(crate) lists: Lists,
}

impl Switch {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            table: FlowTable::new(scenario.max_flows),
            epochs: BTreeMap::new(),
            blocked_since: BTreeMap::new(),
            lists: Lists::new(),
        }
    }
}

/// The outages of a host's path to the switch, in both directions or in one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outage {
    time: Range<u64>,
    of_answers_only: bool,
}

/// The switch's clock is far from every host's.
fn clock_ns(now: u64) -> u64 {
    1_800_000_000_000_000_000 + now
}

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

    pub(crate) fn control_at_switch(&mut self, host: usize, bytes: &[u8]) {
        let Ok(mut request) = Request::decode(bytes, KEY_ID, &control_key()) else {
            return self.fail("a host sent a datagram that the switch cannot read");
        };
        let now = clock_ns(self.now);
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
        let answer = self.switch.table.apply(&request, now);
        let after = self.switch.table.entry(&request.flow).copied();
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
        if self.scenario.mutation == Mutation::None {
            let highest = self.switch.epochs.entry(request.flow).or_default();
            let grew = answer.epoch > *highest;
            if answer.epoch < *highest || (before != after && !grew) {
                return self.fail("I1: an epoch did not grow");
            }
            *highest = answer.epoch;
        }
        self.log(|| {
            format!(
                "switch: host {host} {:?} epoch {} of {} via {}: {:?} {:?} at {}",
                request.ops,
                request.epoch,
                request.flow.client,
                request.owner.via,
                answer.status,
                answer.state,
                answer.epoch
            )
        });
        let (boot, bytes) = (
            self.hosts[host].boot,
            answer.encode(&control_key()).to_vec(),
        );
        self.send_control(host, || {
            let bytes = bytes.clone();
            Event::ControlAtHost { host, boot, bytes }
        });
    }

    pub(crate) fn packet_from_client(&mut self, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        let now = clock_ns(self.now);
        self.switch.table.collect(now);
        let blocked_since = self.switch.blocked_since.get(&flow).copied();
        if blocked_since.is_some_and(|since| self.now - since > BLOCKED_NS) {
            self.switch.table.expire(&flow, now);
            self.switch.blocked_since.remove(&flow);
        }
        if packet.segment.syn && self.scenario.mutation == Mutation::SynEndsFlow {
            self.switch.table.close(&flow);
        }
        let host = match (packet.segment.syn, self.switch.table.entry(&flow)) {
            (true, _) => match self.switch.table.syn(&flow, now) {
                SynFate::Frontend => self.open_at_frontend(&flow),
                SynFate::Owner(owner) => {
                    let host = self.host_at(owner);
                    self.switch.lists.note(&flow, host);
                    host
                }
                SynFate::Dropped => return,
            },
            (false, None) => self.frontend_of(&flow),
            (false, Some(entry)) if entry.blocked => return,
            (false, Some(entry)) => self.host_at(entry.owner),
        };
        self.after(HOP_NS, Event::AtHost { host, packet });
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
        let now = clock_ns(self.now);
        if answers_syn
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

    /// Draws the outages of each host's path to the switch.
    pub(crate) fn random_outage(scenario: &Scenario, rng: &mut fastrand::Rng) -> Outage {
        if scenario.max_outage_ns == 0 || rng.bool() {
            return Outage::default();
        }
        let from = rng.u64(0..100 * MS);
        Outage {
            time: from..from + rng.u64(scenario.min_outage_ns..scenario.max_outage_ns),
            of_answers_only: rng.u8(0..4) == 0,
        }
    }
}
