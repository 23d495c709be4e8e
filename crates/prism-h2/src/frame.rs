//! Frames (RFC 9113, sections 4 and 6).

use crate::error::{ConnectionFault, ErrorCode, FrameFault, StreamFault};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 9;
/// The longest payload that this side takes: the default of `SETTINGS_MAX_FRAME_SIZE`.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 10;
/// The greatest number of a stream, and the largest window.
pub(crate) const MAX_31: u32 = u32::MAX >> 1;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const PRIORITY: u8 = 2;
    pub(super) const RESET: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PUSH_PROMISE: u8 = 5;
    pub(super) const PING: u8 = 6;
    pub(super) const GO_AWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

mod flag {
    pub(super) const ACK: u8 = 0x1;
    pub(super) const END_STREAM: u8 = 0x1;
    pub(super) const END_HEADERS: u8 = 0x4;
    pub(super) const PADDED: u8 = 0x8;
    pub(super) const PRIORITY: u8 = 0x20;
}

/// A frame of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'f> {
    /// A part of a stream's body.
    Data {
        /// The stream.
        stream: u32,
        /// Whether the body ends with it.
        is_end: bool,
        /// The bytes.
        data: &'f [u8],
        /// What it takes of the windows: the bytes and their padding.
        window_bytes: u32,
    },
    /// The beginning of a block of header fields.
    Headers {
        /// The stream.
        stream: u32,
        /// Whether the stream has no body, or no further one.
        is_end: bool,
        /// Whether the block is whole.
        is_whole: bool,
        /// The block.
        block: &'f [u8],
    },
    /// The rest of a block.
    Continuation {
        /// The stream.
        stream: u32,
        /// Whether the block is whole with it.
        is_whole: bool,
        /// The rest.
        block: &'f [u8],
    },
    /// The other side wants no more of a stream.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason.
        code: u32,
    },
    /// Values of settings, each with its number.
    Settings(&'f [u8]),
    /// The other side acts by the settings of this one.
    SettingsAck,
    /// The other side wants the same bytes back.
    Ping([u8; 8]),
    /// The bytes that this side has sent.
    PingAck([u8; 8]),
    /// The other side opens no further streams.
    GoAway {
        /// The reason.
        code: u32,
    },
    /// The other side takes more.
    WindowUpdate {
        /// The stream; 0: the connection.
        stream: u32,
        /// The bytes, not 0.
        bytes: u32,
    },
    /// A frame without effect: a priority, or one that this side does not know.
    Ignored,
}

/// Reads the first frame of `input`, and its length. `None`: it has not come whole.
///
/// # Errors
/// It is malformed. With a [`StreamFault`] the frame has the length that is said there.
pub fn parse(input: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameFault> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [a, b, c, kind, flags, s0, s1, s2, s3] = *header;
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    if len > MAX_PAYLOAD_BYTES {
        return Err(ConnectionFault(ErrorCode::FrameSize).into());
    }
    let Some(payload) = rest.get(..len) else {
        return Ok(None);
    };
    let stream = u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31;
    let frame = Parts {
        flags,
        stream,
        payload,
    };
    let whole = HEADER_BYTES + len;
    match frame.read(kind) {
        Ok(frame) => Ok(Some((frame, whole))),
        Err(Fault::Connection(code)) => Err(ConnectionFault(code).into()),
        Err(Fault::Stream(code)) => Err(FrameFault::Stream {
            fault: StreamFault { stream, code },
            len: whole,
        }),
    }
}

/// The scope of a fault, and its code.
enum Fault {
    Connection(ErrorCode),
    Stream(ErrorCode),
}

struct Parts<'f> {
    flags: u8,
    stream: u32,
    payload: &'f [u8],
}

