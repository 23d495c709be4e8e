//! Findings about the etcd with the cluster's state: the room that its database has left, and
//! whether it forgets old revisions by itself. Prism never compacts etcd, which others may share.

use prism_config::Config;
use prism_figures::EtcdState;
use prism_membership::Database;
use prism_membership::etcd::client;

use super::finding::{Finding, Subject};

const SUBJECT: Subject = Subject("etcd");
/// Revisions that an etcd may have before it compacts for the first time.
const YOUNG_REVISIONS: u64 = 1_000;
/// The most revisions that an etcd has which compacts every 10 minutes, at 40 changes a second.
const KEPT_REVISIONS: u64 = 50_000;
const COMPACTION: &str = "start each member with --auto-compaction-mode=periodic and \
                          --auto-compaction-retention=10m; see docs/operating.md";
const SPACE: &str = "turn auto-compaction on, then compact and defragment etcd; see \
                     docs/operating.md";

/// The findings for the service of `config`; none without etcd.
pub(super) fn examine(config: &Config) -> Vec<Finding> {
    if config.cluster.etcd.is_none() || !config.service.keeps_objects() {
        return Vec::new();
    }
    match ask(config) {
        Ok((database, has_old)) => judge(&database, has_old),
        Err(error) => {
            let found = format!("its size is not known: {error:#}");
            let mend = "start etcd, or run this on a host that reaches it";
            vec![SUBJECT.unknown(found, mend)]
        }
    }
}

/// The database, and whether it still has the revision of [`KEPT_REVISIONS`] ago, or its first.
fn ask(config: &Config) -> anyhow::Result<(Database, bool)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = client(config)?;
    runtime.block_on(async {
        let database = client.database().await?;
        let old = database.revision.saturating_sub(KEPT_REVISIONS).max(1);
        Ok((database, client.keeps(old).await?))
    })
}

fn judge(database: &Database, has_old: bool) -> Vec<Finding> {
    let state = EtcdState {
        size_bytes: database.size_bytes,
        in_use_bytes: database.in_use_bytes,
        quota_bytes: database.quota_bytes,
        is_full: database.is_full,
    };
    let mib = |bytes: u64| bytes >> 20;
    let size = format!(
        "its database has {} MiB, and {} MiB of data; from {} MiB on it takes no change",
        mib(state.size_bytes),
        mib(state.in_use_bytes),
        mib(state.quota_bytes)
    );
    let size = if state.is_full {
        let found = "its database is full: no step is taken, and no key or bucket is changed";
        SUBJECT.missing(found, SPACE)
    } else if state.is_nearly_full() {
        SUBJECT.advice(size, SPACE)
    } else {
        SUBJECT.good(size)
    };
    let revision = database.revision;
    let history = if !has_old {
        SUBJECT.good("it forgets old revisions")
    } else if revision > YOUNG_REVISIONS {
        let kept = revision.min(KEPT_REVISIONS);
        let found = format!(
            "it keeps more than {kept} old revisions, so it seems to have no auto-compaction; its \
             database grows with each change of a bucket or a key"
        );
        SUBJECT.advice(found, COMPACTION)
    } else {
        let found = format!("it has its first {revision} revisions: no compaction is seen yet");
        SUBJECT.unknown(found, COMPACTION)
    };
    vec![size, history]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn states(revision: u64, size_bytes: u64, has_old: bool) -> Vec<State> {
        let database = Database {
            revision,
            size_bytes,
            in_use_bytes: 1,
            quota_bytes: 1_000,
            is_full: size_bytes >= 1_000,
        };
        let found = judge(&database, has_old).into_iter();
        found.map(|finding| finding.state).collect()
    }

    #[test]
    fn an_etcd_without_compaction_is_to_get_one() {
        use State::{Advice, Good, Unknown};
        assert_eq!(states(2_000, 10, false), [Good, Good]);
        assert_eq!(states(2_000, 10, true), [Good, Advice]);
        assert_eq!(states(1_000_000, 10, true), [Good, Advice]);
        assert_eq!(states(3, 10, true), [Good, Unknown]);
    }

    #[test]
    fn a_database_that_fills_is_named_before_it_is_full() {
        use State::{Advice, Good, Missing};
        assert_eq!(states(2_000, 801, false), [Advice, Good]);
        assert_eq!(states(2_000, 1_000, false), [Missing, Good]);
    }
}
