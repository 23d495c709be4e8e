//! The core of a node, below every service: its name, its configuration, its place in the
//! cluster, and the questions that each node answers whatever it serves.
//!
//! All threads of a node share one [`Core`]. A service adds what it needs: the object store its
//! replicas (`prism-replicas`), a service with upstreams nothing.
//!
//! Not here: what a node answers to clients, and the figures themselves.
#![forbid(unsafe_code)]

mod core;
mod jobs;
mod question;
mod survey;
mod view;

pub use crate::core::{Core, Observed};
pub use jobs::{JOBS_MAX, Jobs, Work, run_work};
pub use question::{CoreQuestion, CoreReply, NodeQuestion, Refused, StoreReport};
pub use survey::{CoreNode, NodeFigures, keep_jobs, send_reply};
pub use view::{ActiveView, follow_views};
