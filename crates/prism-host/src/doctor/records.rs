//! The cluster's records in etcd, as findings need them.

use anyhow::Result;
use prism_config::Config;
use prism_membership::ClusterRecords;
use prism_membership::etcd::{Keys, client};

/// The remedy if they cannot be read.
pub(super) const REMEDY: &str = "start etcd, or run this on a host that reaches it";

/// Reads the records below a prefix of keys.
pub(super) fn read(
    config: &Config,
    prefix: impl FnOnce(&Keys) -> String,
) -> Result<ClusterRecords> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = client(config)?;
    let keys = Keys::of(config)?;
    let snapshot = runtime.block_on(client.read(&prefix(&keys)))?;
    let none = ClusterRecords::default();
    Ok(ClusterRecords::read(&keys, &snapshot, &none))
}
