//! A key-value server with read replicas, as an example of `prism-handoff`: clients of Redis
//! speak to one address, and their connections move to the replica that answers them.
//!
//! - All writes are ordered by the primary. It answers one when every replica with a lease has
//!   it (`primary`), so whoever reads afterwards, anywhere, sees it.
//! - A read of a large value moves the connection to a replica, which answers it and later
//!   reads (`session`). A small write there is relayed to the primary; a large one moves the
//!   connection back.
//! - A replica reads only while it has a lease of the primary (`replica`); otherwise its
//!   connections go back.
//!
//! The commands are GET, MGET, SET, DEL, PING, INFO and QUIT. Values are in memory only, and
//! nobody takes over for the primary.
#![forbid(unsafe_code)]

mod budget;
pub mod client;
pub mod config;
pub mod node;
mod primary;
mod replica;
mod resp;
mod session;
mod store;
mod wire;
