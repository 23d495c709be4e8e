//! The messages between nodes, and their effects.

use std::collections::BTreeSet;

use prism_cluster::View;
use prism_cluster::replica::{Asked, Receipt, Refusal, Stamp, Standing};

use crate::client::Wish;
use crate::node::{Caller, Current, Effect, Key, Message, Then, change};
use crate::world::{Event, MESSAGE_LIFE, MS, World};
use crate::{Kind, Mutation};

/// The time after which a primary gives a change up.
const PREPARE_LIMIT: u64 = 120 * MS;
/// The interval of questions about open changes, and of messages about commits.
const TICK: u64 = 40 * MS;

impl World {
    pub(crate) fn disk(&mut self, node: usize, effect: Effect) {
        let delay = self.rng.u64(MS / 10..4 * MS);
        let at = self.nodes[node].disk_free.max(self.now) + delay;
        self.nodes[node].disk_free = at;
        let life = self.nodes[node].life;
        self.after(at - self.now, Event::OnDisk { node, life, effect });
    }

    pub(crate) fn wished(&mut self, node: usize, caller: Caller, key: Key, wish: Wish) {
        match wish {
            Wish::Read => self.read(node, caller, key),
            wish => {
                let queue = self.nodes[node].waiting.entry(key).or_default();
                queue.push_back((caller, wish));
                self.next_write(node, key);
            }
        }
    }

    pub(crate) fn read(&mut self, node: usize, caller: Caller, key: Key) {
        if !self.may_serve(node, key) || !self.has_lease(node) {
            self.answered(caller, key, Err(()));
            return;
        }
        let here = &mut self.nodes[node];
        match here.pending(key) {
            Some(pending) if self.mutation != Some(Mutation::ReadWithoutAsking) => {
                let (stamp, epoch) = (pending.stamp, here.epoch);
                if here.is_primary(key) {
                    here.readers.entry(key).or_default().push(caller);
                    self.make_certain(node, key, pending);
                } else if let Some(primary) = here.primary(key) {
                    let caller = Some(caller);
                    let ask = Message::Ask {
                        key,
                        stamp,
                        caller,
                        epoch,
                    };
                    self.send(node, primary, ask);
                }
            }
            _ => {
                let value = here.value(key);
                self.answered(caller, key, Ok(value));
            }
        }
    }

    pub(crate) fn next_write(&mut self, node: usize, key: Key) {
        if self.nodes[node].current.contains_key(&key) {
            return;
        }
        if !self.nodes[node].is_primary(key) || !self.has_lease(node) {
            let waiting = self.nodes[node].waiting.remove(&key);
            for (caller, ..) in waiting.unwrap_or_default() {
                self.answered(caller, key, Err(()));
            }
            return;
        }
        let waits = self.nodes[node].waiting.get(&key);
        if waits.is_none_or(|queue| queue.is_empty()) {
            return;
        }
        if let Some(open) = self.nodes[node].left_open(key) {
            self.resolve(node, key, open);
            return;
        }
        let here = &mut self.nodes[node];
        let Some((caller, wish)) = here.waiting.entry(key).or_default().pop_front() else {
            return;
        };
        let before = here.holds(key);
        let Some((change, builds)) = change(wish, here.value(key)) else {
            // The version is gone.
            self.answered(caller, key, Ok(None));
            return self.next_write(node, key);
        };
        let is_blind = self.mutation == Some(Mutation::VersionsBlindly);
        let builds = builds && !(is_blind && self.kind == Kind::Versions);
        let here = &mut self.nodes[node];
        let above = before.unwrap_or(Stamp::NONE).max(here.floor);
        let epoch = here.epoch;
        let stamp = here.clock.next(epoch, self.now + here.skew, above);
        let asked = Asked {
            epoch,
            stamp,
            before,
            builds_on_before: builds,
        };
        let others = here.others(key);
        let is_alone = others.is_empty();
        let current = Current {
            stamp,
            change,
            asked,
            caller,
            begun: self.now,
            waiting: others.iter().copied().collect(),
            others: others.clone(),
            committing: is_alone,
        };
        here.current.insert(key, current);
        if is_alone {
            let commit = Effect::Commit {
                key,
                stamp,
                change,
                epoch,
            };
            self.disk(node, commit);
        }
        for to in others {
            self.send(node, to, Message::Prepare { key, asked, change });
        }
    }

