//! As much of etcd as a cluster's state takes: keys below a prefix are read,
//! changed where nobody else has changed them, bound to leases, and watched.
//!
//! It speaks the HTTP/1.1 and JSON that every etcd offers beside gRPC since 3.4,
//! on the same port. What a client is cut off from, it hears of in bounded time:
//! every call has a deadline, and is tried at each endpoint once.
//!
//! Not here: what the keys mean, when a call is repeated later, and which reads
//! have to be made again after a watch broke.
#![forbid(unsafe_code)]

mod client;
mod connection;
mod error;
mod message;
mod tls;
mod watch;

pub use client::{Change, Client, Condition, LeaseId, Outcome, Settings, Snapshot};
pub use error::Error;
pub use message::Entry;
pub use tls::{TlsError, TlsFiles};
pub use watch::{Event, Update, Watch};
