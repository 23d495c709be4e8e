//! `prism ctl bucket quota`: the most that a bucket may have, and what it has. A node of this host
//! makes the change, so it also works in a cluster without etcd.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use prism_cluster::replica::Bucket;
use prism_process::ask;
use prism_replicas::Quota;
use prism_s3::BucketName;
use prism_store::BucketUsage;
use serde::Deserialize;
use serde_json::Value;

use crate::reach::{Common, print_json};
use crate::table::{Paint, number, table, text};

/// Limit the bytes and the objects of a bucket, or show its quota and usage.
///
/// Versions and the parts of open uploads count too, each once whatever the number of replicas.
/// Writes beyond a limit are refused with 403 QuotaExceeded. Deletions always work. A limit that
/// is not named stays as it is. A quota belongs to the name: it outlives the bucket, and counts for
/// the next one of that name. A node has to run on this host.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct QuotaArgs {
    /// The bucket, which has to exist or to have a quota. Without it all quotas are listed.
    bucket: Option<String>,
    /// Most bytes, as in 500M or 2T (K, M, G and T: powers of 1,024); `none` for no limit.
    #[arg(long, value_name = "N", requires = "bucket")]
    bytes: Option<Limit>,
    /// Most objects, as in 20000 or 20K; `none` for no limit.
    #[arg(long, value_name = "N", requires = "bucket")]
    objects: Option<Limit>,
    /// Remove both limits.
    #[arg(long, requires = "bucket", conflicts_with_all = ["bytes", "objects"])]
    none: bool,
    /// Ask this node. Default: the first node that runs on this host.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Use this admin socket instead, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    socket: Option<PathBuf>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let (digits, shift) = match text.char_indices().last() {
            Some((at, 'K')) => (text.get(..at), 10),
            Some((at, 'M')) => (text.get(..at), 20),
            Some((at, 'G')) => (text.get(..at), 30),
            Some((at, 'T')) => (text.get(..at), 40),
            _ => (Some(text), 0),
        };
        let number = digits.and_then(|digits| digits.parse::<u64>().ok());
        let number = number.and_then(|number| number.checked_mul(1 << shift));
        let why = "use a whole number, which K, M, G or T may follow, or `none`";
        number.map(Some).map(Self).ok_or_else(|| why.to_owned())
    }
}

/// A node's answer.
#[derive(Deserialize)]
pub(crate) struct QuotaReport {
    /// A node of the former release knows quotas of buckets only.
    #[serde(default = "yes")]
    exists: bool,
    quota: Quota,
    pub(crate) usage: BucketUsage,
    /// Backends that the node did not reach.
    missing: Vec<String>,
}

fn yes() -> bool {
    true
}

/// A node's list of quotas.
#[derive(Deserialize)]
struct QuotaList {
    quotas: Vec<NamedQuota>,
}

#[derive(Deserialize)]
struct NamedQuota {
    bucket: String,
    exists: bool,
    quota: Quota,
    /// The usage by the share of the backend that was asked.
    estimate: Option<BucketUsage>,
}

impl QuotaArgs {
    /// The change as the admin socket takes it.
    fn change(&self) -> String {
        let (bytes, objects) = if self.none {
            (Some(Limit(None)), Some(Limit(None)))
        } else {
            (self.bytes, self.objects)
        };
        let named = [("bytes", bytes), ("objects", objects)];
        let words = named.map(|(name, limit)| match limit {
            None => String::new(),
            Some(Limit(None)) => format!(" {name}=none"),
            Some(Limit(Some(number))) => format!(" {name}={number}"),
        });
        words.concat()
    }
}

pub(crate) fn run(args: &QuotaArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let bucket = args.bucket.as_deref().map(BucketName::parse).transpose()?;
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => {
            common.load_objects()?;
            common.admin_socket(args.node.as_deref())?
        }
    };
    let Some(bucket) = bucket else {
        return list(&socket, common, out);
    };
    let (report, document) = asked(&socket, &bucket, &args.change())?;
    if common.json {
        return print_json(out, &document);
    }
    writeln!(out, "bucket  {bucket}")?;
    if !report.exists {
        writeln!(
            out,
            "        (does not exist; its quota is for the next one)"
        )?;
    }
    Ok(print(report.quota, Some(&report), out)?)
}

fn list(socket: &Path, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let (list, document) = ask::<QuotaList>(socket, "quota")?;
    if common.json {
        return print_json(out, &document);
    }
    let or_dash = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let rows = list.quotas.into_iter().map(|named| {
        let exists = if named.exists { "yes" } else { "no" };
        [
            text(named.bucket),
            text(exists),
            number(or_dash(named.estimate.map(|estimate| estimate.bytes))),
            number(or_dash(named.quota.bytes)),
            number(or_dash(named.estimate.map(|estimate| estimate.objects))),
            number(or_dash(named.quota.objects)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let header = ["BUCKET", "EXISTS", "~BYTES", "OF", "~OBJECTS", "OF"];
    Ok(write!(out, "{}", table(Paint::of_stdout(), header, &rows))?)
}

/// Asks a node of this host for a bucket's quota and usage.
pub(crate) fn ask_node(common: &Common, bucket: &BucketName) -> anyhow::Result<QuotaReport> {
    Ok(asked(&common.admin_socket(None)?, bucket, "")?.0)
}

fn asked(socket: &Path, bucket: &BucketName, change: &str) -> anyhow::Result<(QuotaReport, Value)> {
    let question = format!("quota {}{change}", bucket.as_str());
    ask(socket, &question)
}

/// The quota in an agreed record.
pub(crate) fn of_record(record: &Bucket) -> Quota {
    let text = record.documents.get(Quota::DOCUMENT);
    let quota = text.and_then(|text| Quota::parse(text.as_bytes()).ok());
    quota.unwrap_or_default()
}

/// Prints a quota beside the usage, if a node has told it.
pub(crate) fn print(
    quota: Quota,
    report: Option<&QuotaReport>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let usage = report.map(|report| report.usage);
    for (what, used, limit) in [
        ("bytes", usage.map(|usage| usage.bytes), quota.bytes),
        ("objects", usage.map(|usage| usage.objects), quota.objects),
    ] {
        let used = used.map_or_else(|| "unknown".to_owned(), |used| used.to_string());
        let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("of {limit}"));
        writeln!(out, "{what:<7} {used}  {limit}")?;
    }
    match report.map(|report| report.missing.as_slice()) {
        None => writeln!(out, "        (no node of this host has told the usage)"),
        Some([]) => Ok(()),
        Some(missing) => writeln!(
            out,
            "        (estimated, because these backends did not answer: {})",
            missing.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_with_a_unit_or_none() {
        for (text, limit) in [
            ("0", Some(0)),
            ("20000", Some(20_000)),
            ("1K", Some(1 << 10)),
            ("500M", Some(500 << 20)),
            ("2G", Some(2 << 30)),
            ("3T", Some(3 << 40)),
            ("none", None),
        ] {
            assert_eq!(text.parse(), Ok(Limit(limit)), "{text}");
        }
        for text in ["", "K", "-1", "1.5G", "1g", "1KB", "1 K", "99999999T", "é"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
