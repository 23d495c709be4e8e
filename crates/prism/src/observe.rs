//! An HTTP server for the metrics and the health of a process, and for the page that shows them
//! in a browser.
//!
//! Not here: the pages of a process (`node/pages.rs`, `switch/pages.rs`), and commands
//! (`node/admin.rs`).

mod assets;
mod fetch;
mod http;
mod latest;
mod metrics;

pub(crate) use assets::asset;
pub(crate) use fetch::fetch;
pub(crate) use http::{Page, Pages, bind, serve};
pub(crate) use latest::Latest;
pub(crate) use metrics::{Metric, Value, build_info, render};
