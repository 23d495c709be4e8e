//! RESP, the protocol of Redis: the heads of commands, and answers. No I/O.

use std::ops::Range;

/// The largest number of arguments of a command.
const MAX_ARGUMENTS: usize = 1024;
/// The largest value.
pub(crate) const MAX_VALUE_BYTES: usize = 64 << 20;
/// The longest line with a number, or with an inline command.
const MAX_LINE_BYTES: usize = 1024;

/// As much of a command as has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The places of its arguments that are complete. The first one is its name.
    pub(crate) arguments: Vec<Range<usize>>,
    pub(crate) rest: Rest,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It is complete, and so many bytes long.
    Complete(usize),
    /// The last argument is incomplete: so many bytes long, from this place on.
    Last { start: usize, bytes: usize },
    /// Something else is missing.
    Missing,
}

/// Bytes that are no command. The connection cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Reads the command at the beginning of `input`; `None` if nothing of it has arrived.
pub(crate) fn command(input: &[u8]) -> Result<Option<Command>, Malformed> {
    match input.first() {
        None => return Ok(None),
        Some(b'*') => {}
        Some(_) => return inline(input).map(Some),
    }
    let mut command = Command {
        arguments: Vec::new(),
        rest: Rest::Missing,
    };
    let Some((count, mut at)) = number(input, 0, b'*', MAX_ARGUMENTS)? else {
        return Ok(Some(command));
    };
    for n in 0..count {
        let Some((bytes, start)) = number(input, at, b'$', MAX_VALUE_BYTES)? else {
            return Ok(Some(command));
        };
        let end = start + bytes;
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Malformed("an argument does not end with its length")),
            None => {
                if n + 1 == count {
                    command.rest = Rest::Last { start, bytes };
                }
                return Ok(Some(command));
            }
        }
        command.arguments.push(start..end);
        at = end + 2;
    }
    command.rest = Rest::Complete(at);
    Ok(Some(command))
}

/// A command as a line of words, for people.
fn inline(input: &[u8]) -> Result<Command, Malformed> {
    let Some(end) = line_end(input, 0)? else {
        return Ok(Command {
            arguments: Vec::new(),
            rest: Rest::Missing,
        });
    };
    let line = input.get(..end).unwrap_or_default();
    let words = line.split(u8::is_ascii_whitespace).scan(0, |at, word| {
        let start = *at;
        *at += word.len() + 1;
        Some(start..start + word.len())
    });
    Ok(Command {
        arguments: words.filter(|word| !word.is_empty()).collect(),
        rest: Rest::Complete(end + 1),
    })
}

/// The number behind `kind` at `at`, and the place behind its line.
fn number(
    input: &[u8],
    at: usize,
    kind: u8,
    most: usize,
) -> Result<Option<(usize, usize)>, Malformed> {
    match input.get(at) {
        None => return Ok(None),
        Some(found) if *found == kind => {}
        Some(_) => return Err(Malformed("expected the length of an argument")),
    }
    let Some(end) = line_end(input, at)? else {
        return Ok(None);
    };
    let digits = input.get(at + 1..end).unwrap_or_default();
    let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
    let value = std::str::from_utf8(digits).ok();
    let value = value.and_then(|digits| digits.parse().ok());
    let value = value.filter(|value| *value <= most);
    let value = value.ok_or(Malformed("a length is malformed or too large"))?;
    Ok(Some((value, end + 1)))
}

/// The place of the newline that ends the line at `at`.
fn line_end(input: &[u8], at: usize) -> Result<Option<usize>, Malformed> {
    let line = input.get(at..).unwrap_or_default();
    let found = line
        .iter()
        .take(MAX_LINE_BYTES)
        .position(|byte| *byte == b'\n');
    match found {
        Some(end) => Ok(Some(at + end)),
        None if line.len() >= MAX_LINE_BYTES => Err(Malformed("a line is too long")),
        None => Ok(None),
    }
}

/// Adds a line of the kind `kind`.
pub(crate) fn add_line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Adds a value; `None` is that of no key.
pub(crate) fn add_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(value) = value else {
        return add_line(out, b'$', "-1");
    };
    add_line(out, b'$', &value.len().to_string());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A command with its arguments.
pub(crate) fn encode(arguments: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = arguments.iter().map(|argument| argument.len() + 16).sum();
    let mut out = Vec::with_capacity(bytes + 16);
    add_line(&mut out, b'*', &arguments.len().to_string());
    for argument in arguments {
        add_value(&mut out, Some(argument));
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn a_command_is_read_whatever_part_of_it_has_arrived() {
        let set = encode(&[b"SET", b"key", b"value"]);
        assert_eq!(command(b""), Ok(None));
        for end in 1..set.len() {
            let read = command(&set[..end]).unwrap().unwrap();
            assert!(read.arguments.len() <= 2, "{end}");
            let has_length = end >= set.len() - 7;
            let rest = match has_length {
                true => Rest::Last {
                    start: set.len() - 7,
                    bytes: 5,
                },
                false => Rest::Missing,
            };
            // The key's end may be missing, and the key is not the last argument.
            assert_eq!(read.rest, rest, "{end}");
        }
        let mut two = set.clone();
        two.extend_from_slice(b"*1\r\n");
        let read = command(&two).unwrap().unwrap();
        assert_eq!(read.rest, Rest::Complete(set.len()));
        let arguments = read.arguments.iter().map(|place| &two[place.clone()]);
        assert!(arguments.eq([&b"SET"[..], b"key", b"value"]));
    }

    #[test]
    fn an_inline_command_has_words() {
        let read = command(b"get  a\r\nnext").unwrap().unwrap();
        assert_eq!(read.arguments, [0..3, 5..6]);
        assert_eq!(read.rest, Rest::Complete(8));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for input in [
            &b"*x\r\n"[..],
            b"*-1\r\n",
            b"*99999\r\n",
            b"*1\r\nGET\r\n",
            b"*1\r\n$3\r\nGETTT",
            b"*2\r\n$99999999999999999999\r\n",
            &[b'a'; 2000],
        ] {
            assert!(
                command(input).is_err(),
                "{:?}",
                String::from_utf8_lossy(input)
            );
        }
    }
}
