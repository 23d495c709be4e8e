//! A service with upstreams and an object store: one tenant, whose requests are routed inside.
//!
//! The node that reads a client's request decides which part has it ([`Routes`]). The name of an
//! upstream that travels with the request tells all other nodes.
//!
//! Not here: the two parts (`prism-upstream`, `prism-objects`), and how a server's answer is
//! followed (`prism-gateway`).
#![forbid(unsafe_code)]

mod routes;
mod service;

pub use routes::Routes;
pub use service::{Combined, Error, Meaning};
