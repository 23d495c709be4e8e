//! Integers with a prefix in the first byte (RFC 7541, section 5.1).

use super::HpackError;

/// The largest integer: no block has a longer text.
const MAX: usize = 1 << 24;

/// Takes an integer from the front of `input`. Its prefix is the last `prefix_bits` of the first
/// byte, less than 8.
pub(super) fn take(input: &mut &[u8], prefix_bits: u32) -> Result<usize, HpackError> {
    let (first, mut rest) = input.split_first().ok_or(HpackError::Truncated)?;
    let most = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(*first) & most;
    let mut shift = 0;
    while value >= most {
        let (byte, behind) = rest.split_first().ok_or(HpackError::Truncated)?;
        rest = behind;
        // Zeros without end would have no effect on the value.
        if shift > 21 {
            return Err(HpackError::Integer);
        }
        value += usize::from(byte & 0x7f) << shift;
        shift += 7;
        if value > MAX {
            return Err(HpackError::Integer);
        }
        if byte & 0x80 == 0 {
            break;
        }
    }
    *input = rest;
    Ok(value)
}

/// Appends an integer behind the bits of `first`, which are in front of the prefix.
pub(super) fn put(first: u8, prefix_bits: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1_usize << prefix_bits) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_they_were_written() {
        for prefix_bits in 4..8 {
            for value in (0..400).chain([4_096, 16_383, 16_384, MAX - 1, MAX]) {
                let mut out = Vec::new();
                put(0x80, prefix_bits, value, &mut out);
                let mut input = &out[..];
                assert_eq!(
                    take(&mut input, prefix_bits),
                    Ok(value),
                    "{prefix_bits} {value}"
                );
                assert!(input.is_empty());
                for len in 0..out.len() {
                    let mut cut = out.get(..len).unwrap_or_default();
                    assert_eq!(take(&mut cut, prefix_bits), Err(HpackError::Truncated));
                }
            }
        }
        // The example of the standard.
        let mut out = Vec::new();
        put(0, 5, 1_337, &mut out);
        assert_eq!(out, [31, 154, 10]);
    }

    #[test]
    fn an_integer_without_end_and_one_that_is_too_large_are_refused() {
        for bytes in [
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..],
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
            &[0xff, 0x80, 0x80, 0x80, 0x7f],
        ] {
            let mut input = bytes;
            assert_eq!(take(&mut input, 7), Err(HpackError::Integer), "{bytes:?}");
        }
    }
}
