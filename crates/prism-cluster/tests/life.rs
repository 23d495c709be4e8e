//! Seeded histories of one store and of the copies of its directory. Copies are made at any
//! time, put back in place of each other, and opened beside each other. Stores are restarted,
//! killed right after they were opened, killed in the middle of a commit, and opened by a release
//! that counts nothing. Every event follows from the seed. A failure prints it, and
//! `PRISM_SIM_SEED=<seed>` repeats that one run. `PRISM_SIM_TIMES=<n>` runs n times as many seeds.
//!
//! Checked: a copy has lived a mark if and only if it has every commit that was made before the
//! mark was reported. The exception is a mark of an opening that its full list has dropped.
//!
//! The store's own part, the count and the list on the disk, is tested in `prism-store`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use prism_cluster::{OPENINGS_MAX, Opening, StoreLife, StoreMark};

type Rule = fn(&StoreLife, &StoreMark, u64) -> bool;

const STEPS: usize = 120;
const COPIES_MAX: usize = 4;

/// The process that has a directory open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    None,
    Present,
    /// A release that neither counts commits nor lists openings.
    Older,
}

/// A directory.
#[derive(Clone, Debug)]
struct Directory {
    process: Process,
    generation: u64,
    commits: u64,
    life: StoreLife,
    /// Every commit that was ever made on the way to this state has a number of its own.
    contents: Vec<u64>,
}

/// A mark, and the truth about its store at the time.
struct Reported {
    mark: StoreMark,
    commits: usize,
    last_commit: u64,
}

#[derive(Debug, Default)]
struct Met {
    lived: u64,
    noticed: u64,
    forgotten: u64,
}

struct World {
    rng: fastrand::Rng,
    rule: Rule,
    directories: Vec<Directory>,
    reported: Vec<Reported>,
    last_number: u64,
    met: Met,
}

impl World {
    fn new(seed: u64, rule: Rule) -> Self {
        let first = Directory {
            process: Process::None,
            generation: 0,
            commits: 0,
            life: StoreLife::default(),
            contents: Vec::new(),
        };
        Self {
            rng: fastrand::Rng::with_seed(seed),
            rule,
            directories: vec![first],
            reported: Vec::new(),
            last_number: 0,
            met: Met::default(),
        }
    }

    fn run(mut self) -> Result<Met, String> {
        for _ in 0..STEPS {
            let at = self.rng.usize(..self.directories.len());
            self.step(at);
            self.check()?;
        }
        Ok(self.met)
    }

    fn step(&mut self, at: usize) {
        match self.rng.u32(..1_000) {
            0..400 => self.commit(at),
            400..600 => self.report(at),
            600..700 => self.open(at, Process::Present),
            700..730 => self.open(at, Process::Older),
            730..760 => {
                self.open(at, Process::Present);
                self.directories[at].process = Process::None;
            }
            760..800 => self.directories[at].process = Process::None,
            800..830 => {
                // Killed in a commit that is on the disk. Its number was never reported.
                self.commit(at);
                self.directories[at].process = Process::None;
            }
            830..832 => {
                for _ in 0..=OPENINGS_MAX {
                    self.open(at, Process::Present);
                }
            }
            _ => self.copy(at),
        }
    }

    fn commit(&mut self, at: usize) {
        self.last_number += 1;
        let directory = &mut self.directories[at];
        if directory.process != Process::None {
            directory.contents.push(self.last_number);
        }
        if directory.process == Process::Present {
            directory.commits += 1;
        }
    }

    /// The opening itself is a commit.
    fn open(&mut self, at: usize, process: Process) {
        let id = self.rng.u64(..);
        let directory = &mut self.directories[at];
        directory.process = process;
        directory.generation += 1;
        if process == Process::Present {
            let commits = directory.commits;
            let opening = Opening { id, commits };
            directory.life.begin(directory.generation, opening);
        }
        self.commit(at);
    }

    fn report(&mut self, at: usize) {
        let directory = &self.directories[at];
        if directory.process == Process::Present {
            let (opening, listed) = directory.life.openings().last_key_value().unwrap();
            let mark = StoreMark {
                store: 1,
                opening: *opening,
                id: listed.id,
                found: listed.commits,
                commits: directory.commits,
            };
            self.reported.push(Reported {
                mark,
                commits: directory.contents.len(),
                last_commit: *directory.contents.last().unwrap(),
            });
        }
    }

