//! Pausing, rolling back, refusing and closing.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::common::{self, App, DOWN, Net, UP, both_families, bytes, eventually, privileged};
use prism_netns::NetNs;
use prism_sys::tcp::{PauseFault, Paused, RestoreError, SaveError, TcpInfo, TcpStateName, restore};

/// Sockets of the service in a host's namespace, by `/proc/net/tcp` and `tcp6`, except
/// listeners: hexadecimal states.
fn sockets(ns: &NetNs) -> Vec<String> {
    let read = |table: &str| {
        let path = format!("/proc/thread-self/net/{table}");
        ns.run(|| std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let tables = ["tcp", "tcp6"].map(read);
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let states = lines.map(|line| line.split_whitespace().nth(3).unwrap().to_owned());
    states.filter(|state| state != "0A").collect()
}

fn read_all(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).map(|_| all)
}

#[test]
fn a_half_closed_connection_answers_and_closes_cleanly() {
    both_families(|family| {
        for (unread, moves) in [(0, 1), (5_000, 1), (5_000, 3), (0, 3)] {
            let net = Net::new(family);
            let (mut client, server) = net.connect();
            client.write_all(&bytes(UP, 0, unread)).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            eventually("the FIN arrives", 5, || {
                TcpInfo::read(server.as_fd()).unwrap().state == TcpStateName::CloseWait
            });
            let mut app = App::new(server);
            for round in 0..moves {
                let state = app.hand_off(&net, (round + 1) % 2, net.service());
                assert!(
                    state.peer_closed,
                    "move {round} forgot that the client closed"
                );
                assert_eq!(state.received.len(), if round == 0 { unread } else { 0 });
            }
            while !app.ended {
                assert!(app.read_some(1000) > 0 || app.ended, "no end of input");
            }
            assert_eq!(app.read, unread as u64);
            assert_eq!(app.write_some(30_000), 30_000);
            let before = net.counts();
            drop(app);
            assert_eq!(read_all(&mut client).unwrap(), bytes(DOWN, 0, 30_000));
            drop(client);
            let host = moves % 2;
            // 3.5 retransmission timeouts of at most 1 s, and a margin.
            eventually("the socket is gone", 6, || {
                sockets(&net.hosts[host]).is_empty()
            });
            let after = net.counts();
            // A busy host acknowledges late, and a probe for a lost tail repeats the FIN
            // (RFC 8985, section 7). The socket is gone, so no FIN was lost.
            assert!(after.fins > before.fins, "{after:?}");
            assert_eq!((after.resets, after.client_resets), (0, 0), "{after:?}");
        }
    });
}

#[test]
fn a_half_closed_connection_can_be_shut_down_before_it_is_closed() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client.shutdown(Shutdown::Write).unwrap();
        eventually("the FIN arrives", 5, || {
            TcpInfo::read(server.as_fd()).unwrap().state == TcpStateName::CloseWait
        });
        let (live, _) = net.hand_off(server, 1);
        let mut stream = TcpStream::from(live.fd);
        stream.write_all(b"answer").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut client).unwrap(), b"answer");
        drop(stream);
        drop(client);
        eventually("the socket is gone", 6, || {
            sockets(&net.hosts[1]).is_empty()
        });
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn a_fin_that_arrives_after_the_save_is_taken_by_the_target() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        net.block();
        client.write_all(&bytes(UP, 0, 100)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut app = App::new(server);
        let state = app.hand_off(&net, 1, net.service());
        assert!(!state.peer_closed && state.received.is_empty());
        eventually("bytes and FIN are repeated", 10, || {
            app.read_some(1000);
            app.ended
        });
        assert_eq!(app.read, 100);
        assert_eq!(
            TcpInfo::read(app.as_fd()).unwrap().state,
            TcpStateName::CloseWait
        );
        drop(app);
        assert!(read_all(&mut client).unwrap().is_empty());
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn a_resumed_connection_has_lost_nothing() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client.write_all(&bytes(UP, 0, 20_000)).unwrap();
        let mut app = App::new(server);
        app.write_some(2_000_000);
        std::thread::sleep(Duration::from_millis(50));
        for round in 0..20 {
            if round % 2 == 1 {
                net.block();
            }
            let (input, output) = (app.read, app.owed());
            let paused = Paused::pause(app.into_fd()).unwrap();
            let state = paused.save(net.service()).unwrap();
            assert_eq!(state.received, bytes(UP, input, state.received.len()));
            let fd = paused.resume().unwrap();
            net.unblock();
            let written = 2_000_000;
            app = App::resumed(fd, input, written, output);
            app.read_some(500);
        }
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 2_000_000];
            client.read_exact(&mut got).unwrap();
            assert!(got == bytes(DOWN, 0, got.len()));
            client
        });
        eventually("both directions arrive", 20, || {
            app.write_some(app.owed());
            app.read_some(65536);
            app.owed() == 0 && app.read == 20_000
        });
        let _client = reader.join().unwrap();
        assert_eq!(net.counts().resets + net.counts().fins, 0);
    });
}

