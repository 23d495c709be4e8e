//! `prism-lab bench redirect`: a registry of container images (Distribution) at each backend.
//! Behind Prism its blobs are objects of the same service, and it redirects to them. Behind nginx
//! it sends them itself, from files.

use std::sync::Arc;

use anyhow::Result;
use prism_config::{ConfigFile, Redirects, STORE};
use prism_lab::{Mode, add_objects};

use crate::bed::{BedSpec, System};
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::registry::url;
use crate::servers::{ServerKind, Servers};
use crate::summary::{Comparison, Summary};
use crate::sweep::{OBJECTS, PRISM_OVER_OTHERS};
use crate::turns::Options;
use crate::upstream::COLUMNS;

const SYSTEMS: [System; 2] = [System::Prism, System::Nginx];

pub(crate) const SUMMARY: Summary = Summary {
    result: "redirect",
    title: "Blobs of a registry, medians of the rounds. CPU is that of frontend, backends and \
            registries for one request; link is the bytes on the frontend's link for each byte \
            that clients read",
    columns: COLUMNS,
    comparisons: &[Comparison {
        values: &[
            ("throughput", "mb_s"),
            ("p50", "p50_us"),
            ("p99", "p99_us"),
            ("CPU", "cpu_us"),
            ("front's CPU", "frontend_cpu_us"),
        ],
        ..PRISM_OVER_OTHERS
    }],
};

/// Measure a registry that redirects to the service's own objects, and one behind nginx.
///
/// Needs root, `wrk`, `nginx` and `docker-registry` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of blobs: bytes, or with K or M.
    #[arg(
        long,
        default_value = "64K,1M,4M",
        value_name = "SIZE,...",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 40, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![1 << 20]);
    }
    args.options.settle(3, 2)?;
    args.network.check_connections(args.connections, 4_000)?;
    let plan: ComparisonPlan<'_, ()> = ComparisonPlan {
        sizes: Size::all(&args.sizes, OBJECTS, args.connections),
        beds: vec![BedSpec {
            servers: Some(Servers::of(ServerKind::Registry)),
            mode: Mode::Switch,
            has_objects: true,
            configure: Arc::new(configure),
            ..BedSpec::new(&SYSTEMS)
        }],
        contestants: Contestant::all(&SYSTEMS, &()),
        has_blobs: true,
        ..ComparisonPlan::new(&SUMMARY, &args.network, &args.options)
    };
    plan.run(|turn| turn.wrk(&turn.gets()))
}

/// Gives Prism's service objects, and follows the registries to them.
fn configure(config: &mut ConfigFile) {
    let addresses = config.service.first().address.iter();
    let urls = addresses.map(|address| format!("{}/", url(address.ip())));
    let redirects = Redirects {
        locations: urls.map(|url| (url, STORE.to_owned())).collect(),
        ..Redirects::default()
    };
    add_objects(config, &redirects);
}
