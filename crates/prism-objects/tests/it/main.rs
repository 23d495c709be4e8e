//! The object store in one process. Most tests have one node, whose requests go in as bytes and
//! come back as bytes, without a socket. Others have several nodes on loopback ([`nodes`]). Stores
//! are real ones in temporary directories.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod buckets;
mod checksums;
mod configurations;
mod documents;
mod memory;
mod multipart;
mod nodes;
mod objects;
mod quota;
mod rights;
mod routes;
mod several;
mod support;
