//! S3 semantics and authentication over `prism-http`, without I/O.
//!
//! A node parses a request head with `prism-http`. This crate then tells the caller ([`auth`]),
//! the operation ([`op`]), whether it is allowed ([`access`]), the hashes that the body must have
//! ([`integrity`]), its framing in chunks ([`streaming`]), the bytes to send ([`range`]) and the
//! text of the answer ([`xml`], [`error`]). Time is a parameter everywhere.
//!
//! Not here: sockets, storage, placement, hand-off. An operation that is not served is
//! recognized and named ([`op::Operation::Unsupported`]), so that a client learns what is
//! missing and no other operation is done instead.
//!
//! ```
//! use prism_http::{Limits, RequestHead};
//! use prism_s3::{ObjectOperation, Operation};
//!
//! let request = b"GET /photos/2024/cat.jpg HTTP/1.1\r\nHost: s3.example.org\r\n\r\n";
//! let (head, _) = RequestHead::parse(request, &Limits::DEFAULT)?.ok_or("incomplete")?;
//! let operation = Operation::parse(&head)?;
//! let Operation::Object(object, ObjectOperation::Get(_)) = operation else {
//!     panic!("another operation");
//! };
//! assert_eq!((object.bucket.as_str(), object.key.as_str()), ("photos", "2024/cat.jpg"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod access;
pub mod auth;
pub mod canonical;
pub mod checksum;
pub mod cors;
pub mod domains;
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
pub mod rights;
pub mod streaming;
pub mod tags;
pub mod time;
pub mod xml;

mod conditions;
mod fields;
mod unsupported;

pub use auth::{Authenticated, Authenticator, Payload, Principal};
pub use checksum::{Algorithm, ChecksumType};
pub use conditions::{Conditions, Outcome, quoted};
pub use domains::Domains;
pub use error::{Code, S3Error};
pub use integrity::{BodyDigest, Digests, Expected};
pub use list::{ListBuckets, ListMarked, ListObjects, ListVersion, Listing};
pub use metadata::ObjectHeaders;
pub use names::{BucketName, ObjectKey};
pub use op::{BucketOperation, Document, ObjectOperation, ObjectRef, Operation};
pub use policy::Policy;
pub use range::{ByteRange, RangeSpec, Unsatisfiable};
pub use streaming::{Seed, StreamDecoder, Streaming};
pub use tags::Tags;
