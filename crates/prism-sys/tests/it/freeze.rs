//! Freezing: a frozen socket is silent, and loses nothing whenever segments arrive. A client floods
//! it with small segments from another core while it is frozen, saved, and moved or thawed.
//!
//! `PRISM_FREEZE_TIMES` multiplies the number of freezes.

use std::fs::{create_dir, read_to_string, remove_dir, write};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::veth::{Capture, Pair, pin_to, say};
use crate::common::{
    self, App, DOWN, IPV4, UP, both_families, byte, bytes, eventually, privileged,
};
use prism_proto::TcpState;
use prism_sys::tcp::info::send_queue_bytes;
use prism_sys::tcp::{
    Blank, Freezer, InitialWindow, Live, Paused, ProgramError, probe_peer, renew, restore_into,
};
use socket2::{SockRef, TcpKeepalive};

/// Freezes of the flood, nearly half of them hand-offs.
const FREEZES: u64 = 20_000;
/// Largest segment that either side writes.
const MAX_SEGMENT: u64 = 40;
/// Sockets made ready at once, in a host's namespace.
const BLANKS: usize = 64;

/// Small pseudo-random numbers, the same ones each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The client: it writes and reads without pause. Returns the bytes that it wrote and read, when
/// the server has ended the connection.
fn flood(mut stream: TcpStream, stop: &AtomicBool, failed: &AtomicBool) -> (u64, u64) {
    pin_to(1);
    let (mut chance, mut written, mut read) = (Chance(0x5eed_0001), 0, 0);
    let (mut piece, mut open) = (vec![0; 16 << 10], true);
    loop {
        assert!(!failed.load(Ordering::Relaxed), "the server has failed");
        if open && stop.load(Ordering::Relaxed) {
            stream.shutdown(Shutdown::Write).unwrap();
            open = false;
        }
        if open {
            let next = 1 + chance.below(MAX_SEGMENT) as usize;
            match stream.write(&bytes(UP, written, next)) {
                Ok(length) => written += length as u64,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "at the client"),
            }
        }
        match stream.read(&mut piece) {
            Ok(0) => return (written, read),
            Ok(length) => {
                let mut got = piece[..length].iter().zip(read..);
                assert!(
                    got.all(|(b, at)| *b == byte(DOWN, at)),
                    "wrong bytes behind {read}"
                );
                read += length as u64;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "at the client"),
        }
    }
}

/// The server, on whichever host it is.
struct Hammer<'p> {
    pair: &'p Pair,
    freezer: Freezer,
    window: InitialWindow,
    blanks: [Vec<Blank>; 2],
    mss_clamp_bytes: u16,
    host: usize,
    chance: Chance,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    moved: u64,
    thawed: u64,
    renewed: u64,
    /// Freezes that took a segment after the state was read.
    took_late: u64,
    /// Freezes with unread bytes, and with unacknowledged ones.
    with_input: u64,
    with_output: u64,
    frozen: Duration,
}

impl<'p> Hammer<'p> {
    fn new(pair: &'p Pair) -> Self {
        Self {
            pair,
            freezer: pair.hosts[0].run(|| Freezer::new().unwrap()).unwrap(),
            window: InitialWindow::new().unwrap(),
            blanks: [vec![], vec![]],
            mss_clamp_bytes: 1460,
            host: 0,
            chance: Chance(0x5eed_0002),
            tally: Tally::default(),
        }
    }

    /// Freezes and saves, and lets the flood run against it for a moment.
    fn freeze(&mut self, fd: OwnedFd) -> (Paused, TcpState, u64) {
        let paused = Paused::freeze(fd, &self.freezer).unwrap();
        let emitted = self.pair.emitted(self.host);
        let state = paused.save(self.pair.family.service()).unwrap();
        self.tally.with_input += u64::from(!state.received.is_empty());
        self.tally.with_output += u64::from(!state.sent.is_empty());
        let wait = match self.chance.below(8) {
            0 => Duration::from_micros(self.chance.below(200)),
            _ => Duration::ZERO,
        };
        let begin = Instant::now();
        while begin.elapsed() < wait {
            std::hint::spin_loop();
        }
        (paused, state, emitted)
    }

