//! The server's side of HTTP/2 (RFC 9113), without I/O and clock, for connections that go on at
//! another host: all state can be saved and restored. No maintained crate can do that.
//!
//! | question | file |
//! |---|---|
//! | how are frames read and written? | `frame.rs` |
//! | how are header fields compressed? | `hpack.rs` (RFC 7541) |
//! | which faults end what? | `error.rs` |
//!
//! Not here yet: streams and windows. Not here: sockets, TLS, and what answers a request.
#![forbid(unsafe_code)]

pub mod error;
pub mod frame;
pub mod hpack;
