//! Answers: written for a client, or parsed from a backend.
//!
//! The writer sets length, coding, `Connection` and `Date`, and ignores them in
//! [`ResponseHead::headers`], so an answer cannot contradict itself.

use std::mem::MaybeUninit;

use crate::boundary::{LineEnd, first_line, head_end};
use crate::forward::ends_here;
use crate::framing::{self, keep_alive, status_allows_body, write_framing};
use crate::headers::write_field;
use crate::{
    BodyFraming, HeadError, HeaderError, Headers, Limits, Method, ResponseFraming,
    UPGRADE_REQUIRED, Version, reason,
};

/// Most bytes of the status line and of the fields that only the writer sets, without the value
/// of `Date`.
const OWN_BYTES: usize = 160;

/// The status and header fields of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    version: Version,
    status: u16,
    /// The sender's reason phrase, if it is not the registered one.
    reason: Option<Box<str>>,
    headers: Headers,
}

/// The part of a request that its answer depends on.
#[derive(Debug, Clone, Copy)]
pub struct AnswerForm<'a> {
    /// Answers to `HEAD` have no body.
    pub method: &'a Method,
    /// HTTP/1.0 clients get no chunked coding.
    pub version: Version,
    /// Whether both sides allow the connection to stay open.
    pub keep_alive: bool,
    /// The value of `Date`, an IMF-fixdate; empty for none.
    pub date: &'a str,
    /// Further fields, such as those of every answer to this request.
    pub extra: [Option<&'a Headers>; 2],
}

/// The caller's duties after the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the framing says whether and how a body is to be sent"]
pub struct Written {
    /// The way in which the body must be sent. With `ResponseFraming::None` the caller sends no
    /// body at all (HEAD, 204, 304, 1xx).
    pub framing: ResponseFraming,
    /// Whether the connection stays open after this answer.
    pub keep_alive: bool,
}

impl ResponseHead {
    /// An answer without header fields. A status outside of 100 to 599 becomes 500.
    pub const fn new(status: u16) -> Self {
        let status = if matches!(status, 100..=599) {
            status
        } else {
            500
        };
        Self {
            version: Version::Http11,
            status,
            reason: None,
            headers: Headers::new(),
        }
    }

