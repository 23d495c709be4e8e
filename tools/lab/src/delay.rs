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
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prism_netns::Tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::LabError;
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
    /// Lost: the queue had no room, the packet was not IPv4, or the link refused it.
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
struct Way {
    tun: Tun,
    link: Socket,
    queue: DelayQueue,
    counts: Arc<Counts>,
    stop: PipeReader,
}

impl Delay {
    /// Delays all later packets to each of `servers` by `delay`, in the caller's namespace. It
    /// is the namespace of the lab's host with the address `host`. Open connections may keep
    /// their undelayed route.
    ///
    /// # Errors Without root or the driver `tun`, or when a route cannot be made.
    pub fn start(host: Ipv4Addr, servers: &[Ipv4Addr], delay: Duration) -> Result<Self, LabError> {
        let tun = Tun::create(PREFIX).map_err(LabError::io("making a TUN device"))?;
        let link = raw_socket().map_err(LabError::io("opening a raw socket"))?;
        let (stopped, stop) = io::pipe().map_err(LabError::io("making a pipe"))?;
        let name = tun.name();
        ip(&format!(
            "link set dev {name} txqueuelen {DEVICE_PACKETS} up"
        ))?;
        for server in servers {
            ip(&format!("route add {server}/32 dev {name} src {host}"))?;
        }
        let counts = Arc::<Counts>::default();
        let way = Way {
            tun,
            link,
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

impl Way {
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
            if !self.queue.push(Instant::now(), packet) {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends the packets that are due.
    fn send(&mut self) {
        while let Some(packet) = self.queue.pop(Instant::now()) {
            let sent = destination(&packet).is_some_and(|to| {
                let to = SocketAddrV4::new(to, 0).into();
                self.link.send_to(&packet, &to).is_ok()
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

/// A socket that sends IPv4 packets over the host's link, whatever the routes say. It receives
/// nothing, and blocks while the link's queue is full.
fn raw_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
    socket.set_header_included_v4(true)?;
    socket.bind_device(Some(LINK.as_bytes()))?;
    Ok(socket)
}

/// The destination of an IPv4 packet.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let address = packet.get(16..20).filter(|_| is_v4)?;
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?))
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
    fn only_packets_of_ipv4_have_a_destination() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[16..].copy_from_slice(&[10, 64, 0, 1]);
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(10, 64, 0, 1)));
        assert_eq!(destination(&packet[..19]), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&[]), None);
    }
}
