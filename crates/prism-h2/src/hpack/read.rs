//! Decodes blocks of header fields.

use super::table::Table;
use super::{HpackError, SavedTable, huffman, integer};

/// Bytes that a field takes of a list besides its texts (RFC 9113, section 6.5.2).
const OVERHEAD_BYTES: usize = 32;

/// The fields of a block, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldList {
    /// Names and values, as far as they are within the bound.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there were more. The state of the connection is right nevertheless.
    pub is_too_long: bool,
}

/// Decodes the blocks of one connection, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoder {
    table: Table,
}

impl Decoder {
    /// Decodes a block. Of fields above `max_bytes`, each with 32 bytes besides its texts, nothing
    /// is kept.
    ///
    /// # Errors
    /// The block is malformed. No further one of this connection can be decoded.
    pub fn decode(&mut self, mut block: &[u8], max_bytes: usize) -> Result<FieldList, HpackError> {
        let mut list = FieldList::default();
        let mut left_bytes = max_bytes;
        let mut may_resize = true;
        let (mut name, mut value) = (Vec::new(), Vec::new());
        while let Some(first) = block.first() {
            // RFC 7541, section 6.
            match first.leading_zeros() {
                0 => {
                    let index = integer::take(&mut block, 7)?;
                    let (known, its_value) = self.table.get(index)?;
                    name.clear();
                    value.clear();
                    name.extend_from_slice(known);
                    value.extend_from_slice(its_value);
                }
                1 => {
                    self.take_literal(&mut block, 6, &mut name, &mut value)?;
                    self.table.add(&name, &value);
                }
                2 => {
                    let size_bytes = integer::take(&mut block, 5)?;
                    if !may_resize {
                        return Err(HpackError::TableSize);
                    }
                    self.table.resize(size_bytes)?;
                    continue;
                }
                _ => self.take_literal(&mut block, 4, &mut name, &mut value)?,
            }
            may_resize = false;
            let bytes = name.len() + value.len() + OVERHEAD_BYTES;
            match left_bytes.checked_sub(bytes) {
                Some(left) if !list.is_too_long => {
                    left_bytes = left;
                    list.fields.push((name.clone(), value.clone()));
                }
                _ => list.is_too_long = true,
            }
        }
        Ok(list)
    }

    /// Takes a field that no table has, whose name may be in one.
    fn take_literal(
        &self,
        block: &mut &[u8],
        prefix_bits: u32,
        name: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), HpackError> {
        match integer::take(block, prefix_bits)? {
            0 => take_text(block, name)?,
            index => {
                let (known, _) = self.table.get(index)?;
                name.clear();
                name.extend_from_slice(known);
            }
        }
        take_text(block, value)
    }

    /// The state of the decoder.
    #[must_use]
    pub fn save(&self) -> SavedTable {
        self.table.save()
    }

    /// The decoder with this state.
    ///
    /// # Errors
    /// No decoder has such a state.
    pub fn restore(saved: &SavedTable) -> Result<Self, HpackError> {
        let table = Table::restore(saved)?;
        Ok(Self { table })
    }
}

/// Takes a text (RFC 7541, section 5.2).
fn take_text(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let len = integer::take(block, 7)?;
    let (text, rest) = block.split_at_checked(len).ok_or(HpackError::Truncated)?;
    *block = rest;
    out.clear();
    if is_huffman {
        huffman::decode(text, out)
    } else {
        out.extend_from_slice(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hpack::{Encoder, TABLE_BYTES};

    const MAX: usize = 1 << 16;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    fn shown(list: &FieldList) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = list.fields.iter();
        let fields = fields.map(|(name, value)| format!("{}: {}\n", text(name), text(value)));
        fields.collect()
    }

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        // RFC 7541, appendix C.4: three requests on one connection, in the Huffman code.
        let mut decoder = Decoder::default();
        for (block, expected) in [
            (
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n",
            ),
            (
                "8286 84be 5886 a8eb 1064 9cbf",
                ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n\
                 cache-control: no-cache\n",
            ),
            (
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
                 custom-key: custom-value\n",
            ),
        ] {
            // Also if it is saved between two blocks.
            decoder = Decoder::restore(&decoder.save()).unwrap();
            let list = decoder.decode(&bytes(block), MAX).unwrap();
            assert_eq!(shown(&list), expected);
        }
        assert_eq!(decoder.save().fields.len(), 3);
    }

    #[test]
    fn a_block_that_is_malformed_is_refused() {
        for (block, expected) in [
            ("80", HpackError::Index(0)),
            ("be", HpackError::Index(62)),
            ("82 ff", HpackError::Truncated),
            ("40 05 61", HpackError::Truncated),
            ("40 01 61 81 1e", HpackError::Huffman),
            ("3f e2 1f", HpackError::TableSize),
            ("82 20", HpackError::TableSize),
            ("40 7f ff ff ff ff 7f", HpackError::Integer),
        ] {
            let decoded = Decoder::default().decode(&bytes(block), MAX);
            assert_eq!(decoded, Err(expected), "{block}");
        }
    }

    #[test]
    fn a_list_above_the_bound_leaves_the_state_right() {
        let mut decoder = Decoder::default();
        // An added field, twice.
        let list = decoder.decode(&bytes("40 01 61 01 62 be"), 40).unwrap();
        assert!(list.is_too_long && list.fields.len() == 1);
        let list = decoder.decode(&bytes("be"), MAX).unwrap();
        assert_eq!(shown(&list), "a: b\n");
        assert!(!list.is_too_long);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused_and_the_table_stays_within_its_bound() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut decoder = Decoder::default();
            for _ in 0..4 {
                let block: Vec<u8> = (0..rng.usize(..60)).map(|_| rng.u8(..)).collect();
                let decoded = decoder.decode(&block, MAX);
                let saved = decoder.save();
                let texts = saved.fields.iter();
                let texts = texts.map(|(name, value)| name.len() + value.len() + OVERHEAD_BYTES);
                assert!(texts.sum::<usize>() <= saved.max_bytes);
                assert!(saved.max_bytes <= TABLE_BYTES);
                if decoded.is_err() {
                    break;
                }
                assert_eq!(Decoder::restore(&saved), Ok(decoder.clone()));
            }
        }
    }

    #[test]
    fn a_decoder_reads_what_the_encoder_writes() {
        let names = ["content-type", "x-name", "etag", "server"];
        let mut rng = fastrand::Rng::with_seed(11);
        let mut decoder = Decoder::default();
        let mut encoder = Encoder::default();
        for round in 0..2_000 {
            if round % 100 == 0 {
                encoder.limit_table(rng.usize(..10_000));
            }
            let mut fields = vec![(b":status".to_vec(), b"200".to_vec())];
            for name in names.iter().take(rng.usize(..5)) {
                let value: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(b' '..b'~')).collect();
                fields.push((name.as_bytes().to_vec(), value));
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for (name, value) in &fields {
                encoder.put(name, value, &mut block);
            }
            let list = decoder.decode(&block, MAX).unwrap();
            assert_eq!(list.fields, fields);
        }
    }
}
