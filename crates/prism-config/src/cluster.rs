//! `[cluster]` as a struct.

use serde::{Deserialize, Serialize};

use crate::etcd::Etcd;

section! {
    /// `[cluster]`
    pub struct Cluster;
    /// Required. The name of the cluster, in logs and in the keys of etcd: 1 to 63 of `a-z`,
    /// `0-9` and `-`.
    pub name: String,
    /// Default `us-east-1`. The region that clients sign their requests for.
    pub region: String = "us-east-1".into(),
    /// Default 1, at most the number of backends. The number of backends that have each object.
    /// A write is on all of them before it is answered, and is refused while one is out of
    /// reach. Any of them answers reads. It cannot change while there are buckets.
    ///
    /// With etcd, writes go on without a backend whose lease has ended, and this value counts
    /// for the first start only.
    pub replicas: u16 = 1,
    /// Default 2 with 3 or more replicas, else 1. From 1 to `replicas`. The number of copies of
    /// an object that have to be in sync for a write or deletion. With fewer copies, writes
    /// are answered `503` and reads go on. It has an effect with etcd only.
    pub min_replicas: Option<u16>,
    /// The cluster's state in etcd. Without it the members are those of this file, and do not
    /// change while the nodes run.
    pub etcd: Option<Etcd>,
}
