//! The end of one record of the handshake, and input that is no TLS. rustls reads the records,
//! and makes the alerts for bad ones.

use crate::session::HEADER_BYTES;

/// Longest fragment of any record (RFC 5246, 6.2.3): 2^14 + 2,048.
const MAX_FRAGMENT_BYTES: usize = (1 << 14) + 2_048;
/// Content types change_cipher_spec, alert, handshake and application_data.
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// The type of a client's first record.
const HANDSHAKE: u8 = 22;

/// Most bytes that a client may send before the handshake ends, headers included. A
/// ClientHello with post-quantum key shares and a ticket has less than 4 KiB, and comes twice
/// after a HelloRetryRequest. 32 KiB are four times that.
pub const MAX_HANDSHAKE_BYTES: usize = 32 << 10;

/// The front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Less than a record.
    Partial,
    /// A record of this many bytes, header included.
    Record(usize),
    /// A header that no record has.
    Broken,
}

/// Looks at the front of `bytes`.
pub(super) fn frame(bytes: &[u8]) -> Frame {
    let &[kind, major, _, high, low, ..] = bytes else {
        return Frame::Partial;
    };
    let fragment_bytes = usize::from(u16::from_be_bytes([high, low]));
    if !CONTENT_TYPES.contains(&kind) || major != 3 || fragment_bytes > MAX_FRAGMENT_BYTES {
        return Frame::Broken;
    }
    let record_bytes = HEADER_BYTES + fragment_bytes;
    if bytes.len() < record_bytes {
        Frame::Partial
    } else {
        Frame::Record(record_bytes)
    }
}

/// Whether a client whose first byte is `first` speaks TLS.
pub(super) fn opens_tls(first: u8) -> bool {
    first == HANDSHAKE
}

/// Whether a client whose first byte is `first` may speak HTTP: every method
/// begins with a capital letter, and no TLS record does.
pub(super) fn opens_http(first: u8) -> bool {
    first.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_where_its_header_says() {
        let record = [22, 3, 1, 0, 2, 1, 2, 99];
        assert_eq!(frame(&record), Frame::Record(7));
        for short in 0..7 {
            assert_eq!(frame(record.get(..short).unwrap_or(&[])), Frame::Partial);
        }
    }

    #[test]
    fn a_header_that_no_record_has_is_broken_at_once() {
        for header in [[19, 3, 3, 0, 1], [22, 2, 0, 0, 1], [22, 3, 3, 0x48, 1]] {
            assert_eq!(frame(&header), Frame::Broken, "{header:?}");
        }
        assert_eq!(frame(&[22, 3, 3, 0x48, 0]), Frame::Partial);
    }

    #[test]
    fn tls_and_http_differ_in_the_first_byte() {
        assert!(opens_tls(22) && !opens_http(22));
        assert!(b"GPHDOCT".iter().all(|&b| opens_http(b) && !opens_tls(b)));
        assert!(!opens_tls(0x80) && !opens_http(0x80));
    }
}
