//! Queues at the limits of a hand-off, in states made from numbers.

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::common::{App, DOWN, Net, both_families, bytes};
use prism_proto::{MAX_QUEUE_BYTES, TcpState};
use prism_sys::tcp::{Paused, SaveError, info, restore};

/// A connection that was saved and left its host; nothing passes the switch.
fn saved(net: &Net) -> (TcpStream, TcpState) {
    let (client, server) = net.connect();
    net.block();
    let paused = Paused::pause(server).unwrap();
    let state = paused.save(net.service()).unwrap();
    paused.close_silently();
    (client, state)
}

/// As if the application had written the bytes and the kernel had sent them.
fn with_sent(mut state: TcpState, sent: Vec<u8>) -> TcpState {
    state.write_seq = state.write_seq.wrapping_add(sent.len() as u32);
    state.sent = sent;
    state
}

fn live(net: &Net, state: &TcpState) -> OwnedFd {
    let restored = net.hosts[1]
        .run(|| restore(state, net.service()).unwrap())
        .unwrap();
    net.own(1, net.service());
    restored.go_live().unwrap().fd
}

fn option(fd: BorrowedFd<'_>, name: i32) -> i32 {
    let mut value = 0_i32;
    let mut length = 4;
    let at = (&raw mut value).cast();
    // SAFETY: an `int` option of the socket level, and room for one.
    let result = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            libc::SOL_SOCKET,
            name,
            at,
            &mut length,
        )
    };
    assert_eq!(result, 0);
    value
}

#[test]
fn the_largest_sent_queue_goes_in_and_comes_out_the_same() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, state) = saved(&net);
        let state = with_sent(state, bytes(DOWN, 0, MAX_QUEUE_BYTES));
        let fd = live(&net, &state);
        assert_eq!(info::send_queue_bytes(fd.as_fd()).unwrap(), MAX_QUEUE_BYTES);
        assert_eq!(info::unsent_queue_bytes(fd.as_fd()).unwrap(), 0);
        // The size of the buffer is the kernel's business again.
        assert_eq!(option(fd.as_fd(), libc::SO_BUF_LOCK), 0);
        assert!(option(fd.as_fd(), libc::SO_SNDBUF) < 1 << 20);

        let paused = Paused::pause(fd).unwrap();
        let again = paused.save(net.service()).unwrap();
        assert_eq!(again.write_seq, state.write_seq);
        assert!(again.sent == state.sent && again.unsent.is_empty());
        paused.close_silently();
    });
}

#[test]
fn a_long_sent_queue_reaches_a_client_that_got_none_of_it() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, state) = saved(&net);
        const LENGTH: usize = 400_000;
        let mut state = with_sent(state, bytes(DOWN, 0, LENGTH));
        // As large a window as the client would have announced by then.
        state.window.max_window_bytes = 1 << 20;
        let _fd = live(&net, &state);
        net.unblock();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut got = vec![0; LENGTH];
        client.read_exact(&mut got).unwrap();
        assert!(got == bytes(DOWN, 0, LENGTH));
        assert_eq!(net.counts().resets, 0);
    });
}

#[test]
fn sequence_numbers_wrap() {
    both_families(|family| {
        let net = Net::new(family);
        let (_client, mut state) = saved(&net);
        state.write_seq = 1000;
        state.receive_seq = 5;
        state.window.receive_wup = 5_u32.wrapping_sub(100);
        state.window.send_wl1 = 5_u32.wrapping_sub(100);
        state.sent = bytes(DOWN, 0, 5000);
        let paused = Paused::pause(live(&net, &state)).unwrap();
        let again = paused.save(net.service()).unwrap();
        assert_eq!((again.write_seq, again.receive_seq), (1000, 5));
        assert!(again.sent == state.sent);
        assert_eq!(again.window, state.window);
        paused.close_silently();
    });
}

#[test]
fn a_queue_above_the_limit_is_refused_and_the_connection_goes_on() {
    both_families(|family| {
        let net = Net::new(family);
        let (mut client, server) = net.connect();
        let socket = socket2::SockRef::from(&server);
        let length = MAX_QUEUE_BYTES as i32 * 2;
        // SAFETY: an `int` option, as above.
        let result = unsafe {
            let at = (&raw const length).cast();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&server);
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, at, 4)
        };
        assert_eq!(result, 0);
        assert!(socket.send_buffer_size().unwrap() > 3 * MAX_QUEUE_BYTES);
        net.block();
        let mut app = App::new(server);
        let total = MAX_QUEUE_BYTES + 500_000;
        assert_eq!(app.write_some(total), total);
        let paused = Paused::pause(app.into_fd()).unwrap();
        let error = paused.save(net.service()).unwrap_err();
        assert!(matches!(error, SaveError::TooLarge { queue: "send", bytes } if bytes == total));
        let _fd = paused.resume().unwrap();
        net.unblock();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut got = vec![0; total];
        client.read_exact(&mut got).unwrap();
        assert!(got == bytes(DOWN, 0, total));
    });
}
