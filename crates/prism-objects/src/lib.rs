//! The built-in service: an S3-compatible object store.
//!
//! [`Objects`] implements [`prism_service::Service`]: it knows callers by their signatures,
//! reads S3's operations, says which backends answer them, and answers from this node's store.
//!
//! | question | file |
//! |---|---|
//! | which nodes answer a request? | `route.rs` |
//! | who is the caller, and may they? | `auth.rs`, `rules.rs` |
//! | which code answers an operation? | `serve.rs` |
//! | how does a body get to the disk? | `bodies.rs` |
//!
//! Not here: connections (`prism-gateway`), other replicas (`prism-replicas`), the meaning of
//! S3's words (`prism-s3`), and how bytes are kept (`prism-store`).
#![forbid(unsafe_code)]

mod answer;
mod auth;
mod bodies;
mod buckets;
mod commits;
mod copy;
mod documents;
mod get;
mod hashing;
mod listing;
mod merge;
mod multipart;
mod objects;
mod pieces;
mod put;
mod route;
mod rules;
mod serve;
mod source;
mod versions;

pub use objects::{Meaning, Objects, Request, Shared};
pub use route::owner_of_unread;
