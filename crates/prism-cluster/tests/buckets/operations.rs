//! The clients' operations, step by step. Between two steps any fault may happen, and the node that
//! makes the operation may die.

use prism_cluster::replica::{Bucket, Phase, Stamp};

use crate::Mutation;
use crate::world::{Found, KEYS, NODES, Object, Status, World};

/// An operation, by its next step.
#[derive(Debug)]
pub(crate) enum Operation {
    Create,
    Delete,
    /// Every backend refuses writes, and says whether it has objects.
    Seal {
        deleting: Bucket,
        epoch: u64,
        left: Vec<usize>,
    },
    End {
        deleting: Bucket,
        is_empty: bool,
    },
    /// Versions are kept, or not.
    Document(bool),
    /// Every backend acts by it.
    Tell {
        record: Bucket,
        epoch: u64,
        left: Vec<usize>,
    },
    Put(usize),
    /// The bucket was there, in this life.
    Write(usize, Stamp),
    Remove(usize),
}

impl Operation {
    pub(crate) fn any(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(..20) {
            0..5 => Self::Create,
            5..9 => Self::Delete,
            9..11 => Self::Document(rng.bool()),
            11..16 => Self::Put(rng.usize(..KEYS)),
            _ => Self::Remove(rng.usize(..KEYS)),
        }
    }

    /// The next step, and the rest.
    pub(crate) fn step(self, world: &mut World) -> Result<Option<Self>, String> {
        match self {
            Self::Create => create(world),
            Self::Delete => Ok(begin_deletion(world)),
            Self::Seal {
                deleting,
                epoch,
                left,
            } => Ok(Some(seal(world, deleting, (epoch, left)))),
            Self::End { deleting, is_empty } => end(world, &deleting, is_empty),
            Self::Document(versions) => document(world, versions),
            Self::Tell {
                record,
                epoch,
                left,
            } => Ok(tell(world, record, (epoch, left))),
            Self::Put(key) => Ok(put(world, key)),
            Self::Write(key, life) => write(world, key, life).map(|()| None),
            Self::Remove(key) => {
                remove(world, key);
                Ok(None)
            }
        }
    }
}

fn create(world: &mut World) -> Result<Option<Operation>, String> {
    let known = world.registry.clone();
    let before = known.as_ref().map(|known| known.stamp);
    let stamp = world.stamp(before);
    let Ok(next) = Bucket::create(known.as_ref(), stamp, 0) else {
        return Ok(None);
    };
    let is_behind = world.is_behind();
    // Another node's record may be agreed on, or none.
    let is_agreed = match world.is(Mutation::AnsweredEarly) {
        true => world.rng.bool() && world.agree(before, Some(next.clone())),
        false => world.agree(before, Some(next.clone())),
    };
    // A backend in reach that has another life, which has not ended, refuses the new one.
    let is_refused = !world.is(Mutation::AnsweredEarly)
        && (0..NODES).any(|node| {
            let here = &world.nodes[node];
            let is_in_reach = here.is_up && !here.is_cut && here.status != Status::Out;
            is_agreed && is_in_reach && world.rng.u8(..3) == 0 && {
                world.take(node, &next);
                let record = world.nodes[node].record.as_ref();
                record.is_none_or(|record| record.stamp < next.stamp)
            }
        });
    if is_refused {
        return Ok(None);
    }
    if is_agreed || world.is(Mutation::AnsweredEarly) {
        world.answered += 1;
        if !is_behind {
            world.in_force = Some(next.clone());
        }
        world.tell_all(&next);
    }
    // A bucket that is created while the registry has lost another one gives way to that.
    match is_behind {
        true => Ok(None),
        false => exists(world, &next).map(|()| None),
    }
}

/// Checks that an answered change is agreed.
fn exists(world: &World, answered: &Bucket) -> Found {
    let known = world.truth.as_ref();
    match known.is_some_and(|known| known.stamp >= answered.stamp) {
        true => Ok(()),
        false => Err(format!("answered: {answered:?}, agreed: {known:?}")),
    }
}

fn begin_deletion(world: &mut World) -> Option<Operation> {
    let known = world.registry.clone();
    let before = known.as_ref().map(|known| known.stamp);
    let stamp = world.stamp(before);
    let deleting = Bucket::begin_deletion(known.as_ref(), stamp).ok()?;
    let is_agreed = world.agree(before, Some(deleting.clone()));
    is_agreed.then(|| Operation::Seal {
        deleting,
        epoch: world.epoch,
        left: world.takers(),
    })
}

fn seal(world: &mut World, deleting: Bucket, (epoch, mut left): (u64, Vec<usize>)) -> Operation {
    if epoch != world.epoch {
        // The set of backends has changed.
        let (epoch, left) = (world.epoch, world.takers());
        return Operation::Seal {
            deleting,
            epoch,
            left,
        };
    }
    let Some(node) = left.pop().filter(|_| !world.is(Mutation::Unsealed)) else {
        let is_empty = true;
        return Operation::End { deleting, is_empty };
    };
    let is_empty = world.nodes[node].is_up && {
        world.take(node, &deleting);
        let here = &world.nodes[node];
        let is_of_it = here.record.as_ref().map(|r| r.stamp) == Some(deleting.stamp);
        is_of_it && (here.objects.is_empty() || !world.serves(node))
    };
    match is_empty {
        true => Operation::Seal {
            deleting,
            epoch,
            left,
        },
        false => Operation::End { deleting, is_empty },
    }
}

