//! The congestion window of a connection that has moved.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use prism_sys::tcp::{
    Blank, InitialWindow, Live, MAX_WINDOW_SEGMENTS, Paused, ProgramError, TcpInfo, restore_into,
};

use crate::common::{App, Net, both_families, eventually};

/// The window of a new connection.
const NEW_SEGMENTS: u32 = 10;

/// Moves the connection as if its source had the window `claimed`; returns its new window.
fn moved(net: &Net, app: &mut App, window: Option<&InitialWindow>, claimed: u32) -> u32 {
    app.moved_by(|fd: OwnedFd| {
        net.block();
        let paused = Paused::pause(fd).unwrap();
        let mut state = paused.save(net.service()).unwrap();
        paused.close_silently();
        state.cwnd_segments = claimed;
        let restore = || {
            let blank = Blank::new(net.service(), state.behaviour.mss_clamp_bytes).unwrap();
            restore_into(blank, &state, window).unwrap()
        };
        let live: Live = net.hosts[0].run(restore).unwrap().go_live().unwrap();
        net.unblock();
        (live, state)
    });
    let socket = socket2::SockRef::from(app.stream());
    assert_eq!(socket.priority().unwrap(), 0);
    TcpInfo::read(app.as_fd()).unwrap().cwnd_segments
}

#[test]
fn a_connection_goes_on_with_the_window_it_had() {
    both_families(|family| {
        let window = match InitialWindow::new() {
            Ok(window) => window,
            Err(ProgramError::NoGroup) => {
                eprintln!("skipped: no control groups of version 2 here");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        let mut app = App::new(server);
        let most = u32::from(MAX_WINDOW_SEGMENTS);
        for (claimed, expected) in [
            (100, 100),
            (3, NEW_SEGMENTS),
            (11, 11),
            (most, most),
            (u32::MAX, most),
        ] {
            assert_eq!(moved(&net, &mut app, None, claimed), NEW_SEGMENTS);
            assert_eq!(moved(&net, &mut app, Some(&window), claimed), expected);
        }
        // The first flight is the whole window, and the connection works.
        assert_eq!(moved(&net, &mut app, Some(&window), 100), 100);
        assert_eq!(app.write_some(100_000), 100_000);
        let mut got = vec![0; 100_000];
        client.read_exact(&mut got).unwrap();
        eventually("all is acknowledged", 5, || {
            prism_sys::tcp::info::send_queue_bytes(app.as_fd()).unwrap() == 0
        });
        // Other connections do not change.
        let (_other, socket) = net.connect();
        assert_eq!(
            TcpInfo::read(socket.as_fd()).unwrap().cwnd_segments,
            NEW_SEGMENTS
        );
        // Without the program no window is set.
        drop(window);
        assert_eq!(moved(&net, &mut app, None, 100), NEW_SEGMENTS);
    });
}
