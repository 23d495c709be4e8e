//! The header of the PROXY protocol, version 2, by which a server learns the client's address
//! (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>). Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPEC: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// The header of a connection for `client`, which has connected to one of `services`.
pub(crate) fn of_client(client: SocketAddr, services: &[SocketAddr]) -> Vec<u8> {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let mut alike = services.iter().copied();
    let service = alike.find(|service| service.is_ipv4() == client.is_ipv4());
    let unknown: IpAddr = match client.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let service = service.unwrap_or(SocketAddr::new(unknown, 0));
    let mut addresses = Vec::with_capacity(36);
    for address in [client, service] {
        match address.ip() {
            IpAddr::V4(v4) => addresses.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => addresses.extend_from_slice(&v6.octets()),
        }
    }
    for address in [client, service] {
        addresses.extend_from_slice(&address.port().to_be_bytes());
    }
    let family = if client.is_ipv4() { TCP4 } else { TCP6 };
    header(PROXY, family, &addresses)
}

/// The header of a connection of Prism itself.
pub(crate) fn of_prism() -> Vec<u8> {
    header(LOCAL, UNSPEC, &[])
}

fn header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend_from_slice(&[command, family]);
    // At most 36.
    let len = u16::try_from(addresses.len()).unwrap_or_default();
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(addresses);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_header_has_both_addresses_of_one_family() {
        let services = ["203.0.113.10:80", "[2001:db8::10]:80"].map(|a| a.parse().unwrap());
        let four = of_client("192.0.2.7:4711".parse().unwrap(), &services);
        let expected = [
            &SIGNATURE[..],
            &[
                0x21, 0x11, 0, 12, 192, 0, 2, 7, 203, 0, 113, 10, 0x12, 0x67, 0, 80,
            ],
        ];
        assert_eq!(four, expected.concat());
        let six = of_client("[2001:db8::7]:1".parse().unwrap(), &services);
        assert_eq!(six.get(12..16).unwrap(), [0x21, 0x21, 0, 36]);
        assert_eq!(six.len(), 16 + 36);
        assert_eq!(six.get(48..).unwrap(), [0, 1, 0, 80]);
        let alone = of_client("[2001:db8::7]:1".parse().unwrap(), &services[..1]);
        assert_eq!(alone.get(32..48).unwrap(), [0; 16]);
        assert_eq!(of_prism().get(12..).unwrap(), [0x20, 0, 0, 0]);
    }
}
