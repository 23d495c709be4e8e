//! The packets that the client saw: no unintended reset, and no address but the service's.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use prism_lab::{Capture, CaptureOptions, Mode};

use super::{Cluster, say};

/// Headers of Ethernet, IP and TCP with all options.
const SNAPLEN: u32 = 128;
/// Packets with the flag RST. `tcp[...]` finds those of IPv4 alone. `and` and `or` bind alike.
pub const RST: &str = "((tcp[tcpflags] & tcp-rst != 0) or (ip6[6] = 6 and ip6[53] & tcp-rst != 0))";
/// Packets that begin or end connections.
const EVENT: &str = "((tcp[tcpflags] & (tcp-syn|tcp-fin|tcp-rst) != 0) \
                     or (ip6[6] = 6 and ip6[53] & (tcp-syn|tcp-fin|tcp-rst) != 0))";
/// All packets but those that find neighbours, as ARP does, and that join their groups.
const IP: &str = "(ip or (ip6 and ip6[6] != 0 \
                  and not (ip6[6] = 58 and ip6[40] >= 133 and ip6[40] <= 137)))";
/// Messages about other packets.
const ICMP: &str = "(icmp or icmp6)";

/// Whether the client resets connections on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientResets {
    /// It sends none.
    None,
    /// The test makes it.
    Meant,
    /// A program that ends with unread answers makes it.
    AtItsEnd,
}

/// A capture at the client's interface, kept where a test fails.
pub struct Watch {
    capture: Option<Capture>,
    file: PathBuf,
    /// The service's addresses.
    vips: Vec<IpAddr>,
    mode: Mode,
    /// From then on servers are killed, and their resets are passed on, in milliseconds since 1970.
    servers_killed: Option<u64>,
}

impl Watch {
    /// Records the headers of all packets.
    pub fn all(cluster: &Cluster, label: &str) -> Self {
        Self::start(cluster, label, IP)
    }

    /// Records only packets that begin or end connections, and unexpected ones, for tests that
    /// move much data.
    pub fn events(cluster: &Cluster, label: &str) -> Self {
        let vips = one_of("host", &cluster.vips());
        let filter = format!("{IP} and (not {vips} or {ICMP} or {EVENT})");
        Self::start(cluster, label, &filter)
    }

    fn start(cluster: &Cluster, label: &str, filter: &str) -> Self {
        // Another test may run at the same time.
        let name = format!("{label}-{}.pcap", cluster.lab.name());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let options = CaptureOptions {
            snaplen: SNAPLEN,
            ..CaptureOptions::default()
        };
        let capture = cluster.lab.capture_with("client", &file, filter, &options);
        Self {
            capture: Some(capture.unwrap()),
            file,
            vips: cluster.vips(),
            mode: cluster.lab.mode(),
            servers_killed: None,
        }
    }

    /// The servers behind the service are killed at this time, in milliseconds since 1970.
    pub fn servers_killed(&mut self, at_ms: u64) {
        self.servers_killed = Some(at_ms);
    }

    /// Stops the capture and checks it.
    pub fn finish(mut self, client: ClientResets) {
        let stats = self.capture.take().unwrap().stop().unwrap();
        assert_eq!(stats.dropped, 0, "the capture has gaps");
        let vips = one_of("host", &self.vips);
        assert!(self.count(&vips) > 0, "nothing recorded");
        let others = self.packets(&format!("not {vips}"));
        assert!(others.is_empty(), "other addresses seen: {}", others[0]);
        let icmp = self.packets(ICMP);
        assert!(icmp.is_empty(), "ICMP seen: {}", icmp[0]);
        self.check_received_resets();
        let sent = self.count(&self.resets("dst host"));
        match client {
            ClientResets::None => self.check_sent_resets(),
            ClientResets::Meant => assert!(sent > 0, "no reset sent"),
            ClientResets::AtItsEnd => {}
        }
        std::fs::remove_file(&self.file).unwrap();
    }

