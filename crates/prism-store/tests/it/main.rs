//! The store's tests from outside, a module for each of its promises.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod common;

mod bucket_usage;
mod buckets;
mod catching_up;
mod copies;
mod crash;
mod disk;
mod flushes;
mod hot;
mod memory;
mod multipart;
mod notes;
mod quota;
mod replicas;
mod scrub;
mod store;
mod taken_again;
mod torn_log;
mod versions;
