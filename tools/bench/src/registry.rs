//! `prism-lab bench redirect`: a registry of container images (Distribution) at each backend. Behind
//! Prism its blobs are objects of the same service, and it redirects to them. Behind nginx it sends
//! them itself, from files.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use aws_lc_rs::digest::{SHA256, digest};
use prism_config::{ConfigFile, ObjectRoutes, Redirects, STORE, Upstream};
use prism_lab::{Lab, Mode};

use crate::bed::{BedSpec, System};
use crate::files::Files;
use crate::network::Network;
use crate::objects::{BUCKET, Objects, Sizes};
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::proxies;
use crate::servers::{ServerKind, Servers};
use crate::summary::{Comparison, Summary};
use crate::sweep::{OBJECTS, PRISM_OVER_OTHERS};
use crate::turns::Options;
use crate::upstream::COLUMNS;

const SYSTEMS: [System; 2] = [System::Prism, System::Nginx];
/// The beginning of the targets of blobs.
pub(crate) const BLOBS: &str = "v2/bench/blobs";
/// The directory of the storage.
const ROOT: &str = "docker/registry/v2";

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
            configure: std::sync::Arc::new(configure),
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
    let service = config.service.first_mut();
    let urls = service.address.iter().map(|address| url(address.ip()));
    let redirects = Redirects {
        locations: urls
            .map(|url| (format!("{url}/"), STORE.to_owned()))
            .collect(),
        ..Redirects::default()
    };
    let upstreams = service.upstream.iter().flat_map(|all| all.iter()).cloned();
    let upstreams = upstreams.map(|upstream| Upstream {
        name: Some("registry".into()),
        redirects: Some(redirects.clone()),
        ..upstream
    });
    service.upstream = Some(upstreams.collect::<Vec<_>>().into());
    service.objects = Some(ObjectRoutes {
        headers: vec!["x-amz-date".into()],
        ..ObjectRoutes::default()
    });
}

fn url(service: std::net::IpAddr) -> String {
    match service {
        std::net::IpAddr::V4(address) => format!("http://{address}"),
        std::net::IpAddr::V6(address) => format!("http://[{address}]"),
    }
}

/// The name of a blob.
pub(crate) fn name(body: &[u8]) -> String {
    let hash = digest(&SHA256, body);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

/// The file with the bytes of a blob in the storage of a registry.
pub(crate) fn path_of_data(name: &str) -> String {
    let hex = name.trim_start_matches("sha256:");
    let two = hex.get(..2).unwrap_or_default();
    format!("{ROOT}/blobs/sha256/{two}/{hex}/data")
}

/// The files of a blob in the storage of a registry, with their bytes.
pub(crate) fn stored<'b>(name: &'b str, body: &'b [u8]) -> [(String, &'b [u8]); 2] {
    let hex = name.trim_start_matches("sha256:");
    [
        (path_of_data(name), body),
        (
            format!("{ROOT}/repositories/bench/_layers/sha256/{hex}/link"),
            name.as_bytes(),
        ),
    ]
}

/// Stores blobs as files.
pub(crate) fn store(files: &Files, blobs: &Objects) -> Result<()> {
    for blob in blobs.all() {
        for (path, bytes) in stored(blob.key, blob.body) {
            let path = files.objects().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(path, bytes)?;
        }
    }
    Ok(())
}

/// The command of a registry at a backend. `is_behind_prism`: its blobs are objects.
pub(crate) fn command(
    files: &Files,
    lab: &Lab,
    host: &str,
    is_behind_prism: bool,
) -> Result<Command> {
    let storage = if is_behind_prism {
        let credential = lab.credential();
        format!(
            "s3: {{ region: us-east-1, bucket: {BUCKET}, v4auth: true, secure: false,\n    \
             regionendpoint: \"{}\", accesskey: {}, secretkey: {} }}",
            url(lab.service().ip()),
            credential.access_key,
            credential.secret_key
        )
    } else {
        let root = files.objects();
        format!("filesystem: {{ rootdirectory: {} }}", root.display())
    };
    let text = format!(
        "version: 0.1\nlog: {{ level: error, accesslog: {{ disabled: true }} }}\nstorage:\n  \
         {storage}\n  cache: {{ blobdescriptor: inmemory }}\n  \
         maintenance: {{ uploadpurging: {{ enabled: false }} }}\n\
         http: {{ addr: \":{}\", secret: of-all }}\n",
        proxies::port(false)
    );
    let config = files.write(
        &format!("registry-{}-{host}.yml", lab.name()),
        text.as_bytes(),
    )?;
    let mut registry = lab.command(host, "docker-registry")?;
    registry.arg("serve").arg(config);
    Ok(registry)
}
