//! Fields that end at this hop.

use crate::Headers;

/// Whether a field concerns one connection only (RFC 9110 section 7.6.1), or the next head
/// writes it again.
pub(crate) fn is_hop_by_hop(name: &[u8]) -> bool {
    let named: &[&str] = match name.len() {
        2 => &["te"],
        7 => &["upgrade"],
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

/// Whether a field of this name ends here: hop-by-hop fields, and the ones that `Connection` names.
pub(crate) fn ends_here(headers: &Headers) -> impl Fn(&[u8]) -> bool + use<> {
    let named = headers.list("connection");
    let named = named.filter(|token| std::str::from_utf8(token).is_ok_and(|n| !is_end_to_end(n)));
    let named: Vec<Vec<u8>> = named.map(<[u8]>::to_owned).collect();
    move |name| is_hop_by_hop(name) || named.iter().any(|n| n.eq_ignore_ascii_case(name))
}

/// Whether a field stays even if a client names it in `Connection`, because it authenticates,
/// conditions or describes the request.
fn is_end_to_end(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(
        name.as_str(),
        "host" | "authorization" | "date" | "range" | "expect" | "forwarded" | "via"
    ) || ["if-", "content-", "x-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