    /// Copies a directory, open or not, beside the others or in place of one.
    fn copy(&mut self, from: usize) {
        let mut copy = self.directories[from].clone();
        copy.process = Process::None;
        if self.directories.len() < COPIES_MAX {
            self.directories.push(copy);
        } else {
            let to = self.rng.usize(..COPIES_MAX);
            self.directories[to] = copy;
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for directory in &self.directories {
            let some = self.rng.choice(&self.reported);
            let last = self.reported.last();
            for reported in some.into_iter().chain(last) {
                judge(directory, reported, self.rule, &mut self.met)?;
            }
        }
        Ok(())
    }
}

fn judge(
    directory: &Directory,
    reported: &Reported,
    rule: Rule,
    met: &mut Met,
) -> Result<(), String> {
    if directory.process != Process::Present {
        return Ok(());
    }
    let Reported { mark, commits, .. } = reported;
    let has_all = directory.contents.get(commits - 1) == Some(&reported.last_commit);
    let has_lived = rule(&directory.life, mark, directory.commits);
    let listed = directory.life.openings();
    let first = listed.first_key_value().map_or(0, |(first, _)| *first);
    match (has_all, has_lived) {
        (true, true) => met.lived += 1,
        (false, false) => met.noticed += 1,
        (false, true) if listed.len() == OPENINGS_MAX && mark.opening < first => {
            met.forgotten += 1;
        }
        _ => {
            return Err(format!(
                "has all commits: {has_all}, has lived: {has_lived}, {mark:?}, {} commits, {listed:?}",
                directory.commits
            ));
        }
    }
    Ok(())
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn explore(rule: Rule) -> Result<Met, String> {
    let seeds = match number_from("PRISM_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..20_000 * number_from("PRISM_SIM_TIMES").unwrap_or(1),
    };
    let mut met = Met::default();
    for seed in seeds {
        let run = World::new(seed, rule).run();
        let run = run.map_err(|what| format!("seed {seed}: {what}"))?;
        met.lived += run.lived;
        met.noticed += run.noticed;
        met.forgotten += run.forgotten;
    }
    Ok(met)
}

#[test]
fn a_store_has_lived_a_mark_if_and_only_if_it_has_all_commits_before_it() {
    let met = explore(StoreLife::has_lived).unwrap();
    println!("{met:?}");
    let is_one = number_from("PRISM_SIM_SEED").is_some();
    assert!(is_one || (met.lived > 500_000 && met.noticed > 500_000 && met.forgotten > 1_000));
}

#[test]
fn broken_rules_are_found() {
    fn is_listed(life: &StoreLife, mark: &StoreMark) -> bool {
        let listed = life.openings().get(&mark.opening);
        listed.is_some_and(|opening| opening.id == mark.id)
    }
    let rules: [(&str, Rule); 6] = [
        ("only the number of the opening", |life, mark, _| {
            let last = life.openings().last_key_value();
            last.is_some_and(|(last, _)| *last >= mark.opening)
        }),
        ("only the commits", |_, mark, now| now >= mark.commits),
        ("only the id of the opening", |life, mark, _| {
            is_listed(life, mark)
        }),
        (
            "the present commits, whichever opening made them",
            |life, mark, now| is_listed(life, mark) && now >= mark.commits,
        ),
        ("the commits of an opening of any id", |life, mark, now| {
            let mut forged = *mark;
            let listed = life.openings().get(&mark.opening);
            forged.id = listed.map_or(mark.id, |opening| opening.id);
            life.has_lived(&forged, now)
        }),
        (
            "every opening before the list was lived",
            |life, mark, now| {
                let first = life.openings().first_key_value();
                first.is_some_and(|(first, _)| mark.opening < *first) || life.has_lived(mark, now)
            },
        ),
    ];
    for (name, rule) in rules {
        let found = explore(rule);
        println!("{name}: {:?}", found.as_ref().map_err(String::len));
        assert!(found.is_err(), "not found: {name}");
    }
}
