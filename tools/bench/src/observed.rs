//! `prism-lab bench observed`: what it costs to watch a cluster. In the turns of one, each node
//! writes an access log, its metrics are read, and a page is open that shows it. In other
//! turns it has one of log and page, or neither. Turns with neither have two names: their
//! difference is noise.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use prism_config::{Config, RelayUpTo};

use crate::cluster::System;
use crate::crossover::Common;
use crate::plan::{Asked, Entry, Kind};
use crate::rows::{Case, Values};
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};

/// The access log of all nodes of a lab. It is in memory, so that the disk is no limit.
const ACCESS_LOG: &str = "/dev/shm/prism-bench-access.log";
/// The stream of what the page shows.
const EVENTS: &str = "http://127.0.0.1:9464/events";
/// The metrics of a process.
const METRICS: &str = "http://127.0.0.1:9464/metrics";

/// The default, and every connection handed off.
const WAYS: [(&str, RelayUpTo); 2] = [("auto", RelayUpTo::Auto), ("hand-off", RelayUpTo::Bytes(0))];

/// The turns of a round.
const TURNS: [(&str, Watched); 5] = [
    (
        "watched",
        Watched {
            log: true,
            page: true,
        },
    ),
    (
        "log",
        Watched {
            log: true,
            page: false,
        },
    ),
    (
        "page",
        Watched {
            log: false,
            page: true,
        },
    ),
    (
        "unwatched",
        Watched {
            log: false,
            page: false,
        },
    ),
    (
        "again",
        Watched {
            log: false,
            page: false,
        },
    ),
];

/// The parts of a turn's observation.
#[derive(Clone, Copy)]
struct Watched {
    /// An access log is written.
    log: bool,
    /// A page is open, and metrics are read once.
    page: bool,
}

pub(crate) const SUMMARY: Summary = Summary {
    result: "observed",
    title: "GETs with and without metrics, access log and an open page, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[Comparison {
        title: "Watched over unwatched",
        base: "watched",
        ..PRISM_OVER_OTHERS
    }],
};

/// Measure a cluster while it is watched, and while it is not.
///
/// Watched, it has an access log and an open page, and its metrics are read in each turn. Needs
/// root, `wrk` and `curl` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let clusters = WAYS.map(|(_, relay_up_to)| Kind {
        relay_up_to,
        ..Kind::new(&[System::Prism])
    });
    let ways = WAYS.iter().enumerate();
    let entries = ways.flat_map(|(cluster, (way, _))| {
        TURNS.map(|(name, watched)| Entry {
            name,
            system: System::Prism,
            cluster,
            case: Case::default().with("way", *way),
            what: watched,
        })
    });
    let done = args
        .common
        .take_turns(&SUMMARY, clusters.into(), entries.collect(), turn);
    let _ = std::fs::remove_file(ACCESS_LOG);
    done
}

/// Loads a cluster that is watched, or not.
fn turn(asked: &Asked<'_, Watched>) -> Result<Values> {
    let access = if asked.what.log { ACCESS_LOG } else { "" };
    // A log that is never rotated would fill memory that the machine has not used before.
    std::fs::write(ACCESS_LOG, "").context("emptying the access log")?;
    let lab = asked.cluster.prism();
    lab.reload(|config| config.log.access = access.into())?;
    let page = asked.what.page.then(|| asked.cluster.open_page());
    let page = page.transpose()?;
    let values = asked.wrk(&asked.gets());
    drop(page);
    values
}

/// The configuration of nodes that are watched.
pub(crate) fn watched(config: &mut Config) {
    config.log.access = ACCESS_LOG.into();
}

/// The configuration of nodes that answer nobody about themselves.
pub(crate) fn unwatched(config: &mut Config) {
    config.admin.listen = None;
    config.admin.switch_listen = None;
}

/// A page that is open, until this is dropped.
pub(crate) struct OpenPage(Child);

impl OpenPage {
    /// Reads the metrics and opens the page with `curl`, a command for the host of a node.
    pub(crate) fn open(mut curl: Command) -> Result<Self> {
        curl.args(["--silent", "--no-buffer", METRICS, EVENTS]);
        curl.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(curl.spawn().context("starting curl")?))
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
