//! The packets that the client saw: no unintended reset, and no address but the service's.

use std::path::{Path, PathBuf};
use std::process::Command;

use prism_lab::{Capture, CaptureOptions};

use super::{Cluster, say};

/// Headers of Ethernet, IP and TCP with all options.
const SNAPLEN: u32 = 96;
const RST: &str = "tcp[tcpflags] & tcp-rst != 0";

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
    vip: String,
}

impl Watch {
    /// Records the headers of all packets.
    pub fn all(cluster: &Cluster, label: &str) -> Self {
        Self::start(cluster, label, "ip")
    }

    /// Records only packets that begin or end connections, and unexpected ones, for tests that
    /// move much data.
    pub fn events(cluster: &Cluster, label: &str) -> Self {
        let vip = cluster.vip();
        let filter = format!(
            "ip and (not host {vip} or icmp or tcp[tcpflags] & (tcp-syn|tcp-fin|tcp-rst) != 0)"
        );
        Self::start(cluster, label, &filter)
    }

    fn start(cluster: &Cluster, label: &str, filter: &str) -> Self {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{label}.pcap"));
        let options = CaptureOptions {
            snaplen: SNAPLEN,
            ..CaptureOptions::default()
        };
        let capture = cluster.lab.capture_with("client", &file, filter, &options);
        Self {
            capture: Some(capture.unwrap()),
            file,
            vip: cluster.vip().to_string(),
        }
    }

    /// Stops the capture and checks it.
    pub fn finish(mut self, client: ClientResets) {
        let stats = self.capture.take().unwrap().stop().unwrap();
        assert_eq!(stats.dropped, 0, "the capture has gaps");
        let (vip, rst) = (&self.vip, RST);
        assert!(self.count(&format!("host {vip}")) > 0, "nothing recorded");
        assert_eq!(
            self.count(&format!("ip and not host {vip}")),
            0,
            "other addresses seen"
        );
        assert_eq!(self.count("icmp"), 0, "ICMP seen");
        self.check_received_resets();
        let sent = self.count(&format!("dst host {vip} and {rst}"));
        match client {
            ClientResets::None => self.check_sent_resets(),
            ClientResets::Meant => assert!(sent > 0, "no reset sent"),
            ClientResets::AtItsEnd => {}
        }
        std::fs::remove_file(&self.file).unwrap();
    }

    /// No reset may reach the client in any state of its connection: the switch drops those of
    /// a connection that has ended on both sides.
    fn check_received_resets(&self) {
        let resets = self.packets(&format!("src host {} and {RST}", self.vip));
        let Some(reset) = resets.first() else {
            return;
        };
        // "IP 10.1.2.3.80 > 10.1.2.4.5678: Flags [R], ..."
        let client = reset.split(' ').nth(3).unwrap().trim_end_matches(':');
        let (_, port) = client.rsplit_once('.').unwrap();
        let packets = self.packets(&format!("tcp port {port}"));
        packets.iter().for_each(|packet| say(packet));
        panic!("the client received a reset: {reset}");
    }

    /// No reset may leave the client for a live connection. A closed connection may send one
    /// for a late packet, as with any server. So may a new connection on the same port, when an
    /// old socket of the server acknowledges bytes of the connection before.
    fn check_sent_resets(&self) {
        for reset in self.packets(&format!("dst host {} and {RST}", self.vip)) {
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

    /// The number of packets in the file that match.
    fn count(&self, filter: &str) -> usize {
        self.packets(filter).len()
    }

    /// The matching packets in the file, a line each.
    fn packets(&self, filter: &str) -> Vec<String> {
        let mut tcpdump = Command::new("tcpdump");
        tcpdump
            .args(["-n", "-t", "-S", "-r"])
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

/// Whether `client` was in a connection when it sent `reset`: from the server's
/// SYN to its own FIN, or its next SYN.
fn lives_at(packets: &[String], reset: &String, client: &str) -> bool {
    let mut lives = false;
    for packet in packets.iter().take_while(|packet| *packet != reset) {
        let is_clients = packet.starts_with(&format!("IP {client} >"));
        if packet.contains("Flags [S.]") {
            lives = true;
        } else if is_clients && (packet.contains("Flags [S]") || packet.contains("Flags [F")) {
            lives = false;
        }
    }
    lives
}
