//! Errors in messages. All are the peer's fault, except [`HeaderError`], which is the caller's.

/// A head is refused. [`HeadError::status`] is the status of the answer. The connection must be
/// closed after the answer, because the start of the next request is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say all")]
pub enum HeadError {
    #[error("a line of the head ends with a bare LF")]
    BareLf,
    #[error("the head holds a CR that is not followed by LF")]
    BareCr,
    /// A control character other than HTAB, or DEL.
    #[error("the head holds a control character")]
    ControlCharacter,
    #[error("a header line starts with white space (obsolete line folding)")]
    LineFolding,
    /// The first line is not `method SP target SP version`, or a status line.
    #[error("the start line is malformed")]
    StartLine,
    /// A header name is no token, or white space stands before the colon.
    #[error("a header name is malformed")]
    HeaderName,
    /// A header value holds a byte that is not allowed.
    #[error("a header value is malformed")]
    HeaderValue,
    /// The head is longer than [`crate::Limits::head_bytes`].
    #[error("the head is too long")]
    HeadTooLong,
    /// More fields than [`crate::Limits::headers`].
    #[error("the head has too many header fields")]
    TooManyHeaders,
    /// The target is longer than [`crate::Limits::target_bytes`].
    #[error("the request target is too long")]
    TargetTooLong,
    /// The target is in no form that this method allows.
    #[error("the request target is malformed")]
    Target,
    /// The version is HTTP, but neither 1.0 nor 1.1.
    #[error("the HTTP version is not supported")]
    Version,
    /// `CONNECT`, or a method name longer than any that exists.
    #[error("the method is not implemented")]
    Method,
    #[error("the Host header is missing")]
    HostMissing,
    #[error("there is more than one Host header")]
    HostRepeated,
    /// `Host` is no `host[:port]`.
    #[error("the Host header is malformed")]
    Host,
    /// The target is in absolute form, and names another host than `Host`.
    #[error("the Host header differs from the host of the request target")]
    HostDiffers,
    /// `Content-Length` is no decimal number below 2^64.
    #[error("Content-Length is not a number")]
    ContentLength,
    /// More than one `Content-Length`, equal or not.
    #[error("there is more than one Content-Length header")]
    ContentLengthRepeated,
    #[error("Content-Length and Transfer-Encoding are both present")]
    AmbiguousLength,
    /// `Transfer-Encoding` in HTTP/1.0, or one that does not end with a single
    /// `chunked`.
    #[error("Transfer-Encoding does not delimit the body")]
    TransferEncoding,
    #[error("a transfer coding other than chunked is not implemented")]
    TransferCoding,
    /// The declared body is longer than [`crate::Limits::body_bytes`].
    #[error("the body is too long")]
    BodyTooLong,
    /// `Expect` with anything but `100-continue`.
    #[error("the expectation is not supported")]
    Expectation,
    /// A status below 100 or above 599.
    #[error("the status code is out of range")]
    Status,
}

impl HeadError {
    /// The refusal of `httparse`, for a head with this word in the place of the version. A
    /// version such as `HTTP/2.0` is at fault itself, not the syntax.
    pub(crate) fn of_parser(error: httparse::Error, version: Option<&[u8]>) -> Self {
        let is_unsupported = match version.unwrap_or_default() {
            b"HTTP/1.0" | b"HTTP/1.1" => false,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] => {
                major.is_ascii_digit() && minor.is_ascii_digit()
            }
            _ => false,
        };
        match error {
            httparse::Error::HeaderName => Self::HeaderName,
            httparse::Error::HeaderValue => Self::HeaderValue,
            httparse::Error::TooManyHeaders => Self::TooManyHeaders,
            httparse::Error::Version if is_unsupported => Self::Version,
            _ => Self::StartLine,
        }
    }

    /// The status code that answers a request refused for this reason.
    pub const fn status(self) -> u16 {
        match self {
            Self::BodyTooLong => 413,
            Self::TargetTooLong => 414,
            Self::Expectation => 417,
            Self::HeadTooLong | Self::TooManyHeaders => 431,
            Self::Method | Self::TransferCoding => 501,
            Self::Version => 505,
            _ => 400,
        }
    }
}

/// A body is refused. The connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say all")]
pub enum BodyError {
    /// The size line of a chunk is not `HEXDIG+ [;extension] CRLF`.
    #[error("a chunk size is malformed")]
    ChunkSize,
    /// A chunk size of more than 16 digits.
    #[error("a chunk size is too large")]
    ChunkSizeOverflow,
    /// Chunk extensions beyond [`crate::ChunkedDecoder::MAX_EXTENSION_BYTES`].
    #[error("chunk extensions are too long")]
    ExtensionsTooLong,
    #[error("a chunk is not ended by CRLF")]
    ChunkEnd,
    #[error("the trailer section is malformed")]
    Trailer,
    /// Trailers beyond [`crate::ChunkedDecoder::MAX_TRAILER_BYTES`].
    #[error("the trailer section is too long")]
    TrailersTooLong,
    #[error("the body is too long")]
    TooLong,
    #[error("the connection ended within the body")]
    Truncated,
}

impl BodyError {
    /// The status code that answers a request whose body is refused.
    pub const fn status(self) -> u16 {
        match self {
            Self::TooLong => 413,
            Self::TrailersTooLong => 431,
            _ => 400,
        }
    }
}

/// A header cannot be written. The caller is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The name is empty or no token.
    #[error("the header name is not a token")]
    Name,
    /// The value holds a control character, which may be a line end.
    #[error("the header value holds a control character")]
    Value,
    /// The map would outgrow [`crate::Headers::MAX_BYTES`].
    #[error("the headers are too long")]
    TooLong,
}
