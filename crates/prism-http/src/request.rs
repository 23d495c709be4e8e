//! Parses request heads.
//!
//! Not responsible for reading bytes, for timeouts of slow heads, or for the answer to an error
//! ([`HeadError::status`] has its code).

use std::mem::MaybeUninit;

use crate::boundary::{LineEnd, first_line, head_end};
use crate::forward::{ends_here, is_hop_by_hop};
use crate::framing::{self, keep_alive, write_framing};
use crate::headers::{Headers, write_field};
use crate::target::{Target, is_authority};
use crate::{BodyFraming, HeadError, Limits, Method, Version};

/// The longest method that is accepted; the longest registered one has 17 bytes.
const MAX_METHOD_BYTES: usize = 24;

/// A request head, owned and unambiguous: the start of the next request is certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    method: Method,
    target: Target,
    version: Version,
    headers: Headers,
    framing: BodyFraming,
    expects_continue: bool,
    keep_alive: bool,
    /// Its bytes, if [`Self::move_host_to_path`] or [`Self::rewrite_path`] has changed it.
    rewritten: Option<Vec<u8>>,
}

impl RequestHead {
    /// Parses the head at the start of `buf`. Returns it with its number of bytes, or `None` if
    /// more bytes are needed. One empty line in front of the head is skipped and counted
    /// (RFC 9112 section 2.2).
    ///
    /// A call with an incomplete head takes time in proportion to the bytes in `buf`, up to
    /// [`Limits::head_bytes`].
    ///
    /// # Errors
    /// If the head is malformed, ambiguous or beyond the limits, as soon as that is certain.
    pub fn parse(buf: &[u8], limits: &Limits) -> Result<Option<(Self, usize)>, HeadError> {
        let (head, skipped) = match buf {
            b"\r" => return Ok(None),
            [b'\r', b'\n', rest @ ..] => (rest, 2),
            _ => (buf, 0),
        };
        let Some(end) = head_end(head, limits, LineEnd::CrLf)? else {
            return Ok(None);
        };
        let head = head.get(..end).unwrap_or_default();
        Self::parse_whole(head, limits).map(|parsed| Some((parsed, skipped + end)))
    }

    fn parse_whole(head: &[u8], limits: &Limits) -> Result<Self, HeadError> {
        // Only the used part is written: 4 KiB need not be cleared first.
        let mut fields = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];
        let room = fields.len().min(limits.headers);
        let fields = fields.get_mut(..room).unwrap_or_default();
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(head, fields) {
            Ok(httparse::Status::Complete(end)) if end == head.len() => {}
            Ok(_) => return Err(HeadError::StartLine),
            Err(error) => {
                let last = first_line(head).rsplit(|&b| b == b' ').next();
                return Err(HeadError::of_parser(error, last));
            }
        }
        let headers = Headers::from_parsed(request.headers, head);
        let method = method(request.method.unwrap_or_default())?;
        let target = request.path.unwrap_or_default();
        if target.len() > limits.target_bytes {
            return Err(HeadError::TargetTooLong);
        }
        let target = Target::parse(target, &method)?;
        let version = Version::from_minor(request.version);
        check_host(&headers, &target, version)?;
        let framing = framing::declared(&headers, version)?;
        if matches!(framing, BodyFraming::Length(n) if n > limits.body_bytes) {
            return Err(HeadError::BodyTooLong);
        }
        let expects_continue = expectation(&headers, version)?;
        let keep_alive = keep_alive(&headers, version);
        Ok(Self {
            method,
            target,
            version,
            headers,
            framing,
            expects_continue,
            keep_alive,
            rewritten: None,
        })
    }

    /// Moves the name in front of `host` to the path: `/k` of `a.host` becomes `/a/k` of `host`.
    /// The target `*` stays.
    ///
    /// # Errors
    /// [`HeadError`] if the name cannot be a part of a path, or `host` no host.
    pub fn move_host_to_path(&mut self, name: &str, host: &str) -> Result<(), HeadError> {
        if !self.path().starts_with('/') {
            return Ok(());
        }
        self.replace_path(&format!("/{name}{}", self.path()))?;
        let set = self.headers.set("Host", host);
        set.map_err(|_| HeadError::Host)?;
        self.write_again();
        Ok(())
    }

    /// As [`Self::replace_path`], for every node that reads the head from now on.
    ///
    /// # Errors
    /// [`HeadError::Target`] if it is no path.
    pub fn rewrite_path(&mut self, path: &str) -> Result<(), HeadError> {
        self.replace_path(path)?;
        self.write_again();
        Ok(())
    }

    fn write_again(&mut self) {
        let version = match self.version {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
        };
        let line = format!("{} {} HTTP/{version}\r\n", self.method, self.target());
        let mut bytes = line.into_bytes();
        self.headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        self.rewritten = Some(bytes);
    }

    /// Puts `path`, escaped as in a URL, in the place of the target's path.
    ///
    /// # Errors
    /// [`HeadError::Target`] if it is no path.
    pub fn replace_path(&mut self, path: &str) -> Result<(), HeadError> {
        let query = self.query().map(|query| format!("?{query}"));
        let raw = format!("{path}{}", query.unwrap_or_default());
        let target = Target::parse(&raw, &self.method)?;
        // The absolute form is the only place of the host in some heads of HTTP/1.0.
        if let (Some(host), None) = (self.target.authority(), self.headers.get("host")) {
            let set = self.headers.set("Host", host);
            set.map_err(|_| HeadError::Host)?;
        }
        self.target = target;
        Ok(())
    }

    /// The bytes of this head, if it was rewritten since the last call.
    pub fn take_rewritten(&mut self) -> Option<Vec<u8>> {
        self.rewritten.take()
    }

    /// Drops the fields that end at this hop because `Connection` names them, and their names
    /// there. So `Connection` cannot drop a field that is added later.
    pub fn end_named_fields(&mut self) {
        if self.headers.get("connection").is_none() {
            return;
        }
        let ends_here = ends_here(&self.headers);
        self.headers
            .drop_where(|name| ends_here(name) && !is_hop_by_hop(name));
        let options = self
            .headers
            .list("connection")
            .filter(|o| is_hop_by_hop(o) || is_close(o));
        let options: Vec<&[u8]> = options.collect();
        let options = options.join(&b", "[..]);
        // Never an error: they come from a field of this name.
        let _ = self.headers.set("Connection", options);
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The request target, as it came.
    pub fn target(&self) -> &str {
        self.target.raw()
    }

    /// The path, still percent-encoded; `/` if absolute form has none.
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// The query behind the first `?`, still percent-encoded.
    pub fn query(&self) -> Option<&str> {
        self.target.query()
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// All header fields, as they came.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// All header fields, to add or remove those that concern neither the framing nor the host.
    pub fn headers_mut(&mut self) -> &mut Headers {
        &mut self.headers
    }

    /// `Host`, or the host of an absolute target; `None` only in HTTP/1.0.
    pub fn host(&self) -> Option<&str> {
        self.target
            .authority()
            .or_else(|| self.headers.get_str("host"))
    }

    /// [`Self::host`] without a port, and without the dot that may end a name (RFC 3986, section
    /// 3.2.2).
    pub fn host_name(&self) -> Option<&str> {
        self.host().map(without_port)
    }

    /// The way in which the body is delimited.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Whether the client waits for `100 Continue` before it sends the body. False if no body is
    /// announced. For a body of no bytes RFC 9110, section 10.1.1 allows to leave `100` out, but
    /// botocore then takes the next answer on the connection for a part of this one, and hangs.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue && self.framing != BodyFraming::None
    }

    /// Whether the client allows the connection to stay open after the answer.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Writes this head for the next hop: HTTP/1.1 in origin form, with `framing` for the body,
    /// and with `extra` fields behind the client's own. Hop-by-hop fields are left out, and so
    /// is `Expect`, which this hop has answered.
    ///
    /// Signed fields stay as they came, so that a signature stays valid.
    pub fn write_forward(&self, framing: BodyFraming, extra: &Headers, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method().as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path().as_bytes());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let ends_here = ends_here(&self.headers);
        let ends_here = |name: &[u8]| ends_here(name) || name.eq_ignore_ascii_case(b"expect");
        self.headers.write_without(ends_here, out);
        if self.headers.get("host").is_none() {
            write_field(out, "Host", self.host().unwrap_or_default().as_bytes());
        }
        extra.write_to(out);
        write_framing(framing.into(), out);
        out.extend_from_slice(b"\r\n");
    }
}

