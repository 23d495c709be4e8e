//! Findings about policies of buckets that this release does not understand. An earlier release has
//! stored them.

use std::collections::BTreeMap;
use std::sync::Arc;

use prism_cluster::replica::Bucket;
use prism_config::Config;
use prism_membership::etcd::Keys;
use prism_process::printable;
use prism_s3::{BucketName, Document, Policy};

use super::finding::{Finding, Subject};
use super::records;

const SUBJECT: Subject = Subject("policies");

/// Without etcd only the log of a node names such policies.
pub(super) fn examine(config: &Config) -> Vec<Finding> {
    if config.cluster.etcd.is_none() || !config.service.keeps_objects() {
        return Vec::new();
    }
    match records::read(config, Keys::buckets) {
        Ok(records) => findings(&records.buckets.records),
        Err(error) => {
            let found = format!("the policies of buckets, which are in etcd: {error:#}");
            vec![SUBJECT.unknown(found, records::REMEDY)]
        }
    }
}

fn findings(buckets: &BTreeMap<String, Arc<Bucket>>) -> Vec<Finding> {
    let faults = buckets.iter().filter_map(|(name, bucket)| {
        let text = bucket.documents.get(Document::Policy.as_str())?;
        let name = BucketName::parse(name).ok()?;
        let error = Policy::parse(&name, text.as_bytes()).err()?;
        let found = format!(
            "all requests of bucket {name} are denied, because its policy is not understood: {}",
            error.message()
        );
        let remedy = "have the owner of the bucket replace or delete the policy";
        Some(SUBJECT.advice(printable(&found), remedy))
    });
    let faults: Vec<Finding> = faults.collect();
    if faults.is_empty() {
        vec![SUBJECT.good("those of all buckets are understood")]
    } else {
        faults
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_cluster::replica::Stamp;

    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn a_policy_that_is_not_understood_is_listed_with_its_bucket() {
        let bucket = |policy: &str| {
            let mut record = Bucket::create(None, Stamp::NONE, 1).unwrap();
            record.documents.insert("policy".into(), policy.into());
            Arc::new(record)
        };
        let statement = "{\"Effect\":\"Allow\",\"Principal\":\"*\",\"Action\":\"s3:GetObject\",\
                         \"Resource\":\"arn:aws:s3:::photos/*\"}";
        let good = bucket(&format!("{{\"Statement\":{statement}}}"));
        let mut buckets = BTreeMap::from([("photos".to_owned(), good)]);
        let state = |buckets| findings(buckets).first().map(|finding| finding.state);
        assert_eq!(state(&buckets), Some(State::Good));
        let bad = bucket("{\"Version\":null}");
        buckets.insert("broken".to_owned(), bad);
        let found = findings(&buckets);
        assert!(
            matches!(found.as_slice(), [one] if one.state == State::Advice
            && one.found.contains("broken") && one.found.contains("null")),
            "{found:?}"
        );
    }
}
