//! A client of etcd for a cluster's state. It reads and watches keys below a prefix, changes
//! them if no other change came first, and binds them to leases.
//!
//! It speaks HTTP/1.1 and JSON, which every etcd since 3.4 offers beside gRPC on the same
//! port. A client that is cut off learns it in bounded time: every call has a timeout, and
//! is tried at each endpoint once.
//!
//! Not here: the meaning of keys, repeating a failed call, reading again after a watch broke.
#![forbid(unsafe_code)]

mod client;
mod connection;
mod endpoint;
mod error;
mod message;
mod watch;

pub use client::{EtcdClient, Fingerprint, Snapshot};
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use error::Error;
pub use message::{Change, Condition, Database, KeyEntry, LeaseId};
pub use watch::{Event, Update, Watch};
