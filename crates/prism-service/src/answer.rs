//! Sends answers that fit into memory.

use std::io;

use prism_http::{Exchange, ResponseFraming, ResponseHead};

use crate::Io;

/// Sends a whole answer. Returns whether the connection lives on.
///
/// # Errors
/// Fails with the errors of the connection, which then can have no further request.
pub async fn send(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    mut head: ResponseHead,
    body: &[u8],
) -> io::Result<bool> {
    set(&mut head, "Server", "Prism")?;
    let mut bytes = Vec::with_capacity(512 + body.len());
    let written = head.write_to(exchange, Some(body.len() as u64), &mut bytes);
    if written.framing != ResponseFraming::None {
        bytes.extend_from_slice(body);
    }
    io.write_all(&bytes).await?;
    Ok(written.keep_alive)
}

/// Sets a header field.
///
/// # Errors
/// The value is not allowed in a header. The caller should have checked it.
pub fn set(head: &mut ResponseHead, name: &str, value: impl AsRef<[u8]>) -> io::Result<()> {
    head.headers_mut()
        .set(name, value)
        .map_err(io::Error::other)
}
