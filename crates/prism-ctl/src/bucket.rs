//! `prism ctl bucket`: the rights of keys on a bucket, in a cluster whose state is in etcd. Every
//! node learns of a change at once. Quotas are in `quota.rs`.

use std::io::Write;

use anyhow::bail;
use clap::Subcommand;
use prism_cluster::replica::Phase;
use prism_config::Credential;
use prism_s3::BucketName;
use prism_s3::access::{KeyRights, Rights};
use serde_json::json;

use crate::key::show;
use crate::keys::change_key;
use crate::quota::{self, QuotaArgs};
use crate::quotas::{self, QuotasArgs};
use crate::reach::{Common, print_json};

/// Give keys rights on a bucket, limit its size, and show it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BucketArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Give a key rights on a bucket. The bucket need not exist.
    Allow(RightsArgs),
    /// Take rights on a bucket from a key.
    Deny(RightsArgs),
    Quota(QuotaArgs),
    Quotas(QuotasArgs),
    /// Show a bucket: which keys have rights, whether it has a policy, its quota and usage.
    ///
    /// A node of this host tells the usage.
    Info {
        /// The bucket.
        bucket: String,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct RightsArgs {
    /// The bucket.
    bucket: String,
    /// The access key.
    #[arg(long)]
    key: String,
    /// Read and list objects.
    #[arg(long)]
    read: bool,
    /// Put and delete objects.
    #[arg(long)]
    write: bool,
    /// Create and delete the bucket, and change its policy, CORS rules and versioning.
    #[arg(long)]
    owner: bool,
}

/// Whether a change gives rights or takes them.
#[derive(Clone, Copy)]
enum RightsChange {
    Allow,
    Deny,
}

impl RightsArgs {
    fn rights(&self) -> anyhow::Result<Rights> {
        let wanted = [
            (self.read, Rights::READ),
            (self.write, Rights::WRITE),
            (self.owner, Rights::OWNER),
        ];
        let wanted = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let rights: Rights = wanted.map(|(_, right)| right).collect();
        if rights.is_empty() {
            bail!("name one right at least: --read, --write or --owner");
        }
        Ok(rights)
    }
}

pub(crate) fn run(args: &BucketArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::Allow(change) => apply(change, common, RightsChange::Allow, out),
        Command::Deny(change) => apply(change, common, RightsChange::Deny, out),
        Command::Quota(args) => quota::run(args, common, out),
        Command::Quotas(args) => quotas::run(args, common, out),
        Command::Info { bucket } => info(common, bucket, out),
    }
}

fn apply(
    args: &RightsArgs,
    common: &Common,
    kind: RightsChange,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let rights = args.rights()?;
    let bucket = BucketName::parse(&args.bucket)?;
    let action = match kind {
        RightsChange::Allow => format!("bucket allow {bucket} {rights}"),
        RightsChange::Deny => format!("bucket deny {bucket} {rights}"),
    };
    let change = |key: &mut Credential| {
        if key.is_unlimited_by_omission() {
            bail!(
                "the record of {0} says nothing about rights, so the key has all of them; run \
                 `prism ctl key set {0} --admin true` first, and `--admin false` when it has the \
                 rights that it needs",
                key.access_key
            );
        }
        let buckets = key.buckets.get_or_insert_default();
        let before = buckets.get(bucket.as_str()).copied().unwrap_or_default();
        let after = match kind {
            RightsChange::Allow => before.union(rights),
            RightsChange::Deny => before.difference(rights),
        };
        if after.is_empty() {
            buckets.remove(bucket.as_str())
        } else {
            buckets.insert(bucket.as_str().to_owned(), after)
        };
        Ok(())
    };
    let key = change_key(common, (&action, &args.key), change)?;
    show(common, &key, out)
}

fn info(common: &Common, bucket: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let name = BucketName::parse(bucket)?;
    let known = common.in_etcd("KEY", async |etcd| etcd.known().await)?;
    let record = known.buckets.records.get(bucket);
    let exists = record.is_some_and(|record| record.phase != Phase::Gone);
    let has_policy = exists && record.is_some_and(|bucket| bucket.documents.contains_key("policy"));
    let quota = record
        .filter(|_| exists)
        .map(|record| quota::of_record(record));
    let users = known.users.values().map(|user| (user, user.rights()));
    let with_rights: Vec<_> = users
        .map(|(user, rights)| (user, matches!(rights, KeyRights::Admin), rights.on(&name)))
        .filter(|(_, _, rights)| !rights.is_empty())
        .collect();
    let report = if exists {
        quota::ask_node(common, &name).ok()
    } else {
        None
    };
    if common.json {
        let keys = with_rights.iter().map(|(user, is_admin, rights)| {
            json!({ "access_key": user.access_key, "admin": is_admin, "rights": rights })
        });
        let keys: Vec<_> = keys.collect();
        let document = json!({
            "bucket": bucket, "exists": exists, "has_policy": has_policy, "keys": keys,
            "quota": quota, "usage": report.as_ref().map(|report| report.usage),
        });
        return print_json(out, &document);
    }
    let word = |is: bool| if is { "yes" } else { "no" };
    writeln!(out, "bucket  {bucket}")?;
    writeln!(out, "exists  {}", word(exists))?;
    writeln!(out, "policy  {}", word(has_policy))?;
    quota::print(quota.unwrap_or_default(), report.as_ref(), out)?;
    for (user, is_admin, rights) in with_rights {
        let rights = if is_admin {
            "admin".to_owned()
        } else {
            rights.to_string()
        };
        writeln!(out, "key     {}  {rights}", user.access_key)?;
    }
    Ok(())
}