#[test]
fn a_resumed_or_live_socket_lets_a_listener_bind_its_port() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, server) = net.connect();
        let fd = Paused::pause(server).unwrap().resume().unwrap();
        // A closed listener lives on while a process that another thread starts has a copy of it.
        let binds = |host: usize| {
            let bound = net.hosts[host].run(|| TcpListener::bind(net.service()));
            match bound.unwrap() {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::AddrInUse => false,
                Err(error) => panic!("{error}"),
            }
        };
        eventually("a listener binds beside a resumed socket", 2, || binds(0));
        let (_live, _) = net.hand_off(fd, 1);
        eventually("a listener binds beside a live socket", 2, || binds(1));
    });
}

#[test]
fn closing_silently_emits_nothing_and_leaves_nothing() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        client.write_all(&[1; 10_000]).unwrap();
        App::new(OwnedFd::from(TcpStream::from(server.try_clone().unwrap()))).write_some(100);
        std::thread::sleep(Duration::from_millis(100));
        let before = net.counts().emitted;
        // A duplicate, which a starting process has, changes nothing.
        let _duplicate = server.try_clone().unwrap();
        Paused::pause(server).unwrap().close_silently();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(net.counts().emitted, before);
        assert!(
            sockets(&net.hosts[0]).is_empty(),
            "{:?}",
            sockets(&net.hosts[0])
        );
    });
}

#[test]
fn an_abandoned_restore_is_silent_and_a_dropped_pause_is_not() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        let paused = Paused::pause(server).unwrap();
        let state = paused.save(net.service()).unwrap();
        let restored = net.hosts[1]
            .run(|| restore(&state, net.service()).unwrap())
            .unwrap();
        drop(restored);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(net.counts().emitted[1], 0);
        drop(paused);
        assert!(
            read_all(&mut client).unwrap().is_empty(),
            "the client is told of the end"
        );
        assert_eq!(net.counts().fins, 1);
    });
}

#[test]
fn a_taken_pair_of_addresses_is_told_apart_and_another_port_works() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, server) = net.connect();
        let paused = Paused::pause(server).unwrap();
        let state = paused.save(net.service()).unwrap();
        let on_host = |bind: SocketAddr| net.hosts[0].run(|| restore(&state, bind)).unwrap();
        // The source's own socket is still there.
        let error = on_host(net.service()).unwrap_err();
        assert!(matches!(error, RestoreError::Taken { .. }), "{error}");
        let _other = on_host(SocketAddr::from((net.family.hosts[0], 40000))).unwrap();
        let error = on_host(SocketAddr::from((net.family.hosts[1], 40000))).unwrap_err();
        assert!(matches!(error, RestoreError::NotLocal(_)), "{error}");
        drop(paused.resume().unwrap());
    });
}

#[test]
fn nonsense_states_are_refused() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, server) = net.connect();
        let paused = Paused::pause(server).unwrap();
        let good = paused.save(net.service()).unwrap();
        let refused = |change: &dyn Fn(&mut prism_proto::TcpState)| {
            let mut state = good.clone();
            change(&mut state);
            let error = net.hosts[1]
                .run(|| restore(&state, net.service()))
                .unwrap()
                .unwrap_err();
            assert!(matches!(error, RestoreError::BadState(_)), "{error}");
        };
        refused(&|state| state.behaviour.mss_clamp_bytes = 10);
        refused(&|state| state.remote = net.family.foreign.parse().unwrap());
        refused(&|state| state.remote.set_port(0));
        refused(&|state| state.window.max_window_bytes = state.window.send_window_bytes - 1);
        refused(&|state| state.window.receive_wup = state.receive_seq.wrapping_add(1));
        refused(&|state| state.options.window_scale.as_mut().unwrap().receive = 15);
        refused(&|state| state.sent = vec![0; prism_proto::MAX_QUEUE_BYTES + 1]);
        refused(&|state| {
            state.behaviour.keepalive = Some(prism_proto::Keepalive {
                idle_s: 0,
                interval_s: 1,
                probes: 1,
            });
        });
        // An unknown congestion control is no reason to fail.
        let mut state = good.clone();
        state.behaviour.congestion = "no-such".into();
        drop(
            net.hosts[1]
                .run(|| restore(&state, net.service()))
                .unwrap()
                .unwrap(),
        );
        drop(paused.resume().unwrap());
    });
}

