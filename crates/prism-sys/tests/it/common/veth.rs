//! A client and two hosts in namespaces, joined by veth. Packets pass on one core while a test
//! works on sockets on another. The client's route to the service is the switch: it leads to the
//! owner of the flow. By the strict `rp_filter` no packet of the other host reaches the client.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use prism_netns::NetNs;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Family, ip, nodad};

/// The shortest retransmission timeout, both ways. It bounds the time to repeat segments that a
/// freeze drops.
const RTO_MIN_MS: u32 = 5;

pub struct Pair {
    pub family: &'static Family,
    pub client: NetNs,
    pub hosts: [NetNs; 2],
    /// Per host, of its one interface and `lo`.
    counters: [File; 2],
    /// Per host, of its protocols.
    snmp: [File; 2],
    netlink: Socket,
    links: [u32; 2],
}

impl Pair {
    pub fn new(family: &'static Family) -> Self {
        let client = NetNs::anonymous().unwrap();
        let hosts = [NetNs::anonymous().unwrap(), NetNs::anonymous().unwrap()];
        for (n, host) in hosts.iter().enumerate() {
            join(family, &client, host, n);
        }
        let links = [0, 1].map(|n| client.run(|| link_index(&format!("c{n}"))).unwrap());
        let open = |path: &str| {
            let open = |host: &NetNs| host.run(|| File::open(path).unwrap()).unwrap();
            hosts.each_ref().map(open)
        };
        let counters = open("/proc/thread-self/net/dev");
        let snmp = open("/proc/thread-self/net/snmp");
        let netlink = client.run(route_socket).unwrap();
        let pair = Self {
            family,
            client,
            hosts,
            counters,
            snmp,
            netlink,
            links,
        };
        pair.own(0);
        pair
    }

    /// Sends the client's packets to `host`, and lets it hear no other host.
    pub fn own(&self, host: usize) {
        let request = route_to_service(self.family, self.links[host]);
        self.netlink.send(&request).unwrap();
        let mut answer = [0; 256];
        let length = (&self.netlink).read(&mut answer).unwrap();
        let code = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
        assert!(length >= 20 && code == 0, "route: {code}");
    }

    /// Packets that `host` has emitted so far.
    pub fn emitted(&self, host: usize) -> u64 {
        let mut text = [0; 4096];
        let length = self.counters[host].read_at(&mut text, 0).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("h0:"));
        // Behind the name are 8 figures of input, then bytes and packets sent.
        line.unwrap()
            .split_whitespace()
            .nth(10)
            .unwrap()
            .parse()
            .unwrap()
    }

    /// The number of resets that `host` has emitted. Packets that come after their connection has
    /// moved draw some of them.
    pub fn resets(&self, host: usize) -> u64 {
        let mut text = [0; 4096];
        let length = self.snmp[host].read_at(&mut text, 0).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, figures) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|name| name == "OutRsts").unwrap();
        figures.split(' ').nth(at).unwrap().parse().unwrap()
    }

    /// A connection from the client to a listener on host 0.
    pub fn connect(&self) -> (TcpStream, OwnedFd) {
        // The former listener may live on for a moment, in a process that another test starts.
        let listen = || {
            let bound = (0..100).find_map(|_| {
                let bound = TcpListener::bind(self.family.service()).ok();
                if bound.is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                bound
            });
            bound.expect("the service's port is taken")
        };
        let listener = self.hosts[0].run(listen).unwrap();
        let connect = || TcpStream::connect(self.family.service()).unwrap();
        let client = self.client.run(connect).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
            stream.set_nonblocking(true).unwrap();
        }
        (client, server.into())
    }
}

