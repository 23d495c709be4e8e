//! What a head may cost at most.

/// Bounds on one message head. Exceeding one is an error, never a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the first byte of the start line to the end of the empty
    /// line. More is answered with 431.
    pub head_bytes: usize,
    /// Bytes of the request target. More is answered with 414.
    pub target_bytes: usize,
    /// Number of header fields, at most [`Limits::MAX_HEADERS`]. More is
    /// answered with 431.
    pub headers: usize,
    /// Bytes of a body whose length is declared, and of a chunked one as it
    /// arrives. More is answered with 413.
    pub body_bytes: u64,
}

impl Limits {
    /// The most header fields that can be asked for: they are parsed into an
    /// array on the stack (128 fields of 32 bytes: 4 KiB).
    pub const MAX_HEADERS: usize = 128;

    /// What Prism uses unless configured otherwise. 64 KiB and 100 fields are
    /// well above what S3 clients send (a head with 2 KiB of metadata and a
    /// session token is about 5 KiB). A target of 16 KiB holds a key of 1,024
    /// bytes, each percent-encoded, and a presigned query. Bodies end where a
    /// file offset does.
    pub const DEFAULT: Self = Self {
        head_bytes: 64 * 1024,
        target_bytes: 16 * 1024,
        headers: 100,
        body_bytes: i64::MAX as u64,
    };

    /// Limits of another node's answer: all fields that an object keeps, which came with one
    /// request, plus 28 fields and 64 KiB of the answer's own (the longest CORS rules).
    pub const ANSWER: Self = Self {
        head_bytes: 2 * Self::DEFAULT.head_bytes,
        headers: Self::MAX_HEADERS,
        ..Self::DEFAULT
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
