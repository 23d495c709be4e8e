//! What nodes say to each other, and what follows.

use std::collections::BTreeSet;

use prism_replica::{Asked, Receipt, Refusal, Stamp, Standing, Step, Write};

use crate::Mutation;
use crate::client::Wish;
use crate::node::{Caller, Current, EPOCH, Effect, Key, Message};
use crate::world::{Event, MESSAGE_LIFE, MS, NODES, World};

/// A primary gives a change up after this.
const PREPARE_LIMIT: u64 = 120 * MS;
/// What is open is asked for, and told, again after this.
const TICK: u64 = 40 * MS;

impl World {
    fn disk(&mut self, node: usize, effect: Effect) {
        let delay = self.rng.u64(MS / 10..4 * MS);
        let at = self.nodes[node].disk_free.max(self.now) + delay;
        self.nodes[node].disk_free = at;
        let life = self.nodes[node].life;
        self.after(at - self.now, Event::OnDisk { node, life, effect });
    }

    pub(crate) fn wished(&mut self, node: usize, caller: Caller, key: Key, wish: Wish) {
        match wish {
            Wish::Write { value, builds } => {
                let queue = self.nodes[node].waiting.entry(key).or_default();
                queue.push_back((caller, value, builds));
                self.next_write(node, key);
            }
            Wish::Read => self.read(node, caller, key),
        }
    }

    fn read(&mut self, node: usize, caller: Caller, key: Key) {
        let here = &self.nodes[node];
        match here.pending(key) {
            Some(pending) if self.mutation != Some(Mutation::ReadWithoutAsking) => {
                let (stamp, caller) = (pending.stamp, Some(caller));
                self.send(node, key % NODES, Message::Ask { key, stamp, caller });
            }
            _ => {
                let value = here.value(key);
                self.answered(caller, key, Ok(value));
            }
        }
    }

    fn next_write(&mut self, node: usize, key: Key) {
        let here = &mut self.nodes[node];
        if here.current.contains_key(&key) {
            return;
        }
        let Some((caller, value, builds)) = here.waiting.entry(key).or_default().pop_front() else {
            return;
        };
        let before = here.holds(key);
        // Where there is nothing to be changed, it is a write like others.
        let builds = builds && here.value(key).is_some();
        let above = before.unwrap_or(Stamp::NONE).max(here.floor);
        let stamp = here.clock.next(EPOCH, self.now + here.skew, above);
        let asked = Asked {
            epoch: EPOCH,
            stamp,
            before,
            builds_on_before: builds,
        };
        let write = Write::new((0..NODES).filter(|n| *n != node));
        let current = Current {
            stamp,
            value,
            asked,
            caller,
            begun: self.now,
            write,
            committing: false,
        };
        here.current.insert(key, current);
        for to in (0..NODES).filter(|n| *n != node) {
            self.send(node, to, Message::Prepare { key, asked, value });
        }
    }

    pub(crate) fn receive(&mut self, node: usize, from: usize, message: Message) {
        match message {
            Message::Prepare { key, asked, value } => self.disk(
                node,
                Effect::Prepare {
                    from,
                    key,
                    asked,
                    value,
                },
            ),
            Message::Prepared(key, stamp) => self.prepared(node, from, key, stamp),
            Message::Refused(key, stamp, refusal) => {
                if let Refusal::Newer(newer) = refusal {
                    let floor = &mut self.nodes[node].floor;
                    *floor = newer.max(*floor);
                }
                self.failed(node, key, stamp);
            }
            Message::Commit(key, stamp) => self.disk(node, Effect::Apply { from, key, stamp }),
            Message::Committed(key, stamp) => {
                let untold = &mut self.nodes[node].untold;
                if let Some(left) = untold.get_mut(&(key, stamp)) {
                    left.remove(&from);
                }
                untold.retain(|_, left| !left.is_empty());
            }
            Message::Abort(key, stamp) => {
                let standing = Standing::Holds(Stamp::NONE);
                let caller = None;
                self.disk(
                    node,
                    Effect::Settle {
                        key,
                        stamp,
                        standing,
                        caller,
                    },
                );
            }
            Message::Ask { key, stamp, caller } => {
                let standing = self.standing(node, key, stamp);
                let told = Message::Told {
                    key,
                    stamp,
                    standing,
                    caller,
                };
                self.send(node, from, told);
            }
            Message::Told {
                key,
                stamp,
                standing,
                caller,
            } => self.disk(
                node,
                Effect::Settle {
                    key,
                    stamp,
                    standing,
                    caller,
                },
            ),
        }
    }

