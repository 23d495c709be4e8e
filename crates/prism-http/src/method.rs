//! Methods and versions.

/// A request method. Names are case-sensitive (RFC 9110 section 9.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the method names")]
pub enum Method {
    Get,
    Head,
    Put,
    Post,
    Delete,
    Options,
    Patch,
    Trace,
    /// Any other token of at most [`Method::MAX_BYTES`] bytes.
    Other(Box<str>),
}

impl Method {
    /// The longest method that is accepted; the longest registered one has 17 bytes.
    pub const MAX_BYTES: usize = 24;

    pub(crate) fn from_token(token: &str) -> Self {
        match token {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "PUT" => Self::Put,
            "POST" => Self::Post,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            "PATCH" => Self::Patch,
            "TRACE" => Self::Trace,
            other => Self::Other(other.into()),
        }
    }

    /// Whether a request only reads, so that it may be repeated (RFC 9110 section 9.2.1).
    pub fn is_safe(&self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }

    /// The name as on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
            Self::Trace => "TRACE",
            Self::Other(name) => name,
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

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
