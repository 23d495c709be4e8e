//! The configuration of a server for handshakes with clients: certificates, tickets, versions and
//! suites. [`ServerConfig::handshake`] begins a [`Handshake`](crate::Handshake).
//!
//! Not here: timeouts (the caller keeps the time, and supplies a [`TimeProvider`]).
//! [`Certificates`] reads files of certificates and keys; nothing else reads files.

mod certificates;
mod config;
mod files;
mod ticket_key;
mod tickets;

pub use certificates::Certificates;
pub use config::{MAX_HANDSHAKE_BYTES, ServerConfig, Settings};
pub use files::{CertificateError, CertificateFiles};
pub use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
pub use tickets::{Tickets, TicketsError};
