//! A comparison as a table: beds, contestants and sizes of objects. All commands that compare
//! clusters fill in this table and share the one loop over it.

use anyhow::{Context, Result};

use crate::bed::{Bed, BedSpec, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::Objects;
use crate::rows::{Case, Values};
use crate::summary::Summary;
use crate::turns::{Job, Options, Turns};

/// A system of one of the beds, which has a turn in each round of each size.
pub(crate) struct Contestant<W> {
    /// The name of the system in rows.
    pub(crate) name: &'static str,
    pub(crate) system: System,
    /// The number of its bed.
    pub(crate) bed: usize,
    /// The rest of its case, besides network, connections and size.
    pub(crate) case: Case,
    /// An argument for its turns.
    pub(crate) what: W,
}

/// The objects of one size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Objects of each backend.
    pub(crate) each: usize,
    /// Connections of the client.
    pub(crate) connections: usize,
}

/// The table.
pub(crate) struct ComparisonPlan<'p, W> {
    pub(crate) summary: &'static Summary,
    pub(crate) network: &'p Network,
    pub(crate) options: &'p Options,
    pub(crate) sizes: Vec<Size>,
    /// They stand side by side.
    pub(crate) beds: Vec<BedSpec<'p>>,
    pub(crate) contestants: Vec<Contestant<W>>,
    /// Turns write objects, which are compared afterwards.
    pub(crate) has_writes: bool,
    /// The objects are blobs of a registry.
    pub(crate) has_blobs: bool,
}

/// The parts of one turn.
pub(crate) struct TurnRequest<'a, W> {
    pub(crate) bed: &'a Bed<'a>,
    pub(crate) system: System,
    pub(crate) what: &'a W,
    pub(crate) objects: &'a Objects,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
}

impl<W: Clone> Contestant<W> {
    /// The contestants of `systems` in the first bed, with the same argument.
    pub(crate) fn all(systems: &[System], what: &W) -> Vec<Self> {
        let contestants = systems.iter().map(|system| Self {
            name: system.name(),
            system: *system,
            bed: 0,
            case: Case::default(),
            what: what.clone(),
        });
        contestants.collect()
    }
}

impl Size {
    /// Sizes with the same numbers of objects and connections.
    pub(crate) fn all(bytes: &[u64], each: usize, connections: usize) -> Vec<Self> {
        let sizes = bytes.iter().map(|bytes| Self {
            bytes: *bytes,
            each,
            connections,
        });
        sizes.collect()
    }
}

impl<'p, W> ComparisonPlan<'p, W> {
    /// A comparison of GETs on ordinary links.
    pub(crate) fn new(
        summary: &'static Summary,
        network: &'p Network,
        options: &'p Options,
    ) -> Self {
        Self {
            summary,
            network,
            options,
            sizes: Vec::new(),
            beds: Vec::new(),
            contestants: Vec::new(),
            has_writes: false,
            has_blobs: false,
        }
    }

    /// Measures the turns that are missing, and prints the result.
    ///
    /// # Errors
    /// When a bed cannot be built or serves wrong bytes, or a turn fails.
    pub(crate) fn run(&self, turn: impl Fn(&TurnRequest<'_, W>) -> Result<Values>) -> Result<()> {
        let mut turns = Turns::begin(self.options, self.summary.result, self.count())?;
        self.measure(&mut turns, turn)?;
        self.summary.tell(turns.rows(), self.options.json)
    }

    /// The number of jobs.
    pub(crate) fn count(&self) -> usize {
        self.sizes.len() * self.contestants.len()
    }

    fn jobs(&self, size: &Size) -> Vec<Job<&Contestant<W>>> {
        let jobs = self.contestants.iter().map(|contestant| {
            let case = self.network.case().with("connections", size.connections);
            Job {
                case: case.with("bytes", size.bytes).and(&contestant.case),
                system: contestant.name,
                what: contestant,
            }
        });
        jobs.collect()
    }

    /// Measures the turns that are missing.
    ///
    /// # Errors
    /// When a bed cannot be built or serves wrong bytes, or a turn fails.
    pub(crate) fn measure(
        &self,
        turns: &mut Turns,
        turn: impl Fn(&TurnRequest<'_, W>) -> Result<Values>,
    ) -> Result<()> {
        let jobs = self.sizes.iter().map(|size| (size, self.jobs(size)));
        let jobs: Vec<_> = jobs.collect();
        let is_wanted = jobs.iter().any(|(_, jobs)| turns.wants(jobs));
        let beds = if is_wanted {
            self.beds_up(turns)?
        } else {
            Vec::new()
        };
        for (size, jobs) in &jobs {
            if turns.wants(jobs) {
                self.measure_size(turns, &beds, size, jobs, &turn)?;
            } else {
                turns.pass(jobs);
            }
        }
        Ok(())
    }

    fn beds_up(&self, turns: &Turns) -> Result<Vec<Bed<'_>>> {
        let beds = self.beds.iter().map(|spec| {
            let program = self.options.prism.as_deref();
            let spec = BedSpec {
                program,
                ..spec.clone()
            };
            Bed::up(self.network, &spec, turns.cancel())
        });
        beds.collect()
    }

    fn measure_size(
        &self,
        turns: &mut Turns,
        beds: &[Bed<'_>],
        size: &Size,
        jobs: &[Job<&Contestant<W>>],
        turn: &impl Fn(&TurnRequest<'_, W>) -> Result<Values>,
    ) -> Result<()> {
        let make = if self.has_blobs {
            Objects::blobs
        } else {
            Objects::new
        };
        let objects = make(self.network.backends, size.each, size.bytes)?;
        for bed in beds {
            bed.store(&objects)?;
        }
        let connections = size.connections;
        let seconds = self.options.seconds;
        let turn_s = self.network.turn_s(seconds, size.bytes, connections);
        turns.run(jobs, |contestant, warm_up_s| {
            turn(&TurnRequest {
                bed: beds.get(contestant.bed).context("no such bed")?,
                system: contestant.system,
                what: &contestant.what,
                objects: &objects,
                connections,
                seconds: warm_up_s.unwrap_or(turn_s),
            })
        })?;
        for bed in beds {
            if self.has_writes {
                // A write has the bytes that the object had before.
                bed.check(&objects)?;
            }
            bed.remove(&objects)?;
        }
        Ok(())
    }
}

impl<W> TurnRequest<'_, W> {
    /// GETs of all objects alike.
    pub(crate) fn gets(&self) -> Load<'_> {
        Load::of(self.objects, self.connections)
    }

    /// Lets `wrk` send `load`.
    pub(crate) fn wrk(&self, load: &Load<'_>) -> Result<Values> {
        self.bed.load(self.system, load, self.seconds)
    }
}
