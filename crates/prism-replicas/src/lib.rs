//! One backend among its replicas.
//!
//! All threads of a node share one [`Node`]: its store, its view of the cluster, its progress.
//! Each thread has a [`Replicator`]: it asks and answers [`Question`]s, prepares changes at other
//! replicas, and resolves open changes of a key before the key is read.
//!
//! | question | file |
//! |---|---|
//! | may this node answer now? | `fence.rs` |
//! | what does a backend do in a step of the cluster? | `steps.rs`, `pause.rs` |
//! | how does a change reach other replicas? | `replicate.rs`; received: `prepare.rs` |
//! | what is the outcome of an open change? | `resolve.rs`, begun by `open_changes.rs` |
//! | how does a node get what it missed? | `catch_up.rs`, `fetch.rs`; sent: `hand_over.rs` |
//! | where are buckets agreed on? | `registry.rs`, `buckets.rs` |
//! | does a write still fit in its bucket's quota? | `quotas.rs`, `quota.rs` |
//! | which buckets have a quota? | `limited.rs` |
//! | how is damage found and repaired? | `scrub.rs`, `repair.rs` |
//!
//! Not here: answers to clients (`prism-objects`), the rules of replication
//! (`prism_cluster::replica`), and the members of the cluster (`prism-membership`).
#![forbid(unsafe_code)]

mod answer;
mod ask;
mod buckets;
mod catch_up;
pub mod checked_file;
pub mod delete;
mod errors;
mod expire;
mod fence;
mod fetch;
mod framed;
mod hand_over;
mod limited;
pub mod meta;
mod node;
mod open_changes;
mod pace;
mod pause;
mod prepare;
mod question;
mod quota;
mod quotas;
mod registry;
mod repair;
mod replicate;
mod replication;
mod resolve;
mod scrub;
mod shares;
mod steps;
mod tasks;

pub use ask::done_by_all;
pub use errors::{StoreResult, not_yet, store_error};
pub use fence::{cut_off, differs, elsewhere};
pub use framed::{MAX_HEADER_BYTES, PIECE_BYTES};
pub use limited::LimitedBucket;
pub use node::{Node, Replicator, blocking, joined, now_ms};
pub use pause::{Pauses, UnderWay};
pub use question::{CatchUpPageWanted, Deleted, ListShare, ListWanted, Question, Reply, error_of};
pub use quota::{Growth, Quota, QuotaChange, UsageHere};
pub use quotas::{NamedQuota, QuotaReport, Room};
pub use replication::Replication;
pub use scrub::{ScrubTotals, Scrubber};
pub use steps::{follow_pauses, follow_views};
pub use tasks::keep_tasks;
