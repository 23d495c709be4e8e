//! Frames whose TCP header is not where it usually is: behind tags of VLANs, in fragments, behind
//! extension headers. Rows of a frame, what becomes of it, and its counter.

use std::net::{Ipv6Addr, SocketAddr};

use super::common::packet::{
    ACK, ATOMIC, AUTHENTICATED, FIRST, HOP, Header, LATER, LONG, OPTIONS, ROUTE, ROUTED, SYN, Tcp,
    ethernet, extended, fragment, ip6, tagged, udp,
};
use super::common::*;
use prism_packets::{Hook, Verdict, receive_packet};
use prism_proto::control::Ops;
use prism_switch::{SwitchConfig, interface_index};

/// First and later fragments, by a field as IPv4 has it.
const FIRST_PART: u16 = 0x2000;
const LATER_PART: u16 = 0x00b9;

struct Row {
    name: &'static str,
    frame: Vec<u8>,
    verdict: Verdict,
    /// The counter that grows; none: the packet is not for the switch.
    counter: Option<&'static str>,
    /// The XDP program leaves the frame to the tc program.
    is_for_tc: bool,
}

impl Row {
    fn new(
        name: &'static str,
        frame: Vec<u8>,
        verdict: Verdict,
        counter: Option<&'static str>,
    ) -> Self {
        Self {
            name,
            frame,
            verdict,
            counter,
            is_for_tc: false,
        }
    }

    fn for_tc(self) -> Self {
        let is_for_tc = true;
        Self { is_for_tc, ..self }
    }

    /// The frame without tags of VLAN 0 that are in front of all others.
    fn untagged(&self) -> Vec<u8> {
        let mut frame = self.frame.clone();
        while frame[12..14] == [0x81, 0] {
            frame.drain(12..16);
        }
        frame
    }

    fn check(&self, lab: &Lab, hook: Hook) {
        let name = self.name;
        let before = lab.counters();
        let run = lab.run(hook, &self.frame);
        let (verdict, counter) = match hook {
            Hook::Xdp if self.is_for_tc => (Verdict::Pass, Some("punt_xdp")),
            _ => (self.verdict, self.counter),
        };
        assert_eq!(run.verdict, verdict, "{name}: {:?}", lab.counters());
        let mut grown = lab.counters();
        grown.retain(|(counter, value)| {
            let before = before.iter().find(|(name, _)| name == counter);
            before.map_or(0, |(_, value)| *value) < *value
        });
        let grown: Vec<&str> = grown.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(grown, Vec::from_iter(counter), "{name}");
        if verdict == Verdict::Pass {
            let out = match hook {
                Hook::Xdp => self.frame.clone(),
                // The kernel keeps the tag of a VLAN beside the frame if one of VLAN 0 was in
                // front.
                Hook::Tc if self.name == IN_VLAN => self.frame.clone(),
                Hook::Tc => self.untagged(),
            };
            assert_eq!(run.packet, out, "{name}");
        }
    }
}

const IN_VLAN: &str = "in a VLAN";

/// Commands are taken from an interface that does not exist, so test runs come from clients.
fn from_clients(config: &mut SwitchConfig) {
    config.control_interfaces = [1000].into();
}

fn lease_request() -> Tcp {
    let mut tcp = Tcp::new(CLIENT, CONTROL);
    tcp.flags = SYN;
    tcp.payload.clear();
    tcp
}

