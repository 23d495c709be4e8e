//! The server's handshake: from a client's first byte to [`SessionKeys`].
//!
//! rustls does the handshake and nothing else. [`Acceptor`] feeds it one record at a time, so
//! that it never sees application data or a record after the handshake. It takes the secrets
//! at the first safe moment, and gives back the bytes behind the handshake as they came.
//!
//! Not here: sockets, timeouts (the caller keeps the time, and supplies a [`TimeProvider`]) and
//! records after the handshake. [`Certificates`] reads files of certificates and keys; nothing
//! else reads files.
//!
//! [`SessionKeys`]: crate::SessionKeys

mod acceptor;
mod certificates;
mod config;
mod error;
mod files;
mod frame;
mod ticket_key;
mod tickets;

pub use acceptor::{Acceptor, Established, Failure, NotTls, Step};
pub use certificates::Certificates;
pub use config::{ServerConfig, Settings, SettingsError, known_suites};
pub use error::AcceptError;
pub use files::{CertificateError, CertificateFiles};
pub use frame::MAX_HANDSHAKE_BYTES;
pub use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
pub use tickets::{MAX_ROTATION_S, MAX_TICKET_SECRETS, MIN_ROTATION_S, Tickets, TicketsError};
