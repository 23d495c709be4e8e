//! What a command does to the switch's flow table: the reference that the
//! data-plane program is tested against, and the switch of the simulation.
//!
//! Not here: packets, and who may command what (tenants); see `bpf/`.

use std::collections::HashMap;

use crate::control::{Answer, FRESHNESS_NS, FlowKey, FlowState, Ops, Owner, Request, Status};

/// One flow that the switch steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Epoch of the last command that changed the flow.
    pub epoch: u64,
    /// Packets are dropped.
    pub blocked: bool,
    /// Where packets go.
    pub owner: Owner,
}

/// Flow table with tombstones, of bounded size.
#[derive(Clone, Debug)]
pub struct FlowTable {
    flows: HashMap<FlowKey, Entry>,
    tombstones: HashMap<FlowKey, u64>,
    max_flows: usize,
}

impl FlowTable {
    /// An empty table for at most `max_flows` flows.
    pub fn new(max_flows: usize) -> Self {
        Self {
            flows: HashMap::new(),
            tombstones: HashMap::new(),
            max_flows,
        }
    }

    /// The entry of `flow`.
    pub fn entry(&self, flow: &FlowKey) -> Option<&Entry> {
        self.flows.get(flow)
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
        let (state, epoch, owner) = match self.flows.get(&request.flow) {
            Some(e) if e.blocked => (FlowState::Blocked, e.epoch, e.owner),
            Some(e) => (FlowState::Forward, e.epoch, e.owner),
            None => (FlowState::Absent, self.epoch(&request.flow), Owner::NONE),
        };
        request.answer(status, state, epoch, owner, now_ns)
    }

    /// The client opens a new connection on `flow`.
    pub fn syn(&mut self, flow: &FlowKey, now_ns: u64) {
        let had_entry = self.flows.remove(flow).is_some();
        if had_entry || self.tombstones.contains_key(flow) {
            self.tombstones.insert(*flow, now_ns);
        }
    }

    fn epoch(&self, flow: &FlowKey) -> u64 {
        match self.flows.get(flow) {
            Some(entry) => entry.epoch,
            None => self.tombstones.get(flow).copied().unwrap_or(0),
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
        if ops.0 > 15
            || ops.has(Ops::BLOCK.and(Ops::UNBLOCK))
            || (ops.has(Ops::RELEASE) && ops != Ops::RELEASE)
        {
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
        self.change(current, request)
    }

    fn change(&mut self, current: Option<Entry>, request: &Request) -> Status {
        let Request {
            ops, epoch, flow, ..
        } = *request;
        if ops == Ops::RELEASE {
            self.flows.remove(&flow);
            self.tombstones.insert(flow, epoch);
            return Status::Ok;
        }
        let owner = match (ops.has(Ops::OWN), current) {
            (true, _) => request.owner,
            (false, Some(entry)) => entry.owner,
            (false, None) => return Status::BadRequest,
        };
        if current.is_none() && self.flows.len() >= self.max_flows {
            return Status::Full;
        }
        let was_blocked = current.is_some_and(|e| e.blocked);
        let blocked = ops.has(Ops::BLOCK) || (was_blocked && !ops.has(Ops::UNBLOCK));
        self.flows.insert(
            flow,
            Entry {
                epoch,
                blocked,
                owner,
            },
        );
        self.tombstones.remove(&flow);
        Status::Ok
    }
}

/// The flow is what `request` asks it to be.
fn is_already(current: Option<&Entry>, request: &Request) -> bool {
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
    fn syn_outranks_the_commands_of_the_connection_before() {
        let mut t = FlowTable::new(10);
        t.apply(&request(Ops::OWN.and(Ops::BLOCK), 500, 1), 1000);
        t.syn(&request(Ops::QUERY, 0, 1).flow, 1000);
        assert_eq!(
            t.apply(&request(Ops::OWN.and(Ops::UNBLOCK), 501, 1), 1000)
                .status,
            Status::Stale
        );
        assert!(t.is_empty());
    }

    #[test]
    fn a_full_table_evicts_nobody() {
        let mut t = FlowTable::new(1);
        t.apply(&request(Ops::OWN, 5, 1), 1000);
        let mut other = request(Ops::OWN, 5, 1);
        other.flow.client.set_port(2);
        assert_eq!(t.apply(&other, 1000).status, Status::Full);
        assert_eq!(t.len(), 1);
    }
}
