//! One connection of a case, and all that the client gets, byte for byte.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use crate::support::client::Client;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection on which nothing comes for this time is quiet.
const QUIET: Duration = Duration::from_millis(120);

/// The end of a connection, if it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The other side closed in order.
    Close,
    Reset,
    /// Nothing came for [`PATIENCE`].
    Silence,
}

impl End {
    pub fn fact(self) -> &'static str {
        match self {
            Self::Close => "closes",
            Self::Reset => "resets",
            Self::Silence => "says nothing",
        }
    }
}

/// A message, as far as it came.
#[derive(Debug, Default)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// Whether the connection is to end with it.
    pub is_last: bool,
}

pub struct Wire {
    pub client: Client,
    unread: Vec<u8>,
    end: Option<End>,
}

impl Wire {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            unread: Vec::new(),
            end: None,
        }
    }

    /// Sends bytes, also to a side that does not read them any more.
    pub fn send(&mut self, bytes: &[u8]) {
        if let Err(error) = self.client.try_send(bytes) {
            let is_end = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(is_end.contains(&error.kind()), "{error}");
        }
    }

    /// Reads more within `patience`; false after the end.
    fn fill(&mut self, patience: Duration) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.client.stream.set_read_timeout(Some(patience)).unwrap();
        match self.client.take_some() {
            Ok(bytes) if bytes.is_empty() => self.end = Some(End::Close),
            Ok(bytes) => self.unread.extend(bytes),
            Err(error) => self.end = Some(end_of(&error)),
        }
        self.end.is_none()
    }

    /// The next message to a client that has sent this method. It is cut where the connection
    /// ends.
    pub fn message(&mut self, method: &str) -> Message {
        loop {
            let whole = frame(&self.unread, method, self.end.is_some());
            if let Some((len, is_last)) = whole {
                let bytes = self.unread.drain(..len).collect();
                return Message { bytes, is_last };
            }
            if !self.fill(PATIENCE) && frame(&self.unread, method, true).is_none() {
                return Message {
                    bytes: std::mem::take(&mut self.unread),
                    is_last: true,
                };
            }
        }
    }

    /// The next bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        while self.unread.len() < len && self.fill(PATIENCE) {}
        let len = len.min(self.unread.len());
        self.unread.drain(..len).collect()
    }

    /// All bytes until the end.
    pub fn rest(&mut self) -> (Vec<u8>, End) {
        while self.fill(PATIENCE) {}
        (std::mem::take(&mut self.unread), self.end.unwrap())
    }

    /// The end, if it has come.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// All that comes in a short time.
    pub fn little(&mut self) -> Vec<u8> {
        let begun = Instant::now();
        while begun.elapsed() < QUIET && self.fill(QUIET) {}
        if self.end == Some(End::Silence) {
            self.end = None;
        }
        std::mem::take(&mut self.unread)
    }
}

fn end_of(error: &io::Error) -> End {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => End::Silence,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => End::Reset,
        // TLS that ends without its own message.
        ErrorKind::UnexpectedEof => End::Close,
        _ => panic!("{error}"),
    }
}

/// The length of the message at the front of `bytes` if it is whole, and whether the connection
/// ends with it. Interim answers are messages.
fn frame(bytes: &[u8], method: &str, is_end: bool) -> Option<(usize, bool)> {
    let head_len = position(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_len]);
    let status: u16 = head.get(9..12)?.parse().ok()?;
    let has = |name: &str, value: &str| {
        let mut fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
        fields.any(|(n, v)| n.eq_ignore_ascii_case(name) && v.eq_ignore_ascii_case(value))
    };
    let is_old = head.starts_with("HTTP/1.0") && !has("connection", "keep-alive");
    let is_last = has("connection", "close") || is_old;
    let body = &bytes[head_len..];
    if method == "HEAD" || (100..200).contains(&status) || [204, 304].contains(&status) {
        return Some((head_len, is_last));
    }
    if has("transfer-encoding", "chunked") {
        return Some((head_len + chunks(body)?, is_last));
    }
    let mut fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length.and_then(|(_, length)| length.parse::<usize>().ok()) {
        Some(length) => (body.len() >= length).then_some((head_len + length, is_last)),
        None => is_end.then_some((bytes.len(), true)),
    }
}

/// The length of a whole body in chunks.
pub fn chunks(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line_len = position(&body[at..], b"\r\n")?;
        let line = std::str::from_utf8(&body[at..at + line_len]).ok()?;
        let size = line.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        at += line_len + 2;
        if size == 0 {
            break;
        }
        at += size + 2;
        body.get(..at)?;
    }
    // Trailers end with an empty line.
    loop {
        let line_len = position(&body[at..], b"\r\n")?;
        at += line_len + 2;
        if line_len == 0 {
            return Some(at);
        }
    }
}

pub fn position(bytes: &[u8], of: &[u8]) -> Option<usize> {
    bytes.windows(of.len()).position(|window| window == of)
}
