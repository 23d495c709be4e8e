//! Fields that end at this hop, and fields that a client cannot vouch for.

use crate::Headers;

/// Whether a field concerns one connection only (RFC 9110 section 7.6.1), or the next head
/// writes it again. So do fields that a server may take for one of these.
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
    named.iter().any(|n| are_alike(name, n.as_bytes()))
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

/// Whether a field tells a server who the client is and how it has come. No client can vouch for
/// one: `Forwarded` (RFC 7239), `X-Real-IP` and all `X-Forwarded-` fields.
pub fn is_forwarding(name: &[u8]) -> bool {
    const FAMILY: &[u8] = b"x-forwarded-";
    let beginning = name.get(..FAMILY.len());
    beginning.is_some_and(|beginning| are_alike(beginning, FAMILY))
        || are_alike(name, b"forwarded")
        || are_alike(name, b"x-real-ip")
}

/// Whether a server may take two names of fields for the same one. CGI (RFC 3875, section 4.1.18)
/// and its successors, such as WSGI, read `_` and `-` alike.
pub fn are_alike(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: &u8| match byte {
        b'_' => b'-',
        byte => byte.to_ascii_lowercase(),
    };
    one.len() == other.len() && one.iter().map(folded).eq(other.iter().map(folded))
}

/// Whether a field means nothing, or another thing, behind a body (RFC 9110, section 6.5.1): it
/// frames or routes the message, authenticates, conditions or describes it. A server or client that
/// merges trailers with the head would act by it.
pub(crate) fn is_of_the_head(name: &[u8]) -> bool {
    const NAMES: [&str; 26] = [
        "authentication-info",
        "authorization",
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-location",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "host",
        "location",
        "max-forwards",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "trailer",
        "vary",
        "via",
        "warning",
        "www-authenticate",
        "x-http-method-override",
        "x-original-url",
        "x-rewrite-url",
    ];
    const FAMILIES: [&str; 3] = ["if-", "proxy-", "sec-"];
    let begins = |family: &&str| {
        let beginning = name.get(..family.len());
        beginning.is_some_and(|beginning| are_alike(beginning, family.as_bytes()))
    };
    is_hop_by_hop(name)
        || is_forwarding(name)
        || NAMES.iter().any(|one| are_alike(name, one.as_bytes()))
        || FAMILIES.iter().any(begins)
}
