//! The limits of heads.

/// The limits of one message head. A head beyond one is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the head, from the start line to the empty line. A longer one is answered with
    /// 431.
    pub head_bytes: usize,
    /// Bytes of the request target. A longer one is answered with 414.
    pub target_bytes: usize,
    /// Header fields, at most [`Limits::MAX_HEADERS`]. More are answered with 431.
    pub headers: usize,
    /// Bytes of a body, by its declared length, or as a chunked one comes in. A longer one is
    /// answered with 413.
    pub body_bytes: u64,
}

impl Limits {
    /// The greatest limit of header fields. They are parsed into an array on the stack (128
    /// fields of 32 bytes: 4 KiB).
    pub const MAX_HEADERS: usize = 128;

    /// The default. 64 KiB and 100 fields are well above the heads of S3 clients: one with 2 KiB
    /// of metadata and a session token has about 5 KiB. A target of 16 KiB holds a key of 1,024
    /// percent-encoded bytes and a presigned query. The longest body has the greatest file
    /// offset.
    pub const DEFAULT: Self = Self {
        head_bytes: 64 * 1024,
        target_bytes: 16 * 1024,
        headers: 100,
        body_bytes: i64::MAX as u64,
    };

    /// The limits of another node's answer: all fields of an object, which came with one
    /// request, or of a server's answer; and 28 fields and 64 KiB that the node has added (with the
    /// longest CORS rules).
    pub const ANSWER: Self = Self {
        head_bytes: 2 * Self::DEFAULT.head_bytes,
        headers: Self::MAX_HEADERS,
        ..Self::DEFAULT
    };

    /// The limits of a request that a node relays which has checked these. Up to 28 fields are
    /// added; two of them repeat the host, which may fill most of a head.
    #[must_use]
    pub const fn of_relayed(self) -> Self {
        const ADDED_BYTES: usize = 64 << 10;
        Self {
            head_bytes: self
                .head_bytes
                .saturating_mul(3)
                .saturating_add(ADDED_BYTES),
            headers: Self::MAX_HEADERS,
            ..self
        }
    }
}
