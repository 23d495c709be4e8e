//! The admin socket's command `quota BUCKET [bytes=N|none] [objects=N|none]`: shows the quota of a
//! bucket and its usage, after a change if one is named. Without a bucket it lists all quotas.

use std::collections::BTreeMap;

use prism_replicas::{Node, QuotaChange};
use serde_json::{Value, json};

/// Whether a command is about quotas.
pub(super) fn is_meant(line: &str) -> bool {
    line == "quota" || line.starts_with("quota ")
}

/// Whether a command changes a quota.
pub(super) fn is_change(line: &str) -> bool {
    line.starts_with("quota ") && line.contains('=')
}

pub(super) async fn answer(node: &Node, line: &str) -> Value {
    if line == "quota" {
        return all(node).await;
    }
    let Some((bucket, change)) = parse(line) else {
        return json!({ "error": "try: quota BUCKET [bytes=N|none] [objects=N|none]" });
    };
    match node.replication.quota(bucket.to_owned(), change).await {
        Ok(report) => json!({
            "asked": node.core.name,
            "bucket": bucket,
            "exists": report.exists,
            "quota": report.quota,
            "usage": report.usage,
            "missing": report.missing,
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// The quotas of all names. A backend adds its estimate of the usage of each bucket.
async fn all(node: &Node) -> Value {
    let limited = node.limited_buckets().unwrap_or_default().into_iter();
    let estimates: BTreeMap<_, _> = limited.map(|one| (one.bucket, one.estimate)).collect();
    match node.replication.quotas().await {
        Ok(quotas) => {
            let quotas = quotas.iter().map(|named| {
                json!({
                    "bucket": named.bucket,
                    "exists": named.exists,
                    "quota": named.quota,
                    "estimate": estimates.get(&named.bucket),
                })
            });
            json!({ "asked": node.core.name, "quotas": quotas.collect::<Vec<_>>() })
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// The bucket, and the change if there is one.
fn parse(line: &str) -> Option<(&str, Option<QuotaChange>)> {
    let mut words = line.split(' ');
    let bucket = words.next().filter(|word| *word == "quota");
    let bucket = bucket.and_then(|_| words.next())?;
    let mut change = QuotaChange::default();
    let mut has_change = false;
    for word in words {
        let (name, limit) = word.split_once('=')?;
        let limit = match limit {
            "none" => None,
            number => Some(number.parse().ok()?),
        };
        match name {
            "bytes" => change.bytes = Some(limit),
            "objects" => change.objects = Some(limit),
            _ => return None,
        }
        has_change = true;
    }
    Some((bucket, has_change.then_some(change)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_a_bucket_and_the_limits_to_change() {
        assert_eq!(parse("quota photos"), Some(("photos", None)));
        let change = QuotaChange {
            bytes: Some(Some(5)),
            objects: Some(None),
        };
        let line = "quota photos bytes=5 objects=none";
        assert_eq!(parse(line), Some(("photos", Some(change))));
        assert!(is_change(line) && !is_change("quota photos"));
        assert!(is_meant("quota") && is_meant(line) && !is_meant("quotas"));
        for wrong in [
            "quota",
            "quota b bytes",
            "quota b bytes=x",
            "quota b files=1",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
