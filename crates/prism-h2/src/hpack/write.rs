//! Encodes blocks of header fields. Nothing is added to the table, so that a connection takes no
//! table along, and no text that an attacker guesses shortens another one (RFC 7541, section 7.1).

use super::table::STATIC;
use super::{TABLE_BYTES, huffman, integer};

/// A field that no table gets.
const LITERAL: u8 = 0x00;
/// A field that no later hop may add to a table either.
const NEVER_INDEXED: u8 = 0x10;
const INDEXED: u8 = 0x80;
const HUFFMAN: u8 = 0x80;
/// A change of the table's size to 0.
const EMPTY_TABLE: u8 = 0x20;

/// Fields whose values are secrets.
const SECRETS: [&str; 3] = ["authorization", "cookie", "set-cookie"];

/// Encodes the blocks of one connection, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoder {
    /// Whether the next block begins with a change of the table's size, as the other side has
    /// allowed less than the default (RFC 7541, section 4.2).
    pub owes_resize: bool,
}

impl Encoder {
    /// Notes that the other side allows a table of `max_bytes`.
    pub fn limit_table(&mut self, max_bytes: usize) {
        self.owes_resize |= max_bytes < TABLE_BYTES;
    }

    /// Begins a block.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.owes_resize) {
            out.push(EMPTY_TABLE);
        }
    }

    /// Appends a field to a block that was begun. `name` has lower case.
    pub fn put(&self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let named = || {
            let all = STATIC.iter().zip(1_usize..);
            all.filter(|((known, _), _)| known.as_bytes() == name)
        };
        let mut same = named().filter(|((_, known), _)| known.as_bytes() == value);
        if let Some((_, index)) = same.next().filter(|_| !value.is_empty()) {
            return integer::put(INDEXED, 7, index, out);
        }
        let is_secret = SECRETS.iter().any(|secret| secret.as_bytes() == name);
        let form = if is_secret { NEVER_INDEXED } else { LITERAL };
        match named().next() {
            Some((_, index)) => integer::put(form, 4, index, out),
            None => {
                out.push(form);
                put_text(name, out);
            }
        }
        put_text(value, out);
    }
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    let encoded_len = huffman::encoded_len(text);
    if encoded_len < text.len() {
        integer::put(HUFFMAN, 7, encoded_len, out);
        huffman::encode(text, out);
    } else {
        integer::put(0, 7, text.len(), out);
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_fields_are_short_and_secrets_stay_out_of_tables() {
        let mut encoder = Encoder::default();
        let put = |encoder: &mut Encoder, name: &str, value: &str| {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.put(name.as_bytes(), value.as_bytes(), &mut out);
            out
        };
        assert_eq!(put(&mut encoder, ":status", "200"), [0x88]);
        let teapot = put(&mut encoder, ":status", "418");
        assert_eq!(teapot.first(), Some(&0x08));
        assert_eq!(put(&mut encoder, "server", ""), [0x0f, 0x27, 0x00]);
        let cookie = put(&mut encoder, "set-cookie", "~");
        assert_eq!(cookie, [0x1f, 0x28, 0x01, b'~']);
        let unknown = put(&mut encoder, "x", "\u{1}");
        assert_eq!(unknown, [0x00, 0x01, b'x', 0x01, 0x01]);
        encoder.limit_table(TABLE_BYTES);
        assert_eq!(put(&mut encoder, ":status", "200"), [0x88]);
        encoder.limit_table(0);
        encoder.limit_table(TABLE_BYTES);
        assert_eq!(put(&mut encoder, ":status", "200"), [0x20, 0x88]);
        assert_eq!(put(&mut encoder, ":status", "200"), [0x88]);
    }
}
