//! Wire messages and state machines of Prism, without sockets, clocks or
//! threads, so that all of it runs in a seeded simulation.
#![forbid(unsafe_code)]

pub mod claim;
pub mod control;
pub mod export;
pub mod flow_table;
pub mod import;
pub mod lease;
pub mod newcomers;
pub mod node;
pub mod relay;
pub mod steering;
pub mod tcp_state;
pub mod verified;
pub mod wire;

pub use tcp_state::{Keepalive, MAX_QUEUE_BYTES, NegotiatedOptions, TcpState, Window, WindowScale};
