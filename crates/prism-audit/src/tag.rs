//! The number with which each batch of the log begins.

use std::fmt;

/// A random number with which each batch of a tree's log begins, and that only the tree's owner
/// knows. After a loss of power the log may end with a part of a batch, and a value in it may
/// look like a whole batch. The number tells them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogTag(pub [u8; Self::LEN]);

impl LogTag {
    /// Its length in bytes.
    pub const LEN: usize = 16;
    /// The key of the record that a batch begins with.
    pub const KEY: &'static str = "sealed";
}

/// Hides the number, which is secret.
impl fmt::Debug for LogTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogTag")
    }
}
