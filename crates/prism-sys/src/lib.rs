//! The system calls of Prism. Only this crate and `prism-hash` have unsafe code.
//!
//! Every function takes and gives owned or borrowed descriptors and typed values, and every
//! operation has its own error. Nothing here keeps state between calls, waits, or logs.
//! `prism-handoff` knows the order of the steps of a hand-off, and what is said to the switch
//! and to other nodes.

mod error;
mod sockopt;

pub mod clock;
pub mod diag;
pub mod lab;
pub mod listen;
pub mod process;
pub mod tcp;
pub mod writeback;

pub use error::CallError;
