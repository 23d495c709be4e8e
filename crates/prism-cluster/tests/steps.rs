//! Random lives of clusters. Backends die and return, adopt states late, fetch keys and
//! delete keys, while the placing changes and keys are written. No reader ever misses a
//! write. The test has to find rules that are broken on purpose.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use fastrand::Rng;
use prism_cluster::{
    Choice, Claims, Contents, Live, MinReplicas, NodeName, Phase, Placing, RecoverError, Report,
    State, Status, Testimonies, Testimony, View, recover, step,
};

const KEYS: usize = 24;
const BACKENDS: usize = 5;

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    /// A step does not wait until all have adopted the one before.
    StepsUnadopted,
    /// A backend fetches before all have adopted the epoch.
    FetchesEarly,
    /// A backend reports that it has everything, and lacks keys.
    ClaimsUnfetched,
    /// A write needs readers only.
    WritesToReadersOnly,
    /// A write does not check the number of copies in sync.
    WritesToTooFew,
    /// A backend with a new store serves.
    ServesFromAnyStore,
    /// A lost state is recovered without the backends that have no testimony.
    RecoversWithoutTheSilent,
    /// A backend that leaves gets no writes while it may still serve reads.
    LeavesAtOnce,
    /// A store that is put back from an earlier copy counts as the one that it was.
    RevertedStoreKeepsIdentity,
}

struct Node {
    view: View,
    caught_up: u64,
    store: u64,
    /// Its store has recorded the view's state.
    noted: bool,
    lives: bool,
    /// It is about to stop in order.
    leaves: bool,
    /// The value of each key; 0 for none.
    versions: [u64; KEYS],
    /// An earlier copy of them.
    copy: [u64; KEYS],
}

struct World {
    rng: Rng,
    fault: Fault,
    state: State,
    wish: Option<Placing>,
    nodes: BTreeMap<NodeName, Node>,
    /// The last answered write of each key.
    answered: [u64; KEYS],
    next_version: u64,
    writes: u64,
    /// Writes for which too few copies were in sync.
    refused: u64,
    steps: u64,
    recoveries: u64,
    /// Backends that the others went on without before they stopped.
    left: u64,
}

fn name(index: usize) -> NodeName {
    NodeName::new(format!("be{index}")).unwrap()
}

