//! A random number with which each batch of the tree's log begins, and that only this store
//! knows. After a loss of power the log may end with a part of a batch, and an object in it may
//! look like a whole batch. The number tells them apart: see `audit`.
//!
//! The file `LOGTAG` has the number: 32 hexadecimal digits, and 8 of their CRC32C. A store whose
//! creation was interrupted lacks the file. Then everything that looks like a batch counts as one:
//! the store rather refuses to start than cuts its log too early.

use std::fmt;

use crate::{blocks::crc32c, error::OpenError, files::random, layout::Layout};

/// A number drawn at random.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogTag([u8; Self::LEN]);

/// Hides the number, which is secret.
impl fmt::Debug for LogTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogTag")
    }
}

impl LogTag {
    /// Its file in the store's directory.
    pub(crate) const FILE: &'static str = "LOGTAG";
    pub(crate) const LEN: usize = 16;
    /// The key of the record that a batch begins with.
    pub(crate) const KEY: &'static str = "sealed";

    /// # Errors
    /// The kernel has no random numbers.
    pub(crate) fn new() -> Result<Self, OpenError> {
        random().map(Self).map_err(OpenError::io("draw a log tag"))
    }

    pub(crate) fn bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// The tag of a store that has one. Blocks on disk.
    pub(crate) fn read(layout: &Layout) -> Result<Option<Self>, OpenError> {
        let tag = layout.read(Self::FILE)?.map(|text| {
            Self::parse(&text).ok_or_else(|| {
                OpenError::Metadata("LOGTAG is damaged; remove it and start again".into())
            })
        });
        tag.transpose()
    }

    /// Blocks on disk.
    pub(crate) fn write(self, layout: &Layout) -> Result<(), OpenError> {
        layout.write(Self::FILE, &self.text())
    }

    fn text(self) -> String {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let crc = crc32c(digits.as_bytes());
        format!("{digits} {crc:08x}")
    }

    /// Only what [`LogTag::write`] writes.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.get(..2 * Self::LEN)?;
        let tag = Self(u128::from_str_radix(digits, 16).ok()?.to_be_bytes());
        (text.strip_suffix('\n')? == tag.text()).then_some(tag)
    }

    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
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
        assert_eq!(LogTag::read(&layout).unwrap(), None);
        let tag = LogTag::new().unwrap();
        tag.write(&layout).unwrap();
        assert_eq!(LogTag::read(&layout).unwrap(), Some(tag));
        assert_ne!(LogTag::new().unwrap(), tag);
        let file = layout.root().join(LogTag::FILE);
        let good = fs::read(&file).unwrap();
        for (at, bit) in (0..good.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bad = good.clone();
            if let Some(byte) = bad.get_mut(at) {
                *byte ^= 1 << bit;
            }
            fs::write(&file, bad).unwrap();
            assert!(LogTag::read(&layout).is_err(), "byte {at}, bit {bit}");
        }
    }
}
