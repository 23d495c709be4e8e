//! A comparison as a table: clusters, contestants and sizes of objects. All commands that
//! compare clusters fill in this table and share the one loop over it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prism_config::{Config, RelayUpTo};

use crate::cluster::{Cluster, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::Objects;
use crate::rows::{Case, Values};
use crate::summary::Summary;
use crate::turns::{Job, Options, Turns};

/// One of the clusters, which stand side by side.
#[derive(Clone, Copy)]
pub(crate) struct Kind<'k> {
    pub(crate) systems: &'k [System],
    /// Another program than that of `--prism`.
    pub(crate) program: Option<&'k Path>,
    /// The number of Prism's backends that have each object.
    pub(crate) replicas: u16,
    /// The answers that Prism relays instead of handing connections off.
    pub(crate) relay_up_to: RelayUpTo,
    /// Changes the rest of Prism's configuration.
    pub(crate) configure: fn(&mut Config),
}

/// A system of one of the clusters, which has a turn in each round of each size.
pub(crate) struct Entry<W> {
    /// The name of the system in rows.
    pub(crate) name: &'static str,
    pub(crate) system: System,
    /// The number of its cluster.
    pub(crate) cluster: usize,
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
    /// Connections of the client, if the case names them.
    pub(crate) connections: Option<usize>,
}

/// The table.
pub(crate) struct Plan<'p, W> {
    pub(crate) summary: &'static Summary,
    pub(crate) network: &'p Network,
    pub(crate) options: &'p Options,
    pub(crate) sizes: Vec<Size>,
    pub(crate) clusters: Vec<Kind<'p>>,
    pub(crate) entries: Vec<Entry<W>>,
    /// Round trip between clients and servers, if it is a long one.
    pub(crate) round_trip: Option<Duration>,
    /// Connections have to move before the first turn.
    pub(crate) has_to_move: bool,
    /// Turns write objects, which are compared afterwards.
    pub(crate) has_writes: bool,
}

/// One turn.
pub(crate) struct Asked<'a, W> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) system: System,
    pub(crate) what: &'a W,
    pub(crate) objects: &'a Objects,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
}

impl<'k> Kind<'k> {
    /// Each object on one backend, and all else as Prism has it by default.
    pub(crate) fn new(systems: &'k [System]) -> Self {
        Self {
            systems,
            program: None,
            replicas: 1,
            relay_up_to: RelayUpTo::default(),
            configure: |_| (),
        }
    }

    /// The same with every connection handed off, whatever the size of the answer.
    pub(crate) fn moving(systems: &'k [System]) -> Self {
        Self {
            relay_up_to: RelayUpTo::Bytes(0),
            ..Self::new(systems)
        }
    }
}

impl<W: Clone> Entry<W> {
    /// The entries of `systems` in the first cluster, with the same argument.
    pub(crate) fn all(systems: &[System], what: &W) -> Vec<Self> {
        let entries = systems.iter().map(|system| Self {
            name: system.name(),
            system: *system,
            cluster: 0,
            case: Case::default(),
            what: what.clone(),
        });
        entries.collect()
    }
}

impl Size {
    /// Sizes with the same numbers of objects and connections.
    pub(crate) fn all(bytes: &[u64], each: usize, connections: Option<usize>) -> Vec<Self> {
        let sizes = bytes.iter().map(|bytes| Self {
            bytes: *bytes,
            each,
            connections,
        });
        sizes.collect()
    }
}

impl<'p, W> Plan<'p, W> {
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
            clusters: Vec::new(),
            entries: Vec::new(),
            round_trip: None,
            has_to_move: false,
            has_writes: false,
        }
    }

    /// Measures the turns that are missing, and prints the result.
    ///
    /// # Errors
    /// When a cluster cannot be built or serves wrong bytes, or a turn fails.
    pub(crate) fn run(&self, turn: impl Fn(&Asked<'_, W>) -> Result<Values>) -> Result<()> {
        let count = self.sizes.len() * self.entries.len();
        let mut turns = Turns::begin(self.options, self.summary.result, count)?;
        let mut sizes = self.sizes.iter();
        if sizes.any(|size| turns.wants(&self.jobs(size))) {
            self.measure(&mut turns, &turn)?;
        }
        self.summary.tell(turns.rows(), self.options.json)
    }

    fn jobs(&self, size: &Size) -> Vec<Job<&Entry<W>>> {
        let jobs = self.entries.iter().map(|entry| {
            let case = self.network.case().with("connections", size.connections);
            Job {
                case: case.with("bytes", size.bytes).and(&entry.case),
                system: entry.name,
                what: entry,
            }
        });
        jobs.collect()
    }

    fn measure(
        &self,
        turns: &mut Turns,
        turn: &impl Fn(&Asked<'_, W>) -> Result<Values>,
    ) -> Result<()> {
        let clusters = self.clusters.iter();
        let clusters = clusters.map(|kind| {
            let program = kind.program.or(self.options.prism.as_deref());
            let kind = Kind { program, ..*kind };
            Cluster::up(self.network, &kind, turns.cancel())
        });
        let clusters = clusters.collect::<Result<Vec<_>>>()?;
        let far = self.round_trip.iter().flat_map(|round_trip| {
            let clusters = clusters.iter();
            clusters.map(move |cluster| cluster.far_away(*round_trip))
        });
        let far = far.collect::<Result<Vec<_>>>()?;
        for size in &self.sizes {
            let jobs = self.jobs(size);
            if !turns.wants(&jobs) {
                turns.pass(&jobs);
                continue;
            }
            let objects = Objects::new(self.network.backends, size.each, size.bytes)?;
            for cluster in &clusters {
                cluster.store(&objects)?;
                cluster.check(&objects)?;
                if self.has_to_move {
                    cluster.until_moving(&objects)?;
                }
            }
            let connections = size.connections.unwrap_or_default();
            let seconds = self.options.seconds;
            let turn_s = self.network.turn_s(seconds, size.bytes, connections);
            turns.run(&jobs, |entry, warm_up_s| {
                let values = turn(&Asked {
                    cluster: clusters.get(entry.cluster).context("no such cluster")?,
                    system: entry.system,
                    what: &entry.what,
                    objects: &objects,
                    connections,
                    seconds: warm_up_s.unwrap_or(turn_s),
                })?;
                let dropped = far.iter().flatten().any(|way| way.tally().dropped > 0);
                ensure!(!dropped, "packets were lost on the long path");
                Ok(values)
            })?;
            for cluster in &clusters {
                if self.has_writes {
                    // A write has the bytes that the object had before.
                    cluster.check(&objects)?;
                }
                cluster.remove(&objects)?;
            }
        }
        Ok(())
    }
}

impl<W> Asked<'_, W> {
    /// GETs of all objects alike.
    pub(crate) fn gets(&self) -> Load<'_> {
        Load::of(self.objects, self.connections)
    }

    /// Lets `wrk` send `load`.
    pub(crate) fn wrk(&self, load: &Load<'_>) -> Result<Values> {
        self.cluster.load(self.system, load, self.seconds)
    }
}
