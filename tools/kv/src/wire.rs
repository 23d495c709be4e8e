//! Commands on a connection or a relay stream, also such as are larger than its buffer.

use std::io;
use std::ops::Range;

use prism_handoff::{Connection, RelayStream};

use crate::budget::Share;
use crate::resp::{self, Command, Limits, Rest};

/// An incomplete value of this size is not waited for in the buffer of a stream, which takes 256
/// KiB. A smaller one fits into it behind the other arguments.
pub(crate) const TAKEN_IN_PARTS_BYTES: usize = 64 << 10;

/// The operations that both kinds of streams have.
pub(crate) trait Stream {
    fn buffered(&self) -> &[u8];
    fn consume(&mut self, bytes: usize);
    /// Reads more; 0 at the end.
    async fn fill(&mut self) -> io::Result<usize>;
    /// Writes bytes that others follow.
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl Stream for Connection {
    fn buffered(&self) -> &[u8] {
        self.buffered()
    }

    fn consume(&mut self, bytes: usize) {
        self.consume(bytes);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.fill().await
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_more(bytes).await
    }
}

impl Stream for RelayStream {
    fn buffered(&self) -> &[u8] {
        self.buffered()
    }

    fn consume(&mut self, bytes: usize) {
        self.consume(bytes);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.fill().await
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes).await
    }
}

/// The arguments of a command, without a last one that is incomplete.
pub(crate) fn arguments(input: &[u8], places: &[Range<usize>]) -> Vec<Vec<u8>> {
    let arguments = places
        .iter()
        .map(|place| input.get(place.clone()).unwrap_or_default().to_vec());
    arguments.collect()
}

/// Takes a command that is complete in the buffer.
pub(crate) fn buffered_command(stream: &mut impl Stream) -> io::Result<Option<Vec<Vec<u8>>>> {
    match command(stream)? {
        Some(Command {
            rest: Rest::Complete(bytes),
            arguments: places,
        }) => {
            let taken = arguments(stream.buffered(), &places);
            stream.consume(bytes);
            Ok(Some(taken))
        }
        _ => Ok(None),
    }
}

/// Takes a command that is complete in the buffer, or waits for the rest of one that does not
/// fit. Not to be dropped meanwhile.
pub(crate) async fn begun_command(
    stream: &mut impl Stream,
    held: &mut Share,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    if let Some(Command {
        rest: Rest::Last { start, bytes },
        arguments: places,
    }) = command(stream)?
        && bytes >= TAKEN_IN_PARTS_BYTES
    {
        let mut taken = arguments(stream.buffered(), &places);
        stream.consume(start);
        taken.push(take_value(stream, bytes, held).await?);
        return Ok(Some(taken));
    }
    buffered_command(stream)
}

/// Takes the next command; `None` at the end of the stream. Not to be dropped meanwhile.
pub(crate) async fn next_command(
    stream: &mut impl Stream,
    held: &mut Share,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    loop {
        if let Some(command) = begun_command(stream, held).await? {
            return Ok(Some(command));
        }
        if stream.fill().await? == 0 {
            return Ok(None);
        }
    }
}

fn command(stream: &impl Stream) -> io::Result<Option<Command>> {
    resp::command(stream.buffered(), Limits::NODE).map_err(|found| malformed(found.0))
}

/// Takes a value of so many bytes, and the end of its line. `held` grows as it arrives.
pub(crate) async fn take_value(
    stream: &mut impl Stream,
    bytes: usize,
    held: &mut Share,
) -> io::Result<Vec<u8>> {
    let mut value = Vec::new();
    while value.len() < bytes {
        let found = stream.buffered();
        let some = found.get(..bytes - value.len()).unwrap_or(found);
        held.add(some.len())?;
        value.extend_from_slice(some);
        let taken = some.len();
        stream.consume(taken);
        if value.len() < bytes && stream.fill().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    while stream.buffered().len() < 2 {
        if stream.fill().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    if !stream.buffered().starts_with(b"\r\n") {
        return Err(malformed("an argument does not end with its length"));
    }
    stream.consume(2);
    Ok(value)
}

pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The number that a node has sent.
pub(crate) fn integer(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed("a number"))
}
