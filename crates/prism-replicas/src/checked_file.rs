//! Sending an object's bytes, each block compared with its checksum before.

use std::io;

use prism_service::Io;
use prism_store::{CheckedFile, Error};

/// Compares the block that holds the byte `at`, unless it is known to be good,
/// and says up to where the bytes `[at, end)` are. Reads where it may block.
pub async fn check(file: &CheckedFile, at: u64, end: u64) -> Result<u64, Error> {
    let known = file.good_until(at, end);
    if known > at || at == end {
        return Ok(known);
    }
    let file = file.clone();
    let reading = tokio::task::spawn_blocking(move || file.check(at, end));
    match reading.await {
        Ok(checked) => checked,
        Err(error) => Err(io::Error::other(error).into()),
    }
}

/// Sends the bytes `[at, end)`, of which those before `good` were found good. The
/// next block is read and compared while one is sent; where it is not what was
/// written, sending ends with an error, and the client sees the answer break off.
pub async fn send(
    io: &mut impl Io,
    file: &CheckedFile,
    (mut at, mut good, end): (u64, u64, u64),
) -> io::Result<()> {
    while at < end {
        let sending = io.send_file(file.file(), at, good - at);
        let (sent, next) = tokio::join!(sending, check(file, good, end));
        sent?;
        at = good;
        good = next.map_err(io::Error::other)?;
    }
    Ok(())
}
