//! The header of the PROXY protocol, version 2, by which a server learns the client's address.
//! Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_header::{ProxiedAddress, ProxyHeader};

/// The ends of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The client's address; its port is 0 if another node has the connection.
    pub(crate) client: SocketAddr,
    /// The address that it has connected to, if it is known.
    pub(crate) service: Option<SocketAddr>,
}

/// The header of a connection for a client.
pub(crate) fn of_client(ends: &Ends) -> Vec<u8> {
    let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let client = canonical(ends.client);
    let service = ends.service.map(canonical);
    let service = service.filter(|service| service.is_ipv4() == client.is_ipv4());
    let unknown: IpAddr = if client.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let service = service.unwrap_or(SocketAddr::new(unknown, 0));
    bytes_of(&ProxyHeader::with_address(ProxiedAddress::stream(
        client, service,
    )))
}

/// The header of a connection of Prism itself.
pub(crate) fn of_prism() -> Vec<u8> {
    bytes_of(&ProxyHeader::with_local())
}

fn bytes_of(header: &ProxyHeader<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    // Never an error: the addresses are of one family.
    let _ = header.encode_v2(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_header_has_both_addresses_of_one_family() {
        let header = |client: &str, service: &str| {
            of_client(&Ends {
                client: client.parse().unwrap(),
                service: Some(service.parse().unwrap()),
            })
        };
        let four = header("192.0.2.7:4711", "203.0.113.10:80");
        assert_eq!(
            header("[::ffff:192.0.2.7]:4711", "[::ffff:203.0.113.10]:80"),
            four
        );
        let expected = [
            &b"\r\n\r\n\0\r\nQUIT\n"[..],
            &[
                0x21, 0x11, 0, 12, 192, 0, 2, 7, 203, 0, 113, 10, 0x12, 0x67, 0, 80,
            ],
        ];
        assert_eq!(four, expected.concat());
        let six = header("[2001:db8::7]:1", "[2001:db8::10]:80");
        assert_eq!(six.get(12..16).unwrap(), [0x21, 0x21, 0, 36]);
        assert_eq!(six.len(), 16 + 36);
        assert_eq!(six.get(48..).unwrap(), [0, 1, 0, 80]);
        let alone = header("[2001:db8::7]:1", "203.0.113.10:80");
        assert_eq!(alone.get(32..48).unwrap(), [0; 16]);
        assert_eq!(of_prism().get(12..).unwrap(), [0x20, 0, 0, 0]);
    }
}