    /// The checks until the freeze is over.
    fn check(&mut self, paused: &Paused, state: &TcpState, emitted: u64) {
        let now = paused.save(self.pair.family.service()).unwrap();
        assert_eq!(now.write_seq, state.write_seq);
        self.tally.took_late += u64::from(now.receive_seq != state.receive_seq);
        assert_eq!(
            self.pair.emitted(self.host),
            emitted,
            "a frozen socket spoke"
        );
    }

    fn thaw(&mut self, app: &mut App) {
        app.paused_by(|fd| {
            let begin = Instant::now();
            let (paused, state, emitted) = self.freeze(fd);
            self.check(&paused, &state, emitted);
            let fd = paused.resume().unwrap();
            self.tally.frozen += begin.elapsed();
            if send_queue_bytes(fd.as_fd()).unwrap() > 0 {
                probe_peer(fd.as_fd()).unwrap();
            }
            fd
        });
        self.tally.thawed += 1;
    }

    /// Builds the socket anew. The accepted one has a listener beside it, which stays.
    fn renew(&mut self, app: &mut App) {
        let host = &self.pair.hosts[self.host];
        let is_renewed = host.run(|| renew(app.as_fd(), &self.freezer, &self.window).unwrap());
        self.tally.renewed += u64::from(is_renewed.unwrap());
    }

    /// Moves to the other host. The frozen socket stays until packets go there.
    fn hand_off(&mut self, app: &mut App) {
        app.moved_by(|fd| {
            let target = 1 - self.host;
            let blank = self.blank(target);
            let begin = Instant::now();
            let (paused, state, emitted) = self.freeze(fd);
            // The flood may draw resets there between the two readings.
            let spoken = |pair: &Pair| loop {
                let (resets, emitted) = (pair.resets(target), pair.emitted(target));
                if pair.resets(target) == resets {
                    break emitted - resets;
                }
            };
            let before = spoken(self.pair);
            let restored = restore_into(blank, &state, None).unwrap();
            assert_eq!(spoken(self.pair), before, "spoke too early");
            self.check(&paused, &state, emitted);
            self.pair.own(target);
            let live: Live = restored.go_live().unwrap();
            if !state.sent.is_empty() || !state.unsent.is_empty() {
                probe_peer(live.fd.as_fd()).unwrap();
            }
            assert_eq!(
                self.pair.emitted(self.host),
                emitted,
                "a frozen socket spoke"
            );
            paused.close_silently();
            self.tally.frozen += begin.elapsed();
            self.mss_clamp_bytes = state.behaviour.mss_clamp_bytes;
            self.host = target;
            (live, state)
        });
        self.tally.moved += 1;
    }

    fn blank(&mut self, host: usize) -> Blank {
        if self.blanks[host].is_empty() {
            let clamp = self.mss_clamp_bytes;
            let service = self.pair.family.service();
            let make = || (0..BLANKS).map(|_| Blank::new(service, clamp).unwrap());
            let made = self.pair.hosts[host].run(|| make().collect());
            self.blanks[host] = made.unwrap();
        }
        self.blanks[host].pop().unwrap()
    }

    /// Reads and writes between two freezes, as an application does.
    fn work(&mut self, app: &mut App) {
        for _ in 0..=self.chance.below(3) {
            app.read_some(64 << 10);
            let most = 1 + self.chance.below(MAX_SEGMENT) as usize;
            app.write_some(most.max(app.owed()));
        }
    }
}

