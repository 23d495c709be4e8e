//! One connection, moved between hosts, in every state of its queues.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::common::{App, DOWN, Net, UP, both_families, bytes, eventually, sysctl};
use prism_sys::tcp::info;

/// Reads exactly `length` bytes at the client and compares them.
fn expect_down(client: &mut impl Read, offset: u64, length: usize) {
    let mut got = vec![0; length];
    client.read_exact(&mut got).unwrap();
    assert!(
        got == bytes(DOWN, offset, length),
        "wrong bytes from offset {offset}"
    );
}

fn acknowledged(app: &App) {
    eventually("all is acknowledged", 5, || {
        info::send_queue_bytes(app.as_fd()).unwrap() == 0
    });
}

#[test]
fn idle_connection_moves_in_place_and_between_hosts() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut app = App::new(server);
        let own = |host: usize, port| SocketAddr::from((net.family.hosts[host], port));
        let steps = [
            (0, net.service()),
            (1, net.service()),
            (1, net.service()),
            (0, own(0, 40000)),
            (1, own(1, 40001)),
            (0, net.service()),
        ];
        for (round, (host, bind)) in steps.into_iter().enumerate() {
            let state = app.hand_off(&net, host, bind);
            assert!(state.sent.is_empty() && state.unsent.is_empty() && state.received.is_empty());
            assert!(!state.peer_closed);
            client
                .write_all(&bytes(UP, round as u64 * 3000, 3000))
                .unwrap();
            eventually("the request arrives", 5, || {
                app.read_some(65536);
                app.read == (round as u64 + 1) * 3000
            });
            assert_eq!(app.write_some(5000), 5000);
            expect_down(&mut client, round as u64 * 5000, 5000);
            acknowledged(&app);
        }
        assert_eq!(
            net.counts().resets + net.counts().fins,
            0,
            "{:?}",
            net.counts()
        );
    });
}

