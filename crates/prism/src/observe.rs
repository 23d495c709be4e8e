//! What an administrator sees of a process: an HTTP server for its figures and its health.
//!
//! Not here: what a process shows (`node/pages.rs`, `switch/pages.rs`), and commands
//! (`node/admin.rs`).

mod http;
mod metrics;

pub(crate) use http::{Page, Pages, bind, serve};
pub(crate) use metrics::{Metric, Value, build_info, render};
