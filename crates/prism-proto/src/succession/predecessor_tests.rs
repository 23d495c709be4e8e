//! Take-overs in a seeded world: the successor dies, breaks the protocol or refuses at any time.

#![allow(clippy::panic, reason = "test code")]

use std::collections::{BTreeSet, VecDeque};

use super::*;

const CONNECTIONS: u64 = 8;
const SEEDS: u64 = 20_000;

/// Both processes, and the link between them, which keeps the order and delivers what was sent
/// before a death.
struct World {
    random: fastrand::Rng,
    machine: Predecessor,
    /// Connections that the predecessor serves, and those that it has sent.
    here: BTreeSet<u64>,
    sent: Vec<(u64, u64)>,
    /// Connections that the successor serves.
    there: BTreeSet<u64>,
    to_successor: VecDeque<u64>,
    to_predecessor: VecDeque<Event>,
    successor_lives: bool,
    has_started: bool,
    store_here: bool,
    store_there: bool,
    ended: bool,
    accepts: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let has_store = random.bool();
        Self {
            machine: Predecessor::new(has_store),
            random,
            here: (0..CONNECTIONS).collect(),
            sent: Vec::new(),
            there: BTreeSet::new(),
            to_successor: VecDeque::new(),
            to_predecessor: VecDeque::from([Event::Prepared]),
            successor_lives: true,
            has_started: false,
            store_here: has_store,
            store_there: false,
            ended: false,
            accepts: true,
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Close => {
                self.store_here = false;
                self.accepts = false;
                self.to_predecessor.push_back(Event::Closed);
            }
            Action::Start => self.has_started = true,
            Action::Pass => self.accepts = false,
            Action::Forget(id) => self.sent.retain(|(sent, _)| *sent != id),
            Action::Keep(id) => self.take_back(id),
            Action::GoOn(ids) => {
                for id in ids {
                    self.take_back(id);
                }
                // The lock of the store is free once the successor has ended.
                self.successor_lives = false;
                self.store_there = false;
                self.store_here |= self.machine.has_store;
                self.accepts = true;
                self.ended = true;
            }
            Action::End => self.ended = true,
            // The successor notices that at its next message.
            Action::HangUp => self.die(),
            Action::Wait => {}
        }
    }

    fn take_back(&mut self, id: u64) {
        let at = self.sent.iter().position(|(sent, _)| *sent == id);
        let at = at.unwrap_or_else(|| panic!("{id} was not sent"));
        let (_, connection) = self.sent.remove(at);
        assert!(
            !self.there.contains(&connection),
            "{connection} is served twice"
        );
        self.here.insert(connection);
    }

    fn step(&mut self) {
        match self.random.u8(0..20) {
            0 if self.random.u8(0..4) == 0 => self.die(),
            1 if self.random.u8(0..50) == 0 => {
                let nonsense = [Event::Taken(99), Event::Ready, Event::Prepared];
                let nonsense = self.random.choice(nonsense);
                self.to_predecessor.extend(nonsense);
            }
            2..=7 => self.successor(),
            8..=13 => self.send(),
            _ => self.hear(),
        }
    }

    fn die(&mut self) {
        if self.successor_lives {
            self.successor_lives = false;
            self.store_there = false;
            self.to_predecessor.push_back(Event::Broken);
        }
    }

    fn successor(&mut self) {
        if !self.successor_lives {
            return;
        }
        if self.has_started {
            self.has_started = false;
            assert!(!self.store_here, "the store is open twice");
            self.store_there = self.machine.has_store;
            return self.to_predecessor.push_back(Event::Ready);
        }
        let Some(id) = self.to_successor.pop_front() else {
            return;
        };
        if self.random.u8(0..4) == 0 {
            return self.to_predecessor.push_back(Event::Refused(id));
        }
        self.to_predecessor.push_back(Event::Taken(id));
        let connection = self.sent.iter().find(|(sent, _)| *sent == id);
        self.there
            .extend(connection.map(|(_, connection)| *connection));
    }

    fn send(&mut self) {
        let waiting: Vec<u64> = self.here.iter().copied().collect();
        let Some(connection) = self.random.choice(waiting) else {
            let action = self.machine.handle(Event::AllGone);
            // It is not asked before it passes connections.
            return self.act(action);
        };
        if let Some(id) = self.machine.send() {
            self.here.remove(&connection);
            self.sent.push((id, connection));
            self.to_successor.push_back(id);
        }
    }

    fn hear(&mut self) {
        if let Some(event) = self.to_predecessor.pop_front() {
            let action = self.machine.handle(event);
            self.act(action);
        }
    }
}

#[test]
fn no_connection_is_served_twice_or_lost_and_no_store_is_open_twice() {
    let (mut went_on, mut passed) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let mut steps = 0;
        while !world.ended {
            world.step();
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: it does not end");
            assert!(
                !(world.store_here && world.store_there),
                "seed {seed}: the store is open twice"
            );
        }
        let all = world.here.len() + world.there.len();
        assert!(
            world.here.is_disjoint(&world.there),
            "seed {seed}: a connection is served twice"
        );
        assert_eq!(all as u64, CONNECTIONS, "seed {seed}: a connection is lost");
        assert!(world.sent.is_empty(), "seed {seed}");
        match world.accepts {
            true => went_on += 1,
            false => {
                passed += 1;
                assert!(world.here.is_empty(), "seed {seed}: it ended too early");
            }
        }
    }
    assert!(
        went_on > SEEDS / 10 && passed > SEEDS / 10,
        "{went_on} went on, {passed} passed"
    );
}

#[test]
fn a_store_is_open_again_after_a_death_while_it_closes() {
    let mut machine = Predecessor::new(true);
    assert_eq!(machine.handle(Event::Prepared), Action::Close);
    assert_eq!(machine.handle(Event::Broken), Action::Wait);
    assert_eq!(machine.handle(Event::Closed), Action::GoOn(BTreeSet::new()));
}

#[test]
fn nothing_is_sent_before_the_successor_is_ready() {
    let mut machine = Predecessor::new(false);
    assert_eq!(machine.send(), None);
    assert_eq!(machine.handle(Event::Prepared), Action::Start);
    assert_eq!(machine.send(), None);
    assert_eq!(machine.handle(Event::Ready), Action::Pass);
    assert_eq!(machine.send(), Some(1));
    assert_eq!(machine.handle(Event::AllGone), Action::Wait);
    assert_eq!(machine.handle(Event::Taken(1)), Action::Forget(1));
    assert_eq!(machine.handle(Event::AllGone), Action::End);
}
