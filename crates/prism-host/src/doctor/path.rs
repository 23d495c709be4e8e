//! Findings about the paths to the cluster's other hosts: whether packets as large as the path
//! takes arrive whole.
//!
//! A host that drops large packets must say so (RFC 1191, RFC 8201); TCP then sends smaller ones. A
//! path that drops them silently stalls transfers, and lets small requests pass. The probe is an
//! echo request (RFC 792, RFC 4443) as large as the path's MTU, which no router may cut, beside a
//! small one.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use prism_config::{ConfigFile, Node};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::finding::{Finding, Subject};

/// The number of times that unanswered probes are sent, and the wait for answers to each.
const ROUNDS: usize = 3;
const WAIT: Duration = Duration::from_millis(300);
/// The type, code, checksum, identifier and number of an echo message.
const HEAD_BYTES: usize = 8;
/// The size of a packet that any path takes.
const SMALL_BYTES: usize = 68;
const IPV4_HEAD_BYTES: usize = 20;
const IPV6_HEAD_BYTES: usize = 40;

/// The path to another host.
struct Path {
    name: String,
    to: IpAddr,
    /// The path's MTU, as the kernel knows it after the probes.
    mtu_bytes: usize,
    takes_small: bool,
    takes_large: bool,
}

/// The findings for the paths from `node`, or from the switch.
pub(super) fn examine(config: &ConfigFile, node: Option<&Node>) -> Vec<Finding> {
    let Some(switch) = &config.switch else {
        return Vec::new();
    };
    let here: Vec<IpAddr> = match node {
        Some(node) => node.address.iter().collect(),
        None => switch.control.iter().map(|at| at.ip()).collect(),
    };
    let others = config.nodes.iter().filter(|other| {
        let is_here = node.is_some_and(|node| node.name == other.name);
        !is_here
    });
    let others = others.map(|other| (other.name.clone(), other.address.iter().collect::<Vec<_>>()));
    let at_switch = node.map(|_| {
        let control = switch.control.iter().map(|at| at.ip());
        ("switch".to_owned(), control.collect())
    });
    let mut paths: Vec<Path> = Vec::new();
    for (name, addresses) in others.chain(at_switch) {
        let reachable = addresses.into_iter().filter(|to| {
            let is_alike = |from: &IpAddr| from.is_ipv4() == to.is_ipv4();
            here.iter().any(is_alike)
        });
        paths.extend(reachable.map(|to| Path::new(&name, to)));
    }
    match probe(&mut paths) {
        Ok(()) => {
            let short = too_short(&paths, switch.tunnel_mtu_bytes);
            found(&paths).into_iter().chain(short).collect()
        }
        Err(error) => {
            let found = format!("cannot send echo requests: {error}");
            vec![Subject("path MTU").unknown(found, "run it as root")]
        }
    }
}

impl Path {
    fn new(name: &str, to: IpAddr) -> Self {
        Self {
            name: name.to_owned(),
            to,
            mtu_bytes: 0,
            takes_small: false,
            takes_large: false,
        }
    }

    fn is_known(&self) -> bool {
        self.takes_small && self.takes_large
    }
}

/// The finding for the shortest path that does not carry what a tunnel of host mode needs.
fn too_short(paths: &[Path], tunnel_mtu_bytes: u32) -> Option<Finding> {
    let known = paths.iter().filter(|path| path.is_known());
    let Path {
        name,
        to,
        mtu_bytes,
        ..
    } = known.min_by_key(|path| path.mtu_bytes)?;
    if *mtu_bytes >= usize::try_from(tunnel_mtu_bytes).unwrap_or(usize::MAX) {
        return None;
    }
    let found = format!(
        "the path to {name} ({to}) takes packets of {mtu_bytes} bytes at most, and \
         switch.tunnel_mtu_bytes is {tunnel_mtu_bytes}: clients' long packets vanish"
    );
    let mend = format!("set switch.tunnel_mtu_bytes = {mtu_bytes} in the files of all hosts");
    Some(Subject("path MTU").missing(found, mend))
}

/// One finding for all good paths, one for all silent hosts, and one for each bad path.
fn found(paths: &[Path]) -> Vec<Finding> {
    let subject = Subject("path MTU");
    let bad = paths
        .iter()
        .filter(|path| path.takes_small && !path.takes_large);
    let bad = bad.map(|path| {
        let Path { to, mtu_bytes, .. } = path;
        subject.missing(
            format!(
                "packets of {mtu_bytes} bytes to {} ({to}) vanish, and no host on the path says \
                 that they are too large: transfers stall",
                path.name
            ),
            "give all interfaces on the path the same MTU, and let ICMP errors pass",
        )
    });
    let mut findings: Vec<Finding> = bad.collect();
    let silent = paths.iter().filter(|path| !path.takes_small);
    let silent: Vec<String> = silent
        .map(|path| format!("{} ({})", path.name, path.to))
        .collect();
    if !silent.is_empty() {
        let found = format!("no answer to echo requests from {}", silent.join(", "));
        let mend = "start these hosts, or let echo requests pass";
        findings.push(subject.unknown(found, mend));
    }
    let good = paths.iter().filter(|path| path.is_known());
    let sizes: BTreeSet<usize> = good.map(|path| path.mtu_bytes).collect();
    if let (Some(least), Some(most)) = (sizes.first(), sizes.last()) {
        let range = if least == most {
            format!("{least}")
        } else {
            format!("{least} to {most}")
        };
        findings.push(subject.good(format!("packets of {range} bytes arrive whole")));
    }
    findings
}