/// A client's requests for a lease, and other packets to the same address. None of the former may
/// reach the kernel.
fn rows_to_control() -> Vec<Row> {
    let row = Row::new;
    let (drop, pass) = (Verdict::Drop, Verdict::Pass);
    let stray = Some("control_interface");
    let whole = || lease_request().build();
    let mut options = lease_request();
    options.options = vec![1; 8];
    let mut cut = whole();
    cut.truncate(14 + IP_BYTES + 12);
    let part = |field| fragment(whole(), field);
    let other_port = SocketAddr::new(CONTROL.ip(), 22);
    let datagram = |field| fragment(udp(CLIENT, CONTROL, &[1; 64]), field);
    let mut rows = vec![
        row("whole", whole(), drop, stray),
        row("with options", options.build(), drop, stray),
        row("first fragment", part(FIRST_PART), drop, stray),
        row("later fragment", part(LATER_PART), drop, stray),
        row("cut off", cut, drop, stray),
        row("VLAN 0", tagged(whole(), &[0]), drop, stray).for_tc(),
        row("VLAN 0 twice", tagged(whole(), &[0, 0]), drop, stray).for_tc(),
        row("fragment, VLAN 0", tagged(part(FIRST_PART), &[0]), drop, stray).for_tc(),
        row("VLAN 0, 3 times", tagged(whole(), &[0; 3]), drop, Some("drop_tagged")).for_tc(),
        row("VLAN 0, 9 times", tagged(whole(), &[0; 9]), drop, Some("drop_tagged")).for_tc(),
        // On another interface, which has the program or leads to no client.
        row(IN_VLAN, tagged(whole(), &[7]), pass, Some("punt_tagged")).for_tc(),
        row("VLAN 0, then 7", tagged(whole(), &[0, 7]), pass, Some("punt_tagged")).for_tc(),
        row("another port", Tcp::new(CLIENT, other_port).build(), pass, None),
        row("fragment of UDP", datagram(FIRST_PART), pass, None),
        row("later one of UDP", datagram(LATER_PART), pass, None),
    ];
    if IS_V6 {
        let chains: [(&str, &[Header]); 14] = [
            ("hop-by-hop", &[HOP]),
            ("destination options", &[OPTIONS]),
            ("a route that is reached", &[ROUTED]),
            ("a route with a segment left", &[ROUTE]),
            ("an atomic fragment", &[ATOMIC]),
            ("four headers", &[HOP, OPTIONS, ROUTED, ATOMIC]),
            ("five headers", &[OPTIONS; 5]),
            ("twelve headers", &[OPTIONS; 12]),
            ("a long header", &[LONG]),
            ("two long headers", &[LONG, LONG]),
            ("authentication", &[AUTHENTICATED]),
            ("a first fragment", &[FIRST]),
            ("a later fragment behind options", &[HOP, LATER]),
            ("a fragment in front of options", &[FIRST, OPTIONS]),
        ];
        for (name, chain) in chains {
            rows.push(row(name, extended(CLIENT, CONTROL, chain), drop, stray));
        }
        let neighbour = SocketAddr::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(), 9);
        let link_local = extended(neighbour, CONTROL, &[HOP]);
        rows.push(row("link-local", Tcp::new(neighbour, CONTROL).build(), drop, stray));
        rows.push(row("link-local, extended", link_local, drop, stray));
        let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
        solicitation.extend([0; 16]);
        let solicitation = ip6(neighbour.ip(), CONTROL.ip(), 58, 255, &solicitation);
        rows.push(row("neighbour discovery", ethernet(&solicitation), pass, None));
    }
    rows
}

#[test]
fn no_frame_of_a_client_reaches_the_port_of_leases() {
    in_lab("lease-frames", from_clients, |lab| {
        for hook in BOTH {
            rows_to_control().iter().for_each(|row| row.check(lab, hook));
        }
    });
}

#[test]
fn the_same_frames_of_nodes_reach_it() {
    in_lab("node-frames", |_| {}, |lab| {
        for hook in BOTH {
            for row in rows_to_control() {
                let run = lab.run(hook, &row.frame);
                let is_dropped = row.counter == Some("drop_tagged") && hook == Hook::Tc;
                let verdict = if is_dropped { Verdict::Drop } else { Verdict::Pass };
                assert_eq!(run.verdict, verdict, "{}", row.name);
            }
        }
        assert_eq!(lab.counter("control_interface"), 0);
    });
}

#[test]
fn a_priority_tag_changes_nothing_about_a_packet_of_a_flow() {
    in_lab("priority", |_| {}, |lab| {
        set(lab, Flow::OwnedBy(BACKEND));
        let to_owner = (mac_of(BACKEND.ip()), CLIENT, BACKEND);
        for (from, to, out) in [
            (CLIENT, VIP, to_owner),
            (BACKEND, CLIENT, (CLIENT_MAC, VIP, CLIENT)),
        ] {
            for vlans in [&[0][..], &[0, 0]] {
                let tcp = Tcp::new(from, to);
                let run = lab.run(Hook::Tc, &tagged(tcp.build(), vlans));
                check_sent(&run, &tcp, out, "tagged");
                assert_eq!(run.packet.len(), tcp.build().len(), "no tag is sent on");
            }
        }
        let part = |vlans: &[u16], field| tagged(fragment(Tcp::new(CLIENT, VIP).build(), field), vlans);
        let whole = |vlans: &[u16]| tagged(Tcp::new(CLIENT, VIP).build(), vlans);
        for row in [
            Row::new("first part", part(&[0], FIRST_PART), Verdict::Drop, Some("drop_fragment")),
            Row::new("later part", part(&[0], LATER_PART), Verdict::Drop, Some("drop_fragment")),
            Row::new("three tags", whole(&[0; 3]), Verdict::Drop, Some("drop_tagged")),
            Row::new(IN_VLAN, whole(&[7]), Verdict::Pass, Some("punt_tagged")),
            Row::new("VLAN 0, then 7", whole(&[0, 7]), Verdict::Pass, Some("punt_tagged")),
        ] {
            let row = row.for_tc();
            BOTH.into_iter().for_each(|hook| row.check(lab, hook));
        }
    });
}