    /// Adds a header field.
    ///
    /// # Errors
    /// As [`Headers::append`].
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, HeaderError> {
        self.headers.append(name, value)?;
        Ok(self)
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The version that the sender speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// All header fields.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// All header fields, to add or remove.
    pub fn headers_mut(&mut self) -> &mut Headers {
        &mut self.headers
    }

    /// Writes the head that has the form `form`, and returns which body may follow. `body_bytes` is
    /// the length of the body that the caller wants to send, if it is known.
    pub fn write_to(
        &self,
        form: &AnswerForm<'_>,
        body_bytes: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Written {
        self.write_fields(form, out);
        // HEAD gets the framing of the answer to GET.
        let framing = match body_bytes {
            _ if !status_allows_body(self.status) => ResponseFraming::None,
            Some(n) => ResponseFraming::Length(n),
            None if form.version == Version::Http11 => ResponseFraming::Chunked,
            None => ResponseFraming::UntilClose,
        };
        let is_head = *form.method == Method::HEAD;
        let can_stay = is_head || framing != ResponseFraming::UntilClose;
        let written = Written {
            framing: if is_head {
                ResponseFraming::None
            } else {
                framing
            },
            keep_alive: form.keep_alive && can_stay,
        };
        if self.status >= 200 {
            write_framing(framing, out);
            write_date(form.date, out);
            self.write_connection(form.version, written.keep_alive, out);
        }
        out.extend_from_slice(b"\r\n");
        written
    }

    /// Writes the head that agrees to go on with another protocol (RFC 9110, section 7.8).
    pub fn write_switch(&self, form: &AnswerForm<'_>, protocol: &[u8], out: &mut Vec<u8>) {
        self.write_fields(form, out);
        write_field(out, "Connection", b"upgrade");
        write_field(out, "Upgrade", protocol);
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the status line, and the fields that the writer does not set.
    fn write_fields(&self, form: &AnswerForm<'_>, out: &mut Vec<u8>) {
        let [first, second] = form.extra;
        let fields = [Some(&self.headers), first, second];
        let bytes = fields.iter().flatten().map(|f| f.written_bytes());
        out.reserve(OWN_BYTES + form.date.len() + bytes.sum::<usize>());
        let reason = self.reason.as_deref().unwrap_or(reason(self.status));
        let mut status = itoa::Buffer::new();
        let status = status.format(self.status);
        for part in ["HTTP/1.1 ", status, " ", reason, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for fields in fields.into_iter().flatten() {
            fields.write_without(is_ours, out);
        }
    }

    fn write_connection(&self, version: Version, keep_alive: bool, out: &mut Vec<u8>) {
        let option = match (keep_alive, version) {
            (false, _) => Some("close"),
            (true, Version::Http10) => Some("keep-alive"),
            (true, Version::Http11) => None,
        };
        // The sender of `Upgrade` names it in `Connection` too (RFC 9110, section 7.8).
        let upgrade = (self.status == UPGRADE_REQUIRED && self.headers.get("upgrade").is_some())
            .then_some("upgrade");
        for option in option.into_iter().chain(upgrade) {
            write_field(out, "Connection", option.as_bytes());
        }
    }

    /// Parses the answer at the start of `buf`. Returns it with its number of bytes, or `None` if
    /// more bytes are needed. It is as strict as for requests, but for lines that end with LF
    /// alone.
    ///
    /// # Errors
    /// If the head is malformed or beyond the limits.
    pub fn parse(buf: &[u8], limits: &Limits) -> Result<Option<(Self, usize)>, HeadError> {
        let Some(end) = head_end(buf, limits, LineEnd::Lf)? else {
            return Ok(None);
        };
        let head = buf.get(..end).unwrap_or_default();
        let mut fields = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];
        let room = fields.len().min(limits.headers);
        let fields = fields.get_mut(..room).unwrap_or_default();
        let mut response = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        match parser.parse_response_with_uninit_headers(&mut response, head, fields) {
            Ok(httparse::Status::Complete(parsed)) if parsed == end => {}
            Ok(_) => return Err(HeadError::StartLine),
            Err(error) => {
                let first = first_line(head).split(|&b| b == b' ').next();
                return Err(HeadError::of_parser(error, first));
            }
        }
        let status = response.code.unwrap_or_default();
        if !matches!(status, 100..=599) {
            return Err(HeadError::Status);
        }
        let phrase = response
            .reason
            .filter(|phrase| !["", reason(status)].contains(phrase));
        let headers = Headers::from_parsed(response.headers, head);
        Ok(Some((
            Self {
                version: Version::from_minor(response.version),
                status,
                reason: phrase.map(Into::into),
                headers,
            },
            end,
        )))
    }

    /// The way in which the body is delimited, if this answers a request of this method.
    ///
    /// # Errors
    /// If the head is ambiguous about it.
    pub fn framing(&self, request: &Method) -> Result<ResponseFraming, HeadError> {
        framing::of_response(&self.headers, self.version, self.status, request)
    }

    /// The `Content-Length` that the head declares, even if no body follows, as for HEAD.
    ///
    /// # Errors
    /// If the head is ambiguous about it.
    pub fn declared_length(&self) -> Result<Option<u64>, HeadError> {
        Ok(match framing::declared(&self.headers, self.version)? {
            BodyFraming::Length(n) => Some(n),
            BodyFraming::None | BodyFraming::Chunked => None,
        })
    }

    /// Whether the sender allows the connection to stay open after this answer.
    pub fn keep_alive(&self) -> bool {
        keep_alive(&self.headers, self.version)
    }

    /// Drops the fields that end at this hop, so that the rest can be relayed.
    ///
    /// `Upgrade` of a 426 stays: a client learns by it which protocol to use (RFC 9110, section
    /// 15.5.22).
    pub fn remove_hop_by_hop(&mut self) {
        let ends_here = ends_here(&self.headers);
        let stays = self.status == UPGRADE_REQUIRED;
        let is_upgrade = |name: &[u8]| name.eq_ignore_ascii_case(b"upgrade");
        self.headers
            .drop_where(|name| ends_here(name) && !(stays && is_upgrade(name)));
    }
}

/// Whether only the writer sets this field.
fn is_ours(name: &[u8]) -> bool {
    let ours: &[u8] = match name.len() {
        4 => b"date",
        10 => b"connection",
        14 => b"content-length",
        17 => b"transfer-encoding",
        _ => return false,
    };
    name.eq_ignore_ascii_case(ours)
}

fn write_date(date: &str, out: &mut Vec<u8>) {
    // A check of all bytes is faster than one that stops at the first bad one.
    let bytes = date.bytes();
    let is_text = bytes.fold(true, |is_text, b| is_text & matches!(b, b' '..=b'~'));
    if !date.is_empty() && is_text {
        write_field(out, "Date", date.as_bytes());
    }
}
