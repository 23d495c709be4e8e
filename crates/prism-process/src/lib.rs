//! A process as its operator sees it: its log, its messages to the service manager, and its
//! pages over HTTP with metrics.
//!
//! Not here: the figures on the pages, and when a process is ready or alive.
#![forbid(unsafe_code)]

mod admin;
mod fetch;
mod latest;
pub mod log;
mod metrics;
pub mod notify;
pub mod pages;
mod private;
mod stops;

pub use admin::{ask, printable};
pub use fetch::fetch;
pub use latest::Latest;
pub use metrics::{Metric, Value, build_info, render};
pub use private::keep_files_private;
pub use stops::Stops;
