//! A client's connection: read a request, find the node that answers it, then answer, hand the
//! connection off, or relay.
//!
//! Frontends and backends run the same loop: the node that holds a connection reads its next
//! request. A [`Gateway`] is one thread of a node; the [`prism_service::Service`] that it is
//! given decides the meaning of a request and the nodes that answer it.
//!
//! | question | file |
//! |---|---|
//! | what happens to one request? | `session.rs`, which owns the connection; `answering.rs` |
//! | does a connection move, or is the request relayed? | `decision.rs`, done by `elsewhere.rs` |
//! | how long may a relayed answer be? | `threshold.rs`, `short.rs`, `forecast.rs` |
//! | how are requests passed on? | `relay.rs`; received: `relayed.rs` |
//! | what follows an internal redirect? | `redirected.rs` |
//! | which requests does the service not see? | `before_service.rs`, `rules.rs`, `limits.rs` |
//! | what do other nodes learn of limits? | `usage_reports.rs` |
//! | what does an authority of certificates get? | `challenge.rs` |
//! | what happens when the node ends? | `leave.rs` |
//!
//! Not here: S3, the store, and how a connection moves (`prism-handoff`).
#![forbid(unsafe_code)]

mod answering;
mod audience;
mod before_service;
mod challenge;
mod connections;
mod decision;
mod elsewhere;
mod forecast;
mod gateway;
mod https;
mod leave;
mod limits;
mod observe;
mod proxied;
mod redirected;
mod relay;
mod relayed;
mod rules;
mod session;
mod short;
mod threshold;
mod usage_reports;

pub use challenge::Challenges;
pub use connections::{Connections, Seen, UnderWay};
pub use gateway::{Gateway, Neighbour, Parts, Shared};
pub use https::Https;
pub use leave::{CLOSED_IN, Farewell, Farewells, PASSED_IN, farewells};
