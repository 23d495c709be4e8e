//! Two frontends: the list by which new connections go, its changes, and the claims to connections
//! that stay.

use std::collections::BTreeMap;

use prism_proto::claim::{self, Claim};
use prism_proto::control::FlowKey;
use prism_proto::steering::CommandOutcome;

use crate::host::{Role, Waiter, Work, owner_record};
use crate::scenario::{MS, Mutation};
use crate::tcp::Segment;
use crate::world::{Event, World};

/// Hosts 0 and 1.
pub(crate) const FRONTENDS: usize = 2;
/// The time for which connections from before a change go by the former list.
const CHANGING_NS: u64 = 2_000 * MS;
/// The pause before an unanswered claim is repeated.
const AGAIN_NS: u64 = 1_000 * MS;
/// Claims come sooner than in the product, so that they meet more other events.
const MAX_CLAIM_AFTER_NS: u64 = 20 * MS;
/// The same when clients are spread: a change of the list then meets connections that are not
/// claimed.
const MAX_SPREAD_CLAIM_AFTER_NS: u64 = 500 * MS;

pub(crate) fn is_frontend(host: usize) -> bool {
    host < FRONTENDS
}

/// The lists of frontends by which packets of flows without an entry go.
pub(crate) struct Lists {
    now: Vec<usize>,
    former: Vec<usize>,
    former_until_ns: u64,
    /// Connections that were opened while the list changes, or whose owner before was a frontend.
    opened: BTreeMap<FlowKey, usize>,
}

impl Lists {
    pub(crate) fn new() -> Self {
        Self {
            now: (0..FRONTENDS).collect(),
            former: Vec::new(),
            former_until_ns: 0,
            opened: BTreeMap::new(),
        }
    }

    /// A new table knows the list, and nothing of its past.
    pub(crate) fn begin_again(&mut self) {
        self.opened.clear();
        self.former_until_ns = 0;
    }

    /// Connections that were opened in the young term are found for a while, until they are
    /// claimed.
    pub(crate) fn settle(&mut self, opened: impl Iterator<Item = (FlowKey, usize)>, now_ns: u64) {
        self.opened.extend(opened);
        if now_ns >= self.former_until_ns {
            self.former.clone_from(&self.now);
        }
        self.former_until_ns = now_ns + CHANGING_NS;
    }

    /// The frontend of a packet of `flow`.
    fn frontend_of(&self, flow: &FlowKey, has_tombstone: bool, now_ns: u64) -> usize {
        let is_changing = now_ns < self.former_until_ns;
        let opened = self.opened.get(flow).copied();
        match opened.filter(|_| is_changing || has_tombstone) {
            Some(frontend) => frontend,
            None if is_changing => pick(&self.former, flow),
            None => pick(&self.now, flow),
        }
    }

    /// The frontend of a SYN: that of the SYN before it, which may have accepted a connection. Its
    /// kernel can tell them apart.
    fn open(&mut self, flow: &FlowKey, has_tombstone: bool, now_ns: u64) -> usize {
        let is_changing = now_ns < self.former_until_ns;
        let before = self.opened.get(flow).copied();
        let before = before.filter(|host| self.now.contains(host));
        let before = before.filter(|_| has_tombstone);
        let frontend = before.unwrap_or_else(|| pick(&self.now, flow));
        match is_changing || before.is_some() {
            true => self.opened.insert(*flow, frontend),
            false => self.opened.remove(flow),
        };
        frontend
    }

    /// Notes that a frontend is to challenge a SYN, and may accept it.
    pub(crate) fn note(&mut self, flow: &FlowKey, host: usize) {
        if is_frontend(host) {
            self.opened.insert(*flow, host);
        }
    }
}