impl<'f> Parts<'f> {
    fn read(self, kind: u8) -> Result<Frame<'f>, Fault> {
        match kind {
            kind::DATA => self.data(),
            kind::HEADERS => self.headers(),
            kind::PRIORITY => self.priority(),
            kind::RESET => {
                self.of_stream()?;
                let code = u32::from_be_bytes(self.exactly()?);
                Ok(Frame::Reset {
                    stream: self.stream,
                    code,
                })
            }
            kind::SETTINGS => self.settings(),
            kind::PUSH_PROMISE => Err(Fault::Connection(ErrorCode::Protocol)),
            kind::PING => {
                self.of_connection()?;
                let bytes = self.exactly()?;
                Ok(if self.has(flag::ACK) {
                    Frame::PingAck(bytes)
                } else {
                    Frame::Ping(bytes)
                })
            }
            kind::GO_AWAY => {
                self.of_connection()?;
                let (fixed, _) = self.payload.split_first_chunk::<8>().ok_or(TOO_SHORT)?;
                let [.., a, b, c, d] = *fixed;
                Ok(Frame::GoAway {
                    code: u32::from_be_bytes([a, b, c, d]),
                })
            }
            kind::WINDOW_UPDATE => self.window_update(),
            kind::CONTINUATION => {
                self.of_stream()?;
                Ok(Frame::Continuation {
                    stream: self.stream,
                    is_whole: self.has(flag::END_HEADERS),
                    block: self.payload,
                })
            }
            _ => Ok(Frame::Ignored),
        }
    }

    fn data(self) -> Result<Frame<'f>, Fault> {
        self.of_stream()?;
        Ok(Frame::Data {
            stream: self.stream,
            is_end: self.has(flag::END_STREAM),
            data: self.without_padding()?,
            window_bytes: u32::try_from(self.payload.len()).unwrap_or(u32::MAX),
        })
    }

    fn headers(self) -> Result<Frame<'f>, Fault> {
        self.of_stream()?;
        let mut block = self.without_padding()?;
        if self.has(flag::PRIORITY) {
            let (priority, rest) = block.split_first_chunk::<5>().ok_or(TOO_SHORT)?;
            self.check_priority(priority)?;
            block = rest;
        }
        Ok(Frame::Headers {
            stream: self.stream,
            is_end: self.has(flag::END_STREAM),
            is_whole: self.has(flag::END_HEADERS),
            block,
        })
    }

    fn priority(self) -> Result<Frame<'f>, Fault> {
        self.of_stream()?;
        let priority = self.payload.try_into();
        let priority = priority.map_err(|_| Fault::Stream(ErrorCode::FrameSize))?;
        self.check_priority(priority)?;
        Ok(Frame::Ignored)
    }

    /// No stream depends on itself (RFC 7540, section 5.3.1).
    fn check_priority(&self, priority: &[u8; 5]) -> Result<(), Fault> {
        let [a, b, c, d, _] = *priority;
        if u32::from_be_bytes([a, b, c, d]) & MAX_31 == self.stream {
            return Err(Fault::Stream(ErrorCode::Protocol));
        }
        Ok(())
    }

    fn settings(self) -> Result<Frame<'f>, Fault> {
        self.of_connection()?;
        if self.has(flag::ACK) {
            let is_empty = self.payload.is_empty();
            return is_empty.then_some(Frame::SettingsAck).ok_or(TOO_SHORT);
        }
        if !self.payload.len().is_multiple_of(SETTING_BYTES) {
            return Err(TOO_SHORT);
        }
        Ok(Frame::Settings(self.payload))
    }

    fn window_update(self) -> Result<Frame<'f>, Fault> {
        let bytes = u32::from_be_bytes(self.exactly()?) & MAX_31;
        match (bytes, self.stream) {
            (0, 0) => Err(Fault::Connection(ErrorCode::Protocol)),
            (0, _) => Err(Fault::Stream(ErrorCode::Protocol)),
            (bytes, stream) => Ok(Frame::WindowUpdate { stream, bytes }),
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn of_stream(&self) -> Result<(), Fault> {
        let is_right = self.stream != 0;
        is_right
            .then_some(())
            .ok_or(Fault::Connection(ErrorCode::Protocol))
    }

    fn of_connection(&self) -> Result<(), Fault> {
        let is_right = self.stream == 0;
        is_right
            .then_some(())
            .ok_or(Fault::Connection(ErrorCode::Protocol))
    }

    fn exactly<const N: usize>(&self) -> Result<[u8; N], Fault> {
        self.payload.try_into().map_err(|_| TOO_SHORT)
    }

    fn without_padding(&self) -> Result<&'f [u8], Fault> {
        if !self.has(flag::PADDED) {
            return Ok(self.payload);
        }
        let (padding, rest) = self.payload.split_first().ok_or(TOO_SHORT)?;
        let len = rest.len().checked_sub(usize::from(*padding));
        let data = len.and_then(|len| rest.get(..len));
        data.ok_or(Fault::Connection(ErrorCode::Protocol))
    }
}

/// The fault of a frame with another length than its kind has.
const TOO_SHORT: Fault = Fault::Connection(ErrorCode::FrameSize);

