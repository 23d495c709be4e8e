//! Backends, the registry, and their faults.

use std::collections::BTreeMap;

use prism_cluster::replica::{Ancestry, Bucket, Phase, Proof, Stamp, TakeBucket, take_bucket};

use crate::Mutation;
use crate::operations::Operation;

pub(crate) const NODES: usize = 3;
pub(crate) const KEYS: usize = 4;
/// Events of a run before it heals.
const STEPS: usize = 400;
const OPERATIONS_MAX: usize = 6;

/// Whether a backend is read, only written to, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    InSync,
    Lagging,
    Out,
}

/// An object: the life in which it was written, and the number of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) life: Stamp,
    pub(crate) write: u64,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) is_up: bool,
    /// From the registry.
    pub(crate) is_cut: bool,
    pub(crate) status: Status,
    pub(crate) record: Option<Bucket>,
    pub(crate) objects: BTreeMap<usize, Object>,
    /// The life in which an upload was begun. It does not keep a bucket from its deletion.
    pub(crate) upload: Option<Stamp>,
    /// The last change of each key, deletions too.
    pub(crate) changed: BTreeMap<usize, u64>,
}

/// A message under way to a backend.
#[derive(Debug)]
enum Told {
    Record(usize, Bucket),
    /// An object of another backend, with the life of the bucket that it was found in.
    Object(usize, (usize, Stamp, Object)),
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) registry: Option<Bucket>,
    pub(crate) ancestry: Option<Ancestry>,
    /// The record that counts, whatever the registry has lost.
    pub(crate) truth: Option<Bucket>,
    /// Earlier copies of the registry.
    copies: Vec<(Option<Bucket>, Option<Ancestry>)>,
    pub(crate) nodes: Vec<Node>,
    /// Grows whenever a backend goes or comes.
    pub(crate) epoch: u64,
    /// Answered writes of the present life that were not deleted.
    pub(crate) kept: BTreeMap<usize, Object>,
    /// The record of the last answered change.
    pub(crate) in_force: Option<Bucket>,
    pub(crate) answered: u64,
    told: Vec<Told>,
    operations: Vec<Operation>,
}

