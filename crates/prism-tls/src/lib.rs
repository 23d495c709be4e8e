//! TLS sessions that move between hosts, without sockets, clocks or threads.
//!
//! A session is established by rustls and taken from it at the first safe
//! moment as [`SessionKeys`]. From then on the record layer here serves it, and
//! hands it from host to host.
#![forbid(unsafe_code)]

pub mod accept;
pub mod capture;
pub mod keys;
pub mod session;

pub use capture::{Capture, CaptureError};
pub use keys::{DirectionKeys, KeysError, Secret, SessionKeys, Suite, Version};
pub use session::{
    Event, HEADER_BYTES, KernelError, KernelKeys, MAX_OVERHEAD_BYTES, MAX_PLAINTEXT_BYTES,
    MAX_RECORD_BYTES, MAX_SAVED_BYTES, MIN_FRAGMENT_BYTES, NonceWitness, OpenError, Opened,
    RestoreError, SaveError, SavedSession, SealError, Session, Surroundings, Unwitnessed,
};
