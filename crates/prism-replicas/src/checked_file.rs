//! Sends an object's bytes, and compares each block with its checksum before.

use std::io;
use std::ops::Range;

use prism_common::input::SourceFault;
use prism_service::Exchange;
use prism_store::{CheckedFile, Error};

/// Compares the block of the byte `start` with its checksum, unless the block is known to be
/// good. Returns the end of the good bytes, at most `end`. Reads the disk on another thread.
///
/// # Errors
/// The block is damaged or cannot be read.
pub async fn check(file: &CheckedFile, start: u64, end: u64) -> Result<u64, Error> {
    let known = file.good_until(start, end);
    if known > start || start == end {
        return Ok(known);
    }
    let file = file.clone();
    let reading = tokio::task::spawn_blocking(move || file.check(start, end));
    match reading.await {
        Ok(checked) => checked,
        Err(error) => Err(io::Error::other(error).into()),
    }
}

/// Sends the bytes of `range`, of which [`check`] has checked those before `checked_until`.
/// Checks the next block while it sends one.
///
/// # Errors
/// Fails with the errors of the connection. A damaged block ends the answer in its middle, with a
/// [`SourceFault`].
pub async fn send(
    exchange: &mut impl Exchange,
    file: &CheckedFile,
    range: Range<u64>,
    checked_until: u64,
) -> io::Result<()> {
    let mut at = range.start;
    let mut checked_until = checked_until;
    while at < range.end {
        let sending = exchange.file(file.file(), at, checked_until - at);
        let (sent, next) = tokio::join!(sending, check(file, checked_until, range.end));
        sent?;
        at = checked_until;
        checked_until = next.map_err(|error| SourceFault::error(io::Error::other(error)))?;
    }
    Ok(())
}