#[test]
fn unread_bytes_are_given_to_the_target() {
    both_families(|family| {
        let net = Net::new(family);
        let (client, server) = net.connect();
        client.set_nonblocking(true).unwrap();
        // Ends when neither the server's buffer nor the client's takes more.
        let mut sent = 0;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_millis(300) {
            if let Ok(length) = (&client).write(&bytes(UP, sent, 65536)) {
                sent += length as u64;
                quiet_since = Instant::now();
            }
        }
        let mut app = App::new(server);
        let state = app.hand_off(&net, 1, net.service());
        assert!(
            state.received.len() > 50_000,
            "{} bytes",
            state.received.len()
        );
        eventually("every byte arrives", 20, || {
            app.read_some(65536);
            app.read == sent
        });
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn sent_and_unsent_bytes_are_split_and_arrive_once() {
    both_families(|family| {
        for (blocked_bytes, later) in [(5_000, 0), (3_000_000, 0), (200_000, 100_000)] {
            let net = Net::new(family);
            let (mut client, server) = net.connect();
            client
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            let mut app = App::new(server);
            assert_eq!(app.write_some(700), 700);
            expect_down(&mut client, 0, 700);
            acknowledged(&app);
            // Nothing passes, so bytes that are sent now stay unacknowledged.
            net.block();
            let taken = app.write_some(blocked_bytes);
            let held = app.owed();
            let state = app.hand_off(&net, 1, net.service());
            assert_eq!(state.sent.len() + state.unsent.len(), taken);
            assert!(!state.sent.is_empty());
            assert_eq!(
                state.unsent.is_empty(),
                blocked_bytes <= 5_000,
                "{} unsent",
                state.unsent.len()
            );
            assert_eq!(app.owed(), held + state.unsent.len());
            let total = blocked_bytes + later;
            let reader = std::thread::spawn(move || {
                expect_down(&mut client, 700, total);
                client
            });
            let more = app.owed() + later;
            let mut left = more;
            eventually("the rest is written", 20, || {
                left -= app.write_some(left.min(100_000));
                left == 0
            });
            reader.join().unwrap();
            assert_eq!(net.counts().resets, 0);
        }
    });
}

#[test]
fn a_stalled_client_resumes_after_the_move() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut app = App::new(server);
        // Ends when the client's window is closed and our buffer is full.
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_millis(500) {
            if app.write_some(65536) > 0 {
                quiet_since = Instant::now();
            }
        }
        let state = app.hand_off(&net, 1, net.service());
        assert!(!state.unsent.is_empty(), "nothing unsent");
        assert!(state.window.send_window_bytes < 65536, "{:?}", state.window);
        let total = app.written as usize;
        let reader = std::thread::spawn(move || expect_down(&mut client, 0, total));
        eventually("the rest is written", 20, || {
            app.write_some(app.owed());
            app.owed() == 0
        });
        reader.join().unwrap();
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn a_lost_acknowledgement_is_repeated_when_asked_for() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut app = App::new(server);
        net.deafen();
        app.write_some(4000);
        expect_down(&mut client, 0, 4000);
        // Without an answer the sender probes after some 10 ms, and sends all again after 200 ms.
        // The client's answers to either must not come after the move.
        std::thread::sleep(Duration::from_millis(80));
        let (live, state) = net.hand_off_unasked(app.into_fd(), 1, net.service());
        assert_eq!(state.sent, bytes(DOWN, 0, 4000));
        // The client has no reason to repeat it.
        let unacked = || info::send_queue_bytes(live.fd.as_fd()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(unacked(), 4000);
        let emitted = net.counts().emitted[1];
        prism_sys::tcp::probe_peer(live.fd.as_fd()).unwrap();
        let asked = Instant::now();
        eventually("acknowledged", 5, || unacked() == 0);
        assert!(
            asked.elapsed() < Duration::from_millis(300),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!(net.counts().emitted[1], emitted + 1);
        assert_eq!(net.counts().resets, 0);
    });
}

/// Longest wait for any byte. A restored socket begins with a retransmission
/// timeout of seconds, which doubles with each segment that a block swallows.
const STALL: Duration = Duration::from_secs(60);

/// Moves a connection from host 0 again and again while both directions are full of data.
fn shuttle(
    net: &Net,
    (client, server): (TcpStream, OwnedFd),
    moves: usize,
    down_bytes: u64,
    up_bytes: u64,
) {
    client.set_read_timeout(Some(STALL)).unwrap();
    client.set_write_timeout(Some(STALL)).unwrap();
    let mut writer = client.try_clone().unwrap();
    let up = std::thread::spawn(move || {
        let mut offset = 0;
        while offset < up_bytes {
            let length = (up_bytes - offset).min(1 + offset % 20_011);
            writer
                .write_all(&bytes(UP, offset, length as usize))
                .unwrap();
            offset += length;
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut reader = client;
    let down = std::thread::spawn(move || {
        let mut offset = 0;
        let mut buffer = vec![0; 50_000];
        loop {
            let length = reader.read(&mut buffer).unwrap();
            if length == 0 {
                return offset;
            }
            assert!(
                buffer[..length] == bytes(DOWN, offset, length),
                "wrong from offset {offset}"
            );
            offset += length as u64;
        }
    });

    let mut app = App::new(server);
    let mut random = Random(down_bytes ^ up_bytes);
    let mut moved = 0;
    let started = Instant::now();
    while moved < moves || app.written < down_bytes || app.owed() > 0 || !app.ended {
        assert!(started.elapsed() < 2 * STALL, "stuck after {moved} moves");
        let room = (down_bytes - app.written) as usize + app.owed();
        app.write_some(room.min(random.below(30_000)).max(app.owed().min(room)));
        app.read_some(1 + random.below(30_000));
        let progress = app.written.min(app.read * down_bytes / up_bytes.max(1));
        let due = progress * moves as u64 / down_bytes >= moved as u64;
        if moved < moves && (due || app.ended) {
            let port = net.service().port() + (random.below(2) * 1000) as u16;
            let host = random.below(2);
            let bind = if port == net.service().port() {
                net.service()
            } else {
                SocketAddr::from((net.family.hosts[host], 20_000 + moved as u16))
            };
            app.hand_off(net, host, bind);
            moved += 1;
        }
    }
    assert_eq!(app.read, up_bytes);
    // A kernel may reset what is late for a connection that has ended on both sides.
    let counts = net.counts();
    assert_eq!(counts.resets, 0, "{counts:?}");
    drop(app);
    up.join().unwrap();
    assert_eq!(down.join().unwrap(), down_bytes);
    assert_eq!(net.counts().client_resets, 0);
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn fifty_moves_under_load_lose_and_double_nothing() {
    both_families(|family| {
        let net = Net::new(family);
        shuttle(&net, net.connect(), 50, 4_000_000, 3_000_000);
    });
}

#[test]
fn every_combination_of_options_survives_moves() {
    both_families(|family| {
        for bits in 0..8 {
            let net = Net::new(family);
            let on = |bit: u8| if bits & bit != 0 { "1" } else { "0" };
            sysctl(&net.client, "tcp_sack", on(1));
            sysctl(&net.client, "tcp_timestamps", on(2));
            sysctl(&net.client, "tcp_window_scaling", on(4));
            let (client, server) = net.connect();
            let (live, state) = net.hand_off(server, 1);
            assert_eq!(state.options.sack, bits & 1 != 0);
            assert_eq!(state.options.timestamps, bits & 2 != 0);
            // It counts in ms, and newer kernels must be able to tell (Linux 6.7).
            assert_eq!(state.timestamp & 1, 0);
            assert_eq!(state.options.window_scale.is_some(), bits & 4 != 0);
            let (live, again) = net.hand_off(live.fd, 0);
            assert_eq!(again.options, state.options);
            assert_eq!(again.timestamp & 1, 0);
            assert_eq!(
                again.behaviour.mss_clamp_bytes,
                state.behaviour.mss_clamp_bytes
            );
            shuttle(&net, (client, live.fd), 8, 1_000_000, 1_000_000);
        }
    });
}

#[test]
fn a_target_that_would_not_offer_the_options_keeps_them() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, server) = net.connect();
        for option in ["tcp_sack", "tcp_timestamps", "tcp_window_scaling"] {
            sysctl(&net.hosts[1], option, "0");
        }
        let (live, first) = net.hand_off(server, 1);
        let (_live, second) = net.hand_off(live.fd, 1);
        assert!(first.options.sack && first.options.timestamps);
        assert_eq!(second.options, first.options);
        net.own(0, net.service());
        shuttle(&net, net.connect(), 8, 1_000_000, 1_000_000);
    });
}
