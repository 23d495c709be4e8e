//! The register, which stands for etcd: it has the cluster's state, and the leases and reports of
//! the nodes. Nodes reach it by messages that may be late or lost.

use prism_cluster::{Live, NodeName, Phase, Placing, Report, State, View, step};

use crate::node::Effect;
use crate::world::{Event, Faults, MS, NODES, World};

/// The duration of a lease after its last renewal.
pub(crate) const TTL: u64 = 150 * MS;
/// The time for which a node relies on its lease after it has asked for it.
const BELIEVED: u64 = TTL - TTL / 10;
/// The interval of attempts to take a step.
const STEP_EVERY: u64 = 7 * MS;

pub(crate) fn name(node: usize) -> NodeName {
    NodeName::new(format!("n{node}")).unwrap()
}

/// The identity of a node's store, which is never lost here.
fn store(node: usize) -> u64 {
    node as u64 + 1
}

fn lives(node: usize) -> Report {
    Report {
        store: store(node),
        ..Report::default()
    }
}

pub(crate) struct Register {
    pub(crate) state: State,
    pub(crate) live: Live,
    wish: Option<Placing>,
    expires: [u64; NODES],
    /// The life of a node that has the lease.
    lives: [u64; NODES],
    pub(crate) steps: u64,
}

/// A message from a node to the register.
#[derive(Clone, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) life: u64,
    pub(crate) sent: u64,
    pub(crate) report: Report,
}

fn some_placing(rng: &mut fastrand::Rng) -> Placing {
    let mut nodes: Vec<usize> = (0..NODES).collect();
    rng.shuffle(&mut nodes);
    let count = rng.usize(1..=NODES);
    let replicas = u16::try_from(rng.usize(1..=count.min(3))).unwrap();
    Placing::new(nodes.into_iter().take(count).map(name), replicas).unwrap()
}

impl Register {
    pub(crate) fn new(rng: &mut fastrand::Rng, faults: Faults) -> Self {
        let placing = match faults {
            Faults::None => Placing::new((0..NODES).map(name), 3).unwrap(),
            Faults::All => some_placing(rng),
        };
        let mut state = State::new(placing);
        for (name, backend) in &mut state.backends {
            backend.store = (0..NODES)
                .find(|n| self::name(*n) == *name)
                .map_or(0, store);
        }
        Self {
            state,
            live: (0..NODES).map(|n| (name(n), lives(n))).collect(),
            wish: None,
            expires: [TTL; NODES],
            lives: [0; NODES],
            steps: 0,
        }
    }

    pub(crate) fn view(&self) -> View {
        View::new(self.state.clone()).unwrap()
    }

    /// The epoch that all living nodes have adopted.
    pub(crate) fn all_adopted(&self, epoch: u64) -> bool {
        self.live.values().all(|report| report.epoch >= epoch)
    }

    pub(crate) fn is_well(&self) -> Result<(), String> {
        let all_in_sync = self
            .state
            .backends
            .values()
            .all(|backend| backend.status == prism_cluster::Status::InSync);
        match self.state.phase == Phase::Settled && all_in_sync {
            true => Ok(()),
            false => Err(format!("the cluster is not well: {:#?}", self.state)),
        }
    }
}

impl World {
    pub(crate) fn wish(&mut self) {
        if !self.is_healing {
            self.register.wish = Some(some_placing(&mut self.rng));
        }
    }

    /// Takes a step if there is one, and tells all nodes sooner or later.
    pub(crate) fn consider(&mut self) {
        let now = self.now;
        let register = &mut self.register;
        for node in 0..NODES {
            if register.expires[node] <= now {
                register.live.remove(&name(node));
            }
        }
        if let Some(next) = step(&register.state, &register.live, register.wish.as_ref()) {
            register.state = next;
            register.steps += 1;
            for node in 0..NODES {
                if !self.is_cut_from_register(node) {
                    let longest = if self.rng.u8(..4) == 0 { 140 } else { 5 };
                    let delay = self.rng.u64(MS / 10..longest * MS);
                    let state = Box::new(self.register.state.clone());
                    let life = self.nodes[node].life;
                    self.after(delay, Event::Watched { node, life, state });
                }
            }
        }
        let delay = self.rng.u64(MS..STEP_EVERY);
        self.after(delay, Event::Consider);
    }

    /// Asks for a lease, or for its renewal.
    pub(crate) fn keep_alive(&mut self, node: usize) {
        let here = &self.nodes[node];
        let report = Report {
            store: store(node),
            epoch: here.view.as_ref().map_or(0, View::epoch),
            caught_up: here.caught_up,
            ..Report::default()
        };
        let (life, sent) = (here.life, self.now);
        let keep_alive = KeepAlive { life, sent, report };
        self.reach_register(node, Event::KeepAlive { node, keep_alive });
    }

    fn reach_register(&mut self, node: usize, event: Event) {
        if !self.is_cut_from_register(node) {
            let delay = self.rng.u64(MS / 10..8 * MS);
            self.after(delay, event);
        }
    }

    pub(crate) fn kept_alive(&mut self, node: usize, keep_alive: KeepAlive) {
        let KeepAlive { life, sent, report } = keep_alive;
        let (now, register) = (self.now, &mut self.register);
        if register.lives[node] > life {
            return;
        }
        let lives = register.live.contains_key(&name(node)) && register.expires[node] > now;
        let is_same = lives && register.lives[node] == life;
        // A node begins to live in the present state.
        let is_granted = is_same || report.epoch == register.state.epoch;
        if is_granted {
            let known = register.live.get(&name(node)).copied();
            let known = known.filter(|_| is_same).unwrap_or_default();
            // Messages may overtake each other.
            let report = Report {
                epoch: report.epoch.max(known.epoch),
                caught_up: report.caught_up.max(known.caught_up),
                ..report
            };
            register.live.insert(name(node), report);
            register.expires[node] = now + TTL;
            register.lives[node] = life;
        }
        let state = Box::new(register.state.clone());
        let until = is_granted.then_some(sent + BELIEVED);
        if !self.is_cut_from_register(node) {
            let delay = self.rng.u64(MS / 10..8 * MS);
            let leased = Event::Leased {
                node,
                life,
                until,
                state,
            };
            self.after(delay, leased);
        }
    }

    pub(crate) fn leased(&mut self, node: usize, until: Option<u64>, state: Box<State>) {
        let here = &mut self.nodes[node];
        here.lease_until = here.lease_until.max(until.unwrap_or(0));
        self.watched(node, state);
    }

    pub(crate) fn watched(&mut self, node: usize, state: Box<State>) {
        let here = &self.nodes[node];
        if here.view.as_ref().map_or(0, View::epoch) < state.epoch {
            self.disk(node, Effect::Adopt(state));
        }
    }
}
