//! A long way to the servers: what a host sends to some addresses leaves later, by
//! the same time for every packet.
//!
//! ```text
//!   socket ── route ── TUN ══ queue, 20 ms ══ raw socket ── eth0 ── ...
//!   socket ◄──────────────────────────────────────────────── eth0 ── ...
//! ```
//!
//! All of the delay is in this one direction, and what comes back is not touched.
//! For both ends of a connection the round trip is longer by just that time, and what
//! is many bytes comes back and does not pass this program. It needs no kernel
//! with netem.
//!
//! Call [`Delay::start`] inside the namespace of the host that is to be far away: its
//! thread stays there.

mod queue;

use std::io::{self, PipeReader, PipeWriter};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prism_sys::tun::Tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::LabError;
use crate::tool::run;
use queue::DelayQueue;

/// How the TUN device's name begins.
const PREFIX: &str = "far";
/// Where packets leave: the one link of a lab's host.
const LINK: &str = "eth0";
/// `IPPROTO_RAW`: packets come with their IP header.
const RAW: i32 = 255;
/// Packets that wait at a time. 10,000 a second for a whole second fit, and of the
/// longest of an Ethernet it is 25 MB.
const MAX_PACKETS: usize = 16_384;
/// Packets that the device keeps for this program, were it not to run for a while.
const DEVICE_PACKETS: usize = 4_096;
/// Longest packet: the device's MTU is an Ethernet's, 1,500.
const MAX_PACKET_BYTES: usize = 2_048;
/// Packets taken before it is looked which may leave.
const MAX_AT_ONCE: usize = 64;

/// What has happened to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayTally {
    /// Sent on.
    pub passed: u64,
    /// Lost: no room in the queue, no packet of IPv4, or the link did not take it.
    pub dropped: u64,
}

/// A running delay; it ends, and what waits is lost, when dropped.
#[derive(Debug)]
pub struct Delay {
    counts: Arc<Counts>,
    /// Its end ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    dropped: AtomicU64,
}

/// What the thread has.
struct Way {
    tun: Tun,
    link: Socket,
    queue: DelayQueue,
    counts: Arc<Counts>,
    stop: PipeReader,
}

impl Delay {
    /// Delays what is sent from now on to each of `servers` by `delay`, in the
    /// caller's namespace, which is that of a lab's host with the address `host`.
    /// Sockets that are connected already may keep their way.
    ///
    /// # Errors
    /// Without root or the driver `tun`, or where a route cannot be made.
    pub fn start(host: Ipv4Addr, servers: &[Ipv4Addr], delay: Duration) -> Result<Self, LabError> {
        let made = Tun::create(PREFIX).map_err(io::Error::other);
        let tun = made.map_err(LabError::io("making a TUN device"))?;
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

    /// What has happened so far.
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
            // The device and its routes end with it; it has nothing to tell.
            let _ = thread.join();
        }
    }
}

impl Way {
    /// Until there is no other end of the pipe, or no device.
    fn run(mut self) {
        while self.wait() {
            self.take();
            self.send();
        }
    }

    /// Waits for a packet to come, or for the next one to leave. Whether to go on.
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

    /// Takes what has come.
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

    /// Sends what has waited for long enough.
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

/// A socket that sends packets of IPv4 over the host's link, whatever the routes to
/// their destinations are. It receives nothing, and waits while the link has enough.
fn raw_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
    socket.set_header_included_v4(true)?;
    socket.bind_device(Some(LINK.as_bytes()))?;
    Ok(socket)
}

/// Where a packet of IPv4 is to go.
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
