//! Devices whose packets go to a program.

use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, UdpSocket};

use crate::{ip, privileged};
use prism_netns::{NetNs, Tun};

fn interfaces() -> String {
    std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
}

#[test]
fn a_device_gives_what_is_sent_over_it_and_ends_with_its_handle() {
    if !privileged() {
        return;
    }
    let ns = NetNs::anonymous().unwrap();
    ns.run(|| {
        let tun = Tun::create("probe").unwrap();
        assert_eq!(tun.name(), "probe0");
        assert_eq!(Tun::create("probe").unwrap().name(), "probe1");
        ip("address add 192.0.2.1/32 dev probe0");
        ip("address add 2001:db8::1/128 dev probe0 nodad");
        ip("link set probe0 up");
        ip("route add 192.0.2.9 dev probe0");
        ip("route add 2001:db8::9 dev probe0");
        assert_eq!(
            receive(&tun).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "nothing was sent"
        );

        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.send_to(b"hello", "192.0.2.9:9").unwrap();
        let packet = receive(&tun).unwrap();
        assert_eq!((packet[0], packet.len()), (0x45, 20 + 8 + 5));
        assert_eq!(packet[12..20], [192, 0, 2, 1, 192, 0, 2, 9]);
        assert_eq!(&packet[28..], b"hello");

        let socket = UdpSocket::bind("[2001:db8::1]:0").unwrap();
        socket.send_to(b"hello", "[2001:db8::9]:9").unwrap();
        let packet = receive(&tun).unwrap();
        assert_eq!((packet[0] >> 4, packet.len()), (6, 40 + 8 + 5));
        let ends = ["2001:db8::1", "2001:db8::9"].map(|end| end.parse::<Ipv6Addr>().unwrap());
        assert_eq!(packet[8..40], ends.map(|end| end.octets()).concat());
        assert_eq!(&packet[48..], b"hello");

        assert!(interfaces().contains("probe0"));
        drop(tun);
        assert!(!interfaces().contains("probe"));
    })
    .unwrap();
}

/// The next packet, without those that the kernel itself sends over IPv6 to groups.
fn receive(tun: &Tun) -> io::Result<Vec<u8>> {
    loop {
        let mut packet = [0; 2_000];
        let len = tun.receive(&mut packet)?;
        let is_to_group = packet[0] >> 4 == 6 && packet[24] == 0xff;
        if !is_to_group {
            return Ok(packet[..len].to_vec());
        }
    }
}
