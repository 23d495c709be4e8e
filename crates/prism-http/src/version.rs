//! Versions.

/// The minor version of HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunked coding, connections close unless asked otherwise.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    pub(crate) fn from_minor(minor: Option<u8>) -> Self {
        match minor {
            Some(1) => Self::Http11,
            _ => Self::Http10,
        }
    }
}
