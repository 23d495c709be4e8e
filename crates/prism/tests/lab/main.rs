//! Tests of the built program: whole clusters in labs on this machine, with unmodified clients.
//! They are one program, as all need the lab, the client that compares every byte, TLS, and the
//! store's placement.
//!
//! Each module is a group of tests; `scripts/test.py NAME::` runs one alone. Tests take turns
//! within a process. They need root: without it each test says so and passes, except under CI,
//! where it fails.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    unreachable_pub,
    reason = "test code"
)]

mod access;
mod acme;
mod buckets;
mod bulk;
mod chaos;
mod clients;
mod cluster;
mod connections;
mod contained;
mod corpus;
mod crash;
mod differing_files;
mod families;
mod frontends;
mod host_mode;
mod host_style;
mod hostile;
mod impair;
mod ktls;
mod leaving;
mod lifecycle;
mod links;
mod long_path;
mod manners;
mod migrate;
mod min_replicas;
mod mixture;
mod netem;
mod notify;
mod objects;
mod observe;
mod owners;
mod page;
mod path;
mod quota;
mod redirects;
mod refill;
mod relaying;
mod reload;
mod renewal;
mod replicas;
mod rights;
mod serve;
mod services;
mod sessions;
mod setup;
mod slow_disk;
mod state;
mod status;
mod stopped;
mod successor;
mod supervised;
mod switches;
mod tls_clients;
mod tls_secrecy;
mod tls_sessions;
#[cfg(feature = "otlp")]
mod traces;
mod uploads;
mod upstreams;
mod versions;
mod windows;

mod support;
