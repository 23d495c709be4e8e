//! The report by which a node tells others what was asked of it under the limits of a service
//! (docs/protocol.md, section 2.8). It is the body of a node's own request, several times in a
//! second, if there is something to tell.

use crate::wire::{DecodeError, Put, Reader};

/// Version of the report.
pub const VERSION: u8 = 1;
/// Most entries of each of the two lists.
pub const MAX_ENTRIES: usize = 2_048;
/// Longest report, in bytes.
pub const MAX_REPORT_BYTES: usize = 1 + 2 * 2 + MAX_ENTRIES * (SPENT_BYTES + UNDER_WAY_BYTES);

const SPENT_BYTES: usize = 8 + 8;
const UNDER_WAY_BYTES: usize = 8 + 4;

/// The use of limits at one node. A key is the hash of a limit's name and of what it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// By key the time in ns in which the limit admits as many requests as the node has admitted
    /// since its last report.
    pub spent: Vec<(u64, u64)>,
    /// By key all requests under way at the node.
    pub under_way: Vec<(u64, u32)>,
}

impl UsageReport {
    /// The bytes that [`Self::decode`] reads. Entries above [`MAX_ENTRIES`] are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.put(&[VERSION]);
        put_count(&mut out, self.spent.len());
        for (key, ns) in self.spent.iter().take(MAX_ENTRIES) {
            out.put(&key.to_be_bytes());
            out.put(&ns.to_be_bytes());
        }
        put_count(&mut out, self.under_way.len());
        for (key, count) in self.under_way.iter().take(MAX_ENTRIES) {
            out.put(&key.to_be_bytes());
            out.put(&count.to_be_bytes());
        }
        out
    }

    /// Reads a report.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` are not the encoding of one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        r.version(VERSION, "version of a report of limits")?;
        let mut report = Self::default();
        for _ in 0..count(&mut r)? {
            let key = r.u64("key of a limit")?;
            report.spent.push((key, r.u64("time that was spent")?));
        }
        for _ in 0..count(&mut r)? {
            let key = r.u64("key of a limit")?;
            report.under_way.push((key, r.u32("requests under way")?));
        }
        r.finish()?;
        Ok(report)
    }
}

fn put_count(out: &mut Vec<u8>, len: usize) {
    let count = u16::try_from(len.min(MAX_ENTRIES)).unwrap_or(u16::MAX);
    out.put(&count.to_be_bytes());
}

fn count(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    let count = r.u16("number of entries")?;
    if usize::from(count) > MAX_ENTRIES {
        return Err(DecodeError::TooLong("report of limits"));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written_and_no_other_bytes_are() {
        let key = |n: usize| n as u64 * 7;
        let longest = UsageReport {
            spent: (0..MAX_ENTRIES).map(|n| (key(n), u64::MAX)).collect(),
            under_way: (0..MAX_ENTRIES).map(|n| (key(n), 9)).collect(),
        };
        let short = UsageReport {
            spent: vec![(1, 2)],
            under_way: vec![(3, 4)],
        };
        for report in [UsageReport::default(), short, longest.clone()] {
            let bytes = report.encode();
            assert!(bytes.len() <= MAX_REPORT_BYTES);
            assert_eq!(UsageReport::decode(&bytes), Ok(report));
            for cut in 0..bytes.len().min(64) {
                assert!(UsageReport::decode(bytes.get(..cut).unwrap_or_default()).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(UsageReport::decode(&longer).is_err());
        }
        assert_eq!(longest.encode().len(), MAX_REPORT_BYTES);
        let too_many = [VERSION, 0xff, 0xff];
        let fault = DecodeError::TooLong("report of limits");
        assert_eq!(UsageReport::decode(&too_many), Err(fault));
        assert!(UsageReport::decode(&[2, 0, 0, 0, 0]).is_err());
    }
}