#[test]
fn settings_of_the_application_move_along() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, server) = net.connect();
        let socket = socket2::SockRef::from(&server);
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(77))
            .with_interval(Duration::from_secs(11))
            .with_retries(5);
        socket.set_tcp_keepalive(&keepalive).unwrap();
        socket.set_tcp_nodelay(true).unwrap();
        socket
            .set_tcp_user_timeout(Some(Duration::from_millis(12345)))
            .unwrap();
        socket.set_tcp_congestion(b"reno").unwrap();
        let (live, first) = net.hand_off(server, 1);
        let flags = socket2::SockRef::from(&live.fd).nonblocking().unwrap();
        assert!(flags, "the restored socket is blocking");
        let (_live, second) = net.hand_off(live.fd, 0);
        for state in [first, second] {
            assert!(state.behaviour.nodelay);
            assert_eq!(state.behaviour.user_timeout_ms, 12345);
            assert_eq!(state.behaviour.congestion, "reno");
            let keepalive = state.behaviour.keepalive.unwrap();
            assert_eq!(
                (keepalive.idle_s, keepalive.interval_s, keepalive.probes),
                (77, 11, 5)
            );
        }
    });
}

#[test]
fn states_that_cannot_be_handed_off_are_refused_and_left_alone() {
    both_families(|family| {
        let net = Net::new(family);
        let refused = |fd: OwnedFd, expected: TcpStateName| {
            let error = Paused::pause(fd).unwrap_err();
            assert!(
                matches!(error.reason, PauseFault::State(state) if state == expected),
                "{error}"
            );
            error.fd
        };
        let listener = net.hosts[0]
            .run(|| TcpListener::bind((net.family.vip, 9)).unwrap())
            .unwrap();
        refused(listener.into(), TcpStateName::Listen);

        // Towards an address that never answers.
        let domain = socket2::Domain::for_address(net.service());
        let pending = net.client.run(|| {
            let kind = socket2::Type::STREAM.nonblocking();
            let socket = socket2::Socket::new(domain, kind, None).unwrap();
            let _ = socket.connect(&net.family.nobody.parse::<SocketAddr>().unwrap().into());
            socket
        });
        refused(pending.unwrap().into(), TcpStateName::SynSent);

        let fresh = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
        refused(fresh.into(), TcpStateName::Close);

        let (client, server) = net.connect();
        net.block();
        let server = TcpStream::from(server);
        server.shutdown(Shutdown::Write).unwrap();
        let server = TcpStream::from(refused(server.into(), TcpStateName::FinWait1));
        net.unblock();
        eventually("the FIN is acknowledged", 5, || {
            TcpInfo::read(server.as_fd()).unwrap().state == TcpStateName::FinWait2
        });
        let mut server = TcpStream::from(refused(server.into(), TcpStateName::FinWait2));
        // The refused connection still works.
        (&client).write_all(b"still here").unwrap();
        server.set_nonblocking(false).unwrap();
        let mut got = [0; 10];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");

        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = Paused::pause(udp).unwrap_err();
        let PauseFault::Kernel(call) = &error.reason else {
            panic!("{error}");
        };
        let number = call.source.raw_os_error();
        let is_no_tcp = matches!(number, Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP));
        assert!(is_no_tcp && !call.is_refused(), "{error}");
    });
}

#[test]
fn a_connection_reset_while_paused_is_reported_as_gone() {
    both_families(|family| {
        let net = Net::new(family);
        let (client, server) = net.connect();
        let paused = Paused::pause(server).unwrap();
        let socket = socket2::Socket::from(client);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(socket);
        eventually("the reset arrives", 5, || {
            TcpInfo::read(paused.as_fd()).unwrap().state == TcpStateName::Close
        });
        let error = paused.save(net.service()).unwrap_err();
        assert!(matches!(error, SaveError::Gone), "{error}");
    });
}

