//! Time, the network, and the faults.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::AddAssign;

use prism_cluster::State;

use crate::{Kind, Mutation};

use crate::client::{Client, Seen, Wish};
use crate::node::{Effect, Message, Node, has_place, readers_of};
use crate::register::{KeepAlive, Register};

pub(crate) const NODES: usize = 4;
pub(crate) const KEYS: usize = 3;
const CLIENTS: usize = 5;
/// The time at which clients begin. All nodes live by then.
const BEGIN: u64 = 100 * MS;
/// Microseconds of a millisecond.
pub(crate) const MS: u64 = 1_000;
/// The longest time that a message is under way.
pub(crate) const MESSAGE_LIFE: u64 = 400 * MS;
/// The end of the faults, and the end of the run.
const HEALED: u64 = 3_000 * MS;
const END: u64 = 9_000 * MS;

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    All,
}

#[derive(Debug)]
pub(crate) enum Event {
    Begin {
        client: usize,
    },
    Wish {
        client: usize,
        id: u64,
        node: usize,
        key: usize,
        wish: Wish,
    },
    GiveUp {
        client: usize,
        id: u64,
    },
    Arrives {
        from: usize,
        to: usize,
        message: Message,
    },
    /// A node's disk has finished a write of this life.
    OnDisk {
        node: usize,
        life: u64,
        effect: Effect,
    },
    Tick {
        node: usize,
        life: u64,
    },
    Crash,
    Boot {
        node: usize,
    },
    /// Whether the node is cut off from the others, or only from the register.
    CutOff {
        node: usize,
        until: u64,
        from_all: bool,
    },
    Heal,
    /// The cluster's next state is looked for.
    Consider,
    Replace,
    /// A node has learned of a state.
    Watched {
        node: usize,
        life: u64,
        state: Box<State>,
    },
    /// A message at the register.
    KeepAlive {
        node: usize,
        keep_alive: KeepAlive,
    },
    /// The register's answer; no lease if another state counts.
    Leased {
        node: usize,
        life: u64,
        until: Option<u64>,
        state: Box<State>,
    },
}

/// The events of a run, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) answered: u64,
    pub(crate) given_up: u64,
    pub(crate) crashes: u64,
    pub(crate) steps: u64,
    pub(crate) caught_up: u64,
    pub(crate) resolved: u64,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.given_up += other.given_up;
        self.crashes += other.crashes;
        self.steps += other.steps;
        self.caught_up += other.caught_up;
        self.resolved += other.resolved;
    }
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    pub(crate) seen: Seen,
    pub(crate) kind: Kind,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) next_id: u64,
    pub(crate) is_healing: bool,
    pub(crate) register: Register,
    pub(crate) met: Met,
    faults: Faults,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// By the number in `events`.
    what: std::collections::HashMap<u64, Event>,
    number: u64,
    cut_until: [u64; NODES],
    cut_from_register_until: [u64; NODES],
}

