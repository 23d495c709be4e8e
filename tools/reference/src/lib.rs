//! The effect of commands on the switch's flow table. It is the reference for tests of the
//! data-plane program, and the switch of the simulation.
//!
//! Not here: packets, and the rights of tenants; see `bpf/`.

#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::HashMap;

use prism_proto::control::{
    Answer, FRESHNESS_NS, FlowKey, FlowState, MAX_EPOCH_AHEAD_NS, MAX_EPOCH_STEP, Ops, Owner,
    Request, Status, TOMBSTONE_NS,
};
use prism_proto::term::MAX_EPOCH;

/// One flow that the switch steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// Epoch of the last command that changed the flow.
    pub epoch: u64,
    /// Packets are dropped.
    pub blocked: bool,
    /// The destination of packets.
    pub owner: Owner,
    /// A SYN has been passed to the owner since the last command.
    pub challenged: bool,
    /// Both ends have closed, and the client has acknowledged the owner's FIN.
    pub is_over: bool,
}

/// An absent flow whose epoch is remembered.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    epoch: u64,
    since_ns: u64,
}

/// The destination of a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynFate {
    /// To a frontend: no earlier connection is left.
    Frontend,
    /// To the flow's owner. Its kernel challenges the SYN (RFC 5961, section 4), or refuses it if
    /// it has no such socket: see [`FlowTable::syn_answered`].
    Owner(Owner),
    /// The flow is blocked, and the SYN is dropped. The client repeats it.
    Dropped,
}

/// Flow table with tombstones, of bounded size.
///
/// A flow without entry and tombstone has the greatest epoch of any tombstone that was
/// deleted. A command of an ended connection is therefore refused, however late it arrives.
#[derive(Clone, Debug)]
pub struct FlowTable {
    flows: HashMap<FlowKey, FlowEntry>,
    tombstones: HashMap<FlowKey, Tombstone>,
    /// Greatest epoch of a tombstone that was deleted.
    collected_epoch: u64,
    max_flows: usize,
}

impl FlowTable {
    /// An empty table for at most `max_flows` flows, tombstones among them.
    pub fn new(max_flows: usize) -> Self {
        Self {
            flows: HashMap::new(),
            tombstones: HashMap::new(),
            collected_epoch: 0,
            max_flows,
        }
    }

    /// The entry of `flow`.
    pub fn entry(&self, flow: &FlowKey) -> Option<&FlowEntry> {
        self.flows.get(flow)
    }

    /// Whether `flow` has an entry or a tombstone.
    pub fn is_known(&self, flow: &FlowKey) -> bool {
        self.flows.contains_key(flow) || self.tombstones.contains_key(flow)
    }

    /// Number of flows steered now.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// No flow is steered.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Applies an authentic request of the right tenant at `now_ns`
    /// (docs/protocol.md, sections 1.2 to 1.4).
    pub fn apply(&mut self, request: &Request, now_ns: u64) -> Answer {
        let status = self.decide(request, now_ns);
        self.answer(request, status, now_ns)
    }

    /// The answer with this status and the flow as it is.
    pub fn answer(&self, request: &Request, status: Status, now_ns: u64) -> Answer {
        let (state, epoch, owner) = match self.flows.get(&request.flow) {
            Some(e) if e.blocked => (FlowState::Blocked, e.epoch, e.owner),
            Some(e) => (FlowState::Forward, e.epoch, e.owner),
            None => (FlowState::Absent, self.epoch(&request.flow), Owner::NONE),
        };
        request.answer(status, state, epoch, owner, now_ns)
    }

    /// Takes an announcement (`prism_proto::term`): the greatest epoch of a flow wins. Epochs of
    /// flows that are over, and the clock, do not matter: the table may have known them longer.
    /// An entry that is only `remembered` from before the term does not matter either.
    pub fn announce(&mut self, request: &Request, remembered: bool, now_ns: u64) -> Answer {
        let plain = Request {
            ops: request.ops.without(Ops::ANNOUNCE),
            ..*request
        };
        let status = self.merge(&plain, remembered, now_ns);
        let answer = self.answer(&plain, status, now_ns);
        Answer {
            ops: request.ops,
            ..answer
        }
    }

    /// Whether the flow is as an announcement states: then it has been taken before.
    pub fn has(&self, request: &Request) -> bool {
        let plain = Request {
            ops: request.ops.without(Ops::ANNOUNCE),
            ..*request
        };
        let entry = self.flows.get(&request.flow);
        self.epoch(&request.flow) == request.epoch && is_already(entry, &plain)
    }

