//! The C interface of `prism-handoff`, for programs with an event loop of their own.
//! `include/prism_handoff.h` is generated from this crate; docs/library.md explains it.
//!
//! An endpoint of `prism-handoff` runs in a thread of this library (`worker`). The program's
//! thread has a table of the connections (`endpoint`). Events and commands pass between the
//! two in queues, and an eventfd tells the program's loop that there are events. Only `ffi`
//! sees pointers of C. Handles of connections are numbers, so that one which has ended is an
//! error and no invalid pointer.
//!
//! Not here: TLS with clients, and several workers of a process.
#![deny(unsafe_code)]

mod carrier;
mod config;
mod endpoint;
#[allow(unsafe_code, reason = "pointers of C; ARCHITECTURE.md says why")]
mod ffi;
mod queue;
mod status;
mod worker;

pub use config::Config;
pub use endpoint::{Callbacks, ConnectionId, Endpoint};
pub use ffi::*;
pub use status::{Outcome, Status};
