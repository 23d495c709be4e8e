//! `prism-lab bench observed`: what it costs to watch a cluster. One cluster writes an access log,
//! answers HTTP with its metrics, and a page is open that shows it. The others have none of these:
//! two alike, whose difference is noise. All run the same program.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use prism_config::{Config, RelayUpTo};

use crate::cluster::System;
use crate::crossover::{Common, Variant};
use crate::plan::Kind;
use crate::rows::Case;
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};

/// The access log of all nodes of a lab. It is in memory, so that the disk is no limit.
const ACCESS_LOG: &str = "/dev/shm/prism-bench-access.log";
/// The stream of what the page shows.
const EVENTS: &str = "http://127.0.0.1:9464/events";

const WAYS: [(&str, RelayUpTo); 2] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
];

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

/// Measure a cluster that is watched beside one that is not.
///
/// The watched one has metrics, an access log and an open page. Needs root, `wrk` and `curl`
/// (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let variants = WAYS.iter().flat_map(|(way, relay_up_to)| {
        [("watched", true), ("unwatched", false), ("copy", false)].map(|(name, is_watched)| {
            Variant {
                name,
                case: Case::default().with("way", *way),
                is_watched,
                kind: Kind {
                    relay_up_to: *relay_up_to,
                    configure: if is_watched { watched } else { unwatched },
                    ..Kind::new(&[System::Prism])
                },
            }
        })
    });
    let variants: Vec<Variant<'_>> = variants.collect();
    let done = args.common.compare(&SUMMARY, &variants, true);
    let _ = std::fs::remove_file(ACCESS_LOG);
    done
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
    /// Opens it with `curl`, a command for the host of a node.
    pub(crate) fn open(mut curl: Command) -> Result<Self> {
        curl.args(["--silent", "--no-buffer", EVENTS]);
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
