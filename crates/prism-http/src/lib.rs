//! HTTP/1.1 at the request boundary, without I/O.
//!
//! A connection may leave a host between two requests only if no byte behind the current
//! request has been consumed. So every parser takes a slice, returns exactly how many of its
//! bytes it used, and keeps none of the others. Bodies are never copied: decoders return ranges
//! of their input, which a caller can splice or `sendfile`.
//!
//! Every message that two implementations could read in two ways is refused, as a proxy must
//! (RFC 9112 section 11.2).
//!
//! Not here: sockets, clocks and timeouts, which the caller has; S3, TLS, HTTP/2.
//!
//! ```
//! use prism_http::{Limits, RequestHead};
//! let buf = b"GET /b/k HTTP/1.1\r\nHost: s3\r\n\r\nGET /next";
//! let (head, consumed) = RequestHead::parse(buf, &Limits::DEFAULT)?.ok_or("incomplete")?;
//! assert_eq!(head.path(), "/b/k");
//! assert_eq!(&buf[consumed..], b"GET /next");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod answers;
mod body;
mod boundary;
mod chunked;
mod encode;
mod error;
mod forward;
mod framing;
mod headers;
mod limits;
mod plain;
mod request;
mod response;
mod status;
mod target;
mod trace_parent;
mod version;

pub use answers::{AnswerError, read_answer, read_body, take_body};
pub use body::{BodyReader, Step};
pub use chunked::ChunkedDecoder;
pub use encode::{CONTINUE, write_chunk, write_last_chunk};
pub use error::{BodyError, HeadError, HeaderError};
pub use forward::{are_alike, is_forwarding};
pub use framing::{BodyFraming, ResponseFraming};
pub use headers::Headers;
pub use http::Method;
pub use limits::Limits;
pub use plain::PlainAnswer;
pub use prism_common::input::Input;
pub use request::{RequestHead, without_port};
pub use response::{AnswerForm, ResponseHead, Written};
pub use status::{PROCESSING, UPGRADE_REQUIRED, reason};
pub use trace_parent::TraceParent;
pub use version::Version;