    fn merge(&mut self, plain: &Request, remembered: bool, now_ns: u64) -> Status {
        if plain.time_ns.abs_diff(now_ns) > FRESHNESS_NS {
            return Status::Late;
        }
        let is_fact = plain.ops.has(Ops::OWN) || plain.ops == Ops::RELEASE;
        if !is_fact || !is_combination(plain.ops) || plain.epoch >= MAX_EPOCH {
            return Status::BadRequest;
        }
        if remembered {
            self.flows.remove(&plain.flow);
        }
        let current = self.flows.get(&plain.flow).copied();
        let known = if self.is_known(&plain.flow) {
            Some(self.epoch(&plain.flow))
        } else {
            None
        };
        match known.map(|epoch| plain.epoch.cmp(&epoch)) {
            Some(Ordering::Less) => Status::Stale,
            Some(Ordering::Equal) if is_already(current.as_ref(), plain) => Status::Ok,
            Some(Ordering::Equal) => Status::Stale,
            Some(Ordering::Greater) | None => self.change(current, plain, now_ns),
        }
    }

    /// All flows that have an entry.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowKey, &FlowEntry)> {
        self.flows.iter()
    }

    /// Deletes the tombstones that are older than [`TOMBSTONE_NS`] at `now_ns`, and returns their
    /// number.
    pub fn collect(&mut self, now_ns: u64) -> usize {
        let old = self
            .tombstones
            .extract_if(|_, t| now_ns.saturating_sub(t.since_ns) >= TOMBSTONE_NS);
        let epochs: Vec<u64> = old.map(|(_, tombstone)| tombstone.epoch).collect();
        let newest = epochs.iter().copied().max();
        self.collected_epoch = self.collected_epoch.max(newest.unwrap_or(0));
        epochs.len()
    }

    /// Handles a SYN of the client: of a new connection, repeated, or forged.
    pub fn syn(&mut self, flow: &FlowKey, now_ns: u64) -> SynFate {
        match self.flows.get_mut(flow) {
            Some(entry) if entry.blocked => return SynFate::Dropped,
            Some(entry) if !entry.is_over => {
                entry.challenged = true;
                return SynFate::Owner(entry.owner);
            }
            _ => self.purge(flow, now_ns),
        }
        SynFate::Frontend
    }

    /// Handles an owner's answer to a SYN, a refusal or a SYN ACK: it has no socket of the
    /// connection. Returns whether the flow was forgotten for that. The client must then not see
    /// the reset of a refusal.
    pub fn syn_answered(&mut self, flow: &FlowKey, owner: &Owner, now_ns: u64) -> bool {
        let is_over = self.flows.get(flow).is_some_and(|entry| {
            !entry.blocked && entry.challenged && entry.owner.addr == owner.addr
        });
        if is_over {
            self.purge(flow, now_ns);
        }
        is_over
    }

    /// Ends `flow` without a command, because its owner is gone.
    pub fn expire(&mut self, flow: &FlowKey, now_ns: u64) {
        if let Some(entry) = self.flows.get(flow) {
            self.bury(flow, entry.epoch, now_ns);
        }
    }

    /// Notes that the FINs of both ends of `flow` have passed and are acknowledged.
    pub fn close(&mut self, flow: &FlowKey) {
        if let Some(entry) = self.flows.get_mut(flow) {
            entry.is_over |= !entry.blocked;
        }
    }

    /// Ends a flow, so that no late command of it acts on the client's next connection.
    fn purge(&mut self, flow: &FlowKey, now_ns: u64) {
        if self.is_known(flow) {
            let epoch = self.epoch(flow).max(now_ns);
            self.bury(flow, epoch, now_ns);
        }
    }

    fn bury(&mut self, flow: &FlowKey, epoch: u64, since_ns: u64) {
        self.flows.remove(flow);
        self.tombstones.insert(*flow, Tombstone { epoch, since_ns });
    }

    /// The epoch that a command for `flow` has to exceed.
    pub fn epoch(&self, flow: &FlowKey) -> u64 {
        match (self.flows.get(flow), self.tombstones.get(flow)) {
            (Some(entry), _) => entry.epoch,
            (None, Some(tombstone)) => tombstone.epoch,
            (None, None) => self.collected_epoch,
        }
    }

    fn decide(&mut self, request: &Request, now_ns: u64) -> Status {
        let ops = request.ops;
        if request.time_ns.abs_diff(now_ns) > FRESHNESS_NS {
            return Status::Late;
        }
        if ops == Ops::QUERY {
            return Status::Ok;
        }
        if !is_combination(ops) {
            return Status::BadRequest;
        }
        let current = self.flows.get(&request.flow).copied();
        let current_epoch = self.epoch(&request.flow);
        if request.epoch < current_epoch {
            return Status::Stale;
        }
        if request.epoch == current_epoch {
            return if is_already(current.as_ref(), request) {
                Status::Ok
            } else {
                Status::Stale
            };
        }
        if request.epoch.saturating_sub(now_ns) > MAX_EPOCH_AHEAD_NS
            && request.epoch - current_epoch > MAX_EPOCH_STEP
        {
            return Status::Ahead;
        }
        self.change(current, request, now_ns)
    }

    fn change(&mut self, current: Option<FlowEntry>, request: &Request, now_ns: u64) -> Status {
        let Request {
            ops, epoch, flow, ..
        } = *request;
        let is_release = ops == Ops::RELEASE;
        let owner = match (ops.has(Ops::OWN), current) {
            (true, _) => request.owner,
            (false, Some(entry)) => entry.owner,
            (false, None) if is_release => Owner::NONE,
            (false, None) => return Status::BadRequest,
        };
        if !self.is_known(&flow) && self.flows.len() + self.tombstones.len() >= self.max_flows {
            return Status::Full;
        }
        if is_release {
            self.bury(&flow, epoch, now_ns);
            return Status::Ok;
        }
        let was_blocked = current.is_some_and(|e| e.blocked);
        let blocked = ops.has(Ops::BLOCK) || (was_blocked && !ops.has(Ops::UNBLOCK));
        self.flows.insert(
            flow,
            FlowEntry {
                epoch,
                blocked,
                owner,
                challenged: false,
                is_over: current.is_some_and(|e| e.is_over),
            },
        );
        self.tombstones.remove(&flow);
        Status::Ok
    }
}

