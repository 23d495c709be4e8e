//! The client of a request, as a trusted proxy in front of the service names it. Pure.
//!
//! Each proxy adds the address of its own client at the end of `X-Forwarded-For`. So the entries
//! are believed from the last one on, as long as trusted proxies have written them: the client is
//! the rightmost address that is none of theirs. Anybody may have written the entries before it.

use std::net::{IpAddr, SocketAddr};

use prism_config::Networks;
use prism_http::{Headers, RequestHead};
use prism_service::Remote;

/// The client of a request that came on a connection of a trusted proxy, as far as proxies know;
/// `None` if `peer` is none.
pub(crate) fn of_proxies(head: &RequestHead, peer: Remote, trusted: &Networks) -> Option<Remote> {
    if !trusted.have(peer.address.ip()) {
        return None;
    }
    let headers = head.headers();
    let mut client = Remote {
        is_proxied: true,
        ..peer
    };
    let all: Vec<&[u8]> = headers.get_all("x-forwarded-for").collect();
    let list = all.join(&b","[..]);
    let mut hops = list.rsplit(|byte| *byte == b',');
    while trusted.have(client.address.ip()) {
        // An entry that is no address ends what is known.
        let Some(hop) = hops.next().and_then(address) else {
            break;
        };
        client.address = hop;
    }
    match last(headers, "x-forwarded-proto") {
        Some("https") => client.is_tls = true,
        Some("http") => client.is_tls = false,
        _ => {}
    }
    if let Some(port) = last(headers, "x-forwarded-port").and_then(|port| port.parse().ok()) {
        client.service.set_port(port);
    }
    Some(client)
}

/// The last entry of a list, which the nearest proxy has written.
fn last<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    let value = headers.get_all(name).last()?;
    let value = std::str::from_utf8(value).ok()?;
    value.rsplit(',').next().map(str::trim)
}

/// An address as proxies write it, with or without a port, which is 0 if it is not there.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address: IpAddr = inner.unwrap_or(text).parse().ok()?;
    Some(SocketAddr::new(address, 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    fn seen(peer: &str, fields: &str) -> Remote {
        let trusted = Networks::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap();
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        let (head, _) = parsed.unwrap().unwrap();
        let peer = Remote {
            address: peer.parse().unwrap(),
            service: "203.0.113.10:80".parse().unwrap(),
            is_tls: false,
            has_companion: false,
            is_proxied: false,
        };
        of_proxies(&head, peer, &trusted).unwrap_or(peer)
    }

    #[test]
    fn the_client_is_the_rightmost_hop_that_is_not_trusted() {
        for (peer, fields, client) in [
            ("10.0.0.1:7", "", "10.0.0.1:7"),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 192.0.2.7\r\n",
                "192.0.2.7:0",
            ),
            (
                "[::ffff:10.0.0.1]:7",
                "X-Forwarded-For: 192.0.2.7\r\n",
                "192.0.2.7:0",
            ),
            // A client has written the first ones.
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 6.6.6.6, 10.9.9.9, 192.0.2.7 ,10.0.0.2\r\n",
                "192.0.2.7:0",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 192.0.2.7\r\n",
                "192.0.2.7:0",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 192.0.2.7:4711\r\n",
                "192.0.2.7:4711",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 2001:db8::7\r\n",
                "[2001:db8::7]:0",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: [2001:db8::7]:1\r\n",
                "[2001:db8::7]:1",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: [2001:db8::7]\r\n",
                "[2001:db8::7]:0",
            ),
            // All are trusted: the first one is the client.
            (
                "[fd00::1]:7",
                "X-Forwarded-For: 10.0.0.9, 10.0.0.2\r\n",
                "10.0.0.9:0",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: 192.0.2.7, unknown\r\n",
                "10.0.0.1:7",
            ),
            (
                "10.0.0.1:7",
                "X-Forwarded-For: unknown, 10.0.0.2\r\n",
                "10.0.0.2:0",
            ),
            (
                "192.0.2.9:7",
                "X-Forwarded-For: 192.0.2.7\r\n",
                "192.0.2.9:7",
            ),
        ] {
            let seen = seen(peer, fields);
            assert_eq!(seen.address, client.parse().unwrap(), "{peer} {fields}");
            assert_eq!(seen.is_proxied, !peer.starts_with("192"), "{peer}");
        }
    }

    #[test]
    fn a_trusted_proxy_says_how_its_client_came() {
        let fields = "X-Forwarded-Proto: http, https\r\nX-Forwarded-Port: 8443\r\n";
        let by_proxy = seen("10.0.0.1:7", fields);
        assert!(by_proxy.is_tls && by_proxy.service.port() == 8443);
        let by_other = seen("192.0.2.9:7", fields);
        assert!(!by_other.is_tls && by_other.service.port() == 80);
    }
}
