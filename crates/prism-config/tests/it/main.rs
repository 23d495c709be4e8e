//! Configuration files, good ones and every fault of one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "test code"
)]

mod acme;
mod config;
mod etcd;
mod pair;
mod services;
mod tls;
mod upstream;