#[test]
fn freezes_amid_a_flood_lose_and_double_no_byte_and_are_silent() {
    if !privileged() {
        return;
    }
    let times = std::env::var("PRISM_FREEZE_TIMES");
    let times: u64 = times.map_or(1, |times| times.parse().unwrap());
    // An emulated processor is a twentieth as fast.
    let is_emulated = std::env::var_os("PRISM_TEST_EMULATED").is_some();
    let freezes = FREEZES * times / if is_emulated { 20 } else { 1 };
    let pair = Pair::new(&IPV4);
    let (client, server) = pair.connect();
    let (mut app, mut hammer) = (App::new(server), Hammer::new(&pair));
    let (stop, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(client, &stop, &failed));
        let server = scope.spawn(|| {
            pin_to(0);
            for _ in 0..freezes {
                hammer.work(&mut app);
                match hammer.chance.below(8) {
                    0..4 => hammer.thaw(&mut app),
                    4 if hammer.tally.moved > 0 => hammer.renew(&mut app),
                    _ => hammer.hand_off(&mut app),
                }
            }
            stop.store(true, Ordering::Relaxed);
            eventually("the client's last byte is read", 60, || {
                app.read_some(64 << 10);
                app.write_some(app.owed());
                app.ended && app.owed() == 0
            });
            app.stream().shutdown(Shutdown::Write).unwrap();
            (app.read, app.written, hammer.tally)
        });
        let server = server.join();
        failed.store(server.is_err(), Ordering::Relaxed);
        let (read, written, tally) = server.unwrap();
        let (client_wrote, client_read) = flood.join().unwrap();
        assert_eq!((read, written), (client_wrote, client_read));
        let took = begin.elapsed();
        let rate = (tally.moved + tally.thawed) as f64 / took.as_secs_f64();
        let late = pair.resets(0) + pair.resets(1);
        say(&format!(
            "{rate:.0} freezes a second for {took:.1?}, {read} bytes up, {written} down; {tally:?}; \
             {late} packets came to the host left behind"
        ));
    });
}

/// The client's connections of the next test, each with a timer of the server's
/// socket running: for data that is not acknowledged, for an acknowledgement
/// that is not sent, and for a keepalive.
struct Quiet {
    clients: Vec<TcpStream>,
    apps: Vec<App>,
}

struct Frozen {
    paused: Paused,
    read: u64,
    written: u64,
}

