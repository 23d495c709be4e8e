//! TLS sessions that move between hosts, without sockets, clocks or threads.
//!
//! rustls does the handshake ([`Handshake`]). At the first safe moment its secrets become
//! [`SessionKeys`], and rustls is gone. From then on a [`Session`] seals and opens the records.
//! [`Session::save`] takes it out of use, and gives at most [`MAX_SAVED_BYTES`] from which
//! another host goes on. The peer sees one session.
//!
//! # Example
//!
//! The server's end of a session moves to another host between two records:
//!
//! ```
//! use prism_tls::{DirectionKeys, Event, Secret, Session, SessionKeys, Suite};
//!
//! /// A session whose handshake left these secrets.
//! fn session(read: u8, write: u8) -> Result<Session, Box<dyn std::error::Error>> {
//!     let direction = |seed: u8| {
//!         let secret = Secret::new(&[seed; 32])?;
//!         Ok::<_, prism_tls::KeysError>(DirectionKeys::Tls13 { secret, sequence: 0 })
//!     };
//!     Ok(Session::new(SessionKeys {
//!         suite: Suite::Aes128Gcm,
//!         read: direction(read)?,
//!         write: direction(write)?,
//!     })?)
//! }
//!
//! let (mut server, mut client) = (session(1, 2)?, session(2, 1)?);
//! let mut records = Vec::new();
//! server.seal(b"Hello, ", &mut records)?;
//!
//! // The bytes hold secrets: they may leave the host under mutual TLS only.
//! let bytes = server.save()?;
//! let mut server = Session::restore(&bytes)?;
//! server.seal(b"world!", &mut records)?;
//!
//! let mut text = Vec::new();
//! while !records.is_empty() {
//!     let opened = client.open(&mut records)?;
//!     if let Event::Data(place) = opened.event {
//!         text.extend_from_slice(&records[place]);
//!     }
//!     records.drain(..opened.consumed);
//! }
//! assert_eq!(text, b"Hello, world!");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! - A session is of TLS 1.3, or of TLS 1.2 with ECDHE. Its suite has AES-GCM or
//!   ChaCha20-Poly1305.
//! - There is no renegotiation, no 0-RTT, no client certificate, and no handshake message
//!   after the handshake but KeyUpdate.
//! - A saved session holds secrets in the clear. The caller encrypts and authenticates the
//!   way to the other host, and lets one host only restore it.
//! - The caller's buffers move beside the session: input that is not opened yet, and records
//!   that are not sent yet.
//! - The kernel (kTLS) can take the write side only, and gives it back with its sequence
//!   number.
#![forbid(unsafe_code)]

pub mod accept;
mod capture;
mod handshake;
pub mod keys;
pub mod session;

pub use capture::Capture;
pub use handshake::{Handshake, HandshakeError};
pub use keys::{DirectionKeys, KeysError, Secret, SessionKeys};
pub use prism_proto::tls::{KernelKeys, Suite, Version};
pub use session::{
    Event, HEADER_BYTES, MAX_PLAINTEXT_BYTES, MAX_RECORD_BYTES, MAX_SAVED_BYTES, NonceWitness,
    OpenError, Opened, RestoreError, SaveError, SealError, Session, Surroundings, Unwitnessed,
};
