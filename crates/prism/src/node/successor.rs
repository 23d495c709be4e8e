//! A process that goes on as the node of another one on this host: the predecessor passes its
//! listeners and its clients' connections over a Unix socket (docs/operating.md, "Upgrades").
//!
//! Not here: the messages and their order (`prism_proto::succession`), and how a connection is
//! parked and adopted (`prism_handoff`).

mod inherit;
mod link;
mod predecessor;
mod settle;
mod start;

pub(crate) use inherit::Inheritance;
pub(super) use inherit::take_connections;
pub(super) use link::{Link, offer, send_on_stream};
pub(super) use predecessor::{Estate, PassedOn, Sockets, pass_on};
pub(super) use start::start_successor;