/// Whether these operations have a meaning together.
fn is_combination(ops: Ops) -> bool {
    let is_known = ops.0 <= 15;
    let is_either = !ops.has(Ops::BLOCK.and(Ops::UNBLOCK));
    is_known && is_either && (!ops.has(Ops::RELEASE) || ops == Ops::RELEASE)
}

/// Whether the flow already is what `request` asks for.
fn is_already(current: Option<&FlowEntry>, request: &Request) -> bool {
    let ops = request.ops;
    match current {
        None => ops == Ops::RELEASE,
        Some(entry) => {
            ops != Ops::RELEASE
                && (!ops.has(Ops::OWN) || entry.owner == request.owner)
                && (!ops.has(Ops::BLOCK) || entry.blocked)
                && (!ops.has(Ops::UNBLOCK) || !entry.blocked)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_proto::control::RunId;

    use super::*;

    fn request(ops: Ops, epoch: u64, host: u8) -> Request {
        let addr = format!("10.0.0.{host}:80")
            .parse::<std::net::SocketAddr>()
            .unwrap();
        Request {
            key_id: 1,
            request_id: 1,
            time_ns: 1000,
            ops,
            epoch,
            flow: FlowKey {
                client: "192.0.2.1:1000".parse().unwrap(),
                vip: "198.51.100.1:80".parse().unwrap(),
            },
            owner: Owner {
                addr,
                via: addr.ip(),
            },
            run: RunId::NONE,
        }
    }

    #[test]
    fn first_of_two_hosts_at_one_epoch_wins_and_the_other_learns_it() {
        let mut t = FlowTable::new(10);
        let own = Ops::OWN.and(Ops::UNBLOCK);
        assert_eq!(
            t.apply(&request(Ops::OWN.and(Ops::BLOCK), 5, 1), 1000)
                .status,
            Status::Ok
        );
        assert_eq!(t.apply(&request(own, 6, 2), 1000).status, Status::Ok);
        let lost = t.apply(&request(own, 6, 1), 1000);
        assert_eq!(
            (lost.status, lost.owner),
            (Status::Stale, request(own, 6, 2).owner)
        );
        assert_eq!(
            t.apply(&request(own, 6, 2), 1000).status,
            Status::Ok,
            "repetition"
        );
    }

    #[test]
    fn replay_after_release_changes_nothing() {
        let mut t = FlowTable::new(10);
        let own = request(Ops::OWN.and(Ops::UNBLOCK), 5, 1);
        t.apply(&own, 1000);
        assert_eq!(
            t.apply(&request(Ops::RELEASE, 6, 1), 1000).status,
            Status::Ok
        );
        assert_eq!(t.apply(&own, 1001).status, Status::Stale);
        assert_eq!(t.apply(&own, 1000 + FRESHNESS_NS + 1).status, Status::Late);
        assert!(t.is_empty());
    }

    #[test]
    fn a_syn_outranks_the_commands_of_a_connection_that_is_over() {
        let mut t = FlowTable::new(10);
        let flow = request(Ops::QUERY, 0, 1).flow;
        t.apply(&request(Ops::OWN, 500, 1), 1000);
        t.close(&flow);
        assert_eq!(t.syn(&flow, 1000), SynFate::Frontend);
        assert_eq!(
            t.apply(&request(Ops::OWN.and(Ops::UNBLOCK), 501, 1), 1000)
                .status,
            Status::Stale
        );
        assert!(t.is_empty());
    }

    #[test]
    fn a_syn_ends_a_live_flow_only_if_its_own_owner_has_no_socket() {
        let mut t = FlowTable::new(10);
        let (first, second) = (request(Ops::OWN, 5, 1), request(Ops::OWN, 6, 2));
        let flow = first.flow;
        t.apply(&first, 1000);
        assert!(!t.syn_answered(&flow, &first.owner, 1000), "no SYN yet");
        assert_eq!(t.syn(&flow, 1000), SynFate::Owner(first.owner));
        assert!(!t.syn_answered(&flow, &second.owner, 1000), "not the owner");
        t.apply(&second, 1000);
        assert!(!t.syn_answered(&flow, &second.owner, 1000), "a newer epoch");
        t.apply(&request(Ops::BLOCK, 7, 2), 1000);
        assert_eq!(t.syn(&flow, 1000), SynFate::Dropped);
        t.apply(&request(Ops::UNBLOCK, 8, 2), 1000);
        assert_eq!(t.syn(&flow, 1000), SynFate::Owner(second.owner));
        assert!(t.syn_answered(&flow, &second.owner, 1000));
        assert_eq!(t.syn(&flow, 1000), SynFate::Frontend);
        assert!(t.is_empty());
    }

    #[test]
    fn no_command_outlives_the_tombstone_that_outranks_it() {
        let mut t = FlowTable::new(10);
        let mut reclaim = request(Ops::OWN.and(Ops::UNBLOCK), 6, 1);
        t.apply(&request(Ops::OWN, 5, 1), 1000);
        t.apply(&request(Ops::OWN, 6, 2), 1000);
        t.apply(&request(Ops::RELEASE, 7, 2), 1000);
        t.collect(1000 + TOMBSTONE_NS);
        assert!(!t.is_known(&reclaim.flow), "the tombstone is gone");
        reclaim.time_ns += TOMBSTONE_NS;
        let answer = t.apply(&reclaim, 1000 + TOMBSTONE_NS);
        assert_eq!((answer.status, answer.epoch), (Status::Stale, 7));
    }

    #[test]
    fn an_epoch_far_ahead_is_refused_and_what_is_there_can_be_released() {
        let mut t = FlowTable::new(10);
        let limit = 1000 + MAX_EPOCH_AHEAD_NS;
        for far in [u64::MAX, limit + MAX_EPOCH_STEP, limit + 1] {
            let answer = t.apply(&request(Ops::OWN, far, 1), 1000);
            assert_eq!(answer.status, Status::Ahead, "{far}");
        }
        let own = t.apply(&request(Ops::OWN, limit, 1), 1000);
        assert_eq!(own.status, Status::Ok);
        let far = t.apply(&request(Ops::RELEASE, limit + MAX_EPOCH_STEP + 1, 1), 1000);
        assert_eq!(far.status, Status::Ahead);
        let released = t.apply(&request(Ops::RELEASE, limit + MAX_EPOCH_STEP, 1), 1000);
        assert_eq!(released.status, Status::Ok);
    }

    #[test]
    fn a_full_table_evicts_nobody() {
        let mut t = FlowTable::new(1);
        t.apply(&request(Ops::OWN, 5, 1), 1000);
        let mut other = request(Ops::OWN, 5, 1);
        other.flow.client.set_port(2);
        assert_eq!(t.apply(&other, 1000).status, Status::Full);
        t.apply(&request(Ops::RELEASE, 6, 1), 1000);
        assert_eq!(t.apply(&other, 1000).status, Status::Full, "a tombstone");
        t.collect(1000 + TOMBSTONE_NS);
        assert_eq!(t.apply(&other, 1000).status, Status::Stale, "too old");
        other.epoch = 7;
        assert_eq!(t.apply(&other, 1000).status, Status::Ok);
        assert_eq!(t.len(), 1);
    }
}