    pub(crate) fn receive(&mut self, node: usize, from: usize, message: Message) {
        match message {
            Message::Prepare { key, asked, change } => {
                let prepare = Effect::Prepare {
                    from,
                    key,
                    asked,
                    change,
                };
                self.disk(node, prepare);
            }
            Message::Prepared(key, stamp) => self.prepared(node, from, key, stamp),
            Message::Refused(key, stamp, refusal) => self.refused(node, key, stamp, refusal),
            Message::Decided(key, stamp, happened, epoch) => {
                let (standing, then) = match happened {
                    true => (Standing::Holds(stamp), Then::Acknowledge(from)),
                    // No change has this one.
                    false => (Standing::Holds(Stamp::NONE), Then::Nothing),
                };
                let settle = Effect::Settle {
                    key,
                    stamp,
                    standing,
                    epoch,
                    then,
                };
                self.disk(node, settle);
            }
            Message::Committed(key, stamp) => {
                let untold = &mut self.nodes[node].untold;
                if let Some(left) = untold.get_mut(&(key, stamp)) {
                    left.remove(&from);
                }
                untold.retain(|_, left| !left.is_empty());
            }
            Message::Ask {
                key,
                stamp,
                caller,
                epoch,
            } => {
                if let Some((standing, epoch)) = self.asked_standing(node, (key, stamp, epoch)) {
                    let told = Message::Told {
                        key,
                        stamp,
                        standing,
                        caller,
                        epoch,
                    };
                    self.send(node, from, told);
                }
            }
            Message::Told {
                key,
                stamp,
                standing,
                caller,
                epoch,
            } => {
                let then = caller.map_or(Then::Nothing, Then::Read);
                let settle = Effect::Settle {
                    key,
                    stamp,
                    standing,
                    epoch,
                    then,
                };
                self.disk(node, settle);
            }
            Message::AskHas(key, open, epoch) => self.asked_has(node, from, (key, open, epoch)),
            Message::Has(key, stamp, has, epoch) => {
                self.heard_has(node, from, (key, stamp, has, epoch));
            }
            Message::AskSettled(since) => self.asked_settled(node, from, since),
            Message::Settled(since) => self.told_settled(node, from, since),
            Message::AskHeld(key, since) => self.asked_held(node, from, key, since),
            Message::Holds(key, held, since) => self.told_held(node, key, held, since),
        }
    }

    pub(crate) fn standing(&self, node: usize, key: Key, stamp: Stamp) -> Standing {
        let here = &self.nodes[node];
        let open = here.current.get(&key).is_some_and(|c| c.stamp == stamp);
        let untold = here.untold.contains_key(&(key, stamp));
        if open || (untold && self.mutation == Some(Mutation::UnderWayTooLong)) {
            return Standing::UnderWay;
        }
        here.holds(key).into()
    }

    fn prepared(&mut self, node: usize, from: usize, key: Key, stamp: Stamp) {
        let early = self.mutation == Some(Mutation::CommitEarly);
        let Some(current) = self.nodes[node].current.get_mut(&key) else {
            return;
        };
        if current.stamp != stamp || current.committing {
            return;
        }
        current.waiting.remove(&from);
        if current.waiting.is_empty() || early {
            current.committing = true;
            let (change, epoch) = (current.change, current.asked.epoch);
            let commit = Effect::Commit {
                key,
                stamp,
                change,
                epoch,
            };
            self.disk(node, commit);
        }
    }

    fn refused(&mut self, node: usize, key: Key, stamp: Stamp, refusal: Refusal) {
        let here = &mut self.nodes[node];
        match refusal {
            // It will adopt this node's epoch, and is asked again.
            Refusal::Epoch(behind) if behind < here.epoch => return,
            Refusal::Newer(newer) => here.floor = newer.max(here.floor),
            // It fetches the missing state meanwhile, and is asked again.
            Refusal::Lacking => return,
            Refusal::Epoch(_) => {}
        }
        self.failed(node, key, stamp);
    }

    fn failed(&mut self, node: usize, key: Key, stamp: Stamp) {
        let current = self.nodes[node].current.get(&key);
        if !current.is_some_and(|c| c.stamp == stamp && !c.committing) {
            return;
        }
        let Some(current) = self.nodes[node].current.remove(&key) else {
            return;
        };
        // All that were asked, because an answer may be lost.
        for to in BTreeSet::from_iter(current.others) {
            let decided = Message::Decided(key, stamp, false, current.asked.epoch);
            self.send(node, to, decided);
        }
        self.answered(current.caller, key, Err(()));
        self.next_write(node, key);
    }

    pub(crate) fn on_disk(&mut self, node: usize, effect: Effect) {
        let receipt = self.nodes[node].change(&effect, self.mutation);
        match effect {
            Effect::Adopt(state) => self.adopted(node, *state),
            Effect::Prepare {
                from, key, asked, ..
            } => {
                let answer = match receipt {
                    Receipt::Refuse(refusal) => Message::Refused(key, asked.stamp, refusal),
                    _ => Message::Prepared(key, asked.stamp),
                };
                self.send(node, from, answer);
            }
            Effect::Commit { key, stamp, .. } => {
                self.committed(node, key, stamp, receipt == Receipt::Known);
            }
            Effect::Resolve {
                key,
                stamp,
                happens,
                ..
            } => {
                let happened = (receipt == Receipt::Known).then_some(happens);
                self.resolved(node, key, stamp, happened);
            }
            Effect::Settle {
                key,
                stamp,
                standing,
                epoch,
                then,
            } => self.settled(node, (key, stamp, standing, epoch), then),
            Effect::TakeIn { key, since, .. } => self.taken_in(node, key, since),
            Effect::Trim(..) | Effect::Forget(..) => {}
        }
    }

