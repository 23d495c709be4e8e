//! A service whose requests unmodified HTTP/1.1 servers answer, on or beside each backend.
//!
//! A frontend chooses a backend, and the connection moves there; that backend is then the only
//! proxy between client and server. The connection stays there until health, balance or another
//! upstream wants it elsewhere.
//!
//! | question | file |
//! |---|---|
//! | which upstream gets a request? | `shared.rs`, by `prism-rules` |
//! | which backend, which address? | `choice.rs`, used by `pool.rs`; by a cookie: `affinity.rs` |
//! | is a server healthy? | `health.rs`; checks: `checks.rs`; for operators: `figures.rs` |
//! | what do nodes tell each other? | `reports.rs` |
//! | which servers are there? | `sources.rs`: configuration, `followed_list.rs`, `added.rs` |
//! | which servers have operators taken down? | `duty.rs` |
//! | how does a command reach a backend? | `assign.rs`, `amendment.rs`, by `parcel.rs` |
//! | may a request be sent again? | `retry.rs` |
//! | how does a server learn of the client? | `forwarded.rs`, `proxy_header.rs` |
//! | which resource does a server's answer name? | `redirect.rs` |
//! | which servers' connections are for one client only? | `private.rs` |
//! | where does an answer wait for its connection? | `park.rs` |
//!
//! Not here: the client's connection (`prism-gateway`), and how bytes move (`prism-proxy`).
#![forbid(unsafe_code)]

mod added;
mod affinity;
mod amendment;
mod assign;
mod backend;
mod checks;
mod choice;
mod duty;
mod error;
mod figures;
mod followed_list;
mod forwarded;
mod health;
mod idle;
mod node_file;
mod parcel;
mod park;
mod passing;
mod pool;
mod private;
mod proxy_header;
mod redirect;
mod reports;
mod retry;
mod server;
mod service;
mod shared;
mod sources;

pub use amendment::{AmendedServer, AmendmentKind, AmendmentOutcome};
pub use assign::Place;
pub use duty::Duty;
pub use error::Error;
pub use figures::ServerState;
pub use redirect::{Destination, RedirectFault};
pub use reports::keep_tasks;
pub use service::{Meaning, Upstreams};
pub use shared::Shared;
pub use sources::Source;