/// A host without its port, and without the dot that may end a name (RFC 3986, section 3.2.2). A
/// host with a malformed port has the same name as without it, so that no rule is passed by.
#[must_use]
pub fn without_port(host: &str) -> &str {
    let name = match host.split_once(']') {
        Some((address, _)) => host.get(..=address.len()).unwrap_or(host),
        None => host.split(':').next().unwrap_or(host),
    };
    name.strip_suffix('.').unwrap_or(name)
}

fn method(token: &str) -> Result<Method, HeadError> {
    if token.len() > MAX_METHOD_BYTES || token == "CONNECT" {
        return Err(HeadError::Method);
    }
    Method::from_bytes(token.as_bytes()).map_err(|_| HeadError::Method)
}

/// Whether an option of `Connection` ends it.
fn is_close(option: &[u8]) -> bool {
    option.eq_ignore_ascii_case(b"close")
}

fn check_host(headers: &Headers, target: &Target, version: Version) -> Result<(), HeadError> {
    let mut hosts = headers.get_all("host");
    let Some(host) = hosts.next() else {
        return match version {
            Version::Http10 => Ok(()),
            Version::Http11 => Err(HeadError::HostMissing),
        };
    };
    if hosts.next().is_some() {
        return Err(HeadError::HostRepeated);
    }
    if !is_authority(host) {
        return Err(HeadError::Host);
    }
    // RFC 9112 section 3.2.2 prefers the target. Such requests are refused here, because
    // readers of `Host`, such as signatures, would see another host.
    let Some(authority) = target.authority() else {
        return Ok(());
    };
    let plain = |host| {
        let host = strip_end(host, target.default_port());
        strip_end(host, b".")
    };
    let [host, authority] = [host, authority.as_bytes()].map(plain);
    if host.eq_ignore_ascii_case(authority) {
        Ok(())
    } else {
        Err(HeadError::HostDiffers)
    }
}

fn strip_end<'t>(text: &'t [u8], end: &[u8]) -> &'t [u8] {
    text.strip_suffix(end).unwrap_or(text)
}

fn expectation(headers: &Headers, version: Version) -> Result<bool, HeadError> {
    let mut expected = headers.list("expect").peekable();
    if version == Version::Http10 || expected.peek().is_none() {
        return Ok(false);
    }
    if expected.all(|e| e.eq_ignore_ascii_case(b"100-continue")) {
        Ok(true)
    } else {
        Err(HeadError::Expectation)
    }
}
