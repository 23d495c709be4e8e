//! An HTTP server for the metrics and the health of a process.
//!
//! Not here: the pages of a process (`node/pages.rs`, `switch/pages.rs`), and commands
//! (`node/admin.rs`).

mod http;
mod metrics;

pub(crate) use http::{Page, Pages, bind, serve};
pub(crate) use metrics::{Metric, Value, build_info, render};