impl World {
    pub(crate) fn new(
        seed: u64,
        (faults, kind): (Faults, Kind),
        mutation: Option<Mutation>,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = Self {
            now: 0,
            register: Register::new(&mut rng, faults),
            met: Met::default(),
            rng,
            nodes: (0..NODES).map(Node::new).collect(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            seen: Seen::default(),
            kind,
            mutation,
            next_id: 0,
            is_healing: false,
            faults,
            events: BinaryHeap::new(),
            what: std::collections::HashMap::new(),
            number: 0,
            cut_until: [0; NODES],
            cut_from_register_until: [0; NODES],
        };
        for client in 0..CLIENTS {
            world.after(BEGIN, Event::Begin { client });
        }
        world.after(0, Event::Consider);
        for node in 0..NODES {
            world.boot(node);
        }
        if faults == Faults::All {
            for _ in 0..world.rng.u8(1..6) {
                let at = world.rng.u64(..HEALED);
                world.after(at, Event::Crash);
            }
            for _ in 0..world.rng.u8(..8) {
                let (at, node) = (world.rng.u64(..HEALED), world.rng.usize(..NODES));
                let until = at + world.rng.u64(..600 * MS);
                let from_all = world.rng.bool();
                let cut_off = Event::CutOff {
                    node,
                    until,
                    from_all,
                };
                world.after(at, cut_off);
            }
            for _ in 0..world.rng.u8(..6) {
                let at = world.rng.u64(..HEALED);
                world.after(at, Event::Replace);
            }
        }
        world.after(HEALED, Event::Heal);
        world
    }

    pub(crate) fn run(mut self) -> Result<Met, String> {
        while let Some(Reverse((at, number))) = self.events.pop() {
            if at > END {
                break;
            }
            self.now = at;
            let event = self.what.remove(&number).unwrap();
            self.happen(event);
        }
        self.judge()?;
        Ok(Met {
            answered: self.seen.answered,
            given_up: self.seen.given_up,
            steps: self.register.steps,
            ..self.met
        })
    }

    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + delay, self.number)));
        self.what.insert(self.number, event);
    }

    pub(crate) fn has_faults(&self) -> bool {
        self.faults == Faults::All
    }

    pub(crate) fn is_cut_from_register(&self, node: usize) -> bool {
        self.cut_until[node].max(self.cut_from_register_until[node]) > self.now
    }

    pub(crate) fn send(&mut self, from: usize, to: usize, message: Message) {
        let faulty = self.faults == Faults::All && !self.is_healing;
        let is_cut = self.cut_until[from].max(self.cut_until[to]) > self.now;
        if is_cut || (faulty && self.rng.u8(..10) == 0) {
            return;
        }
        let copies = if faulty && self.rng.u8(..10) == 0 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let late = faulty && self.rng.u8(..12) == 0;
            let longest = if late { MESSAGE_LIFE } else { 3 * MS };
            let delay = self.rng.u64(MS / 10..longest);
            let message = message.clone();
            self.after(delay, Event::Arrives { from, to, message });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin { client } => self.begin(client),
            Event::GiveUp { client, id } => self.give_up(client, id),
            Event::Wish {
                client,
                id,
                node,
                key,
                wish,
            } => {
                if self.nodes[node].is_up {
                    self.wished(node, (client, id), key, wish);
                }
            }
            Event::Arrives { from, to, message } => {
                if self.nodes[to].is_up {
                    self.receive(to, from, message);
                }
            }
            Event::OnDisk { node, life, effect } => {
                if self.nodes[node].life == life {
                    self.on_disk(node, effect);
                }
            }
            Event::Tick { node, life } => {
                if self.nodes[node].life == life && self.nodes[node].is_up {
                    self.tick(node);
                }
            }
            Event::Crash => self.crash(),
            Event::Boot { node } => self.boot(node),
            Event::CutOff {
                node,
                until,
                from_all,
            } => match from_all {
                true => self.cut_until[node] = until,
                false => self.cut_from_register_until[node] = until,
            },
            Event::Consider => self.consider(),
            Event::Replace => self.wish(),
            Event::Watched { node, life, state } => {
                if self.nodes[node].life == life && self.nodes[node].is_up {
                    self.watched(node, state);
                }
            }
            Event::KeepAlive { node, keep_alive } => self.kept_alive(node, keep_alive),
            Event::Leased {
                node,
                life,
                until,
                state,
            } => {
                if self.nodes[node].life == life && self.nodes[node].is_up {
                    self.leased(node, until, state);
                }
            }
            Event::Heal => {
                self.is_healing = true;
                self.cut_until = [0; NODES];
                self.cut_from_register_until = [0; NODES];
                for node in 0..NODES {
                    if !self.nodes[node].is_up {
                        self.boot(node);
                    }
                }
            }
        }
    }

    /// Each unfinished write is on the disk, or is not.
    fn crash(&mut self) {
        let node = self.rng.usize(..NODES);
        if !self.nodes[node].is_up || self.is_healing {
            return;
        }
        self.met.crashes += 1;
        let life = self.nodes[node].life;
        let mut begun: Vec<u64> = Vec::new();
        for (number, event) in &self.what {
            if matches!(event, Event::OnDisk { node: n, life: l, .. } if *n == node && *l == life) {
                begun.push(*number);
            }
        }
        begun.sort_unstable();
        // In order: a later write is not there without the earlier ones.
        let kept = self.rng.usize(..=begun.len());
        for (index, number) in begun.iter().enumerate() {
            let Some(Event::OnDisk { effect, .. }) = self.what.get(number) else {
                continue;
            };
            if index < kept {
                let effect = effect.clone();
                self.nodes[node].change(&effect, self.mutation);
            }
        }
        self.nodes[node].crash();
        // Some nodes are away for longer than deletions are remembered.
        let longest = if self.rng.u8(..3) == 0 { 2_500 } else { 400 };
        let delay = self.rng.u64(..longest * MS);
        self.after(delay, Event::Boot { node });
    }

    fn boot(&mut self, node: usize) {
        if self.nodes[node].is_up {
            return;
        }
        let skew = self.rng.u64(..200 * MS);
        self.nodes[node].boot(skew);
        let life = self.nodes[node].life;
        self.after(0, Event::Tick { node, life });
    }

    fn judge(&mut self) -> Result<(), String> {
        self.register.is_well()?;
        let view = self.register.view();
        for (number, node) in self.nodes.iter().enumerate() {
            if !node.pending.is_empty() {
                let pending = &node.pending;
                return Err(format!("node {number} still has {pending:?} pending"));
            }
            for key in 0..KEYS {
                let readers = readers_of(Some(&view), key);
                let wanted = match has_place(&view, number, key) {
                    true => self.nodes[readers[0]].held.get(&key),
                    false => None,
                };
                let held = node.held.get(&key);
                if held != wanted {
                    return Err(format!("node {number} holds {held:?}, not {wanted:?}"));
                }
            }
            let left = node.held.values().find(|(_, value)| value.is_none());
            if let Some(left) = left {
                return Err(format!("node {number} still remembers {left:?}"));
            }
        }
        for key in 0..KEYS {
            let readers = readers_of(Some(&view), key);
            let value = self.nodes[readers[0]].value(key);
            self.seen.last_read(key, self.now, value);
        }
        self.seen.judge()
    }
}