    fn standing(&self, node: usize, key: Key, stamp: Stamp) -> Standing {
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
        if current.write.prepared(&from) == Step::Commit || early {
            current.committing = true;
            let value = current.value;
            self.disk(node, Effect::Commit { key, stamp, value });
        }
    }

    fn failed(&mut self, node: usize, key: Key, stamp: Stamp) {
        let current = self.nodes[node].current.get(&key);
        if !current.is_some_and(|c| c.stamp == stamp && !c.committing) {
            return;
        }
        let Some(current) = self.nodes[node].current.remove(&key) else {
            return;
        };
        if let Step::Abort { tell } = current.write.failed() {
            for to in tell {
                self.send(node, to, Message::Abort(key, stamp));
            }
        }
        self.answered(current.caller, key, Err(()));
        self.next_write(node, key);
    }

    pub(crate) fn on_disk(&mut self, node: usize, effect: Effect) {
        let receipt = self.nodes[node].change(&effect, self.mutation);
        match effect {
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
                let others: BTreeSet<usize> = (0..NODES).filter(|n| *n != node).collect();
                for to in &others {
                    self.send(node, *to, Message::Commit(key, stamp));
                }
                let here = &mut self.nodes[node];
                // Of a key's changes only the last is told again.
                here.untold.retain(|(k, _), _| *k != key);
                here.untold.insert((key, stamp), others);
                if let Some(current) = here.current.remove(&key) {
                    self.answered(current.caller, key, Ok(None));
                }
                self.next_write(node, key);
            }
            Effect::Apply { from, key, stamp } => {
                self.send(node, from, Message::Committed(key, stamp));
            }
            Effect::Settle {
                key,
                standing,
                caller: Some(caller),
                ..
            } => match standing {
                // At that moment it had not happened.
                Standing::UnderWay => {
                    let value = self.nodes[node].value(key);
                    self.answered(caller, key, Ok(value));
                }
                _ => self.read(node, caller, key),
            },
            Effect::Settle { .. } | Effect::Forget(..) => {}
        }
    }

    /// A deletion is forgotten by its primary when all have applied it, and by
    /// anybody not before all messages from before it have gone.
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

    /// What is open is taken up again.
    pub(crate) fn tick(&mut self, node: usize) {
        let here = &self.nodes[node];
        let mut late = Vec::new();
        let mut again = Vec::new();
        for (key, current) in here.current.iter().filter(|(_, c)| !c.committing) {
            match self.now > current.begun + PREPARE_LIMIT {
                true => late.push((*key, current.stamp)),
                false => again.push((*key, current.asked, current.value)),
            }
        }
        let asks: Vec<_> = here.pending.iter().map(|(k, (s, _))| (*k, *s)).collect();
        let mut tell = Vec::new();
        for ((key, stamp), left) in &here.untold {
            tell.extend(left.iter().map(|to| (*to, *key, *stamp)));
        }
        late.sort_unstable();
        again.sort_unstable_by_key(|(key, ..)| *key);
        for (key, stamp) in late {
            self.failed(node, key, stamp);
        }
        for (key, asked, value) in again {
            for to in (0..NODES).filter(|n| *n != node) {
                self.send(node, to, Message::Prepare { key, asked, value });
            }
        }
        for (key, stamp) in asks {
            let caller = None;
            self.send(node, key % NODES, Message::Ask { key, stamp, caller });
        }
        for (to, key, stamp) in tell {
            self.send(node, to, Message::Commit(key, stamp));
        }
        self.forget(node);
        let life = self.nodes[node].life;
        self.after(TICK, Event::Tick { node, life });
    }
}
