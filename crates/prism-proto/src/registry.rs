//! The flows that one worker owns, as the switch last confirmed them, or as the worker holds them
//! without a confirmation because no other host can have them. A switch that has lost its table is
//! filled from here ([`crate::announce`]).
//!
//! A flow enters with the answer that makes this worker its owner, and stays until its release
//! begins or its hand-off is accepted. A source keeps its flow until the verdict. A target has none
//! before the answer, except one that must insist (docs/design/terms.md).
//!
//! Not here: sockets, and flows that no command was ever sent for.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Bound::{Excluded, Unbounded};

use crate::control::{Answer, FlowKey, FlowState, Ops, Owner, Status, Term};
use crate::steering::Command;
use crate::wire::ip_bytes;

/// The most flows of one worker. At [`FLOW_BYTES`] they take 88 MiB.
pub const MAX_FLOWS: usize = 1 << 20;
/// The most memory of one flow among many. A node of the tree has 11 places, at least 5 of them
/// with a flow, and 20 bytes of its own and of the allocator. One node in six has 12 pointers.
pub const FLOW_BYTES: usize = 88;
/// The most services, and the most owner records, of one worker.
const MAX_PLACES: usize = 1 << 16;
/// The number of values that are compared before a table is asked.
const COMPARED: u16 = 4;

const NODE_BYTES: usize =
    11 * (size_of::<Position>() + size_of::<RegisteredFlow>()) + 20 + 12 * 8 / 6;
const _: () = assert!(NODE_BYTES <= 5 * FLOW_BYTES);

/// A flow's place in the order of the registry: the key in 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    client: [u8; 16],
    port: u16,
    service: u16,
}

#[derive(Clone, Copy, Debug)]
struct RegisteredFlow {
    epoch: u64,
    term: Term,
    owner: u16,
    is_blocked: bool,
    is_confirmed: bool,
}

/// A flow of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedFlow {
    /// The flow.
    pub flow: FlowKey,
    /// Its owner record.
    pub owner: Owner,
    /// Its epoch.
    pub epoch: u64,
    /// The switch drops its packets, because it moves.
    pub is_blocked: bool,
    /// The switch has confirmed this epoch. Otherwise no other host can have the flow.
    pub is_confirmed: bool,
    /// The last term in which the switch confirmed the flow.
    pub term: Term,
}

impl OwnedFlow {
    /// The command that states this.
    #[must_use]
    pub fn announcement(&self) -> Command {
        let state = if self.is_blocked {
            Ops::BLOCK
        } else {
            Ops::UNBLOCK
        };
        Command {
            ops: Ops::OWN.and(state).and(Ops::ANNOUNCE),
            epoch: self.epoch,
            flow: self.flow,
            owner: self.owner,
        }
    }
}

/// The registry has no room. The flow is lost if the switch loses its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this worker owns more flows than it can announce to a switch that lost its table")]
pub struct Full;

/// The flows of one worker.
#[derive(Debug, Default)]
pub struct Registry {
    flows: BTreeMap<Position, RegisteredFlow>,
    services: Places<SocketAddr>,
    owners: Places<Owner>,
}

impl Registry {
    /// Holds a flow. A confirmed entry of a greater epoch stays. One without a confirmation may be
    /// ahead of the clock of the present switch, which then has confirmed a lesser epoch.
    pub fn hold(&mut self, owned: OwnedFlow) -> Result<(), Full> {
        let position = self.new_position(&owned.flow).ok_or(Full)?;
        let owner = self.owners.number_of(owned.owner).ok_or(Full)?;
        let held = RegisteredFlow {
            epoch: owned.epoch,
            term: owned.term,
            owner,
            is_blocked: owned.is_blocked,
            is_confirmed: owned.is_confirmed,
        };
        let has_room = self.flows.len() < MAX_FLOWS;
        match self.flows.get_mut(&position) {
            Some(known) if known.is_confirmed && known.epoch > held.epoch => {}
            Some(known) => *known = held,
            None if has_room => {
                self.flows.insert(position, held);
            }
            None => return Err(Full),
        }
        Ok(())
    }