/// Rendezvous hashing.
fn pick(list: &[usize], flow: &FlowKey) -> usize {
    let weight = |host: usize| {
        let mixed =
            (u64::from(flow.client.port()) << 8 | host as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    };
    let best = list.iter().copied().max_by_key(|host| weight(*host));
    best.unwrap_or(0)
}

impl World {
    pub(crate) fn frontend_of(&self, flow: &FlowKey) -> usize {
        let has_tombstone = self.switch.table.is_known(flow);
        let lists = &self.switch.lists;
        lists.frontend_of(flow, has_tombstone, self.now)
    }

    pub(crate) fn open_at_frontend(&mut self, flow: &FlowKey) -> usize {
        let is_mutated = self.scenario.mutation == Mutation::SynForgetsFrontend;
        let (now, is_known) = (self.now, self.switch.table.is_known(flow));
        if is_mutated {
            self.switch.lists.opened.remove(flow);
        }
        self.switch.lists.open(flow, is_known, now)
    }

    /// The frontend that clients' packets of `flow` reach, when these are spread.
    pub(crate) fn entry_of(&self, flow: &FlowKey) -> usize {
        pick(&self.switch.lists.now, flow)
    }

    /// The frontend that clients' packets of `flow` reach, if it takes this one: it has the socket,
    /// or it accepts. Otherwise it sends the packet to the arbiter.
    pub(crate) fn taken_by_frontend(&mut self, flow: &FlowKey, segment: &Segment) -> Option<usize> {
        if !self.scenario.is_spread {
            return None;
        }
        let host = self.entry_of(flow);
        let takes_mute = self.scenario.mutation == Mutation::MuteSocketsTake;
        let is_frozen = self.hosts[host].has_frozen(flow);
        let takes = match self.hosts[host].with_socket(flow) {
            // It resets the server of a forged SYN.
            Some((_, c)) if c.syn_ack.syn && segment.rst => {
                let ack = c.socket.as_ref().map(|tcp| tcp.ack().ack);
                ack == Some(segment.seq)
            }
            Some((_, c)) if c.syn_ack.syn => {
                segment.syn || segment.ack == c.syn_ack.seq.wrapping_add(1)
            }
            Some((_, c)) => takes_mute || !c.is_mute(),
            None => !is_frozen && segment.syn,
        };
        takes.then_some(host)
    }

    /// A frontend leaves the list or comes back, and lives all the time.
    pub(crate) fn frontends_change(&mut self) {
        let lists = [vec![0], vec![1], vec![0, 1]];
        let next = lists[self.rng.usize(0..lists.len())].clone();
        self.log(|| format!("new connections go to {next:?}"));
        if self.scenario.is_spread {
            self.excuse_half_open();
        }
        let lists = &mut self.switch.lists;
        lists.former = std::mem::replace(&mut lists.now, next);
        lists.former_until_ns = match self.scenario.mutation {
            Mutation::ListChangesAtOnce => 0,
            _ => self.now + CHANGING_NS,
        };
    }

    pub(crate) fn schedule_changes(&mut self) {
        for n in 0..self.scenario.list_changes {
            let apart = (CHANGING_NS + 100 * MS) * n as u64;
            let delay = apart + self.rng.u64(0..50 * MS);
            self.after(delay, Event::FrontendsChange);
        }
    }

    /// Claims the connection a little later.
    pub(crate) fn will_claim(&mut self, host: usize, id: u64) {
        let most_ns = match self.scenario.is_spread {
            true => MAX_SPREAD_CLAIM_AFTER_NS,
            false => MAX_CLAIM_AFTER_NS,
        };
        let delay = self.rng.u64(0..most_ns);
        if self.scenario.mutation != Mutation::NobodyClaims {
            self.works(host, delay, Work::Claim(id));
        }
    }

    pub(crate) fn claim(&mut self, host: usize, id: u64) {
        let h = &self.hosts[host];
        let since = h.connections.get(&id).map_or(0, |c| c.since);
        let clock = h.steering.switch_clock_ns(since + h.clock_offset_ns);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        if !matches!(c.role, Role::Serving) || c.steered || c.settling || c.killed {
            return;
        }
        let Some(clock) = clock else {
            return self.works(host, AGAIN_NS, Work::Claim(id));
        };
        let epoch = match c.commanded {
            false => clock,
            true => clock.max(c.epoch + 1),
        };
        let command = claim::command(c.flow, owner_record(host), epoch);
        (c.commanded, c.epoch, c.claims) = (true, epoch, true);
        self.steer(host, command, claim::DEADLINE_NS, Waiter::Claim(id, epoch));
    }

    pub(crate) fn claimed(&mut self, host: usize, id: u64, epoch: u64, outcome: CommandOutcome) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        // It was handed off or closed meanwhile.
        if !c.claims || c.epoch != epoch {
            return;
        }
        match Claim::of(outcome) {
            Claim::Held => (c.claims, c.steered) = (false, true),
            Claim::Unanswered => self.works(host, AGAIN_NS, Work::Claim(id)),
            Claim::Outranked => {
                let since = c.since;
                let h = &self.hosts[host];
                if h.steering.switch_clock_ns(since + h.clock_offset_ns) > Some(epoch) {
                    self.claim(host, id);
                }
            }
            Claim::Refused => {}
        }
    }
}