fn probe(paths: &mut [Path]) -> io::Result<()> {
    for is_ipv4 in [true, false] {
        if paths.iter().any(|path| path.to.is_ipv4() == is_ipv4) {
            probe_family(paths, is_ipv4)?;
        }
    }
    Ok(())
}

fn probe_family(paths: &mut [Path], is_ipv4: bool) -> io::Result<()> {
    let id = fastrand::u16(..);
    let mut socket = open(is_ipv4)?;
    for _ in 0..ROUNDS {
        let mut open_paths = 0;
        for (number, path) in (0..).zip(&mut *paths) {
            if path.is_known() || path.to.is_ipv4() != is_ipv4 {
                continue;
            }
            open_paths += 1;
            path.mtu_bytes = mtu_of(path.to).unwrap_or(SMALL_BYTES);
            for (bytes, number) in [(SMALL_BYTES, 2 * number), (path.mtu_bytes, 2 * number + 1)] {
                let message = echo_request(is_ipv4, bytes, id, number);
                // A host without a way, or a path that has just been found to take less, shows in
                // the missing answer or the next round.
                let _ = socket.send_to(&message, &SocketAddr::new(path.to, 0).into());
            }
        }
        if open_paths == 0 {
            break;
        }
        hear(&mut socket, paths, is_ipv4, id)?;
    }
    Ok(())
}

/// A socket for echo messages, whose packets no router may cut.
fn open(is_ipv4: bool) -> io::Result<Socket> {
    let (domain, protocol) = if is_ipv4 {
        (Domain::IPV4, Protocol::ICMPV4)
    } else {
        (Domain::IPV6, Protocol::ICMPV6)
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    if is_ipv4 {
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?
    }
    Ok(socket)
}

/// The MTU of the path as the kernel knows it, which is at first that of the interface.
fn mtu_of(to: IpAddr) -> io::Result<usize> {
    let from: IpAddr = match to {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((from, 0))?;
    // Nothing is sent; the port may be any.
    socket.connect((to, 9))?;
    let mtu = match to {
        IpAddr::V4(_) => sockopt::ip_mtu(&socket)?,
        IpAddr::V6(_) => sockopt::ipv6_mtu(&socket)?,
    };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// An echo request that makes a packet of `packet_bytes`.
fn echo_request(is_ipv4: bool, packet_bytes: usize, id: u16, number: u16) -> Vec<u8> {
    let head_bytes = if is_ipv4 {
        IPV4_HEAD_BYTES
    } else {
        IPV6_HEAD_BYTES
    };
    let len = packet_bytes.saturating_sub(head_bytes).max(HEAD_BYTES);
    let kind = if is_ipv4 { 8 } else { 128 };
    let [id_high, id_low] = id.to_be_bytes();
    let [number_high, number_low] = number.to_be_bytes();
    // The kernel makes the checksum of ICMPv6. All other words of the sum are zero.
    let words = [u16::from_be_bytes([kind, 0]), id, number];
    let sum: u32 = words.into_iter().map(u32::from).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let check = u16::try_from(folded & 0xffff).map_or(0, |folded| !folded);
    let [check_high, check_low] = check.to_be_bytes();
    let mut message = vec![
        kind,
        0,
        check_high,
        check_low,
        id_high,
        id_low,
        number_high,
        number_low,
    ];
    message.resize(len, 0);
    message
}

/// Notes answers for [`WAIT`], or until none is missing.
fn hear(socket: &mut Socket, paths: &mut [Path], is_ipv4: bool, id: u16) -> io::Result<()> {
    let until = Instant::now() + WAIT;
    let mut packet = vec![0; 1 << 16];
    loop {
        let is_open = |path: &Path| path.to.is_ipv4() == is_ipv4 && !path.is_known();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !paths.iter().any(is_open) {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        let len = match socket.read(&mut packet) {
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // An error of an earlier probe.
            Err(_) => continue,
        };
        let number = packet
            .get(..len)
            .and_then(|p| number_of_reply(p, is_ipv4, id));
        let Some(number) = number else { continue };
        if let Some(path) = paths.get_mut(usize::from(number / 2)) {
            match number % 2 {
                0 => path.takes_small = true,
                _ => path.takes_large = true,
            }
        }
    }
}

/// The number of an answer to `id`. A packet of IPv4 comes with its header.
fn number_of_reply(packet: &[u8], is_ipv4: bool, id: u16) -> Option<u16> {
    let (message, kind) = if is_ipv4 {
        let head_words = usize::from(packet.first()? & 15);
        (packet.get(head_words * size_of::<u32>()..)?, 0)
    } else {
        (packet, 129)
    };
    let head: [u8; HEAD_BYTES] = message.get(..HEAD_BYTES)?.try_into().ok()?;
    let [kind_here, _, _, _, id_high, id_low, high, low] = head;
    let is_ours = kind_here == kind && u16::from_be_bytes([id_high, id_low]) == id;
    is_ours.then(|| u16::from_be_bytes([high, low]))
}