/// A link between the client and host `n`: `c0` or `c1` to `h0`.
fn join(family: &Family, client: &NetNs, host: &NetNs, n: usize) {
    let fd = host.as_fd().as_raw_fd();
    let far = format!("/proc/{}/fd/{fd}", std::process::id());
    let near_mac = format!("02:00:00:00:01:0{n}");
    let far_mac = format!("02:00:00:00:02:0{n}");
    let near = format!("c{n}");
    let (prefix, nodad) = (family.prefix, nodad(family));
    let (from, vip) = (family.client, family.vip);
    client
        .run(|| {
            quiet(family);
            write("conf/all/rp_filter", "1");
            ip("link set lo up");
            ip(&format!(
                "link add {near} address {near_mac} type veth peer name h0 address {far_mac} netns {far}"
            ));
            ip(&format!("link set {near} up"));
            ip(&format!("addr add {from}/{prefix} dev {near}{nodad}"));
            ip(&format!("neigh add {vip} lladdr {far_mac} dev {near} nud permanent"));
        })
        .unwrap();
    host.run(|| {
        quiet(family);
        ip("link set lo up");
        ip("link set h0 up");
        ip(&format!("addr add {vip}/{prefix} dev h0{nodad}"));
        ip(&format!(
            "neigh add {from} lladdr {near_mac} dev h0 nud permanent"
        ));
        ip(&format!(
            "route add {from}/{prefix} dev h0 src {vip} rto_min {RTO_MIN_MS}ms"
        ));
    })
    .unwrap();
}

/// Keeps the kernel from sending packets of its own.
fn quiet(family: &Family) {
    let setting = match family.vip.is_ipv4() {
        true => ("disable_ipv6", "1"),
        // No address of the link, and hence no search for routers.
        false => ("addr_gen_mode", "1"),
    };
    for place in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{place}/{}", setting.0);
        // A kernel without IPv6 is quiet anyway.
        let _ = std::fs::write(path, setting.1);
    }
}

fn write(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
}

fn link_index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: a string that ends with zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert!(index > 0);
    index
}

fn route_socket() -> Socket {
    let protocol = Protocol::from(libc::NETLINK_ROUTE);
    Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)).unwrap()
}

/// `ip route replace VIP dev LINK rto_min RTO_MIN_MS` (`rtnetlink(7)`).
fn route_to_service(family: &Family, link: u32) -> Vec<u8> {
    const RTAX_LOCK: u16 = 1;
    const RTAX_RTO_MIN: u16 = 13;
    const SCOPE_LINK: u8 = 253;
    const PROTOCOL_STATIC: u8 = 4;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let metrics = [
        attribute(RTAX_LOCK, &(1_u32 << RTAX_RTO_MIN).to_ne_bytes()),
        attribute(RTAX_RTO_MIN, &RTO_MIN_MS.to_ne_bytes()),
    ];
    let kind = match family.vip.is_ipv4() {
        true => libc::AF_INET,
        false => libc::AF_INET6,
    };
    // `struct rtmsg`: family, lengths of the prefixes, TOS, table, who, where, what.
    let mut body = vec![
        kind as u8,
        family.prefix,
        0,
        0,
        libc::RT_TABLE_MAIN,
        PROTOCOL_STATIC,
        SCOPE_LINK,
        libc::RTN_UNICAST,
    ];
    body.extend([0; 4]);
    body.extend(attribute(libc::RTA_DST, &Family::octets(family.vip)));
    body.extend(attribute(libc::RTA_OIF, &link.to_ne_bytes()));
    body.extend(attribute(libc::RTA_METRICS, &metrics.concat()));
    let mut request = Vec::with_capacity(16 + body.len());
    request.extend((16 + body.len() as u32).to_ne_bytes());
    request.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    request.extend((flags as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// One attribute; all here have lengths that are multiples of 4.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len());
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes
}

/// The service's packets, as the client's interfaces see them.
pub struct Capture(Socket, &'static Family);

impl Capture {
    pub fn start(pair: &Pair) -> Self {
        let protocol = Protocol::from(i32::from(pair.family.ether_type.to_be()));
        let open = || Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(protocol)).unwrap();
        Self(pair.client.run(open).unwrap(), pair.family)
    }

    /// The service's packets since the last call: client port and TCP flags.
    pub fn seen(&self) -> Vec<(u16, u8)> {
        let (mut packet, mut seen) = ([0; 2048], vec![]);
        while let Ok(length) = (&self.0).read(&mut packet) {
            let (family, packet) = (self.1, packet.get(14..length).unwrap_or_default());
            let vip = family.service();
            if family.is_tcp(packet) && family.is_from(packet, vip) {
                let tcp = &packet[family.tcp_at..];
                seen.push((u16::from_be_bytes([tcp[2], tcp[3]]), tcp[13]));
            }
        }
        seen
    }
}

/// Keeps the calling thread on one core.
pub fn pin_to(core: usize) {
    // SAFETY: an all-zero set is a valid one, and it is of the length given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        // On a machine with fewer cores the scheduler decides.
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Prints a figure even if the test passes.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "    {text}");
}