    fn committed(&mut self, node: usize, key: Key, stamp: Stamp, happened: bool) {
        let here = &mut self.nodes[node];
        let current = here.current.get(&key).is_some_and(|c| c.stamp == stamp);
        if !current || !happened {
            return;
        }
        let epoch = here.epoch;
        if let Some(current) = here.current.remove(&key) {
            let others: BTreeSet<usize> = current.others.into_iter().collect();
            // Only the last change of a key is told again.
            here.untold.retain(|(k, _), _| *k != key);
            if !others.is_empty() {
                here.untold.insert((key, stamp), others.clone());
            }
            for to in others {
                self.send(node, to, Message::Decided(key, stamp, true, epoch));
            }
            let result = match self.has_lease(node) {
                true => Ok(None),
                false => Err(()),
            };
            self.answered(current.caller, key, result);
        }
        self.go_on(node, key);
    }

    fn settled(
        &mut self,
        node: usize,
        (key, stamp, standing, epoch): (Key, Stamp, Standing, u64),
        then: Then,
    ) {
        let here = &self.nodes[node];
        let is_open = here.pending(key).is_some_and(|p| p.stamp == stamp);
        match then {
            Then::Acknowledge(to) if !is_open => {
                self.send(node, to, Message::Committed(key, stamp));
            }
            Then::Nothing | Then::Acknowledge(_) => {}
            // It had not been committed at that moment.
            Then::Read(caller) if standing == Standing::UnderWay && epoch >= here.epoch => {
                let value = here.value(key);
                let serves = self.may_serve(node, key) && self.has_lease(node);
                self.answered(caller, key, if serves { Ok(value) } else { Err(()) });
            }
            Then::Read(caller) => self.read(node, caller, key),
        }
    }

    /// Forgets a deletion. Its primary does so when all have applied it, and no node before all
    /// earlier messages are gone.
    fn forget(&mut self, node: usize) {
        let (now, here) = (self.now, &mut self.nodes[node]);
        let deletions: Vec<_> = here
            .held
            .iter()
            .filter(|(_, (_, value))| value.is_none())
            .map(|(key, (stamp, _))| (*key, *stamp))
            .collect();
        here.deleted.retain(|known, _| deletions.contains(known));
        let mut gone = Vec::new();
        for deletion in deletions {
            let since = *here.deleted.entry(deletion).or_insert(now);
            if now > since + 2 * MESSAGE_LIFE && !here.untold.contains_key(&deletion) {
                gone.push(deletion);
            }
        }
        for (key, stamp) in gone {
            self.disk(node, Effect::Forget(key, stamp));
        }
    }

    /// Resumes the open changes.
    pub(crate) fn tick(&mut self, node: usize) {
        self.keep_alive(node);
        let here = &self.nodes[node];
        let mut late = Vec::new();
        let mut again = Vec::new();
        for (key, current) in here.current.iter().filter(|(_, c)| !c.committing) {
            match self.now > current.begun + PREPARE_LIMIT {
                true => late.push((*key, current.stamp)),
                false => {
                    let others = current.others.clone();
                    again.push((*key, current.asked, current.change, others));
                }
            }
        }
        let open: Vec<_> = here.pending.iter().map(|(k, (p, _))| (*k, *p)).collect();
        let mut tell = Vec::new();
        for ((key, stamp), left) in &here.untold {
            tell.extend(left.iter().map(|to| (*to, *key, *stamp)));
        }
        late.sort_unstable();
        again.sort_unstable_by_key(|(key, ..)| *key);
        for (key, stamp) in late {
            self.failed(node, key, stamp);
        }
        for (key, asked, change, others) in again {
            for to in others {
                self.send(node, to, Message::Prepare { key, asked, change });
            }
        }
        for (key, pending) in open {
            self.make_certain(node, key, pending);
        }
        let epoch = self.nodes[node].view.as_ref().map_or(0, View::epoch);
        for (to, key, stamp) in tell {
            self.send(node, to, Message::Decided(key, stamp, true, epoch));
        }
        self.forget(node);
        self.catch_up(node);
        self.trim(node);
        let life = self.nodes[node].life;
        self.after(TICK, Event::Tick { node, life });
    }
}
