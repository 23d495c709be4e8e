//! The field `traceparent` of W3C Trace Context, by which a caller makes a request a part of its
//! own trace.

use data_encoding::HEXLOWER;

use crate::Headers;

/// Length of the field in version 00: version, trace, parent and flags with dashes between them.
const BYTES: usize = 55;
/// The version that is never valid.
const NO_VERSION: u8 = 0xff;
const FLAG_SAMPLED: u8 = 1;

/// The caller's part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The identifier of the trace, which is not zero.
    pub trace_id: [u8; 16],
    /// The identifier of the caller's span, which is not zero.
    pub parent_id: u64,
    /// Whether the caller records its part.
    pub is_sampled: bool,
}

impl TraceParent {
    /// The caller's part; `None` if the field is absent, repeated or malformed. A malformed field
    /// counts as absent (section 4.3 of the standard).
    pub fn of(headers: &Headers) -> Option<Self> {
        let mut fields = headers.get_all("traceparent");
        let field = fields.next()?;
        fields.next().is_none().then(|| Self::parse(field))?
    }

    fn parse(field: &[u8]) -> Option<Self> {
        let (known, rest) = field.split_at_checked(BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version] = bytes(parts.next()?)?;
        let trace_id = bytes(parts.next()?)?;
        let parent_id = u64::from_be_bytes(bytes(parts.next()?)?);
        let [flags] = bytes(parts.next()?)?;
        // Later versions may add parts.
        let is_whole = match version {
            0 => rest.is_empty(),
            NO_VERSION => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let is_valid = is_whole && trace_id != [0; 16] && parent_id != 0;
        is_valid.then_some(Self {
            trace_id,
            parent_id,
            is_sampled: flags & FLAG_SAMPLED != 0,
        })
    }
}

/// The bytes that these digits are. Upper-case digits are malformed.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    HEXLOWER.decode_mut(digits, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn of(fields: &[&str]) -> Option<TraceParent> {
        let mut headers = Headers::new();
        for field in fields {
            headers.append("TraceParent", field).unwrap();
        }
        TraceParent::of(&headers)
    }

    #[test]
    fn the_parts_are_read() {
        let read = |flags| of(&[&format!("00-{TRACE}-{PARENT}-{flags}")]).unwrap();
        let sampled = TraceParent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes(),
            parent_id: 0x00f0_67aa_0ba9_02b7,
            is_sampled: true,
        };
        let not_sampled = TraceParent {
            is_sampled: false,
            ..sampled
        };
        assert_eq!(read("01"), sampled);
        // Bit 1 says that the identifier is random.
        assert_eq!(read("03"), sampled);
        assert_eq!(read("00"), not_sampled);
        assert_eq!(read("02"), not_sampled);
    }

    #[test]
    fn later_versions_may_add_parts() {
        let version = |version, rest| of(&[&format!("{version}-{TRACE}-{PARENT}-01{rest}")]);
        assert!(version("01", "").is_some());
        assert!(version("cc", "-more").is_some());
        assert!(version("cc", "more").is_none());
        assert!(version("00", "-more").is_none());
        assert!(version("ff", "").is_none());
    }

    #[test]
    fn a_malformed_field_counts_as_absent() {
        let zeros = "0".repeat(32);
        let upper = TRACE.to_uppercase();
        let malformed = [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-1"),
            format!("00-{TRACE}-{PARENT}-0g"),
            format!("0-{TRACE}-{PARENT}-001"),
            format!("00-{upper}-{PARENT}-01"),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{PARENT}-{TRACE}-01"),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("00-{TRACE}--{PARENT}-1"),
        ];
        for field in &malformed {
            assert_eq!(of(&[field]), None, "{field}");
        }
        let good = format!("00-{TRACE}-{PARENT}-01");
        assert!(of(&[&good]).is_some());
        assert_eq!(of(&[&good, &good]), None);
        assert_eq!(of(&[]), None);
    }
}
