//! Writes a request head again, for the next hop.

use crate::framing::write_framing;
use crate::headers::write_field;
use crate::{BodyFraming, Headers, RequestHead};

/// Whether a field concerns one connection only (RFC 9110 section 7.6.1), or the next head
/// writes it again.
pub(crate) fn is_hop_by_hop(name: &[u8]) -> bool {
    let named: &[&str] = match name.len() {
        2 => &["te"],
        7 => &["trailer", "upgrade"],
        10 => &["connection", "keep-alive"],
        14 => &["content-length"],
        16 => &["proxy-connection"],
        17 => &["transfer-encoding"],
        18 => &["proxy-authenticate"],
        19 => &["proxy-authorization"],
        _ => return false,
    };
    named
        .iter()
        .any(|n| name.eq_ignore_ascii_case(n.as_bytes()))
}

impl RequestHead {
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
        let headers = self.headers();
        let named = named_by_connection(headers);
        let ends_here = |name: &[u8]| {
            is_hop_by_hop(name) || name.eq_ignore_ascii_case(b"expect") || is_one_of(&named, name)
        };
        headers.write_without(ends_here, out);
        if headers.get("host").is_none() {
            write_field(out, "Host", self.host().unwrap_or_default().as_bytes());
        }
        extra.write_to(out);
        write_framing(framing.into(), out);
        out.extend_from_slice(b"\r\n");
    }
}

/// Drops hop-by-hop fields, and the fields that `Connection` names.
pub(crate) fn drop_hop_by_hop(headers: &mut Headers) {
    let named = named_by_connection(headers);
    headers.drop_where(|name| is_hop_by_hop(name) || is_one_of(&named, name));
}

/// The names of fields that end at this hop by the header `Connection`.
fn named_by_connection(headers: &Headers) -> Vec<Vec<u8>> {
    let named = headers.list("connection");
    let named = named.filter(|token| std::str::from_utf8(token).is_ok_and(|n| !is_end_to_end(n)));
    named.map(<[u8]>::to_owned).collect()
}

fn is_one_of(names: &[Vec<u8>], name: &[u8]) -> bool {
    names.iter().any(|n| n.eq_ignore_ascii_case(name))
}

/// Whether a field stays even if a client names it in `Connection`, because it authenticates,
/// conditions or describes the request.
fn is_end_to_end(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(
        name.as_str(),
        "host" | "authorization" | "date" | "range" | "expect"
    ) || ["if-", "content-", "x-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
