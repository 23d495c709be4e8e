//! Writes a request head again, for the next hop.

use crate::encode::Decimal;
use crate::headers::write_field;
use crate::{BodyFraming, Headers, RequestHead};

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and
/// those whose meaning the next head restates.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
];

impl RequestHead {
    /// Writes this head for the next hop: HTTP/1.1, origin form, without
    /// hop-by-hop fields and without `Expect` (this hop has answered it), with
    /// `framing` for the body and `extra` fields behind the client's own.
    ///
    /// Signed fields are kept as they came, so a signature stays valid.
    pub fn write_forward(&self, framing: BodyFraming, extra: &Headers, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method().as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path().as_bytes());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let mut headers = self.headers().clone();
        drop_hop_by_hop(&mut headers);
        headers.remove("expect");
        headers.write_to(out);
        if headers.get("host").is_none() {
            write_field(out, "Host", self.host().unwrap_or_default().as_bytes());
        }
        extra.write_to(out);
        match framing {
            BodyFraming::None => {}
            BodyFraming::Length(n) => {
                write_field(out, "Content-Length", Decimal::new(n).as_bytes());
            }
            BodyFraming::Chunked => write_field(out, "Transfer-Encoding", b"chunked"),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Drops hop-by-hop fields and those that `Connection` names.
pub(crate) fn drop_hop_by_hop(headers: &mut Headers) {
    let named: Vec<String> = headers
        .list("connection")
        .filter_map(|token| std::str::from_utf8(token).ok())
        .filter(|token| !is_end_to_end(token))
        .map(str::to_owned)
        .collect();
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    for name in named {
        headers.remove(&name);
    }
}

/// Fields that a client must not make us drop by naming them in `Connection`:
/// what authenticates, conditions or describes the request.
fn is_end_to_end(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(
        name.as_str(),
        "host" | "authorization" | "date" | "range" | "expect"
    ) || ["if-", "content-", "x-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
