//! The file `LOGTAG` with the store's [`LogTag`]: 32 hexadecimal digits, and 8 of their CRC32C. A
//! store whose creation was interrupted lacks the file. Then everything that looks like a batch
//! counts as one: the store rather refuses to start than cuts its log too early.

use prism_audit::LogTag;
use prism_common::random;

use crate::{blocks::crc32c, error::OpenError, layout::Layout};

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "LOGTAG";

/// A new tag.
///
/// # Errors
/// The kernel has no random numbers.
pub(crate) fn draw() -> Result<LogTag, OpenError> {
    let tag = random::bytes().map(LogTag);
    tag.map_err(OpenError::io("draw a log tag"))
}

/// The tag of a store that has one. Blocks on disk.
pub(crate) fn read(layout: &Layout) -> Result<Option<LogTag>, OpenError> {
    let tag = layout.read(FILE)?.map(|text| {
        parse(&text).ok_or_else(|| {
            OpenError::Metadata("LOGTAG is damaged; remove it and start again".into())
        })
    });
    tag.transpose()
}

/// Blocks on disk.
pub(crate) fn write(tag: LogTag, layout: &Layout) -> Result<(), OpenError> {
    layout.write(FILE, &text_of(tag))
}

fn text_of(tag: LogTag) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(tag.0));
    let crc = crc32c(digits.as_bytes());
    format!("{digits} {crc:08x}")
}

/// Only what [`write`] writes.
fn parse(text: &str) -> Option<LogTag> {
    let digits = text.get(..2 * LogTag::LEN)?;
    let tag = LogTag(u128::from_str_radix(digits, 16).ok()?.to_be_bytes());
    (text.strip_suffix('\n')? == text_of(tag)).then_some(tag)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written_and_every_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        assert_eq!(read(&layout).unwrap(), None);
        let tag = draw().unwrap();
        write(tag, &layout).unwrap();
        assert_eq!(read(&layout).unwrap(), Some(tag));
        assert_ne!(draw().unwrap(), tag);
        let file = layout.root().join(FILE);
        let good = fs::read(&file).unwrap();
        for (at, bit) in (0..good.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bad = good.clone();
            if let Some(byte) = bad.get_mut(at) {
                *byte ^= 1 << bit;
            }
            fs::write(&file, bad).unwrap();
            assert!(read(&layout).is_err(), "byte {at}, bit {bit}");
        }
    }
}
