//! A bucket whose deletion only etcd knows, because the node that deleted it ended before it told
//! a backend. An older copy of etcd would bring such a bucket back, so no client hears that it is
//! gone.

use prism_cluster::replica::{Bucket, Stamp};

use super::etcd_copies::{endpoint, etcdctl};
use super::restored::{BACKENDS, ask, make, surely, up};
use crate::stopped::signal;
use crate::support::{Cluster, turn};

const NAME: &str = "untold";

/// Does in etcd what a node does as the last step of a deletion.
fn delete_in_etcd(cluster: &Cluster) {
    let url = &endpoint(cluster, 0);
    let part = format!("/buckets/{NAME}/");
    let keys = etcdctl(cluster, url, &["get", "--prefix", "--keys-only", "/prism/"]);
    let key = keys.lines().find(|key| key.ends_with(&part)).unwrap();
    let text = etcdctl(cluster, url, &["get", "--print-value-only", key]);
    let record: Bucket = serde_json::from_str(&text).unwrap();
    let gone = record.buried(Stamp {
        time_us: record.stamp.time_us + 1,
        ..record.stamp
    });
    etcdctl(
        cluster,
        url,
        &["put", key, &serde_json::to_string(&gone).unwrap()],
    );
}

#[test]
fn no_client_hears_of_a_deletion_that_no_backend_knows() {
    let Some(_turn) = turn() else { return };
    let cluster = up();
    make(&cluster, NAME);
    for host in BACKENDS {
        signal(&cluster, host, "STOP");
    }
    delete_in_etcd(&cluster);
    let status = ask(&cluster, "DELETE", (NAME, ""), b"");
    assert_eq!(status, 503, "the deletion is known to etcd alone");
    for host in BACKENDS {
        signal(&cluster, host, "CONT");
    }
    surely(&cluster, "DELETE", (NAME, ""), b"", 404);
    surely(&cluster, "HEAD", (NAME, ""), b"", 404);
}