#[test]
fn a_command_in_vlan_0_is_answered() {
    in_lab("tagged-command", |_| {}, |lab| {
        let query = request(Ops::QUERY, 0, flow(CLIENT), tai_ns());
        let source = SocketAddr::new(FRONTEND, 5555);
        let frame = tagged(udp(source, CONTROL, &query.encode(&key())), &[0]);
        let run = lab.run(Hook::Tc, &frame);
        assert_eq!(run.verdict, Verdict::Send);
        packet::verify(&run.packet);
        let p = packet::Parsed::new(&run.packet);
        assert_eq!((p.source, p.dest), (CONTROL, source));
        assert_eq!(lab.counter("control_ok"), 1);
    });
}

#[test]
fn a_priority_tag_resets_no_connection_in_host_mode() {
    let at_frontend = |config: &mut SwitchConfig| config.host_mode = Some([FRONTEND].into());
    in_lab("host-priority", at_frontend, |lab| {
        own_at(lab, BACKEND.ip());
        for flags in [ACK, SYN] {
            for vlans in [&[0][..], &[0, 0]] {
                let mut tcp = Tcp::new(CLIENT, VIP);
                tcp.flags = flags;
                let run = lab.run(Hook::Tc, &tagged(tcp.build(), vlans));
                check_sent(&run, &tcp, (mac_of(BACKEND.ip()), CLIENT, VIP), "moved");
            }
        }
        for (frame, counter) in [
            (tagged(Tcp::new(CLIENT, VIP).build(), &[0; 3]), "drop_tagged"),
            (fragment(Tcp::new(CLIENT, VIP).build(), FIRST_PART), "drop_fragment"),
            (fragment(Tcp::new(CLIENT, VIP).build(), LATER_PART), "drop_fragment"),
        ] {
            Row::new("not read", frame, Verdict::Drop, Some(counter)).check(lab, Hook::Tc);
        }
        // Without a flow, the packet goes to the socket that may answer it.
        set(lab, Flow::None);
        let new = tagged(lease_like_syn(), &[0]);
        Row::new("a new connection", new, Verdict::Pass, Some("punt_here")).check(lab, Hook::Tc);
    });
}

fn lease_like_syn() -> Vec<u8> {
    let mut tcp = Tcp::new(CLIENT, VIP);
    tcp.flags = SYN;
    tcp.build()
}

/// The kernel takes the outer tag off before the tc program runs, and keeps it beside the packet.
#[test]
fn tags_that_the_kernel_has_taken_off_are_seen() {
    let at_link = |config: &mut SwitchConfig| {
        config.interfaces = vec!["c0".into()];
        config.xdp = true;
        // Only test runs come from nodes: by the loopback interface.
        config.control_interfaces = [1].into();
    };
    in_lab("device-tags", at_link, |lab| {
        set(lab, Flow::OwnedBy(BACKEND));
        let ifindex = u32::try_from(interface_index("c0").unwrap()).unwrap();
        let own_mac = [2, 0, 0, 0, 0, 0xc0];
        sh("ip link set dev c0 address 02:00:00:00:00:c0");
        let receive = |frame: Vec<u8>, counter: &str| {
            let mut frame = frame;
            frame[..6].copy_from_slice(&own_mac);
            let before = lab.counter(counter);
            receive_packet(&lab.switch, ifindex, &frame).unwrap();
            let begun = std::time::Instant::now();
            while lab.counter(counter) == before {
                assert!(begun.elapsed().as_secs() < 5, "{counter}: {:?}", lab.counters());
                pause(1);
            }
            assert_eq!(lab.counter(counter), before + 1);
        };
        let of_flow = || Tcp::new(CLIENT, VIP).build();
        let lease = || lease_request().build();
        for vlans in [&[0][..], &[0, 0]] {
            receive(tagged(of_flow(), vlans), "forward_to_owner");
            receive(tagged(lease(), vlans), "control_interface");
        }
        receive(tagged(lease(), &[0; 3]), "drop_tagged");
        for vlans in [&[7][..], &[0, 7], &[0, 0, 7], &[7, 0]] {
            receive(tagged(lease(), vlans), "punt_tagged");
        }
    });
}
