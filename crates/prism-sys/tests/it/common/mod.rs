//! A network in user space for the tests of hand-off: one client and two hosts, each in an
//! anonymous namespace behind a TUN device. A thread between them forwards, blocks, rewrites and
//! counts packets, as the switch does. All of it ends with the test.

mod family;
pub mod veth;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use prism_netns::NetNs;
use prism_proto::TcpState;
use prism_sys::tcp::{Live, Paused, restore};

pub use family::{Family, IPV4, both_families};

pub const PORT: u16 = 8080;

/// Whether the test can run. A test that cannot says so, and fails under CI.
pub fn privileged() -> bool {
    // SAFETY: no arguments, always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must run this test as root"
        );
        eprintln!("SKIPPED: needs root");
    }
    root
}

/// Counts of packets from hosts to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets a host emitted, forwarded or not.
    pub emitted: [u64; 2],
    pub resets: u64,
    pub fins: u64,
    pub client_resets: u64,
}

struct Switch {
    family: &'static Family,
    owner: usize,
    blocked: bool,
    deaf: bool,
    /// The owner's socket address if it is not the service address.
    rewrite: Option<SocketAddr>,
    counts: Counts,
}

pub struct Net {
    pub family: &'static Family,
    pub client: NetNs,
    pub hosts: [NetNs; 2],
    switch: Arc<Mutex<Switch>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    pub fn new(family: &'static Family) -> Self {
        let (client, client_tun) = node(family, &[family.client]);
        let (host0, tun0) = node(family, &[family.vip, family.hosts[0]]);
        let (host1, tun1) = node(family, &[family.vip, family.hosts[1]]);
        let switch = Arc::new(Mutex::new(Switch {
            family,
            owner: 0,
            blocked: false,
            deaf: false,
            rewrite: None,
            counts: Counts::default(),
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (switch, stop) = (switch.clone(), stop.clone());
            move || forward(&[client_tun, tun0, tun1], &switch, &stop)
        });
        Self {
            family,
            client,
            hosts: [host0, host1],
            switch,
            stop,
            thread: Some(thread),
        }
    }

    pub fn service(&self) -> SocketAddr {
        self.family.service()
    }

    pub fn block(&self) {
        self.switch.lock().unwrap().blocked = true;
    }

    /// Drops the client's packets; packets to the client pass.
    pub fn deafen(&self) {
        self.switch.lock().unwrap().deaf = true;
    }

    pub fn unblock(&self) {
        let mut switch = self.switch.lock().unwrap();
        switch.blocked = false;
        switch.deaf = false;
    }

    /// The flow belongs to `host`, whose socket is bound to `bind`.
    pub fn own(&self, host: usize, bind: SocketAddr) {
        let mut switch = self.switch.lock().unwrap();
        switch.owner = host;
        switch.rewrite = (bind != self.service()).then_some(bind);
    }

    pub fn counts(&self) -> Counts {
        self.switch.lock().unwrap().counts
    }

    /// A connection from the client to a listener on host 0.
    pub fn connect(&self) -> (TcpStream, OwnedFd) {
        let listener = self.hosts[0]
            .run(|| TcpListener::bind(self.service()).unwrap())
            .unwrap();
        let client = self
            .client
            .run(|| TcpStream::connect(self.service()).unwrap())
            .unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, server.into())
    }

    /// The two-phase hand-off to `host`, at the service address.
    pub fn hand_off(&self, fd: OwnedFd, host: usize) -> (Live, TcpState) {
        self.hand_off_to(fd, host, self.service())
    }

    /// The hand-off to any address of the host. If bytes are unacknowledged, the client is asked.
    pub fn hand_off_to(&self, fd: OwnedFd, host: usize, bind: SocketAddr) -> (Live, TcpState) {
        let (live, state) = self.hand_off_unasked(fd, host, bind);
        if !state.sent.is_empty() {
            prism_sys::tcp::probe_peer(live.fd.as_fd()).unwrap();
        }
        (live, state)
    }

