//! S3 semantics and authentication over `prism-http`, without I/O.
//!
//! A node parses a request head, then asks this crate who is calling
//! ([`auth`]), what is wanted ([`op`]), what the body must hash to
//! ([`integrity`]), how it travels ([`streaming`]), which bytes to send ([`range`]), and how the answer reads
//! ([`xml`], [`error`]). Time is a parameter everywhere.
//!
//! Not here: sockets, storage, placement, hand-off. Operations that are not
//! served are recognised and named ([`op::Operation::Unsupported`]), so that a
//! client learns what is missing instead of getting something else done.

#![forbid(unsafe_code)]

pub mod auth;
pub mod cors;
pub mod encoded_word;
pub mod error;
pub mod hashes;
pub mod integrity;
pub mod list;
pub mod metadata;
pub mod names;
pub mod op;
pub mod policy;
pub mod query;
pub mod range;
pub mod sign;
pub mod streaming;
pub mod tags;
pub mod time;
pub mod xml;

mod canonical;
mod conditions;
mod unsupported;

pub use auth::{Anonymous, Authenticated, Authenticator, Credentials, Payload, Principal};
pub use conditions::{Conditions, Outcome};
pub use error::{Code, S3Error};
pub use integrity::{Algorithm, BodyDigest, ChecksumType, Digests, Expected};
pub use list::{ListObjects, ListUploads, ListVersion, ListVersions};
pub use metadata::ObjectHeaders;
pub use names::{BucketName, ObjectKey};
pub use op::{BucketOperation, Document, ObjectOperation, ObjectRef, Operation};
pub use policy::Policy;
pub use range::{ByteRange, RangeSpec, Unsatisfiable};
pub use sign::Signer;
pub use streaming::{Seed, StreamDecoder, Streaming};
pub use tags::Tags;