impl Quiet {
    fn new(pair: &Pair) -> Self {
        let (mut clients, mut apps) = (vec![], vec![]);
        for _ in 0..3 {
            let (client, server) = pair.connect();
            clients.push(client);
            apps.push(App::new(server));
        }
        let mut quiet = Self { clients, apps };
        let second = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new().with_time(second).with_interval(second);
        SockRef::from(quiet.apps[2].stream())
            .set_tcp_keepalive(&keepalive)
            .unwrap();
        // Interactive connections: acknowledgements are delayed by 40 ms.
        for round in 0..20 {
            quiet.say(round * 10, 10);
            std::thread::sleep(Duration::from_millis(1));
            for app in &mut quiet.apps {
                app.read_some(100);
                app.write_some(10);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        quiet
    }

    fn say(&mut self, offset: u64, length: usize) {
        for client in &mut self.clients {
            client.write_all(&bytes(UP, offset, length)).unwrap();
        }
    }

    /// Starts the timers; with a freezer, freezes each at once.
    fn prepare(&mut self, pair: &Pair, freezer: Option<&Freezer>) -> Vec<Frozen> {
        let mut frozen = vec![];
        let mut freeze = |quiet: &mut Self| {
            if let Some(freezer) = freezer {
                let app = quiet.apps.remove(0);
                let (read, written) = (app.read, app.written);
                let paused = Paused::freeze(app.into_fd(), freezer).unwrap();
                frozen.push(Frozen {
                    paused,
                    read,
                    written,
                });
            }
        };
        // Lost on its way: host 1 does not have the service's address.
        pair.own(1);
        self.apps[0].write_some(1_000);
        freeze(self);
        pair.own(0);
        self.clients[1].write_all(&bytes(UP, 200, 1)).unwrap();
        freeze(self);
        freeze(self);
        frozen
    }

    /// Waits two seconds, in which the client sends something every 100 ms.
    fn pass(&mut self) {
        for round in 0..20 {
            std::thread::sleep(Duration::from_millis(100));
            for (n, client) in self.clients.iter_mut().enumerate() {
                // A segment would end the wait for a keepalive.
                if n < 2 {
                    let offset = 200 + u64::from(n == 1) + round * 10;
                    client.write_all(&bytes(UP, offset, 10)).unwrap();
                }
            }
        }
    }

    /// Every byte arrives, in both directions.
    fn work(&mut self) {
        for (n, (app, client)) in self.apps.iter_mut().zip(&mut self.clients).enumerate() {
            let sent = [400, 401, 200][n];
            app.write_some(500);
            let (mut got, mut length) = (vec![0; 4096], 0);
            eventually("all arrives", 20, || {
                app.read_some(1_000);
                app.write_some(app.owed());
                match client.read(&mut got[length..]) {
                    Ok(more) => length += more,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                app.read == sent && length as u64 == app.written
            });
            assert!(got[..length] == bytes(DOWN, 0, length), "wrong bytes");
        }
    }

    fn ports(&self) -> [u16; 3] {
        [0, 1, 2].map(|n| self.clients[n].local_addr().unwrap().port())
    }
}

/// Removes all routing rules but the standard ones.
fn other_tools_clean_up() {
    common::ip("rule flush");
    common::ip("rule add priority 32766 from all lookup main");
}

/// The directory of the control group (version 2) of this process.
fn own_group() -> PathBuf {
    let mounts = read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4)).unwrap();
    let groups = read_to_string("/proc/self/cgroup").unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Path::new(mount).join(own.unwrap())
}

#[test]
fn a_process_whose_frozen_sockets_could_speak_finds_that_out_and_mends_it() {
    const ALONE: &str = "PRISM_TEST_ALONE";
    const NAME: &str =
        "freeze::a_process_whose_frozen_sockets_could_speak_finds_that_out_and_mends_it";
    if !privileged() {
        return;
    }
    // Other tests of this process need the group that they began in.
    if std::env::var_os(ALONE).is_none() {
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env(ALONE, "1")
            .status();
        assert!(alone.unwrap().success());
        return;
    }
    let group = own_group();
    let below = group.join(format!("prism-test-{}", std::process::id()));
    create_dir(&below).unwrap();
    let move_to = |group: &Path| write(group.join("cgroup.procs"), "0").unwrap();
    move_to(&below);
    let freezer = Freezer::new();
    move_to(&group);
    remove_dir(&below).unwrap();
    let freezer = freezer.unwrap();
    assert!(matches!(freezer.check(), Err(ProgramError::Leaks)));
    freezer.renew().unwrap();
    freezer.check().unwrap();
}

#[test]
fn a_frozen_socket_emits_nothing_for_two_seconds_and_works_when_thawed() {
    both_families(|family| {
        let pair = Pair::new(family);
        let freezer = pair.hosts[0].run(|| Freezer::new().unwrap()).unwrap();
        // Other programs of a host remove rules that they did not make.
        pair.hosts[0].run(other_tools_clean_up).unwrap();
        let capture = Capture::start(&pair);

        pair.hosts[1]
            .run(|| common::ip(&format!("addr del {}/{} dev h0", family.vip, family.prefix)))
            .unwrap();

        // Without a freeze each of them sends.
        let mut awake = Quiet::new(&pair);
        awake.prepare(&pair, None);
        capture.seen();
        awake.pass();
        let seen = capture.seen();
        for port in awake.ports() {
            assert!(seen.iter().any(|(to, _)| *to == port), "{port} in {seen:?}");
        }
        awake.work();
        drop(awake);

        let mut quiet = Quiet::new(&pair);
        std::thread::sleep(Duration::from_millis(100));
        let frozen = quiet.prepare(&pair, Some(&freezer));
        // Packets that left before.
        std::thread::sleep(Duration::from_millis(5));
        capture.seen();
        let emitted = pair.emitted(0);
        quiet.pass();
        assert_eq!(capture.seen(), [], "a frozen socket spoke");
        assert_eq!(pair.emitted(0), emitted);
        let unacknowledged = send_queue_bytes(frozen[0].paused.as_fd()).unwrap();
        assert_eq!(unacknowledged, 1_000);

        for one in frozen {
            let fd = one.paused.resume().unwrap();
            probe_peer(fd.as_fd()).unwrap();
            quiet.apps.push(App::resumed(fd, one.read, one.written, 0));
        }
        quiet.work();
        let resets = |(_, flags): &(u16, u8)| flags & 4 != 0;
        assert!(!capture.seen().iter().any(resets));
    });
}
