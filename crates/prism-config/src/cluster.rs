//! `[cluster]` as a struct.

use serde::{Deserialize, Serialize};

use crate::etcd::Etcd;

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Required. Name of the cluster, for logs and metrics: 1 to 63 of
    /// `a-z`, `0-9` and `-`.
    pub name: String,
    /// Default `us-east-1`. The region that clients sign their requests for.
    pub region: String,
    /// Default 1, at most the number of backends. How many backends have each
    /// object. Every write is on all of them before it is answered, and is refused
    /// while one of them is out of reach; any of them answers reads. Cannot be
    /// changed while there are buckets.
    ///
    /// With etcd, writes go on without a backend that etcd has not heard of for
    /// `etcd.lease_ttl_s`, and what stands here counts for the first start.
    pub replicas: u16,
    /// Default 2 where there are 3 or more replicas, else 1. From 1 to `replicas`. How many
    /// copies of an object have to be in sync for it to be written or deleted; with fewer,
    /// writes are answered `503` while reads go on. It counts with etcd, where writes go
    /// on without backends that are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<u16>,
    /// Where the nodes agree on who is one of them. Absent: this file says it,
    /// and it does not change while they run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Etcd>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: String::new(),
            region: "us-east-1".into(),
            replicas: 1,
            min_replicas: None,
            etcd: None,
        }
    }
}
