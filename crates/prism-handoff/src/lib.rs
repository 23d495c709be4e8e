//! Hands live TCP connections from host to host, in the spirit of the API of
//! NSDI'21, Figure 7: accept, read, export to a peer, import, answer.
//!
//! An [`Endpoint`] yields connections, whether a client opened them here or
//! another node handed them over; [`Handle::export`] sends one on. See
//! `examples/greeter.rs` for a whole program.
//!
//! Not here: HTTP, objects, placement, and the switch itself.
#![forbid(unsafe_code)]

mod by_kernel;
mod channel;
mod claims;
mod client_tls;
mod closed_sockets;
mod connection;
mod control;
pub mod cost;
mod counters;
mod deferred;
mod dial;
mod endpoint;
mod export;
mod frozen;
mod given_up;
mod health;
mod import;
mod kernel_tx;
mod lease;
mod leaving;
mod newcomers;
mod node_tls;
mod peers;
pub mod pki;
mod probe;
mod reading;
mod records;
mod relay_stream;
mod silence;
mod stream;
pub mod supervise;
pub mod trace;
mod wait_timer;

pub use client_tls::TlsService;
pub use connection::Connection;
pub use control::SwitchAddress;
pub use counters::{Count, Counters};
pub use endpoint::{Endpoint, EndpointConfig, Handle, Incoming, Process, Transit};
pub use export::Exported;
pub use health::Health;
pub use newcomers::NewcomerLimits;
pub use peers::{Peer, PeerError};
pub use prism_proto::export::{Kept, Method};
pub use relay_stream::RelayStream;
