//! Devices whose packets go to a program.

use std::io::ErrorKind;
use std::net::UdpSocket;

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
        ip("link set probe0 up");
        ip("route add 192.0.2.9 dev probe0");
        // The kernel itself sends IPv6 only when a device comes up.
        let receive = || loop {
            let mut packet = [0; 2_000];
            match tun.receive(&mut packet) {
                Ok(_) if packet[0] >> 4 == 6 => {}
                received => return received.map(|len| packet[..len].to_vec()),
            }
        };
        assert_eq!(receive().unwrap_err().kind(), ErrorKind::WouldBlock);

        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.send_to(b"hello", "192.0.2.9:9").unwrap();
        let packet = receive().unwrap();
        let len = packet.len();
        assert_eq!((packet[0], len), (0x45, 20 + 8 + 5));
        assert_eq!(packet[12..20], [192, 0, 2, 1, 192, 0, 2, 9]);
        assert_eq!(&packet[28..], b"hello");

        assert!(interfaces().contains("probe0"));
        drop(tun);
        assert!(!interfaces().contains("probe"));
    })
    .unwrap();
}
