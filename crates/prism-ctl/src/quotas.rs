//! `prism ctl bucket quotas`: the buckets that have a quota, and about how much each has.

use std::io::Write;
use std::path::PathBuf;

use prism_process::{ask, printable};
use prism_replicas::Quota;
use prism_store::BucketUsage;
use serde::Deserialize;

use crate::reach::{Common, print_json};

/// List the buckets that have a quota, with what they have by one backend's share.
///
/// `prism ctl bucket quota BUCKET` counts at all backends. A backend has to run on this host.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct QuotasArgs {
    /// Ask this backend. Default: the first node that runs on this host.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Use this admin socket instead, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    socket: Option<PathBuf>,
}

/// A node's answer.
#[derive(Deserialize)]
struct Answer {
    buckets: Vec<Limited>,
}

#[derive(Deserialize)]
struct Limited {
    bucket: String,
    quota: Quota,
    estimate: BucketUsage,
}

pub(crate) fn run(args: &QuotasArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => {
            common.load_objects()?;
            common.admin_socket(args.node.as_deref())?
        }
    };
    let (answer, document): (Answer, _) = ask(&socket, "quotas")?;
    if common.json {
        return print_json(out, &document);
    }
    for limited in answer.buckets {
        let Limited {
            bucket,
            quota,
            estimate,
        } = limited;
        let bytes = shown("bytes", estimate.bytes, quota.bytes);
        let objects = shown("objects", estimate.objects, quota.objects);
        writeln!(out, "{}  {bytes}  {objects}", printable(&bucket))?;
    }
    Ok(())
}

fn shown(what: &str, used: u64, limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("about {used} of {limit} {what}"),
        None => format!("about {used} {what}, no limit"),
    }
}
