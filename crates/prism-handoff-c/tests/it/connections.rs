//! A client's connection as a C program has it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::ptr::null;
use std::time::{Duration, Instant};

use prism_handoff_c::{Outcome, Status, prism_close, prism_consume, prism_export};

use crate::node::{Node, message};

#[test]
fn a_write_that_fails_after_the_clients_end_is_told_of_and_nothing_follows_it() {
    let mut node = Node::open();
    let mut client = node.connect();
    client.shutdown(Shutdown::Write).unwrap();
    node.poll_until(|node| node.told().ends == [None]);

    // The node streams to the client, which vanishes.
    let piece = vec![0; 8 << 20];
    assert_eq!(node.write(&piece), Status::Ok);
    client.read_exact(&mut [0]).unwrap();
    drop(client);
    let is_told = |node: &Node| node.told().ends.len() == 2;
    for written in 1.. {
        node.poll_until(|node| is_told(node) || node.told().written == written);
        if is_told(&node) {
            break;
        }
        assert_eq!(node.write(&piece), Status::Ok);
    }
    let written = node.told().written;
    assert!(node.told().ends[1].is_some());

    // A peer would write behind the gap.
    let (client, peer) = (node.told().client, c"node".as_ptr());
    assert_eq!(node.write(b"more"), Status::Ok);
    // SAFETY: it is text, and there is no context.
    let exported = unsafe { prism_export(node.endpoint(), client, peer, null(), 0) };
    assert_eq!(exported, Status::Ok);
    node.poll_until(|node| node.told().exported == [Outcome::Lost]);
    assert_eq!((node.told().written, node.told().ends.len()), (written, 2));
    assert_eq!(prism_close(node.endpoint(), client), Status::Gone);
}

#[test]
fn unread_bytes_stay_in_place_while_bytes_before_them_are_consumed() {
    let mut node = Node::open();
    let mut client = node.connect();
    node.poll_until(|node| node.told().client != 0);
    let id = node.told().client;
    client.write_all(b"one\ntwo\nthree\n").unwrap();
    node.poll_until(|node| node.unread().len() == 14);

    let start = node.unread().as_ptr();
    assert_eq!(prism_consume(node.endpoint(), id, 4), Status::Ok);
    assert_eq!(node.unread(), b"two\nthree\n");
    assert_eq!(node.unread().as_ptr(), start.wrapping_add(4));
    assert_eq!(prism_consume(node.endpoint(), id, 11), Status::Invalid);
    client.write_all(b"four\n").unwrap();
    node.poll_until(|node| node.unread() == b"two\nthree\nfour\n");
    assert_eq!(prism_consume(node.endpoint(), id, 15), Status::Ok);
    assert_eq!(node.unread(), b"");
    client.write_all(b"five\n").unwrap();
    node.poll_until(|node| node.unread() == b"five\n");
}

#[test]
fn a_write_that_never_fits_is_invalid() {
    let mut node = Node::open();
    let _client = node.connect();
    node.poll_until(|node| node.told().client != 0);
    assert_eq!(node.write(&vec![0; (8 << 20) + 1]), Status::Invalid);
    assert_eq!(message(), "a write has at most 8 MiB");
}

/// The masks of blocked signals of the library's threads in this process.
fn blocked() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| {
        // Threads of other tests end meanwhile.
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    });
    let ours = statuses.filter(|status| status.starts_with("Name:\tprism-handoff\n"));
    let mask = |status: String| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
    };
    ours.map(mask).collect()
}

#[test]
fn the_librarys_threads_take_no_signals_of_the_program() {
    let _node = Node::open();
    let deadline = Instant::now() + Duration::from_secs(10);
    let terminate = 1 << (15 - 1);
    loop {
        let masks = blocked();
        // A thread of another test may just be starting.
        if !masks.is_empty() && masks.iter().all(|mask| mask & terminate != 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{masks:x?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
