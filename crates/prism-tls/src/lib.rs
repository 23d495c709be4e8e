//! TLS sessions that move between hosts, without sockets, clocks or threads.
//!
//! A session is established by rustls and taken from it at the first safe
//! moment as [`SessionKeys`]. From then on the record layer here serves it, and
//! hands it from host to host.
#![forbid(unsafe_code)]

pub mod accept;
pub mod keys;

pub use keys::{DirectionKeys, KeysError, Secret, SessionKeys, Suite, Version};