/// Saves and restores in place over loopback, and talks in both directions.
fn moves_in_place(listen: &str, connect: &str) {
    let listener = TcpListener::bind((listen, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = SocketAddr::new(connect.parse().unwrap(), port);
    let mut client = TcpStream::connect(service).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.write_all(b"unread").unwrap();
    // Even over loopback it may arrive late.
    assert_eq!(server.peek(&mut [0; 6]).unwrap(), 6);
    let paused = Paused::pause(server).unwrap();
    let state = paused.save(service).unwrap();
    assert_eq!(state.remote, client.local_addr().unwrap());
    paused.close_silently();
    let live = restore(&state, service).unwrap().go_live().unwrap();
    assert_eq!(live.input, b"unread");
    let shown = format!("{live:?}");
    assert!(
        shown.contains("input_bytes: 6") && !shown.contains("["),
        "{shown}"
    );
    let mut server = TcpStream::from(live.fd);
    server.set_nonblocking(false).unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut got = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"pong");
}

#[test]
fn ipv6_and_mixed_sockets_move_in_place() {
    if !privileged() {
        return;
    }
    let ns = NetNs::anonymous().unwrap();
    let inside = || {
        common::ip("link set lo up");
        moves_in_place("::1", "::1");
        // An IPv4 connection in an IPv6 socket goes on in an IPv4 socket.
        moves_in_place("::", "127.0.0.1");
    };
    ns.run(inside).unwrap();
}

#[test]
fn a_save_is_consistent_while_segments_keep_arriving() {
    both_families(|family| {
        let net = Net::new(family);
        let (client, server) = net.connect();
        let paused = Paused::pause(server).unwrap();
        let base = paused.save(net.service()).unwrap();
        let mut app = App::new(paused.resume().unwrap());
        const UP_BYTES: u64 = 6_000_000;
        let mut writer = client.try_clone().unwrap();
        let up = std::thread::spawn(move || {
            for offset in (0..UP_BYTES).step_by(10_000) {
                writer.write_all(&bytes(UP, offset, 10_000)).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut reader = client;
        let down = std::thread::spawn(move || read_all(&mut reader).unwrap().len());
        let (mut saves, mut given_up, mut moving) = (0, 0, 0);
        while !app.ended {
            app.write_some(20_000);
            app.read_some(20_000);
            let (read, written, owed) = (app.read, app.written, app.owed());
            let paused = Paused::pause(app.into_fd()).unwrap();
            match paused.save(net.service()) {
                Ok(state) => {
                    saves += 1;
                    let received = state.received.len();
                    assert!(state.received == bytes(UP, read, received));
                    let fin = u64::from(state.peer_closed);
                    let arrived = (read + received as u64 + fin) as u32;
                    assert_eq!(state.receive_seq, base.receive_seq.wrapping_add(arrived));
                    let taken = written - owed as u64;
                    assert_eq!(state.write_seq, base.write_seq.wrapping_add(taken as u32));
                    let queued = [state.sent, state.unsent].concat();
                    assert!(queued == bytes(DOWN, taken - queued.len() as u64, queued.len()));
                    moving += usize::from(!queued.is_empty() && received > 0);
                }
                Err(error) => {
                    assert!(matches!(error, SaveError::NotQuiet), "{error}");
                    given_up += 1;
                }
            }
            app = App::resumed(paused.resume().unwrap(), read, written, owed);
            if read == UP_BYTES {
                app.read_some(1);
            }
        }
        up.join().unwrap();
        let total = app.written;
        eventually("the rest is written", 20, || {
            app.write_some(app.owed());
            app.owed() == 0
        });
        drop(app);
        assert_eq!(down.join().unwrap() as u64, total);
        assert!(
            saves > 100 && moving > 10,
            "{saves} saves, {moving} moving, {given_up} given up"
        );
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn a_predecessor_in_time_wait_gives_way_with_timestamps_and_is_in_the_way_without() {
    both_families(|family| {
        for timestamps in [true, false] {
            let net = Net::new(family);
            common::sysctl(
                &net.client,
                "tcp_timestamps",
                if timestamps { "1" } else { "0" },
            );
            let (mut client, server) = net.connect();
            let (live, state) = net.hand_off(server, 1);
            drop(live);
            assert!(read_all(&mut client).unwrap().is_empty());
            drop(client);
            // 06 is TIME_WAIT.
            eventually("both have closed", 5, || sockets(&net.hosts[1]) == ["06"]);
            let on_host = |bind: SocketAddr| net.hosts[1].run(|| restore(&state, bind)).unwrap();
            match on_host(net.service()) {
                Ok(_successor) => assert!(timestamps),
                Err(RestoreError::Taken { .. }) => assert!(!timestamps),
                Err(other) => panic!("{other}"),
            }
            drop(on_host(SocketAddr::from((net.family.hosts[1], 40000))).unwrap());
        }
    });
}
