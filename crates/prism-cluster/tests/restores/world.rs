//! The world: its components, its random steps, and what is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use prism_cluster::replica::{Bucket, Phase, Stamp};
use prism_cluster::{Fault, NodeName, Placing, State, Status, StoreMark, View};

use crate::Mutation;
use crate::buckets::policy;
use crate::etcd::Etcd;
use crate::node::{Acted, Node, Process, Store};

pub(crate) const KEYS: usize = 3;
/// Time for which a lease lasts in etcd.
pub(crate) const LEASE: u64 = 6;
/// Longest time until a node that is not cut off hears of a change.
const HEARD_IN: u64 = 2;
/// Times that a history heals, and its random steps before each time.
const HEALINGS: usize = 3;
const STEPS: usize = 200;
/// Rounds in which everything serves again, and those before the administrator decides.
const ROUNDS: usize = 120;
const UNDECIDED_ROUNDS: usize = 40;

pub(crate) type Found = Result<(), String>;

/// Counts of events, which can be added up.
macro_rules! counts {
    ($($name:ident)*) => {
        /// The events of a history, or of several.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Met {
            $(pub(crate) $name: u64,)*
        }

        impl AddAssign for Met {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    etcd_restored store_restored stores_restored both_restored
    same_restored silent forked faults
    recoveries decisions refused_recoveries renewed
    marks_put_back gaps raced caught_up behind
    steps leases writes reads
    users buckets corrections refused
    former_claims states_lost out_of_range contrary
    misled started_again deleted_again
}

/// The changes in a restored etcd before its fault was noticed.
#[derive(Debug, Default)]
pub(crate) struct Fork {
    pub(crate) users: BTreeSet<usize>,
    pub(crate) written: BTreeSet<usize>,
    pub(crate) has_steps: bool,
}

pub(crate) struct World {
    pub(crate) rng: fastrand::Rng,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) now: u64,
    begun: Instant,
    last_number: u64,
    pub(crate) etcd: Etcd,
    pub(crate) nodes: Vec<Node>,
    pub(crate) etcd_copies: Vec<Etcd>,
    pub(crate) store_copies: Vec<Vec<Store>>,
    /// The last answered write of each key.
    pub(crate) answered: [Option<u64>; KEYS],
    /// Other values that a key may have.
    pub(crate) allowed: [BTreeSet<Option<u64>>; KEYS],
    /// The last answered record of the bucket, and whether it may be lost.
    pub(crate) agreed: Option<Bucket>,
    pub(crate) is_bucket_forgiven: bool,
    /// The last state that a store has adopted.
    pub(crate) last_adopted: Option<State>,
    /// Whether stores may have different lives of the bucket that have not ended.
    pub(crate) is_contrary: bool,
    /// The lives of the bucket that have ended.
    pub(crate) ended: BTreeSet<Stamp>,
    /// Since when etcd lacks changes, until a recovery.
    pub(crate) reverted_since: Option<u64>,
    pub(crate) was_etcd_reverted: bool,
    pub(crate) fork: Fork,
    /// The backend whose claim is in etcd for all to hear, and since when.
    claimed: Option<(NodeName, u64)>,
    pub(crate) reverted_stores: BTreeSet<usize>,
    /// Reverted stores that have not become other ones.
    pub(crate) unnoticed: BTreeSet<usize>,
    /// The stores among them of which only other stores know more.
    pub(crate) outstanding: BTreeSet<usize>,
    /// Nodes that could put back the mark of such a store since the last restore, with the store.
    pub(crate) have_told: BTreeSet<(usize, usize)>,
    pub(crate) restored_at: u64,
    /// A rule that was found broken in the middle of a step.
    pub(crate) broken: Option<String>,
    /// Only operations that cause no fault.
    is_silent: bool,
    pub(crate) met: Met,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (backends, frontends) = (rng.u64(3..=4), rng.u64(1..=2));
        let names = (0..backends).map(|n| name(&format!("be{n}")));
        let replicas = rng.u16(1..=3);
        let mut state = State::new(Placing::new(names.clone(), replicas).unwrap());
        state.founding = 1;
        let mut nodes: Vec<Node> = names
            .zip(1_000_000..)
            .map(|(name, identity)| node(name, Some(Store::new(identity))))
            .collect();
        nodes.extend((0..frontends).map(|n| node(name(&format!("fe{n}")), None)));
        let mut world = Self {
            rng,
            mutation,
            now: 1,
            begun: Instant::now(),
            last_number: 1,
            etcd: Etcd::default(),
            etcd_copies: vec![Etcd::default()],
            store_copies: nodes.iter().map(|_| Vec::new()).collect(),
            nodes,
            answered: [None; KEYS],
            allowed: Default::default(),
            agreed: None,
            is_bucket_forgiven: false,
            last_adopted: None,
            is_contrary: false,
            ended: BTreeSet::new(),
            reverted_since: None,
            was_etcd_reverted: false,
            fork: Fork::default(),
            claimed: None,
            reverted_stores: BTreeSet::new(),
            unnoticed: BTreeSet::new(),
            outstanding: BTreeSet::new(),
            have_told: BTreeSet::new(),
            restored_at: 0,
            broken: None,
            is_silent: seed.is_multiple_of(4),
            met: Met::default(),
        };
        let revision = world.raise();
        world.etcd.state = Some((state, revision));
        world
    }

    pub(crate) fn run(mut self) -> Result<Met, String> {
        self.heal()?;
        self.create_bucket(0)?;
        for _ in 0..HEALINGS {
            for _ in 0..STEPS {
                self.step()?;
                self.check()?;
            }
            if !self.heal()? {
                break;
            }
        }
        Ok(self.met)
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The time `now` as a clock shows it.
    pub(crate) fn clock(&self) -> Instant {
        self.begun + Duration::from_secs(self.now)
    }

    /// A number above all that were drawn before.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = (usize, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.store.is_some())
    }

    fn step(&mut self) -> Found {
        let at = self.rng.usize(..self.nodes.len());
        match self.rng.u16(..1_000) {
            0..120 => self.pass_time()?,
            120..260 => self.hear(at)?,
            260..340 => self.adopt(at),
            340..400 => self.say(at),
            400..500 => self.hold(at),
            500..560 => self.act(at),
            560..620 => self.catch_up(at),
            620..770 => self.write(),
            770..830 => {
                let index = self.rng.usize(..KEYS);
                self.read(at, index)?;
            }
            830..860 => self.change_user(),
            860..890 => self.change_bucket(at)?,
            890..893 => self.wish(),
            893..908 => self.kill_or_start(at),
            908..913 => self.nodes[at].is_cut ^= true,
            913..950 => self.copy(),
            950..956 => self.do_silently(),
            956..966 if self.is_silent => self.do_silently(),
            956..966 => self.restore(),
            _ if self.reverted_since.is_some() => self.recover(false)?,
            _ => {}
        }
        Ok(())
    }

    /// Leases end, and nodes that are not cut off have heard of etcd.
    fn pass_time(&mut self) -> Found {
        self.now += 1;
        let now = self.now;
        self.etcd.living.retain(|_, living| now < living.until);
        for at in 0..self.nodes.len() {
            let process = self.nodes[at].process.as_ref();
            if process.is_some_and(|process| process.heard_at + HEARD_IN < now) {
                self.hear(at)?;
            }
        }
        Ok(())
    }

    fn kill_or_start(&mut self, at: usize) {
        match self.nodes[at].process.is_some() {
            true => self.kill(at),
            false => self.start(at),
        }
    }

    pub(crate) fn kill(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.process = None;
        node.acted = Acted::default();
    }

    pub(crate) fn start(&mut self, at: usize) {
        let id = self.number();
        let node = &mut self.nodes[at];
        if let Some(store) = &mut node.store {
            store.open(id);
        }
        let noted = node.store.as_ref().map(|store| store.noted.clone());
        node.process = Some(Process::new(self.now, noted.unwrap_or_default()));
        self.commit(at, |_| {});
    }

    /// Operations that keep the contents of everything.
    fn do_silently(&mut self) {
        self.met.silent += 1;
        let all = 0..self.nodes.len();
        match self.rng.u8(..4) {
            // A new revision, as by `snapshot restore --bump-revision`, or by other users of etcd.
            0 => self.etcd.revision += 100_000,
            1 => self.restore_etcd(self.etcd.clone()),
            2 => all.for_each(|at| {
                self.kill(at);
                self.start(at);
            }),
            // A store that is copied while its node is stopped, and goes on from the copy.
            _ => {
                let at = self.rng.usize(all);
                self.kill(at);
                let copy = self.nodes[at].store.clone();
                self.nodes[at].store = copy;
                self.start(at);
            }
        }
    }

    fn check(&mut self) -> Found {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let contents = self.etcd.contents();
        let claimant = match contents.fault(None) {
            Some(Fault::Lost(name) | Fault::Contradicted(name) | Fault::Behind(name)) => name,
            Some(Fault::Foreign) | None => {
                self.claimed = None;
                return Ok(());
            }
        };
        // A claimant may have been put back itself, and takes its claim back. Nodes may hear that
        // before the claim of the next one.
        let claimed = self.claimed.take().filter(|(name, _)| *name == claimant);
        let since = claimed.map_or(self.now, |(_, since)| since);
        self.claimed = Some((claimant.clone(), since));
        if self.now <= since + HEARD_IN + LEASE + 1 {
            return Ok(());
        }
        for node in self.nodes.iter().filter(|node| node.name != claimant) {
            let process = node.process.as_ref();
            let admits = process.is_some_and(|process| self.now < process.users_until);
            if admits || node.serves(self.now) {
                return Err(format!("{} goes on against {claimant}", node.name));
            }
        }
        Ok(())
    }

    /// All nodes run. Everything serves again, and is as it was answered. False if two backends in
    /// sync have different lives of the bucket, because one of them has been reverted and nobody
    /// could tell: no rule decides between them.
    fn heal(&mut self) -> Result<bool, String> {
        for at in 0..self.nodes.len() {
            self.nodes[at].is_cut = false;
            if self.nodes[at].process.is_none() {
                self.start(at);
            }
        }
        for round in 0..ROUNDS {
            let marks_put_back = self.met.marks_put_back;
            self.go_round()?;
            // By now all nodes have heard each other, and wait for the administrator.
            if round + 1 == UNDECIDED_ROUNDS && marks_put_back < self.met.marks_put_back {
                return Err("nodes replace marks without end".into());
            }
            if self.is_well() {
                return self.check_healed().map(|()| true);
            }
            if round % 4 == 3 {
                self.recover_if_needed(round >= UNDECIDED_ROUNDS)?;
            }
        }
        if self.was_etcd_reverted && self.has_contrary_buckets() {
            self.met.contrary += 1;
            return Ok(false);
        }
        let faults = self.nodes.iter().map(|node| {
            let process = node.process.as_ref();
            (&node.name, process.and_then(|p| p.fault.clone()))
        });
        let faults: BTreeMap<_, _> = faults.collect();
        Err(format!(
            "not everything serves: {faults:?}, {:?}",
            self.etcd.state()
        ))
    }

    /// Whether two backends in sync have different lives of the bucket, and each keeps its own.
    fn has_contrary_buckets(&self) -> bool {
        let witnesses = self.backends().filter(|(at, _)| self.is_witness(*at));
        let lives = witnesses.filter_map(|(_, node)| {
            let record = node.store.as_ref()?.record.as_ref()?;
            Some(record.life)
        });
        lives.collect::<BTreeSet<_>>().len() > 1
    }

    fn go_round(&mut self) -> Found {
        self.pass_time()?;
        for at in 0..self.nodes.len() {
            self.hear(at)?;
            self.adopt(at);
            self.say(at);
            self.hold(at);
            self.catch_up(at);
            self.act(at);
            self.check()?;
        }
        Ok(())
    }

    fn recover_if_needed(&mut self, may_decide: bool) -> Found {
        for at in 0..self.nodes.len() {
            self.start_again_if_alone(at);
        }
        let mut processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let has_fault = processes.any(|process| process.fault.is_some());
        match has_fault || may_decide {
            true => self.recover(may_decide),
            false => Ok(()),
        }
    }

    /// The processes that the administrator has to start again:
    ///
    /// - a backend with the store of another cluster, which is moved away;
    /// - a backend that alone contradicts etcd and whose store the state does not name, with
    ///   another store too, and a frontend that alone does so. `recover` needs the testimonies of
    ///   all stores, and those that see no fault say nothing;
    /// - a frontend that has seen a recovery of which no store knows. It takes no later state.
    fn start_again_if_alone(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(process) = &node.process else { return };
        let state = self.etcd.state();
        let is_foreign = process.fault == Some(Fault::Foreign);
        let is_named = node.store.as_ref().is_some_and(|store| {
            state.is_some_and(|state| state.is_store_of(node.name.as_str(), store.identity))
        });
        let is_behind = process.fault == Some(Fault::Behind(node.name.clone()));
        let is_alone = is_behind && !is_named && !self.etcd.is_claimed_against();
        let view = process.view.as_ref().map(View::state);
        let is_stuck = state.zip(view).is_some_and(|(state, view)| {
            process.fault.is_none() && !state.succeeds(view.founding, view.epoch)
        });
        if !is_foreign && !is_alone && !is_stuck {
            return;
        }
        self.kill(at);
        if self.nodes[at].store.is_some() {
            self.nodes[at].store = Some(Store::new(self.number()));
            self.unnoticed.remove(&at);
            self.outstanding.remove(&at);
        }
        self.met.started_again += 1;
        self.start(at);
    }

    fn is_well(&self) -> bool {
        let Some(state) = self.etcd.state() else {
            return false;
        };
        let is_well = |node: &Node| {
            let process = node.process.as_ref();
            let is_trusting = process.is_some_and(|p| {
                p.fault.is_none() && p.view_epoch() == state.epoch && self.now < p.users_until
            });
            let is_member = state.backends.contains_key(&node.name);
            is_trusting && (!is_member || node.serves(self.now))
        };
        let mut backends = state.backends.values();
        backends.all(|backend| backend.status == Status::InSync)
            && state.other().is_none()
            && self
                .etcd
                .wish
                .as_ref()
                .is_none_or(|wish| *wish == state.placing)
            && self.nodes.iter().all(is_well)
            && self.have_same_marks(state)
            && self
                .backends()
                .all(|(_, node)| self.has_agreed_bucket(node))
    }

    /// All nodes have noted marks of the same copy of each store. Otherwise they would replace them
    /// in etcd without end.
    fn have_same_marks(&self, state: &State) -> bool {
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let noted: Vec<_> = processes.map(|process| &process.noted.marks).collect();
        state.backends.iter().all(|(name, backend)| {
            let marks = noted.iter().filter_map(|noted| noted.get(name));
            let marks: Vec<_> = marks.filter(|mark| mark.store == backend.store).collect();
            let goes_on = |a: &StoreMark, b: &StoreMark| a.may_continue(b) || b.may_continue(a);
            marks.windows(2).all(|two| goes_on(two[0], two[1]))
        })
    }

    /// A backend in sync acts by the record that the registry has.
    fn has_agreed_bucket(&self, node: &Node) -> bool {
        let is_member = (self.etcd.state()).is_some_and(|s| s.backends.contains_key(&node.name));
        let record = node.store.as_ref().map(|store| &store.record);
        !is_member || record == Some(&self.etcd.bucket)
    }

    fn check_healed(&mut self) -> Found {
        // Nobody has acted by what a restored etcd lacks.
        self.reverted_since = None;
        self.fork = Fork::default();
        for at in 0..self.nodes.len() {
            for index in 0..KEYS {
                self.read(at, index)?;
            }
        }
        self.check_bucket()?;
        (self.is_bucket_forgiven, self.is_contrary) = (false, false);
        self.agreed.clone_from(&self.etcd.bucket);
        Ok(())
    }

    fn check_bucket(&self) -> Found {
        let Some(agreed) = &self.agreed else {
            return Ok(());
        };
        let found = self.etcd.bucket.as_ref();
        let has_policy = |found: &Bucket| {
            let is_same = found.life == agreed.life && found.phase == Phase::Live;
            !is_same || policy(found) >= policy(agreed)
        };
        match self.is_registry_behind() || !found.is_some_and(has_policy) {
            true => Err(format!("the registry has {found:?} after {agreed:?}")),
            false => Ok(()),
        }
    }
}

fn name(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn node(name: NodeName, store: Option<Store>) -> Node {
    Node {
        name,
        is_cut: false,
        store,
        process: None,
        acted: Acted::default(),
    }
}
