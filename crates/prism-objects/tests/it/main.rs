//! The object store in memory: requests go in as bytes and come back as bytes. The store is a
//! real one in a temporary directory; there is no socket and no other node.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod buckets;
mod memory;
mod multipart;
mod objects;
mod rights;
mod routes;
mod support;
