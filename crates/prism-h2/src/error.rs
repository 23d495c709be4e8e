//! Faults of the other side, by their scope (RFC 9113, section 5.4).

/// The reason why a stream or a connection ends (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// There is no error.
    No,
    /// The other side breaks the protocol.
    Protocol,
    /// This side has a fault.
    Internal,
    /// A window was exceeded.
    FlowControl,
    /// A frame came for a stream that has ended.
    StreamClosed,
    /// A frame has a wrong length.
    FrameSize,
    /// The request was not carried out.
    Refused,
    /// The stream is not wanted any more.
    Cancel,
    /// A block of header fields cannot be decoded.
    Compression,
    /// The other side asks too much.
    EnhanceYourCalm,
    /// The request needs HTTP/1.1.
    Http11Required,
}

impl ErrorCode {
    /// Its number in frames.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::No => 0x0,
            Self::Protocol => 0x1,
            Self::Internal => 0x2,
            Self::FlowControl => 0x3,
            Self::StreamClosed => 0x5,
            Self::FrameSize => 0x6,
            Self::Refused => 0x7,
            Self::Cancel => 0x8,
            Self::Compression => 0x9,
            Self::EnhanceYourCalm => 0xb,
            Self::Http11Required => 0xd,
        }
    }
}

/// A fault that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFault(pub ErrorCode);

/// A fault that ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFault {
    /// The stream.
    pub stream: u32,
    /// The reason.
    pub code: ErrorCode,
}

/// A fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// The connection ends.
    Connection(ConnectionFault),
    /// A stream ends. The frame has so many bytes.
    Stream {
        /// The stream and the reason.
        fault: StreamFault,
        /// The length of the frame, in bytes.
        len: usize,
    },
}

impl From<ConnectionFault> for FrameFault {
    fn from(fault: ConnectionFault) -> Self {
        Self::Connection(fault)
    }
}
