//! The host of a node or a switch: what it needs (`prism setup`, `prism doctor`), and whether a
//! configuration and its files are right (`prism check`).
//!
//! Not here: the running process, and the cluster.
#![forbid(unsafe_code)]

pub mod check;
pub mod doctor;
mod faults;
mod needs;
pub mod setup;

pub use faults::{node_faults, trace_fault};
