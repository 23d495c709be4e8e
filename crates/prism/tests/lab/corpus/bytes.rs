//! Bytes as text, and many known bytes.

/// The shortest part of the known bytes that a record names by its place.
const RUN_BYTES: usize = 24;
/// The known bytes are pieces of this length, each with its number.
const PIECE_BYTES: usize = 8;

/// The known bytes from `from` on.
pub fn known_bytes(from: usize, len: usize) -> Vec<u8> {
    let pieces = from / PIECE_BYTES..(from + len).div_ceil(PIECE_BYTES);
    let bytes: Vec<u8> = pieces
        .flat_map(|n| format!("{n:07}.").into_bytes())
        .collect();
    bytes[from % PIECE_BYTES..][..len].to_vec()
}

/// The bytes that a line stands for.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().unwrap() {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    bytes
}

/// Text for bytes. CRLF stays as it is.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (n, byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if bytes.get(n + 1) == Some(&b'\n') => text.push('\r'),
            b'\n' if n > 0 && bytes[n - 1] == b'\r' => text.push('\n'),
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// `$(bytes FROM LEN)` in place of parts of the known bytes.
pub fn name_known_bytes(text: &str) -> String {
    let mut named = String::new();
    let mut rest = text;
    while let Some(start) = start_of_known(rest) {
        let (before, part) = rest.split_at(start);
        named.push_str(before);
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let most = part.find(|c| !is_part(c)).unwrap_or(part.len());
        let from = place_of(part.as_bytes()).unwrap();
        let known = known_bytes(from, most);
        let pairs = known.iter().zip(part.as_bytes());
        let len = pairs.take_while(|(known, byte)| known == byte).count();
        named.push_str(&format!("$(bytes {from} {len})"));
        rest = &part[len..];
    }
    named + rest
}

/// The beginning of known bytes: the first place from which they go on for long enough.
fn start_of_known(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_start = |start: &usize| {
        place_of(&bytes[*start..]).is_some_and(|from| {
            let part = &bytes[*start..*start + RUN_BYTES];
            part == known_bytes(from, RUN_BYTES)
        })
    };
    (0..bytes.len().saturating_sub(RUN_BYTES - 1)).find(is_start)
}

/// The place among the known bytes of what `bytes` begin with, if they are some.
fn place_of(bytes: &[u8]) -> Option<usize> {
    let dot = bytes
        .iter()
        .take(PIECE_BYTES)
        .position(|byte| *byte == b'.')?;
    let number = std::str::from_utf8(bytes.get(dot + 1..dot + PIECE_BYTES)?).ok()?;
    let number: usize = number.parse().ok()?;
    (number * PIECE_BYTES).checked_sub(dot + 1)
}
