//! The socket table, asked about connections and their end.

use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::{self, eventually, privileged};
use prism_netns::NetNs;
use prism_sys::diag::{Connection, Destroyed, Diag, DiagError};
use prism_sys::tcp::{Paused, TcpStateName};

/// A connection over loopback: client, server, and the server's view of it.
fn pair(address: &str) -> (TcpStream, TcpStream, Connection) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, remote) = listener.accept().unwrap();
    let local = server.local_addr().unwrap();
    (client, server, Connection { local, remote })
}

/// Runs in a namespace of its own, without other sockets.
fn alone(test: impl FnOnce() + Send) {
    if privileged() {
        let inside = || {
            common::ip("link set lo up");
            test();
        };
        NetNs::anonymous().unwrap().run(inside).unwrap();
    }
}

#[test]
fn finds_a_connection_through_its_life() {
    alone(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let mut diag = Diag::open().unwrap();
            let (client, server, here) = pair(address);
            let there = Connection {
                local: here.remote,
                remote: here.local,
            };
            let mut state = |of: &Connection| diag.lookup(of).unwrap().map(|entry| entry.state);
            assert_eq!(state(&here), Some(TcpStateName::Established));
            drop(server);
            eventually("the FIN arrives", 5, || {
                state(&there) == Some(TcpStateName::CloseWait)
            });
            drop(client);
            // The side that closed first is in TIME_WAIT; the other one is gone.
            eventually("it is closed", 5, || state(&there).is_none());
            let entry = diag.lookup(&here).unwrap().unwrap();
            assert_eq!(entry.state, TcpStateName::TimeWait);
            let seconds = entry.time_wait.unwrap().as_secs();
            assert!((50..=60).contains(&seconds), "{seconds} s");
        }
    });
}

#[test]
fn does_not_take_a_listener_for_a_connection() {
    alone(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let mut diag = Diag::open().unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(diag.lookup(&Connection { local, remote }).unwrap(), None);
        let remote = "[::1]:9".parse().unwrap();
        let error = diag.lookup(&Connection { local, remote }).unwrap_err();
        assert!(matches!(error, DiagError::Families));
    });
}

#[test]
fn reports_sockets_that_are_gone_but_not_those_that_left() {
    alone(|| {
        let mut destroyed = Destroyed::subscribe().unwrap();
        assert_eq!(destroyed.try_next().unwrap(), None);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (left_client, left, left_connection) = pair(address);
            let (client, server, connection) = pair(address);
            Paused::pause(left).unwrap().close_silently();
            drop((server, client));
            let mut seen = Vec::new();
            eventually("both ends are reported", 5, || {
                seen.extend(destroyed.try_next().unwrap());
                let peer = Connection {
                    local: connection.remote,
                    remote: connection.local,
                };
                seen.contains(&connection) && seen.contains(&peer)
            });
            assert!(!seen.contains(&left_connection), "{seen:?}");
            drop(left_client);
        }
    });
}

#[test]
fn says_when_events_were_lost_and_goes_on() {
    alone(|| {
        let mut destroyed = Destroyed::subscribe().unwrap();
        let buffer = |fd: &Destroyed, bytes| {
            socket2::SockRef::from(fd)
                .set_recv_buffer_size(bytes)
                .unwrap();
        };
        buffer(&destroyed, 1);
        for _ in 0..200 {
            drop(pair("127.0.0.1:0"));
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut lost = 0;
        loop {
            match destroyed.try_next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(DiagError::Overflow) => lost += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(lost > 0);
        buffer(&destroyed, 1 << 16);
        let (client, server, connection) = pair("127.0.0.1:0");
        drop((client, server));
        let mut seen = Vec::new();
        eventually("the next is reported", 5, || {
            seen.extend(destroyed.try_next().unwrap());
            seen.contains(&connection)
        });
    });
}
