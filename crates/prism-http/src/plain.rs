//! Answers that a relay may pass on unchanged.

use crate::Limits;
use crate::boundary::{LineEnd, walk_head};
use crate::forward::is_hop_by_hop;
use crate::framing::{decimal, status_allows_body};
use crate::headers::{TOKEN, trim};

/// The lengths of an answer that means the same to a relay and to its client. It is of HTTP/1.1,
/// has a final status, one `Content-Length` and a `Date`, and no other field that concerns one
/// connection only. Most answers of a node of Prism are such ones.
///
/// Such an answer may go, byte for byte, to a client of HTTP/1.1 whose connection stays open and
/// whose request was not HEAD. Nothing of it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainAnswer {
    /// The status code: 200 to 599, without 204 and 304.
    pub status: u16,
    /// Length of the head, with the empty line.
    pub head_bytes: usize,
    /// Length of the body behind it.
    pub body_bytes: u64,
}

impl PlainAnswer {
    /// The answer at the start of `buf`. `None` if its head is incomplete, malformed, or not
    /// plain; [`ResponseHead::parse`](crate::ResponseHead::parse) tells which.
    pub fn find(buf: &[u8], limits: &Limits) -> Option<Self> {
        let mut head = PlainHead::default();
        let head_bytes = walk_head(buf, limits, LineEnd::CrLf, |line| head.line(line)).ok()??;
        let plain = head.lines <= limits.headers + 1 && head.has_date && !head.is_other;
        plain.then_some(Self {
            status: head.status,
            head_bytes,
            body_bytes: head.body_bytes?,
        })
    }
}

/// The lines of a head so far.
#[derive(Default)]
struct PlainHead {
    lines: usize,
    status: u16,
    has_date: bool,
    body_bytes: Option<u64>,
    /// Whether there is a line that a relay must not pass on, or must read.
    is_other: bool,
}

impl PlainHead {
    fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        if self.lines == 1 {
            self.status = status(line).unwrap_or_default();
            self.is_other = self.status < 200 || !status_allows_body(self.status);
            return;
        }
        // A name ends where a token does.
        let end = line.iter().position(|b| !TOKEN.has(*b));
        let Some((name @ [_, ..], [b':', value @ ..])) =
            end.and_then(|at| line.split_at_checked(at))
        else {
            self.is_other = true;
            return;
        };
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"date") => self.has_date = true,
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = decimal(trim(value));
                self.is_other |= length.is_none() || self.body_bytes.is_some();
                self.body_bytes = length;
            }
            _ => self.is_other |= is_hop_by_hop(name),
        }
    }
}

/// The final status of a line such as `HTTP/1.1 200 OK`.
fn status(line: &[u8]) -> Option<u16> {
    let (digits, [b' ', ..]) = line.strip_prefix(b"HTTP/1.1 ")?.split_at_checked(3)? else {
        return None;
    };
    let status = u16::try_from(decimal(digits)?).ok()?;
    (200..600).contains(&status).then_some(status)
}
