//! Clients: each makes one operation at a time, and records its answers.

use prism_history::{Action, Operation, is_linearizable};

use crate::Kind;
use crate::node::readers_of;
use crate::world::{Event, KEYS, MS, NODES, World};

/// After this a client gives an operation up.
const PATIENCE: u64 = 300 * MS;
/// Operations of one client.
const OPERATIONS: u64 = 30;

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Write {
        value: Option<u64>,
        builds: bool,
    },
    /// A new version, which is a bit.
    Add(u64),
    Remove(u64),
    Read,
}

/// One client.
#[derive(Default)]
pub(crate) struct Client {
    /// The number of the operation under way, and its place in the history.
    pub(crate) now: Option<(u64, usize)>,
    pub(crate) done: u64,
}

/// The histories of all keys.
#[derive(Default)]
pub(crate) struct Seen {
    by_key: Vec<Vec<Operation>>,
    /// Versions that were begun.
    versions: [u32; KEYS],
    pub(crate) answered: u64,
    pub(crate) given_up: u64,
}

impl Seen {
    pub(crate) fn judge(&self) -> Result<(), String> {
        for (key, history) in self.by_key.iter().enumerate() {
            // A read without an answer says nothing.
            let said =
                |op: &&Operation| op.answered.is_some() || !matches!(op.action, Action::Read(_));
            let history: Vec<Operation> = history.iter().filter(said).copied().collect();
            match is_linearizable(None, &history) {
                Some(true) => {}
                Some(false) => return Err(format!("key {key}: not linearizable: {history:#?}")),
                None => return Err("a history is too long to be judged".into()),
            }
        }
        Ok(())
    }

    /// Adds the final value of a key as one more read.
    pub(crate) fn last_read(&mut self, key: usize, now: u64, value: Option<u64>) {
        let action = Action::Read(value);
        self.history(key).push(Operation {
            called: now,
            answered: Some(now + 1),
            action,
        });
    }

    fn history(&mut self, key: usize) -> &mut Vec<Operation> {
        self.by_key.resize(KEYS, Vec::new());
        &mut self.by_key[key]
    }
}

impl World {
    /// The client begins its next operation.
    pub(crate) fn begin(&mut self, client: usize) {
        if self.clients[client].done == OPERATIONS || self.is_healing {
            return;
        }
        self.clients[client].done += 1;
        self.next_id += 1;
        let (id, key) = (self.next_id, self.rng.usize(..KEYS));
        let wish = match self.rng.u8(..10) {
            0..3 => Wish::Write {
                value: Some(id),
                builds: false,
            },
            3 => Wish::Write {
                value: Some(id),
                builds: true,
            },
            4 => Wish::Write {
                value: None,
                builds: false,
            },
            _ => Wish::Read,
        };
        let wish = match self.kind {
            Kind::Objects => wish,
            Kind::Versions => self.of_versions(key, wish),
        };
        let action = match wish {
            Wish::Write { value, .. } => Action::Write(value),
            Wish::Add(version) => Action::Add(version),
            Wish::Remove(version) => Action::Remove(version),
            Wish::Read => Action::Read(None),
        };
        let node = self.node_for(key, wish);
        let (called, answered) = (self.now, None);
        let history = self.seen.history(key);
        history.push(Operation {
            called,
            answered,
            action,
        });
        let at = history.len() - 1;
        self.clients[client].now = Some((id, at));
        // Clients use connections, which double no messages.
        let delay = self.rng.u64(..MS);
        self.after(
            delay,
            Event::Wish {
                client,
                id,
                node,
                key,
                wish,
            },
        );
        self.after(PATIENCE, Event::GiveUp { client, id });
    }

    /// The next operation on a key with versions: writes add one, and deletions remove one of the
    /// latest.
    fn of_versions(&mut self, key: usize, wish: Wish) -> Wish {
        let Wish::Write { value, builds } = wish else {
            return wish;
        };
        let begun = &mut self.seen.versions[key];
        match (value, builds) {
            (Some(_), false) if *begun < u64::BITS => {
                *begun += 1;
                Wish::Add(1 << (*begun - 1))
            }
            _ if *begun > 0 => {
                let oldest = begun.saturating_sub(4);
                Wish::Remove(1 << self.rng.u32(oldest..*begun))
            }
            _ => Wish::Read,
        }
    }

    /// The node to which a client, or its frontend, sends a request for a key.
    fn node_for(&mut self, key: usize, wish: Wish) -> usize {
        let readers = readers_of(Some(&self.register.view()), key);
        let believed = match wish {
            Wish::Read => self.rng.choice(readers),
            _ => readers.first().copied(),
        };
        let anywhere = self.rng.usize(..NODES);
        let is_wrong = self.has_faults() && self.rng.u8(..5) == 0;
        believed.filter(|_| !is_wrong).unwrap_or(anywhere)
    }

    /// Records the node's answer. An error says nothing.
    pub(crate) fn answered(
        &mut self,
        (client, id): (usize, u64),
        key: usize,
        read: Result<Option<u64>, ()>,
    ) {
        let Some((_, at)) = self.clients[client].now.filter(|(now, _)| *now == id) else {
            return;
        };
        match read {
            Ok(value) => {
                self.seen.answered += 1;
                let now = self.now;
                let operation = &mut self.seen.history(key)[at];
                operation.answered = Some(now);
                if let Action::Read(read) = &mut operation.action {
                    *read = value;
                }
            }
            Err(()) => self.seen.given_up += 1,
        }
        self.rest(client);
    }

    pub(crate) fn give_up(&mut self, client: usize, id: u64) {
        if self.clients[client].now.is_some_and(|(now, _)| now == id) {
            self.seen.given_up += 1;
            self.rest(client);
        }
    }

    fn rest(&mut self, client: usize) {
        self.clients[client].now = None;
        let delay = self.rng.u64(..20 * MS);
        self.after(delay, Event::Begin { client });
    }
}