fn end(world: &mut World, deleting: &Bucket, is_empty: bool) -> Result<Option<Operation>, String> {
    let stamp = world.stamp(Some(deleting.stamp));
    let ended = deleting.end_deletion(stamp, is_empty);
    let next = match is_empty && world.is(Mutation::NoTombstone) {
        true => None,
        false => Some(ended.clone()),
    };
    if !world.agree(Some(deleting.stamp), next) {
        return Ok(None);
    }
    world.answered += 1;
    match is_empty && world.is(Mutation::NoTombstone) {
        true => {
            for node in world.takers() {
                world.nodes[node].record = None;
            }
        }
        false => world.tell_all(&ended),
    }
    if is_empty {
        world.in_force = None;
    }
    Ok(None)
}

fn document(world: &mut World, versions: bool) -> Result<Option<Operation>, String> {
    let known = world.registry.clone();
    let before = known.as_ref().map(|known| known.stamp);
    let stamp = world.stamp(before);
    let changed = Bucket::change(known.as_ref(), stamp, |next| next.versions = Some(versions));
    let Ok(record) = changed else {
        return Ok(None);
    };
    if !world.agree(before, Some(record.clone())) {
        return Ok(None);
    }
    Ok(Some(Operation::Tell {
        record,
        epoch: world.epoch,
        left: world.takers(),
    }))
}

fn tell(
    world: &mut World,
    record: Bucket,
    (epoch, mut left): (u64, Vec<usize>),
) -> Option<Operation> {
    if epoch != world.epoch {
        let (epoch, left) = (world.epoch, world.takers());
        return Some(Operation::Tell {
            record,
            epoch,
            left,
        });
    }
    let Some(node) = left.pop().filter(|_| !world.is(Mutation::DocumentsEarly)) else {
        world.answered += 1;
        let known = world.truth.as_ref();
        // Another life may have begun meanwhile.
        if known.is_some_and(|known| known.life == record.life && known.phase != Phase::Gone) {
            let before = world.in_force.take();
            world.in_force = before.filter(|b| b.stamp > record.stamp).or(Some(record));
        }
        return None;
    };
    // Out of reach: answered with an error.
    if !world.nodes[node].is_up {
        return None;
    }
    world.take(node, &record);
    let has = world.nodes[node].record.as_ref();
    if has.is_none_or(|has| has.stamp < record.stamp) {
        return None;
    }
    Some(Operation::Tell {
        record,
        epoch,
        left,
    })
}

/// The object's backend checks that the bucket exists.
fn put(world: &mut World, key: usize) -> Option<Operation> {
    let node = (0..NODES).find(|node| world.serves(*node))?;
    if world.knows(node) != Some(true) {
        return None;
    }
    let record = world.nodes[node].record.as_ref()?;
    Some(Operation::Write(key, record.life))
}

/// A write at every backend at once, if all of them accept it.
fn write(world: &mut World, key: usize, seen: Stamp) -> Found {
    let takers = world.takers();
    let Some(primary) = (0..NODES).find(|node| world.serves(*node)) else {
        return Ok(());
    };
    let record = world.nodes[primary].record.clone();
    let Some(record) = record.filter(|record| record.phase == Phase::Live) else {
        return Ok(());
    };
    let life = match world.is(Mutation::StaleLife) {
        true => seen,
        false => record.life,
    };
    let any_life = world.is(Mutation::StaleLife);
    let takes = |node: &usize| {
        let here = &world.nodes[*node];
        let record = here.record.as_ref();
        let is_open = |r: &Bucket| r.phase == Phase::Live && (r.life == life || any_life);
        here.is_up && record.is_some_and(is_open)
    };
    if !takers.iter().all(takes) {
        return Ok(());
    }
    let write = world.now;
    for node in takers {
        let here = &mut world.nodes[node];
        here.objects.insert(key, Object { life, write });
        here.changed.insert(key, write);
        here.upload = Some(life);
    }
    world.kept.insert(key, Object { life, write });
    world.answered += 1;
    let agreed = world.truth.as_ref();
    match agreed.is_some_and(|agreed| agreed.life == life && agreed.phase != Phase::Gone) {
        true => Ok(()),
        false => Err(format!("written in {life}, agreed: {agreed:?}")),
    }
}

fn remove(world: &mut World, key: usize) {
    let takers = world.takers();
    let all_up = takers.iter().all(|node| world.nodes[*node].is_up);
    if !all_up || !(0..NODES).any(|node| world.serves(node)) {
        return;
    }
    for node in takers {
        let now = world.now;
        world.nodes[node].objects.remove(&key);
        world.nodes[node].changed.insert(key, now);
    }
    world.kept.remove(&key);
    world.answered += 1;
}
