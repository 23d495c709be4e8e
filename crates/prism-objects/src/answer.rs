//! Answers that fit into memory.

use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_s3::S3Error;
use prism_service::{Io, set};
use time::OffsetDateTime;

/// When a client is to ask again that was answered 503, in seconds.
const RETRY_AFTER_S: &str = "1";

fn from_seconds(seconds: u64) -> OffsetDateTime {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Head and document of an answer.
pub(crate) type Answer = (ResponseHead, Vec<u8>);

/// A time in milliseconds since the Unix epoch.
pub(crate) fn from_ms(ms: u64) -> OffsetDateTime {
    from_seconds(ms / 1000) + time::Duration::milliseconds((ms % 1000).cast_signed())
}

/// Names one request in its answer and in logs.
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

/// Sends an XML document.
pub(crate) async fn send_xml(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    mut head: ResponseHead,
    xml: &[u8],
) -> io::Result<bool> {
    set(&mut head, "Content-Type", "application/xml")?;
    send(io, exchange, head, xml).await
}

/// Sends an error as S3 does.
pub(crate) async fn send_error(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    error: &S3Error,
    resource: &str,
) -> io::Result<bool> {
    let head = ResponseHead::new(error.status());
    send_error_with(io, exchange, head, error, resource).await
}

/// The same, with a head that has its status and says more.
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