    /// Holds the flow if this is the confirmation that it is `here`. Returns whether it is.
    pub fn note(&mut self, answer: &Answer, term: Term, here: Owner) -> Result<bool, Full> {
        let is_here = answer.status == Status::Ok
            && answer.ops.has(Ops::OWN)
            && answer.state != FlowState::Absent
            && answer.owner == here;
        if is_here {
            self.hold(OwnedFlow {
                flow: answer.flow,
                owner: here,
                epoch: answer.epoch,
                is_blocked: answer.state == FlowState::Blocked,
                is_confirmed: true,
                term,
            })?;
        }
        Ok(is_here)
    }

    /// The switch has confirmed the flow in `term`, at `epoch`.
    pub fn confirm(&mut self, flow: &FlowKey, epoch: u64, term: Term) {
        if let Some(position) = self.position(flow)
            && let Some(held) = self.flows.get_mut(&position)
        {
            held.term = held.term.max(term);
            held.is_confirmed |= held.epoch == epoch;
        }
    }

    /// Forgets a flow that this worker held at `epoch`, and not one that has come back since.
    pub fn forget(&mut self, flow: &FlowKey, epoch: u64) {
        if let Some(position) = self.position(flow)
            && (self.flows.get(&position)).is_some_and(|held| held.epoch <= epoch)
        {
            self.flows.remove(&position);
        }
    }

    /// The entry of `flow`.
    #[must_use]
    pub fn get(&self, flow: &FlowKey) -> Option<OwnedFlow> {
        let position = self.position(flow)?;
        self.owned(&position, self.flows.get(&position)?)
    }

    /// The first flow behind `after`. Flows that enter before that are not seen.
    #[must_use]
    pub fn next(&self, after: Option<Position>) -> Option<(Position, OwnedFlow)> {
        let behind = (after.map_or(Unbounded, Excluded), Unbounded);
        let (position, held) = self.flows.range(behind).next()?;
        Some((*position, self.owned(position, held)?))
    }

    /// The number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// There are no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    fn owned(&self, position: &Position, held: &RegisteredFlow) -> Option<OwnedFlow> {
        let client = Ipv6Addr::from(position.client).to_canonical();
        Some(OwnedFlow {
            flow: FlowKey {
                client: SocketAddr::new(client, position.port),
                vip: self.services.get(position.service)?,
            },
            owner: self.owners.get(held.owner)?,
            epoch: held.epoch,
            is_blocked: held.is_blocked,
            is_confirmed: held.is_confirmed,
            term: held.term,
        })
    }

    fn new_position(&mut self, flow: &FlowKey) -> Option<Position> {
        let service = self.services.number_of(flow.vip)?;
        Some(Position::new(flow.client, service))
    }

    fn position(&self, flow: &FlowKey) -> Option<Position> {
        let service = self.services.find(&flow.vip)?;
        Some(Position::new(flow.client, service))
    }
}

impl Position {
    fn new(client: SocketAddr, service: u16) -> Self {
        let ip: IpAddr = client.ip();
        Self {
            client: ip_bytes(ip),
            port: client.port(),
            service,
        }
    }
}

/// Values that many flows have in common, by number. They stay: there are few.
#[derive(Debug)]
struct Places<T> {
    values: Vec<T>,
    numbers: HashMap<T, u16>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Places<T> {
    fn get(&self, number: u16) -> Option<T> {
        self.values.get(usize::from(number)).copied()
    }

    /// The number of a value that was numbered. Few values are the rule, so the first ones are
    /// compared one by one, which takes fewer instructions than a hash.
    fn find(&self, value: &T) -> Option<u16> {
        let mut first = self.values.iter().zip(0..COMPARED);
        let found = first.find(|(other, _)| *other == value);
        match found {
            Some((_, number)) => Some(number),
            None => self.numbers.get(value).copied(),
        }
    }

    fn number_of(&mut self, value: T) -> Option<u16> {
        if let Some(number) = self.find(&value) {
            return Some(number);
        }
        if self.values.len() >= MAX_PLACES {
            return None;
        }
        let number = u16::try_from(self.values.len()).ok()?;
        self.values.push(value);
        self.numbers.insert(value, number);
        Some(number)
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