fn key(index: usize) -> String {
    format!("key{index}")
}

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(1..=BACKENDS);
        let replicas = u16::try_from(rng.usize(1..=members)).unwrap();
        let state = State::new(Placing::new((0..members).map(name), replicas).unwrap());
        let node = || Node {
            view: View::new(state.clone()).unwrap(),
            caught_up: 0,
            store: 1,
            noted: true,
            lives: true,
            leaves: false,
            versions: [0; KEYS],
            copy: [0; KEYS],
        };
        Self {
            nodes: (0..BACKENDS).map(|index| (name(index), node())).collect(),
            rng,
            fault,
            state,
            wish: None,
            answered: [0; KEYS],
            next_version: 0,
            writes: 0,
            refused: 0,
            steps: 0,
            recoveries: 0,
            left: 0,
        }
    }

    fn live(&self) -> Live {
        let live = self.nodes.iter().filter(|(_, node)| node.lives);
        let report = |node: &Node| Report {
            store: node.store,
            epoch: match self.fault {
                Fault::StepsUnadopted => self.state.epoch,
                _ => node.view.epoch(),
            },
            caught_up: node.caught_up,
            leaving: node.leaves,
            paused: 0,
        };
        live.map(|(name, node)| (name.clone(), report(node)))
            .collect()
    }

    fn all_have_adopted(&self, epoch: u64) -> bool {
        let mut live = self.nodes.values().filter(|node| node.lives);
        live.all(|node| node.view.epoch() >= epoch)
    }

    fn act(&mut self) {
        let who = name(self.rng.usize(0..BACKENDS));
        match self.rng.u32(0..100) {
            0..3 => self.die_or_return(&who),
            3..5 => self.wish(),
            5 => self.lose_store(&who),
            6 => self.lose_state(),
            7..20 => {
                self.adopt(&who);
                self.stop(&who);
            }
            20..30 => self.step(),
            30..39 => self.fetch(&who),
            39 => self.leave(&who),
            40..44 => self.trim(&who),
            44 => self.copy_store(&who),
            _ => self.write(&who),
        }
    }

    fn step(&mut self) {
        let Some(mut next) = step(&self.state, &self.live(), self.wish.as_ref()) else {
            return;
        };
        assert_eq!(next.epoch, self.state.epoch + 1);
        next.check().unwrap();
        if self.fault == Fault::LeavesAtOnce {
            for (name, backend) in &mut next.backends {
                let was_read = self.state.status(name.as_str()) == Some(Status::InSync);
                if was_read && self.nodes[name].leaves && backend.status == Status::Lagging {
                    backend.status = Status::Out;
                }
            }
        }
        self.state = next;
        self.steps += 1;
    }

    fn leave(&mut self, who: &NodeName) {
        let node = self.nodes.get_mut(who).unwrap();
        node.leaves |= node.lives;
    }

    /// A backend that leaves stops, if the others go on without it.
    fn stop(&mut self, who: &NodeName) {
        let status = self.state.status(who.as_str());
        let is_out = status.is_none_or(|status| status == Status::Out);
        if self.nodes[who].leaves && is_out && self.all_have_adopted(self.state.epoch) {
            self.left += 1;
            self.die_or_return(who);
        }
    }

    fn die_or_return(&mut self, who: &NodeName) {
        let view = View::new(self.state.clone()).unwrap();
        let node = self.nodes.get_mut(who).unwrap();
        node.lives = !node.lives;
        node.leaves = false;
        if node.lives {
            node.view = view;
            node.caught_up = 0;
            node.noted = true;
        }
    }

    /// The state is lost. Some backends publish their testimonies, and go on by the recovered
    /// state if there is one.
    fn lose_state(&mut self) {
        let mut said = Testimonies::new();
        for (name, node) in &self.nodes {
            if self.rng.u32(0..6) > 0 {
                let state = node.noted.then(|| node.view.state().clone());
                let testimony = Testimony {
                    store: node.store,
                    epoch: state.as_ref().map_or(1, |state| state.epoch),
                    state,
                };
                said.insert(name.clone(), testimony);
            }
        }
        let mut choice = Choice {
            founding: self.rng.u64(1..),
            ..Choice::default()
        };
        let claims = Claims::new();
        let lost = Contents {
            state: None,
            lineage: None,
            testimonies: &said,
            claims: &claims,
        };
        let mut recovered = recover(&lost, &BTreeMap::new(), &choice);
        if let (Fault::RecoversWithoutTheSilent, Err(RecoverError::Unproven(silent))) =
            (self.fault, &recovered)
        {
            choice.without = silent.keys().cloned().collect();
            recovered = recover(&lost, &BTreeMap::new(), &choice);
        }
        if let Ok(recovery) = recovered {
            assert!(said.values().all(|said| said.accepts(&recovery.state)));
            self.state = recovery.state;
            self.recoveries += 1;
        }
    }

    /// A backend returns with an empty store, or with an earlier copy of its own that is noticed,
    /// if others have its keys.
    fn lose_store(&mut self, who: &NodeName) {
        let state = &self.state;
        let mut backends = state.backends.iter();
        let others_have = backends.all(|(name, backend)| {
            let node = &self.nodes[name];
            node.lives && backend.status == Status::InSync && backend.store == node.store
        });
        if state.phase != Phase::Settled || state.placing.replicas == 1 || !others_have {
            return;
        }
        self.die_or_return(who);
        let is_reverted = self.rng.bool();
        let keeps_identity = is_reverted && self.fault == Fault::RevertedStoreKeepsIdentity;
        let node = self.nodes.get_mut(who).unwrap();
        node.versions = match is_reverted {
            true => node.copy,
            false => [0; KEYS],
        };
        node.store += u64::from(!keeps_identity);
        node.noted = false;
        if self.rng.bool() {
            self.die_or_return(who);
        }
    }

    fn copy_store(&mut self, who: &NodeName) {
        let node = self.nodes.get_mut(who).unwrap();
        node.copy = node.versions;
    }

    fn wish(&mut self) {
        let mut members: Vec<NodeName> = (0..BACKENDS).map(name).collect();
        self.rng.shuffle(&mut members);
        members.truncate(self.rng.usize(1..=BACKENDS));
        let replicas = u16::try_from(self.rng.usize(1..=members.len())).unwrap();
        self.wish = Some(Placing::new(members, replicas).unwrap());
    }

    fn adopt(&mut self, who: &NodeName) {
        let node = self.nodes.get_mut(who).unwrap();
        if node.lives {
            node.view = View::new(self.state.clone()).unwrap();
            node.noted = true;
        }
    }

    fn fetch(&mut self, who: &NodeName) {
        let node = &self.nodes[who];
        let Some(since) = node.view.state().fetches_since(who.as_str()) else {
            return;
        };
        if !node.lives || !(self.fault == Fault::FetchesEarly || self.all_have_adopted(since)) {
            return;
        }
        for index in 0..KEYS {
            if !self.nodes[who].view.lacks(who.as_str(), "b", &key(index)) {
                continue;
            }
            if self.fault == Fault::ClaimsUnfetched && self.rng.u32(0..8) == 0 {
                continue;
            }
            let mut sources = self.nodes[who].view.readers("b", &key(index));
            let Some(source) = sources.find(|name| self.nodes[*name].lives) else {
                return;
            };
            let version = self.nodes[source].versions[index];
            drop(sources);
            let own = &mut self.nodes.get_mut(who).unwrap().versions[index];
            *own = version.max(*own);
        }
        self.nodes.get_mut(who).unwrap().caught_up = since;
    }

    fn trim(&mut self, who: &NodeName) {
        let node = self.nodes.get_mut(who).unwrap();
        if !node.lives {
            return;
        }
        for (index, version) in node.versions.iter_mut().enumerate() {
            if !node.view.has_place(who.as_str(), "b", &key(index)) {
                *version = 0;
            }
        }
    }

    fn serves(&self, who: &NodeName) -> bool {
        let node = &self.nodes[who];
        let knows = || node.view.state().is_store_of(who.as_str(), node.store);
        node.lives && (knows() || self.fault == Fault::ServesFromAnyStore)
    }

    /// A write of some key, and a read of it, at one node and by its view.
    fn write(&mut self, who: &NodeName) {
        let index = self.rng.usize(0..KEYS);
        let node = &self.nodes[who];
        if !self.serves(who) {
            return;
        }
        let view = node.view.clone();
        if view.readers("b", &key(index)).any(|name| name == who) {
            let (found, expected) = (node.versions[index], self.answered[index]);
            assert_eq!(found, expected, "{who} reads {index} in {:?}", view.state());
        }
        if view.primary("b", &key(index)) != Some(who) {
            return;
        }
        let min = MinReplicas::default();
        let is_refused = view.check_copies("b", &key(index), min).is_err();
        if is_refused && self.fault != Fault::WritesToTooFew {
            self.refused += 1;
            return;
        }
        let writers: Vec<NodeName> = match self.fault {
            Fault::WritesToReadersOnly => view.readers("b", &key(index)).cloned().collect(),
            _ => view
                .writers("b", &key(index))
                .into_iter()
                .cloned()
                .collect(),
        };
        let prepares =
            |name: &NodeName| self.serves(name) && self.nodes[name].view.epoch() <= view.epoch();
        if writers.iter().all(prepares) {
            self.next_version += 1;
            self.writes += 1;
            self.answered[index] = self.next_version;
            for name in &writers {
                self.nodes.get_mut(name).unwrap().versions[index] = self.next_version;
            }
            // Any one store may be lost next.
            let has = |node: &&Node| node.versions[index] == self.next_version;
            let copies = self.nodes.values().filter(has).count();
            let needed = min.of(view.state().placing.replicas);
            assert!(copies >= needed.into(), "{copies} copies of {index}");
        }
    }

    /// All backends return, and only necessary events happen from now on.
    fn settle(&mut self) {
        for index in 0..BACKENDS {
            if !self.nodes[&name(index)].lives {
                self.die_or_return(&name(index));
            }
            self.nodes.get_mut(&name(index)).unwrap().leaves = false;
        }
        for _ in 0..200 {
            for index in 0..BACKENDS {
                self.adopt(&name(index));
                self.fetch(&name(index));
                self.trim(&name(index));
            }
            if let Some(next) = step(&self.state, &self.live(), self.wish.as_ref()) {
                self.state = next;
            }
        }
        assert_eq!(self.state.phase, Phase::Settled);
        let wish = self
            .wish
            .clone()
            .unwrap_or_else(|| self.state.placing.clone());
        assert_eq!(self.state.placing, wish);
        let mut backends = self.state.backends.values();
        assert!(backends.all(|backend| backend.status == Status::InSync));
        let view = View::new(self.state.clone()).unwrap();
        for index in 0..KEYS {
            let readers: Vec<_> = view.readers("b", &key(index)).collect();
            assert_eq!(readers.len(), usize::from(wish.replicas));
            for (name, node) in &self.nodes {
                let expected = match readers.contains(&name) {
                    true => self.answered[index],
                    false => 0,
                };
                assert_eq!(node.versions[index], expected, "{name} has {index}");
            }
        }
    }
}