    /// No reset may reach the client in any state of its connection: the switch drops those of
    /// a connection that has ended on both sides. In host mode a late packet of such a connection
    /// may get one, as with any server.
    fn check_received_resets(&self) {
        let meant = self.servers_killed.map_or(0, |at| self.resets_since(at));
        let resets = self.packets(&self.resets("src host"));
        for reset in &resets[..resets.len() - meant] {
            // "IP 10.1.2.3.80 > 10.1.2.4.5678: Flags [R], ..."
            let client = reset.split(' ').nth(3).unwrap().trim_end_matches(':');
            let (_, port) = client.rsplit_once('.').unwrap();
            let packets = self.packets(&format!("tcp port {port}"));
            if self.mode == Mode::Switch || !has_ended(&packets, reset, client) {
                packets.iter().for_each(|packet| say(packet));
                panic!("the client received a reset: {reset}");
            }
            say(&format!("a reset behind both ends: {reset}"));
        }
    }

    /// No reset may leave the client for a live connection. A closed connection may send one
    /// for a late packet, as with any server. So may a new connection on the same port, when an
    /// old socket of the server acknowledges bytes of the connection before.
    fn check_sent_resets(&self) {
        for reset in self.packets(&self.resets("dst host")) {
            // "IP 10.1.2.4.5678 > 10.1.2.3.80: Flags [R], ..."
            let client = reset.split(' ').nth(1).unwrap();
            let (_, port) = client.rsplit_once('.').unwrap();
            let packets = self.packets(&format!("tcp port {port}"));
            if lives_at(&packets, &reset, client) {
                packets.iter().for_each(|packet| say(packet));
                panic!("the client has reset its connection: {reset}");
            }
            say(&format!("a reset outside of a connection: {reset}"));
        }
    }

    /// The number of resets from the service since this time.
    fn resets_since(&self, at_ms: u64) -> usize {
        let resets = self.printed(&self.resets("src host"), "-tt");
        let is_later = |line: &&String| {
            let (seconds, _) = line.split_once(' ').unwrap();
            seconds.parse::<f64>().unwrap() * 1_000.0 >= at_ms as f64
        };
        resets.iter().rev().take_while(is_later).count()
    }

    /// Resets from the service (`src host`), or to it (`dst host`).
    fn resets(&self, which: &str) -> String {
        format!("{} and {RST}", one_of(which, &self.vips))
    }

    /// The number of packets in the file that match.
    fn count(&self, filter: &str) -> usize {
        self.packets(filter).len()
    }

    /// The matching packets in the file, a line each.
    fn packets(&self, filter: &str) -> Vec<String> {
        self.printed(filter, "-t")
    }

    /// The same with these times.
    fn printed(&self, filter: &str, times: &str) -> Vec<String> {
        let mut tcpdump = Command::new("tcpdump");
        tcpdump
            .args(["-n", times, "-S", "-r"])
            .arg(&self.file)
            .arg(filter);
        let output = tcpdump.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            let _ = capture.stop();
        }
        if std::thread::panicking() {
            say(&format!(
                "the client's packets are in {}",
                self.file.display()
            ));
        }
    }
}

/// Packets of one of `addresses`; `which` is `host`, `src host` or `dst host`.
pub fn one_of(which: &str, addresses: &[IpAddr]) -> String {
    let each = addresses.iter().map(|address| format!("{which} {address}"));
    format!("({})", each.collect::<Vec<_>>().join(" or "))
}

/// Whether `client` and the server had both sent a FIN before `reset`.
fn has_ended(packets: &[String], reset: &String, client: &str) -> bool {
    let (mut by_client, mut by_server) = (false, false);
    for packet in packets.iter().take_while(|packet| *packet != reset) {
        let is_clients = packet.split(' ').nth(1) == Some(client);
        if packet.contains("Flags [S]") {
            (by_client, by_server) = (false, false);
        }
        if packet.contains("Flags [F") {
            (by_client, by_server) = (by_client || is_clients, by_server || !is_clients);
        }
    }
    by_client && by_server
}

/// Whether `client` was in a connection when it sent `reset`: from the server's
/// SYN to its own FIN, or its next SYN.
fn lives_at(packets: &[String], reset: &String, client: &str) -> bool {
    let mut lives = false;
    for packet in packets.iter().take_while(|packet| *packet != reset) {
        // "IP" or "IP6" comes first.
        let is_clients = packet.split(' ').nth(1) == Some(client);
        if packet.contains("Flags [S.]") {
            lives = true;
        } else if is_clients && (packet.contains("Flags [S]") || packet.contains("Flags [F")) {
            lives = false;
        }
    }
    lives
}