pub(crate) type Found = Result<(), String>;

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let node = || Node {
            is_up: true,
            is_cut: false,
            status: Status::InSync,
            record: None,
            objects: BTreeMap::new(),
            upload: None,
            changed: BTreeMap::new(),
        };
        Self {
            now: 1,
            rng: fastrand::Rng::with_seed(seed),
            mutation,
            registry: None,
            ancestry: None,
            truth: None,
            copies: vec![(None, None)],
            nodes: (0..NODES).map(|_| node()).collect(),
            epoch: 1,
            kept: BTreeMap::new(),
            in_force: None,
            answered: 0,
            told: Vec::new(),
            operations: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Result<u64, String> {
        for _ in 0..STEPS {
            self.now += 1;
            self.step()?;
            self.check()?;
        }
        self.heal()?;
        Ok(self.answered)
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// By the clock of the asking node, which differs from those of others.
    pub(crate) fn stamp(&mut self, above: Option<Stamp>) -> Stamp {
        let clock = self.now + self.rng.u64(..20);
        let above = above.map_or(0, |above| above.time_us);
        Stamp {
            epoch: 1,
            time_us: clock.max(above + 1),
            origin: self.now,
        }
    }

    /// Replaces the agreed record, if it has not changed.
    pub(crate) fn agree(&mut self, before: Option<Stamp>, next: Option<Bucket>) -> bool {
        if self.registry.as_ref().map(|known| known.stamp) != before {
            return false;
        }
        let is_behind = self.is_behind();
        if let Some(next) = &next {
            let began = Bucket::ancestry(self.registry.as_ref(), next);
            self.ancestry = began.or(self.ancestry);
        } else {
            self.ancestry = None;
        }
        self.registry = next;
        if !is_behind {
            self.truth.clone_from(&self.registry);
        } else if let Some(next) = &self.registry {
            // Backends follow it if it does not contradict them. The change of a document that
            // the registry has lost is not found again.
            let truth = self.truth.as_ref().map(Bucket::which);
            let take = take_bucket(truth, next.which(), Proof::Registry(self.ancestry));
            if matches!(take, TakeBucket::Take | TakeBucket::TakeWhenEmpty) {
                self.truth.clone_from(&self.registry);
                self.in_force = None;
            }
        }
        self.copies.push((self.registry.clone(), self.ancestry));
        true
    }

    /// Whether the registry has lost changes.
    pub(crate) fn is_behind(&self) -> bool {
        self.registry != self.truth
    }

    pub(crate) fn tell_all(&mut self, record: &Bucket) {
        for node in 0..NODES {
            for _ in 0..self.rng.usize(..3) {
                self.told.push(Told::Record(node, record.clone()));
            }
        }
    }

    /// The backends that receive every change.
    pub(crate) fn takers(&self) -> Vec<usize> {
        let all = 0..NODES;
        all.filter(|n| self.nodes[*n].status != Status::Out)
            .collect()
    }

    /// Makes a backend act by a record.
    pub(crate) fn take(&mut self, node: usize, record: &Bucket) {
        let keeps_all = self.is(Mutation::KeepsOldLife);
        let any = self.is(Mutation::OldRecords);
        let mine = self.nodes[node].record.as_ref().map(Bucket::which);
        let is_catching_up = self.nodes[node].status == Status::Lagging;
        let is_other_life = mine.is_some_and(|mine| mine.life != record.life);
        // Another life is taken from the registry, with its ancestry.
        let needs_registry = (is_other_life || is_catching_up) && !any;
        if needs_registry && (self.nodes[node].is_cut || self.registry.is_none()) {
            return;
        }
        let record = match &self.registry {
            Some(agreed) if needs_registry => agreed.clone(),
            _ => record.clone(),
        };
        let proof = match self.mutation {
            Some(Mutation::UnprovenPurge) => Proof::Registry(None),
            _ if is_catching_up => Proof::CatchUp,
            _ => Proof::Registry(self.ancestry),
        };
        let take = take_bucket(mine, record.which(), proof);
        let here = &mut self.nodes[node];
        let take = match take {
            TakeBucket::Nothing if any && here.record.as_ref() != Some(&record) => TakeBucket::Take,
            TakeBucket::Refuse if self.mutation == Some(Mutation::EarlierLife) => {
                TakeBucket::TakeWhenEmpty
            }
            take => take,
        };
        match take {
            TakeBucket::Nothing | TakeBucket::Refuse => return,
            TakeBucket::TakeWhenEmpty if !keeps_all => {
                here.objects.clear();
                here.upload = None;
            }
            TakeBucket::TakeWhenEmpty | TakeBucket::Take => {}
        }
        here.record = Some(record);
    }

    /// Whether a backend may be asked.
    pub(crate) fn serves(&self, node: usize) -> bool {
        let here = &self.nodes[node];
        here.is_up && here.status == Status::InSync
    }

    /// Whether the bucket exists, as a backend says; none: it cannot tell.
    pub(crate) fn knows(&mut self, node: usize) -> Option<bool> {
        let here = &self.nodes[node];
        let phase = here.record.as_ref().map(|record| record.phase);
        if phase == Some(Phase::Live) {
            return Some(true);
        }
        if self.is(Mutation::MissIsAbsence) {
            return Some(phase == Some(Phase::Deleting));
        }
        if here.is_cut {
            return None;
        }
        let agreed = self.registry.clone();
        if let Some(agreed) = &agreed {
            self.take(node, agreed);
        }
        Some(agreed.is_some_and(|agreed| agreed.phase != Phase::Gone))
    }

    fn step(&mut self) -> Found {
        let node = self.rng.usize(..NODES);
        match self.rng.u8(..100) {
            0..14 if self.operations.len() < OPERATIONS_MAX => {
                let operation = Operation::any(&mut self.rng);
                self.operations.push(operation);
            }
            0..60 => return self.go_on(),
            60..72 => self.hear(),
            72..80 => self.follow(node),
            80..84 => self.kill_or_start(node),
            84..87 => self.nodes[node].is_cut ^= true,
            87..90 => self.take_out_or_back(node),
            90..94 => self.compare(node, self.rng.clone().usize(..NODES)),
            94..95 => self.give_up(),
            95..96 => self.forget(),
            96..97 if self.rng.u8(..3) == 0 => self.restore(),
            96..97 => self.correct(node),
            _ => return self.read(node),
        }
        Ok(())
    }

    /// One step of one operation, or its end if its node dies.
    fn go_on(&mut self) -> Found {
        if self.operations.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..self.operations.len());
        let operation = self.operations.swap_remove(at);
        if self.rng.u8(..40) == 0 {
            return Ok(());
        }
        if let Some(next) = operation.step(self)? {
            self.operations.push(next);
        }
        Ok(())
    }

    /// A message arrives, or is lost.
    fn hear(&mut self) {
        if self.told.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.told.len());
        let told = self.told.swap_remove(at);
        if self.rng.u8(..5) == 0 {
            return;
        }
        match told {
            Told::Record(node, record) if self.nodes[node].is_up => self.take(node, &record),
            Told::Object(node, object) if self.nodes[node].is_up => self.take_in(node, object),
            Told::Record(..) | Told::Object(..) => {}
        }
    }

    fn take_in(&mut self, node: usize, (key, life, object): (usize, Stamp, Object)) {
        let any_life = self.is(Mutation::StaleLife);
        let here = &mut self.nodes[node];
        let Some(record) = &here.record else { return };
        let is_new = here
            .changed
            .get(&key)
            .is_none_or(|last| *last < object.write);
        let exists = record.phase != Phase::Gone;
        if exists && (record.life == life || any_life) && is_new {
            here.objects.insert(key, object);
            here.changed.insert(key, object.write);
        }
    }

    /// A backend hears of the agreed record.
    fn follow(&mut self, node: usize) {
        let here = &self.nodes[node];
        if let Some(agreed) = self.registry.clone()
            && here.is_up
            && !here.is_cut
        {
            self.take(node, &agreed);
        }
    }

    fn kill_or_start(&mut self, node: usize) {
        if self.nodes[node].is_up {
            self.nodes[node].is_up = false;
        } else if !self.nodes[node].is_cut {
            self.nodes[node].is_up = true;
            self.start(node);
        }
    }

    /// Before it serves, a backend acts by the agreed record.
    fn start(&mut self, node: usize) {
        self.follow(node);
        self.correct(node);
    }

    /// The registry loses its records, or an earlier copy replaces it. Backends learn of a change
    /// within milliseconds. A copy that is older than a change that some have not heard of is
    /// not checked here.
    fn restore(&mut self) {
        let has_missed = |node: &Node| node.status == Status::InSync && node.record != self.truth;
        if self.nodes.iter().any(has_missed) {
            return;
        }
        // Operations under way fail while the registry is away.
        self.operations.clear();
        let at = self.rng.usize(..self.copies.len());
        (self.registry, self.ancestry) = self.copies[at].clone();
    }

    /// A backend in sync puts back what the registry has lost.
    fn correct(&mut self, node: usize) {
        let here = &self.nodes[node];
        let may = here.status == Status::InSync || self.is(Mutation::CorrectedByAny);
        let Some(mut record) = here
            .record
            .clone()
            .filter(|_| here.is_up && !here.is_cut && may)
        else {
            return;
        };
        let registry = self.registry.clone();
        let known = registry.as_ref().map(|known| (known, self.ancestry));
        if known.is_some_and(|(known, _)| known.stamp >= record.stamp) {
            // A later stamp in a life that does not count: the latest record of all in sync.
            let in_sync = self
                .nodes
                .iter()
                .filter(|node| node.status == Status::InSync);
            if !in_sync.clone().all(|node| node.is_up) {
                return;
            }
            let latest = in_sync.filter_map(|node| node.record.as_ref());
            if let Some(latest) = latest.max_by_key(|record| (record.life, record.stamp)) {
                record = latest.clone();
            }
        }
        let above = known.map(|(known, _)| known.stamp).max(Some(record.stamp));
        let stamp = self.stamp(above);
        let Some(found) = Bucket::correction(known, &record, stamp) else {
            return;
        };
        let is_truth = self.truth.as_ref().is_none_or(|truth| {
            (found.record.life, found.record.stamp) >= (truth.life, truth.stamp)
        });
        if is_truth {
            self.truth = Some(found.record.clone());
        }
        (self.registry, self.ancestry) = (Some(found.record), Some(found.ancestry));
        self.follow(node);
    }

    fn take_out_or_back(&mut self, node: usize) {
        let others = self.takers().into_iter().filter(|n| *n != node);
        let others_in_sync = others.filter(|n| self.serves(*n)).count() > 0;
        let here = &mut self.nodes[node];
        match here.status {
            Status::Out if here.is_up && !here.is_cut => here.status = Status::Lagging,
            Status::InSync | Status::Lagging if !here.is_up && others_in_sync => {
                here.status = Status::Out;
            }
            _ => return,
        }
        self.epoch += 1;
    }

    /// A backend compares its objects with another one's.
    fn compare(&mut self, node: usize, source: usize) {
        let (here, there) = (&self.nodes[node], &self.nodes[source]);
        if node == source || !here.is_up || here.is_cut || !self.serves(source) {
            return;
        }
        if self.is(Mutation::DeleteByAbsence) && there.record.is_none() && here.record.is_some() {
            self.nodes[node].record = None;
            self.nodes[node].objects.clear();
            return;
        }
        // Both as of now.
        self.follow(node);
        if self.knows(source).is_none() {
            return;
        }
        let life = |node: &Node| node.record.as_ref().map(|record| record.life);
        let (here, there) = (&self.nodes[node], &self.nodes[source]);
        if life(here) != life(there) {
            return;
        }
        let Some(life) = life(there) else { return };
        for (key, object) in there.objects.clone() {
            self.told.push(Told::Object(node, (key, life, object)));
        }
        if self.nodes[node].status == Status::Lagging {
            // All objects at once: `simulation` has them one by one.
            let source = &self.nodes[source];
            let (objects, changed) = (source.objects.clone(), source.changed.clone());
            let upload = source.upload;
            let here = &mut self.nodes[node];
            (here.objects, here.changed, here.upload) = (objects, changed, upload);
            here.status = Status::InSync;
        }
    }

    /// A backend takes a deletion for abandoned, rightly or wrongly.
    fn give_up(&mut self) {
        if let Some(agreed) = self.registry.clone()
            && agreed.phase == Phase::Deleting
        {
            let live = agreed.end_deletion(self.stamp(Some(agreed.stamp)), false);
            self.agree(Some(agreed.stamp), Some(live));
        }
    }

    /// Forgets a deletion that every backend knows, once no earlier message is under way.
    fn forget(&mut self) {
        let Some(gone) = self.registry.clone().filter(|b| b.phase == Phase::Gone) else {
            return;
        };
        let knows = |node: &Node| node.record.as_ref().map(|r| r.stamp) == Some(gone.stamp);
        let all = self
            .nodes
            .iter()
            .all(|n| n.status == Status::InSync && knows(n));
        if (all && !self.is_behind()) || self.is(Mutation::ForgetEarly) {
            self.told.clear();
            (self.registry, self.ancestry, self.truth) = (None, None, None);
            // A copy from before would bring the bucket back.
            self.copies = vec![(None, None)];
            for node in &mut self.nodes {
                if knows(node) {
                    // The remains go first.
                    (node.record, node.upload) = (None, None);
                }
            }
        }
    }

    /// A client reads at any node.
    fn read(&mut self, node: usize) -> Found {
        if !self.serves(node) {
            return Ok(());
        }
        let Some(said) = self.knows(node) else {
            return Ok(());
        };
        let agreed = self
            .truth
            .as_ref()
            .map(|agreed| (agreed.phase, agreed.life));
        let exists = agreed.is_some_and(|(phase, _)| phase != Phase::Gone);
        let here = self.nodes[node].record.as_ref();
        let is_known_here = here == self.truth.as_ref() && exists;
        // A backend that asks a registry that has lost records learns nothing from it.
        if self.is_behind() && (!is_known_here || !said) {
            return Ok(());
        }
        if said != exists {
            return Err(format!("node {node} says {said}, agreed is {agreed:?}"));
        }
        let here = &self.nodes[node];
        let stamp = here.record.as_ref().map(|record| record.stamp);
        let in_force = self.in_force.as_ref().map(|record| record.stamp);
        if exists && stamp < in_force {
            return Err(format!("node {node} does not act by what was answered"));
        }
        if exists
            && self
                .kept
                .iter()
                .any(|(key, kept)| here.objects.get(key) != Some(kept))
        {
            let (kept, has) = (&self.kept, &here.objects);
            return Err(format!("node {node} has {has:?} and should have {kept:?}"));
        }
        self.answered += 1;
        Ok(())
    }

    fn check(&self) -> Found {
        let agreed = self.truth.as_ref();
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(record) = node.record.as_ref().filter(|_| self.serves(number)) else {
                continue;
            };
            let lives = node.objects.values().map(|object| object.life);
            let exists = record.phase != Phase::Gone;
            if exists && lives.chain(node.upload).any(|life| life != record.life) {
                return Err(format!(
                    "node {number} has objects of another life: {node:?}"
                ));
            }
            let is_beyond = agreed.is_some_and(|agreed| agreed.stamp < record.stamp);
            if is_beyond && !self.is_behind() {
                return Err(format!(
                    "node {number} knows more than is agreed: {record:?}"
                ));
            }
        }
        let is_gone = agreed.is_none_or(|agreed| agreed.phase == Phase::Gone);
        match is_gone && !self.kept.is_empty() {
            true => Err(format!("the bucket is gone, with {:?}", self.kept)),
            false => Ok(()),
        }
    }

    /// Without faults: all backends have the same objects, and all answered ones.
    fn heal(&mut self) -> Found {
        self.operations.clear();
        for node in 0..NODES {
            self.nodes[node].is_cut = false;
            if !self.nodes[node].is_up {
                self.kill_or_start(node);
            }
        }
        self.give_up();
        for node in 0..NODES {
            self.correct(node);
        }
        for node in 0..NODES {
            self.follow(node);
            self.take_out_or_back(node);
        }
        if self.is_behind() {
            let (known, truth) = (&self.registry, &self.truth);
            return Err(format!("the registry has {known:?}, and {truth:?} counts"));
        }
        self.give_up();
        for node in 0..NODES {
            self.follow(node);
        }
        let healthy = (0..NODES).find(|n| self.serves(*n));
        let source = healthy.ok_or("nobody is in sync")?;
        for node in 0..NODES {
            self.compare(node, source);
        }
        while !self.told.is_empty() {
            self.hear();
        }
        for node in 0..NODES {
            self.check()?;
            self.read(node)?;
            let (here, there) = (&self.nodes[node], &self.nodes[source]);
            let is_same = here.record == there.record || self.registry.is_none();
            if !is_same || here.objects != there.objects {
                return Err(format!("{here:?} is not {there:?}"));
            }
        }
        Ok(())
    }
}