fn live_through(seed: u64, fault: Fault) -> World {
    let mut world = World::new(seed, fault);
    for _ in 0..3000 {
        world.act();
    }
    world.settle();
    world
}

#[test]
fn no_reader_misses_a_write_whatever_happens_to_the_cluster() {
    let (mut steps, mut writes, mut recoveries, mut left) = (0, 0, 0, 0);
    let mut refused = 0;
    for seed in 0..60 {
        let world = live_through(seed, Fault::Nothing);
        steps += world.steps;
        writes += world.writes;
        refused += world.refused;
        recoveries += world.recoveries;
        left += world.left;
    }
    assert!(
        steps > 1_000 && writes > 4_000 && recoveries > 300 && left > 100,
        "{steps} steps, {writes} writes, {recoveries} recoveries, {left} left in order"
    );
    assert!(refused > 100, "{refused} writes refused");
}

#[test]
fn broken_rules_are_found() {
    let faults = [
        Fault::StepsUnadopted,
        Fault::FetchesEarly,
        Fault::ClaimsUnfetched,
        Fault::WritesToReadersOnly,
        Fault::WritesToTooFew,
        Fault::ServesFromAnyStore,
        Fault::RecoversWithoutTheSilent,
        Fault::LeavesAtOnce,
        Fault::RevertedStoreKeepsIdentity,
    ];
    // Expected panics are not printed.
    std::panic::set_hook(Box::new(|_| {}));
    let is_found = |fault| {
        (0..200).any(|seed| std::panic::catch_unwind(|| live_through(seed, fault)).is_err())
    };
    let missed: Vec<_> = faults
        .into_iter()
        .filter(|fault| !is_found(*fault))
        .collect();
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn the_last_epoch_there_can_be_has_no_next() {
    let mut state = State::new(Placing::new([name(0)], 1).unwrap());
    let report = Report {
        store: 1,
        epoch: u64::MAX,
        ..Report::default()
    };
    let live = Live::from([(name(0), report)]);
    assert!(step(&state, &live, None).is_some());
    state.epoch = u64::MAX;
    assert_eq!(step(&state, &live, None), None);
}
