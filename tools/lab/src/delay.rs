//! A long path to the servers: a host's packets to some addresses leave later, each by the same
//! time.
//!
//! ```text
//!   socket ── route ── TUN ══ queue, 20 ms ══ raw socket ── eth0 ── ...
//!   socket ◄──────────────────────────────────────────────── eth0 ── ...
//! ```
//!
//! All of the delay is in this direction; answers are not touched. Both ends of a connection
//! see a round trip that is longer by this time. The many bytes of answers do not pass this
//! program. It needs no kernel with netem.
//!
//! Call [`Delay::start`] inside the namespace of the far host: its thread stays there.

mod queue;

use std::io::{self, PipeReader, PipeWriter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prism_config::HostAddrs;
use prism_netns::Tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::LabError;
use crate::family::Family;
use crate::tool::run;
use queue::DelayQueue;

/// The prefix of the TUN device's name.
const PREFIX: &str = "far";
/// The interface where packets leave: the one link of a lab's host.
const LINK: &str = "eth0";
/// `IPPROTO_RAW`: packets come with their IP header.
const RAW: i32 = 255;
/// The most packets that wait: 10,000 a second for more than a second. The longest packets of
/// an Ethernet take 25 MB.
const MAX_PACKETS: usize = 16_384;
/// The most packets that the device queues while this program does not run.
const DEVICE_PACKETS: usize = 4_096;
/// Longest packet: the device's MTU is an Ethernet's, 1,500.
const MAX_PACKET_BYTES: usize = 2_048;
/// The most packets received before due packets are sent.
const MAX_AT_ONCE: usize = 64;

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayTally {
    /// Sent on.
    pub passed: u64,
    /// Lost: the queue had no room, or the link refused it.
    pub dropped: u64,
}

/// A running delay. Dropping it ends the delay, and waiting packets are lost.
#[derive(Debug)]
pub struct Delay {
    counts: Arc<Counts>,
    /// Dropping it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    dropped: AtomicU64,
}

/// The state of the thread.
struct DelayedWay {
    tun: Tun,
    links: [Socket; 2],
    queue: DelayQueue,
    counts: Arc<Counts>,
    stop: PipeReader,
}

impl Delay {
    /// Delays all later packets to each of `servers` by `delay`, in the caller's namespace. It
    /// is the namespace of the lab's host with the addresses `host`, which has one of each
    /// server's family. Open connections may keep their undelayed route.
    ///
    /// # Errors Without root or the driver `tun`, or when a route cannot be made.
    pub fn start(host: &HostAddrs, servers: &[IpAddr], delay: Duration) -> Result<Self, LabError> {
        let tun = Tun::create(PREFIX).map_err(LabError::io("making a TUN device"))?;
        let raw = |family| raw_socket(family).map_err(LabError::io("opening a raw socket"));
        let links = [raw(Family::V4)?, raw(Family::V6)?];
        let (stopped, stop) = io::pipe().map_err(LabError::io("making a pipe"))?;
        let name = tun.name();
        ip(&format!(
            "link set dev {name} txqueuelen {DEVICE_PACKETS} up"
        ))?;
        for server in servers {
            let from = host.of(*server).ok_or_else(|| LabError::NoAddress {
                family: Family::of(*server),
            })?;
            ip(&format!("route add {server} dev {name} src {from}"))?;
        }
        let counts = Arc::<Counts>::default();
        let way = DelayedWay {
            tun,
            links,
            queue: DelayQueue::new(delay, MAX_PACKETS),
            counts: counts.clone(),
            stop: stopped,
        };
        let thread = std::thread::Builder::new()
            .name("delay".into())
            .spawn(move || way.run())
            .map_err(LabError::io("starting a thread"))?;
        Ok(Self {
            counts,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> DelayTally {
        DelayTally {
            passed: self.counts.passed.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The device and its routes end with the thread, which returns nothing.
            let _ = thread.join();
        }
    }
}

impl DelayedWay {
    /// Runs until the other end of the pipe or the device is gone.
    fn run(mut self) {
        while self.wait() {
            self.take();
            self.send();
        }
    }

    /// Waits for a packet to come, or for the next one to leave. Returns false at the end.
    fn wait(&self) -> bool {
        let pause = self.queue.pause(Instant::now());
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut watched = [
            PollFd::new(&self.tun, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
        ];
        match poll(&mut watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
            Ok(_) => {}
        }
        let [device, stop] = watched.map(|watched| watched.revents());
        stop.is_empty() && !device.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }

    /// Queues the packets that have come.
    fn take(&mut self) {
        let mut buffer = [0; MAX_PACKET_BYTES];
        for _ in 0..MAX_AT_ONCE {
            let Ok(len) = self.tun.receive(&mut buffer) else {
                return;
            };
            let packet = buffer.get(..len).unwrap_or_default();
            // The kernel's own messages to the neighbours that the device does not have.
            if destination(packet).is_none_or(|to| to.is_multicast()) {
                continue;
            }
            if !self.queue.push(Instant::now(), packet) {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends the packets that are due.
    fn send(&mut self) {
        while let Some(packet) = self.queue.pop(Instant::now()) {
            let sent = destination(&packet).is_some_and(|to| {
                let [v4, v6] = &self.links;
                let link = if to.is_ipv4() { v4 } else { v6 };
                link.send_to(&packet, &SocketAddr::new(to, 0).into())
                    .is_ok()
            });
            let counts = &self.counts;
            let count = if sent {
                &counts.passed
            } else {
                &counts.dropped
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A socket that sends packets of `family` over the host's link, whatever the routes say. It
/// receives nothing, and blocks while the link's queue is full.
fn raw_socket(family: Family) -> io::Result<Socket> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
    socket.bind_device(Some(LINK.as_bytes()))?;
    Ok(socket)
}

/// The destination of an IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Runs `ip` in the namespace of the calling thread.
fn ip(arguments: &str) -> Result<(), LabError> {
    run(Command::new("ip").args(arguments.split(' '))).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn packets_of_both_families_have_a_destination() {
        let mut packet = [0; 40];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 64, 0, 1]);
        assert_eq!(destination(&packet), Some([10, 64, 0, 1].into()));
        assert_eq!(destination(&packet[..19]), None);
        packet[0] = 0x60;
        packet[24..].copy_from_slice(&[0xfd; 16]);
        assert_eq!(destination(&packet), Some([0xfd; 16].into()));
        assert_eq!(destination(&packet[..39]), None);
        packet[0] = 0x50;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&[]), None);
    }
}
