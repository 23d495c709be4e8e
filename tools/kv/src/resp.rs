//! RESP, the protocol of Redis: the heads of commands, and answers. No I/O.

use std::ops::Range;

/// The largest value.
pub(crate) const MAX_VALUE_BYTES: usize = 64 << 20;
/// The longest line with a number, or with an inline command.
const MAX_LINE_BYTES: usize = 1024;

/// Bounds on a command.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    arguments: usize,
    /// The size of an argument.
    argument_bytes: usize,
    /// The size of all that precedes the last argument: it has to fit into a stream's buffer.
    before_last_bytes: usize,
}

impl Limits {
    /// The limits of a client's commands.
    pub(crate) const CLIENT: Self = Self {
        arguments: 1024,
        argument_bytes: MAX_VALUE_BYTES,
        before_last_bytes: 128 << 10,
    };
    /// The limits between nodes, which put a number in front of a client's command, spell lengths
    /// their own way, and send a whole answer as one argument.
    pub(crate) const NODE: Self = Self {
        arguments: Self::CLIENT.arguments + 1,
        argument_bytes: Self::CLIENT.argument_bytes + (64 << 10),
        before_last_bytes: Self::CLIENT.before_last_bytes + (4 << 10),
    };
}

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
pub(crate) fn command(input: &[u8], limits: Limits) -> Result<Option<Command>, Malformed> {
    match input.first() {
        None => return Ok(None),
        Some(b'*') => {}
        Some(_) => return inline(input).map(Some),
    }
    let mut command = Command {
        arguments: Vec::new(),
        rest: Rest::Missing,
    };
    let Some((count, mut at)) = number(input, 0, b'*', limits.arguments)? else {
        return Ok(Some(command));
    };
    for n in 0..count {
        let Some((bytes, start)) = number(input, at, b'$', limits.argument_bytes)? else {
            return Ok(Some(command));
        };
        let (end, is_last) = (start + bytes, n + 1 == count);
        if !is_last && end > limits.before_last_bytes {
            return Err(Malformed("more than 128 KiB precede the last argument"));
        }
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Malformed("an argument does not end with its length")),
            None => {
                if is_last {
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

/// The size of what [`add_value`] adds.
pub(crate) fn value_bytes(value: Option<&[u8]>) -> usize {
    match value.map(<[u8]>::len) {
        None => "$-1\r\n".len(),
        Some(bytes) => bytes + bytes.to_string().len() + "$\r\n\r\n".len(),
    }
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

    fn client_command(input: &[u8]) -> Result<Option<Command>, Malformed> {
        command(input, Limits::CLIENT)
    }

    #[test]
    fn a_command_is_read_whatever_part_of_it_has_arrived() {
        let set = encode(&[b"SET", b"key", b"value"]);
        assert_eq!(client_command(b""), Ok(None));
        for end in 1..set.len() {
            let read = client_command(&set[..end]).unwrap().unwrap();
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
        let read = client_command(&two).unwrap().unwrap();
        assert_eq!(read.rest, Rest::Complete(set.len()));
        let arguments = read.arguments.iter().map(|place| &two[place.clone()]);
        assert!(arguments.eq([&b"SET"[..], b"key", b"value"]));
    }

    #[test]
    fn an_inline_command_has_words() {
        let read = client_command(b"get  a\r\nnext").unwrap().unwrap();
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
                client_command(input).is_err(),
                "{:?}",
                String::from_utf8_lossy(input)
            );
        }
    }

    #[test]
    fn nodes_read_every_command_of_a_client_with_a_number_in_front() {
        let before = Limits::CLIENT.before_last_bytes;
        // The largest number of arguments, and the largest key that is not the last argument.
        let many = vec![&b"k"[..]; Limits::CLIENT.arguments];
        let key = vec![b'k'; before - "*3\r\n$3\r\nSET\r\n$131050\r\n".len()];
        let large: [&[u8]; 3] = [b"SET", &key, b"value"];
        for write in [&many[..], &large[..]] {
            let read = client_command(&encode(write)).unwrap().unwrap();
            assert!(matches!(read.rest, Rest::Complete(_)));
            let number = u64::MAX.to_string();
            let numbered = encode(&[&[number.as_bytes()], write].concat());
            assert!(client_command(&numbered).is_err());
            let read = command(&numbered, Limits::NODE).unwrap().unwrap();
            assert_eq!(read.rest, Rest::Complete(numbered.len()));
            assert_eq!(read.arguments.len(), write.len() + 1);
        }
    }

    #[test]
    fn what_precedes_the_last_argument_is_bounded_before_it_arrives() {
        let key = vec![b'k'; Limits::CLIENT.before_last_bytes];
        let set = encode(&[b"SET", &key, b"value"]);
        assert!(client_command(&set).is_err());
        assert!(client_command(&set[.."*3\r\n$3\r\nSET\r\n$131072\r\n".len()]).is_err());
        let get = encode(&[b"GET", &key]);
        assert!(client_command(&get).is_ok());
    }

    #[test]
    fn the_size_of_a_value_is_that_of_its_encoding() {
        for value in [None, Some(&b""[..]), Some(b"v"), Some(&[b'v'; 100])] {
            let mut encoded = Vec::new();
            add_value(&mut encoded, value);
            assert_eq!(value_bytes(value), encoded.len());
        }
    }
}
