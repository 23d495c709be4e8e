//! Wire messages and state machines of Prism, without sockets, clocks or threads, so that
//! all of it runs in a seeded simulation. docs/protocol.md describes the same messages.
//!
//! | modules | contents |
//! |---|---|
//! | [`control`], [`lease`] | messages between nodes and the switch |
//! | [`steering`] | a sender of commands: repetition, deadlines, the switch's clock |
//! | [`node`], [`tcp_state`] | frames between nodes, and the state of a connection in them |
//! | [`tls`] | the version, suite and kernel's keys of a TLS session |
//! | [`registry`], [`announce`] | the flows of a worker, and how a switch is filled from them |
//! | [`term`] | the switch's side of that: its commands while it does not know all flows |
//! | [`relay`], [`facts`] | the preamble of relayed requests |
//! | [`export`], [`import`], [`claim`] | the order of a hand-off at either end, and of a claim |
//! | [`succession`] | messages to a process's successor on the same host, and their order |
//! | [`health`] | which peers are suspect, and when they are probed |
//! | [`newcomers`] | bounds on connections that have not authenticated |
//! | [`wire`] | bounded reading and writing |
//!
//! # Example
//! A node asks the switch for a flow, and the switch's rules decide:
//!
//! ```
//! use prism_proto::control::{
//!     Answer, ControlKey, FlowKey, FlowState, Ops, Owner, Request, RunId, Status,
//! };
//! use prism_reference::FlowTable;
//!
//! let key = ControlKey::new(*b"0123456789abcdef");
//! let now_ns = 1_800_000_000_000_000_000;
//! let request = Request {
//!     key_id: 7,
//!     request_id: 1,
//!     time_ns: now_ns,
//!     ops: Ops::OWN.and(Ops::UNBLOCK),
//!     epoch: now_ns,
//!     flow: FlowKey {
//!         client: "192.0.2.9:50000".parse().unwrap(),
//!         vip: "198.51.100.1:80".parse().unwrap(),
//!     },
//!     owner: Owner {
//!         addr: "10.0.0.3:80".parse().unwrap(),
//!         via: "10.0.0.3".parse().unwrap(),
//!     },
//!     run: RunId::NONE,
//! };
//! let datagram = request.encode(&key);
//!
//! // At the switch:
//! let mut flows = FlowTable::new(1024);
//! let request = Request::decode(&datagram, 7, &key)?;
//! let datagram = flows.apply(&request, now_ns).encode(&key);
//!
//! // Back at the node:
//! let answer = Answer::decode(&datagram, 7, &key)?;
//! assert_eq!((answer.status, answer.state), (Status::Ok, FlowState::Forward));
//! # Ok::<(), prism_proto::control::ControlError>(())
//! ```
//!
//! # Limits
//! - Messages have room for IPv6 addresses; the switch steers IPv4 only.
//! - A frame has at most [`node::MAX_FRAME_BYTES`], a queue [`MAX_QUEUE_BYTES`].
//! - Callers pass the time as an argument, keep the deadlines, and carry out the actions of
//!   the state machines in order.
#![forbid(unsafe_code)]

pub mod announce;
pub mod claim;
pub mod control;
pub mod copy;
mod entries;
pub mod export;
pub mod facts;
pub mod fence;
pub mod guests;
pub mod health;
pub mod import;
pub mod lease;
pub mod newcomers;
pub mod node;
pub mod registry;
pub mod relay;
pub mod steering;
pub mod succession;
pub mod tcp_state;
pub mod term;
pub mod tls;
pub mod usage;
pub mod wire;

pub use tcp_state::{
    Behaviour, Keepalive, MAX_QUEUE_BYTES, NegotiatedOptions, TcpState, Window, WindowScale,
};
