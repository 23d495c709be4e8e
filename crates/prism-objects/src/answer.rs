//! Answers that fit into memory.

use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_s3::{Code, S3Error};
use prism_service::{Io, set};
use time::OffsetDateTime;

/// The delay after which a client repeats a request that was answered 503, in seconds.
const RETRY_AFTER_S: &str = "1";

/// The answer to an operation that moves no object's bytes.
pub(crate) struct Answer {
    pub(crate) head: ResponseHead,
    /// XML, unless the head has another content type.
    pub(crate) document: Vec<u8>,
}

impl Answer {
    /// An answer without a document.
    pub(crate) fn empty(status: u16) -> Self {
        Self {
            head: ResponseHead::new(status),
            document: Vec::new(),
        }
    }

    /// A 200 with an XML document.
    pub(crate) fn xml(document: Vec<u8>) -> Self {
        Self {
            head: ResponseHead::new(200),
            document,
        }
    }

    /// Sends the answer. Returns whether the connection lives on.
    pub(crate) async fn send(self, io: &mut impl Io, exchange: &Exchange<'_>) -> io::Result<bool> {
        let has_type = self.head.headers().get("content-type").is_some();
        match has_type || self.document.is_empty() {
            true => send(io, exchange, self.head, &self.document).await,
            false => send_xml(io, exchange, self.head, &self.document).await,
        }
    }
}

/// The error for a header field that cannot be written: its value should have been checked before.
pub(crate) fn internal<E>(_: E) -> S3Error {
    Code::InternalError.into()
}

/// A time in milliseconds since the Unix epoch.
pub(crate) fn from_ms(ms: u64) -> OffsetDateTime {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds);
    time.unwrap_or(OffsetDateTime::UNIX_EPOCH)
        + time::Duration::milliseconds((ms % 1000).cast_signed())
}

/// A random name of one request, for its answer and for logs.
pub(crate) fn request_id() -> String {
    let id = fastrand::u64(..);
    let digits: [u8; 16] = std::array::from_fn(|n| {
        let digit = (id >> (60 - 4 * n)) as u8 & 0xf;
        digit + if digit < 10 { b'0' } else { b'A' - 10 }
    });
    String::from_utf8_lossy(&digits).into_owned()
}

/// Sends a whole answer. Returns whether the connection lives on.
pub(crate) async fn send(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    mut head: ResponseHead,
    body: &[u8],
) -> io::Result<bool> {
    if head.headers().get("x-amz-request-id").is_none() {
        set(&mut head, "x-amz-request-id", request_id())?;
    }
    prism_service::send(io, exchange, head, body).await
}

/// Sends an XML document. Returns whether the connection lives on.
pub(crate) async fn send_xml(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    mut head: ResponseHead,
    xml: &[u8],
) -> io::Result<bool> {
    set(&mut head, "Content-Type", "application/xml")?;
    send(io, exchange, head, xml).await
}

/// Sends an error as S3 does. Returns whether the connection lives on.
pub(crate) async fn send_error(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    error: &S3Error,
    resource: &str,
) -> io::Result<bool> {
    let head = ResponseHead::new(error.status());
    send_error_with(io, exchange, head, error, resource).await
}

/// Sends an error with a head that has its status and further fields.
pub(crate) async fn send_error_with(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    mut head: ResponseHead,
    error: &S3Error,
    resource: &str,
) -> io::Result<bool> {
    let id = request_id();
    set(&mut head, "x-amz-request-id", &id)?;
    if error.status() == 503 {
        set(&mut head, "Retry-After", RETRY_AFTER_S)?;
    }
    if error.status() == 304 {
        return send(io, exchange, head, &[]).await;
    }
    send_xml(io, exchange, head, &error.xml(resource, &id)).await
}
