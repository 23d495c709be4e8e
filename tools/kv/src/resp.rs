//! RESP, the protocol of Redis: commands and answers. No I/O.

use std::io;

/// The largest command of a client, which the buffer of a connection has room for.
pub(crate) const MAX_COMMAND_BYTES: usize = 128 << 10;
/// The largest command or answer between nodes. The buffer of a relay stream takes 256 KiB.
pub(crate) const MAX_NODE_BYTES: usize = MAX_COMMAND_BYTES + 1024;
/// The longest line with a length.
const MAX_LINE_BYTES: usize = 32;

/// A command, and its bytes.
type Command = (Vec<Vec<u8>>, usize);

/// Reads the command at the beginning of `input`. None if not all of it has arrived.
///
/// # Errors
/// `InvalidData` if it is none, or is larger than `max_bytes`.
pub(crate) fn command(input: &[u8], max_bytes: usize) -> io::Result<Option<Command>> {
    let Some((count, mut at)) = length(input, 0, b'*', max_bytes)? else {
        return Ok(None);
    };
    let mut arguments = Vec::new();
    for _ in 0..count {
        let Some((bytes, start)) = length(input, at, b'$', max_bytes)? else {
            return Ok(None);
        };
        at = start + bytes + 2;
        if at > max_bytes {
            return Err(malformed("a command is too large"));
        }
        let Some(argument) = input.get(start..at) else {
            return Ok(None);
        };
        let argument = argument.strip_suffix(b"\r\n");
        let argument = argument.ok_or_else(|| malformed("an argument is longer than its length"));
        arguments.push(argument?.to_vec());
    }
    Ok(Some((arguments, at)))
}

/// The length behind `kind` at `at`, and the place behind its line.
fn length(
    input: &[u8],
    at: usize,
    kind: u8,
    max_bytes: usize,
) -> io::Result<Option<(usize, usize)>> {
    let line = input.get(at..).unwrap_or_default();
    let line = line.get(..MAX_LINE_BYTES).unwrap_or(line);
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        let is_possible = line.len() < MAX_LINE_BYTES && line.first().is_none_or(|b| *b == kind);
        return is_possible
            .then_some(None)
            .ok_or_else(|| malformed("a length is expected"));
    };
    let digits = line.get(..end).and_then(|line| line.strip_prefix(&[kind]));
    let digits = digits.and_then(|digits| digits.strip_suffix(b"\r"));
    let number = integer(digits.unwrap_or_default())?;
    let number = usize::try_from(number)
        .ok()
        .filter(|number| *number <= max_bytes);
    let number = number.ok_or_else(|| malformed("a length is too large"))?;
    Ok(Some((number, at + end + 1)))
}

pub(crate) fn integer(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed("a number is expected"))
}

pub(crate) fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// An answer of one line.
pub(crate) fn line(kind: char, text: &str) -> Vec<u8> {
    format!("{kind}{text}\r\n").into_bytes()
}

/// An error. Its text is one line.
pub(crate) fn error(text: &str) -> Vec<u8> {
    line('-', &text.replace(['\r', '\n'], " "))
}

/// An answer with a value; `None` is that of no key.
pub(crate) fn value(value: Option<&[u8]>) -> Vec<u8> {
    let Some(value) = value else {
        return line('$', "-1");
    };
    [&line('$', &value.len().to_string()), value, b"\r\n"].concat()
}

/// A command with these arguments.
pub(crate) fn encode(arguments: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut command = line('*', &arguments.len().to_string());
    for argument in arguments {
        command.extend(value(Some(argument.as_ref())));
    }
    command
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of_client(input: &[u8]) -> io::Result<Option<Command>> {
        command(input, MAX_COMMAND_BYTES)
    }

    #[test]
    fn a_command_is_read_when_all_of_it_has_arrived() {
        let arguments = [&b"SET"[..], b"key", b"value"];
        let set = encode(&arguments);
        for end in 0..set.len() {
            let part = set.get(..end).unwrap();
            assert_eq!(of_client(part).unwrap(), None, "{end}");
        }
        let two = [&set[..], b"*1\r\n"].concat();
        let (read, bytes) = of_client(&two).unwrap().unwrap();
        assert_eq!(
            (read, bytes),
            (arguments.map(<[u8]>::to_vec).into(), set.len())
        );
    }

    #[test]
    fn input_that_is_no_command_or_too_large_is_refused() {
        for input in [
            &b"GET key\r\n"[..],
            b"*x\r\n",
            b"*-1\r\n",
            b"*999999\r\n",
            b"*1\r\nGET\r\n",
            b"*1\r\n$3\r\nGETTT",
            b"*2\r\n$99999999999999999999\r\n",
            b"*2\r\n$3\r\nGET\r\n$131070\r\n",
            &[b'*'; 40],
        ] {
            assert!(
                of_client(input).is_err(),
                "{:?}",
                String::from_utf8_lossy(input)
            );
        }
    }
}