    pub fn hand_off_unasked(&self, fd: OwnedFd, host: usize, bind: SocketAddr) -> (Live, TcpState) {
        self.block();
        let paused = Paused::pause(fd).unwrap();
        let state = paused.save(self.service()).unwrap();
        paused.close_silently();
        let restored = self.hosts[host]
            .run(|| restore(&state, bind).unwrap())
            .unwrap();
        let live = restored.go_live().unwrap();
        self.own(host, bind);
        self.unblock();
        (live, state)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn sysctl(ns: &NetNs, name: &str, value: &str) {
    ns.run(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap())
        .unwrap();
}

pub fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(
        output.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn node(family: &Family, addresses: &[IpAddr]) -> (NetNs, File) {
    let ns = NetNs::anonymous().unwrap();
    let prefix = family.prefix;
    let tun = ns
        .run(|| {
            let tun = open_tun("psys0");
            ip("link set lo up");
            ip("link set psys0 up");
            for address in addresses {
                ip(&format!(
                    "addr add {address}/{prefix} dev psys0{}",
                    nodad(family)
                ));
            }
            ip(&format!("route add default dev psys0 src {}", addresses[0]));
            tun
        })
        .unwrap();
    (ns, tun)
}

/// A new IPv6 address cannot be used while the kernel looks for duplicates of it.
fn nodad(family: &Family) -> &'static str {
    if family.vip.is_ipv6() { " nodad" } else { "" }
}

fn open_tun(name: &str) -> File {
    const TUNSETIFF: u64 = 0x4004_54ca;
    const IFF_TUN_NO_PI: u16 = 0x0001 | 0x1000;
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .unwrap();
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&IFF_TUN_NO_PI.to_ne_bytes());
    // SAFETY: `struct ifreq` is 40 bytes: a name of 16, then the flags.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF as _, request.as_mut_ptr()) };
    assert_eq!(result, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    // SAFETY: plain fcntl on a descriptor that is open.
    unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    tun
}

/// The switch. Device 0 is the client's, 1 and 2 are the hosts'.
fn forward(tuns: &[File; 3], switch: &Mutex<Switch>, stop: &AtomicBool) {
    let mut packet = [0u8; 65536];
    while !stop.load(Ordering::Relaxed) {
        wait(tuns);
        for (from, tun) in tuns.iter().enumerate() {
            let mut tun_reader = tun;
            while let Ok(length) = tun_reader.read(&mut packet) {
                pass(
                    from,
                    &mut packet[..length],
                    tuns,
                    &mut switch.lock().unwrap(),
                );
            }
        }
    }
}

fn wait(tuns: &[File; 3]) {
    let mut polls = tuns.each_ref().map(|tun| libc::pollfd {
        fd: tun.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: three valid entries.
    unsafe { libc::poll(polls.as_mut_ptr(), 3, 20) };
}

fn pass(from: usize, packet: &mut [u8], tuns: &[File; 3], switch: &mut Switch) {
    let family = switch.family;
    if !family.is_tcp(packet) {
        return;
    }
    let flags = packet[family.tcp_at + 13];
    if from == 0 {
        switch.counts.client_resets += u64::from(flags & 4 != 0);
    } else {
        switch.counts.emitted[from - 1] += 1;
        switch.counts.resets += u64::from(flags & 4 != 0);
        switch.counts.fins += u64::from(flags & 1 != 0);
    }
    if switch.blocked || (from == 0 && switch.deaf) || (from != 0 && from - 1 != switch.owner) {
        return;
    }
    // Only the socket that owns the flow is heard.
    let owner = switch.rewrite.unwrap_or_else(|| family.service());
    if from != 0 && !family.is_from(packet, owner) {
        return;
    }
    let to = if from == 0 { 1 + switch.owner } else { 0 };
    if switch.rewrite.is_some() {
        match from {
            0 => family.set_target(packet, owner),
            _ => family.set_source(packet, family.service()),
        }
    }
    let _ = (&tuns[to]).write(packet);
}

/// Byte `offset` of the endless stream of one direction.
pub fn byte(direction: u8, offset: u64) -> u8 {
    let mixed = (offset ^ u64::from(direction) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

pub fn bytes(direction: u8, offset: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| byte(direction, offset + i))
        .collect()
}

/// The server's application, as a user of a handed-over connection.
pub struct App {
    stream: Option<TcpStream>,
    input: Vec<u8>,
    output: Vec<u8>,
    pub read: u64,
    pub written: u64,
    pub ended: bool,
}

pub const UP: u8 = 1;
pub const DOWN: u8 = 2;

impl App {
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            stream: Some(fd.into()),
            input: vec![],
            output: vec![],
            read: 0,
            written: 0,
            ended: false,
        }
    }

    /// An application that goes on with a connection. The kernel has not taken `owed` of the
    /// `written` bytes yet.
    pub fn resumed(fd: OwnedFd, read: u64, written: u64, owed: usize) -> Self {
        let output = bytes(DOWN, written - owed as u64, owed);
        Self {
            read,
            written,
            output,
            ..Self::new(fd)
        }
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream.as_ref().unwrap()
    }

    /// Hands the connection off, with the bytes that the application has.
    pub fn hand_off(&mut self, net: &Net, host: usize, bind: SocketAddr) -> TcpState {
        self.moved_by(|fd| net.hand_off_to(fd, host, bind))
    }

    /// Hands the connection off by `means`.
    pub fn moved_by(&mut self, means: impl FnOnce(OwnedFd) -> (Live, TcpState)) -> TcpState {
        let fd = OwnedFd::from(self.stream.take().unwrap());
        let (live, state) = means(fd);
        self.input.extend(live.input);
        let rest = std::mem::take(&mut self.output);
        self.output = live.output;
        self.output.extend(rest);
        assert_eq!(live.peer_closed, state.peer_closed);
        self.stream = Some(live.fd.into());
        state
    }

    /// Takes the socket away and gives it back as it was.
    pub fn paused_by(&mut self, means: impl FnOnce(OwnedFd) -> OwnedFd) {
        let fd = OwnedFd::from(self.stream.take().unwrap());
        self.stream = Some(means(fd).into());
    }

    /// Reads up to `most` bytes that are there, and compares them.
    pub fn read_some(&mut self, most: usize) -> usize {
        let mut got = self
            .input
            .drain(..most.min(self.input.len()))
            .collect::<Vec<_>>();
        if got.is_empty() {
            got.resize(most, 0);
            let length = match self.stream().read(&mut got) {
                Ok(0) => {
                    self.ended = true;
                    0
                }
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => panic!("read: {error}"),
            };
            got.truncate(length);
        }
        assert!(
            got == bytes(UP, self.read, got.len()),
            "wrong bytes from offset {}",
            self.read
        );
        self.read += got.len() as u64;
        got.len()
    }

    /// Writes up to `most` new bytes behind those that are owed; returns how
    /// many bytes the kernel took.
    pub fn write_some(&mut self, most: usize) -> usize {
        if self.output.len() < most {
            let more = most - self.output.len();
            self.output.extend(bytes(DOWN, self.written, more));
            self.written += more as u64;
        }
        match self.stream().write(&self.output) {
            Ok(length) => {
                self.output.drain(..length);
                length
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("write: {error}"),
        }
    }

    pub fn owed(&self) -> usize {
        self.output.len()
    }

    pub fn into_fd(mut self) -> OwnedFd {
        self.stream.take().unwrap().into()
    }

    pub fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_ref().unwrap().as_fd()
    }
}

/// Waits, bounded, until `done`.
pub fn eventually(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    while !done() {
        assert!(
            std::time::Instant::now() < end,
            "not within {seconds} s: {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
