//! The service's certificate by ACME (RFC 8555): one frontend at a time orders it from an
//! authority, etcd keeps it, and all frontends serve it.
//!
//! | question | file |
//! |---|---|
//! | when is the next order due? | `schedule.rs` |
//! | which node orders? | `lock.rs`, `keeper.rs` |
//! | what happens in an order? | `order.rs` |
//! | what is in etcd? | `records.rs` |
//! | how does a node answer the authority? | `challenges.rs` |
//!
//! Not here: the messages of ACME (`instant-acme`), TLS (`prism-tls`), clients' connections
//! (`prism-gateway`).
#![forbid(unsafe_code)]

mod challenges;
mod http;
mod keeper;
mod lock;
mod order;
mod records;
mod schedule;

pub use challenges::Challenges;
pub use keeper::Keeper;
pub use records::{Issued, OrderFailure, RENEW, SOURCE, due_s, failure, issued, orderer};