/// Bytes of a setting: its number and its value.
pub(crate) const SETTING_BYTES: usize = 6;

/// Appends the header of a frame with `len` bytes.
fn put_header(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends the header of a part of a body, whose `len` bytes follow.
pub fn put_data_header(out: &mut Vec<u8>, stream: u32, len: usize, is_end: bool) {
    let flags = if is_end { flag::END_STREAM } else { 0 };
    put_header(out, len, kind::DATA, flags, stream);
}

/// Appends a block of header fields, in frames of at most `max_bytes`.
pub fn put_headers(out: &mut Vec<u8>, stream: u32, block: &[u8], is_end: bool, max_bytes: usize) {
    let mut kind = kind::HEADERS;
    let mut flags = if is_end { flag::END_STREAM } else { 0 };
    let mut rest = block;
    loop {
        let (piece, behind) = rest.split_at(max_bytes.max(1).min(rest.len()));
        if behind.is_empty() {
            flags |= flag::END_HEADERS;
        }
        put_header(out, piece.len(), kind, flags, stream);
        out.extend_from_slice(piece);
        if behind.is_empty() {
            return;
        }
        (kind, flags, rest) = (kind::CONTINUATION, 0, behind);
    }
}

/// Appends the end of a stream by an error.
pub fn put_reset(out: &mut Vec<u8>, fault: StreamFault) {
    put_header(out, 4, kind::RESET, 0, fault.stream);
    out.extend_from_slice(&fault.code.number().to_be_bytes());
}

/// Appends settings.
pub fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_header(out, settings.len() * SETTING_BYTES, kind::SETTINGS, 0, 0);
    for (number, value) in settings {
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the word that this side acts by the other's settings.
pub fn put_settings_ack(out: &mut Vec<u8>) {
    put_header(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// Appends the answer to a ping.
pub fn put_ping_ack(out: &mut Vec<u8>, bytes: [u8; 8]) {
    put_header(out, bytes.len(), kind::PING, flag::ACK, 0);
    out.extend_from_slice(&bytes);
}

/// Appends the word that no stream above `last` is carried out.
pub fn put_go_away(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    put_header(out, 8, kind::GO_AWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Appends the word that this side takes `bytes` more of a stream, or, for 0, of all.
pub fn put_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    put_header(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&bytes.to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_header(&mut out, payload.len(), kind, flags, stream);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn a_frame_is_read_when_it_is_whole() {
        let bytes = frame(
            kind::HEADERS,
            0x2d,
            3,
            &[1, 0x80, 0, 0, 5, 9, b'a', b'b', 0],
        );
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Ok(None));
        }
        let headers = Frame::Headers {
            stream: 3,
            is_end: true,
            is_whole: true,
            block: b"ab",
        };
        assert_eq!(parse(&bytes), Ok(Some((headers, bytes.len()))));
        let data = frame(kind::DATA, 0x8, 0x8000_0001, &[2, 7, 0, 0]);
        let expected = Frame::Data {
            stream: 1,
            is_end: false,
            data: &[7],
            window_bytes: 4,
        };
        assert_eq!(parse(&data), Ok(Some((expected, data.len()))));
        let unknown = frame(0xbe, 0xff, 9, b"??");
        assert_eq!(parse(&unknown), Ok(Some((Frame::Ignored, unknown.len()))));
    }

    #[test]
    fn each_fault_has_its_scope_and_its_code() {
        use ErrorCode::{FrameSize, Protocol};
        let connection = |code| FrameFault::from(ConnectionFault(code));
        let long = vec![0; MAX_PAYLOAD_BYTES + 1];
        for (bytes, expected) in [
            (frame(kind::DATA, 0, 0, b""), connection(Protocol)),
            (frame(kind::DATA, 0x8, 1, &[4, 0, 0]), connection(Protocol)),
            (frame(kind::DATA, 0x8, 1, &[]), connection(FrameSize)),
            (frame(kind::HEADERS, 0, 0, b""), connection(Protocol)),
            (
                frame(kind::HEADERS, 0x20, 1, &[0; 4]),
                connection(FrameSize),
            ),
            (frame(kind::PRIORITY, 0, 0, &[0; 5]), connection(Protocol)),
            (frame(kind::RESET, 0, 0, &[0; 4]), connection(Protocol)),
            (frame(kind::RESET, 0, 1, &[0; 3]), connection(FrameSize)),
            (frame(kind::SETTINGS, 0, 1, b""), connection(Protocol)),
            (frame(kind::SETTINGS, 0, 0, &[0; 5]), connection(FrameSize)),
            (frame(kind::SETTINGS, 1, 0, &[0; 6]), connection(FrameSize)),
            (
                frame(kind::PUSH_PROMISE, 4, 1, &[0; 8]),
                connection(Protocol),
            ),
            (frame(kind::PING, 0, 1, &[0; 8]), connection(Protocol)),
            (frame(kind::PING, 0, 0, &[0; 7]), connection(FrameSize)),
            (frame(kind::GO_AWAY, 0, 1, &[0; 8]), connection(Protocol)),
            (frame(kind::GO_AWAY, 0, 0, &[0; 7]), connection(FrameSize)),
            (
                frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]),
                connection(Protocol),
            ),
            (
                frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]),
                connection(FrameSize),
            ),
            (frame(kind::CONTINUATION, 0, 0, b""), connection(Protocol)),
            (frame(0xbe, 0, 0, &long), connection(FrameSize)),
        ] {
            assert_eq!(parse(&bytes), Err(expected), "{:?}", bytes.get(..20));
        }
        let of_stream = |code, bytes: &[u8]| FrameFault::Stream {
            fault: StreamFault { stream: 7, code },
            len: bytes.len(),
        };
        for (bytes, code) in [
            (frame(kind::PRIORITY, 0, 7, &[0; 4]), FrameSize),
            (frame(kind::PRIORITY, 0, 7, &[0, 0, 0, 7, 1]), Protocol),
            (frame(kind::HEADERS, 0x24, 7, &[0x80, 0, 0, 7, 1]), Protocol),
            (frame(kind::WINDOW_UPDATE, 0, 7, &[0x80, 0, 0, 0]), Protocol),
        ] {
            assert_eq!(parse(&bytes), Err(of_stream(code, &bytes)));
        }
    }

    #[test]
    fn a_long_block_is_written_in_several_frames() {
        let block: Vec<u8> = (0..10).collect();
        let mut out = Vec::new();
        put_headers(&mut out, 5, &block, true, 4);
        let (first, len) = parse(&out).unwrap().unwrap();
        let expected = Frame::Headers {
            stream: 5,
            is_end: true,
            is_whole: false,
            block: &[0, 1, 2, 3],
        };
        assert_eq!(first, expected);
        let (_, second) = parse(&out[len..]).unwrap().unwrap();
        let (last, _) = parse(&out[len + second..]).unwrap().unwrap();
        let expected = Frame::Continuation {
            stream: 5,
            is_whole: true,
            block: &[8, 9],
        };
        assert_eq!(last, expected);
        let mut empty = Vec::new();
        put_headers(&mut empty, 5, b"", false, 4);
        assert_eq!(empty.len(), HEADER_BYTES);
    }

    #[test]
    fn other_frames_are_read_as_they_were_written() {
        let mut out = Vec::new();
        put_settings(&mut out, &[(3, 100), (4, 1 << 20)]);
        put_settings_ack(&mut out);
        put_ping_ack(&mut out, *b"12345678");
        put_window_update(&mut out, 0, MAX_31);
        let fault = StreamFault {
            stream: 9,
            code: ErrorCode::Cancel,
        };
        put_reset(&mut out, fault);
        put_go_away(&mut out, 9, ErrorCode::EnhanceYourCalm);
        put_data_header(&mut out, 9, 1, true);
        out.push(b'x');
        let mut rest = &out[..];
        let mut next = || {
            let (frame, len) = parse(rest).unwrap().unwrap();
            rest = &rest[len..];
            frame
        };
        let settings = [0, 3, 0, 0, 0, 100, 0, 4, 0, 16, 0, 0];
        assert_eq!(next(), Frame::Settings(&settings));
        assert_eq!(next(), Frame::SettingsAck);
        assert_eq!(next(), Frame::PingAck(*b"12345678"));
        let update = Frame::WindowUpdate {
            stream: 0,
            bytes: MAX_31,
        };
        assert_eq!(next(), update);
        assert_eq!(next(), Frame::Reset { stream: 9, code: 8 });
        assert_eq!(next(), Frame::GoAway { code: 11 });
        let data = Frame::Data {
            stream: 9,
            is_end: true,
            data: b"x",
            window_bytes: 1,
        };
        assert_eq!(next(), data);
    }
}
