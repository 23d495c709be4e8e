//! The built-in service: an S3-compatible object store.
//!
//! [`Objects`] implements [`prism_service::Service`]: it identifies callers, reads S3's
//! operations, decides which backends answer them, and answers from this node's store.
//!
//! | question | file |
//! |---|---|
//! | which nodes answer a request? | `route.rs` |
//! | who is the caller? | `auth.rs` |
//! | may they do this? | `admit.rs`; the documents that say so: `rules.rs` |
//! | which function answers an operation? | `serve.rs`; of buckets: `buckets.rs` |
//! | how does a body get to the disk? | `bodies.rs` |
//!
//! Not here: connections (`prism-gateway`), other replicas (`prism-replicas`), S3's formats
//! (`prism-s3`), and files (`prism-store`).
#![forbid(unsafe_code)]

mod admit;
mod answer;
mod attributes;
mod auth;
mod bodies;
mod buckets;
mod caller_shares;
mod change_rates;
mod commits;
mod copy;
mod delete;
mod documents;
mod get;
mod hashing;
mod listing;
mod merge;
mod multipart;
mod objects;
mod pieces;
mod put;
mod quotas;
mod request;
mod route;
mod rules;
mod serve;
mod shared;
mod source;
mod tagging;
mod versions;

pub use objects::Objects;
pub use request::{Meaning, Request};
pub use route::owner_of_unread;
pub use shared::Shared;
