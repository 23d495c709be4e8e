//! The congestion window of a connection that has moved.

use prism_config::CongestionWindow;
use prism_sys::tcp::{InitialWindow, ProgramError};

use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::{Cluster, say, turn};

/// The window of a new connection.
const NEW_SEGMENTS: u32 = 10;

/// The window of the connection's socket on `host`, as its kernel says.
fn window(cluster: &Cluster, host: &str, client: &Client) -> u32 {
    let filter = format!("dport = :{}", client.port());
    let mut ss = cluster.lab.command(host, "ss").unwrap();
    let output = ss.args(["-Htin", "state", "established", &filter]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut words = text.split_whitespace();
    let window = words.find_map(|word| word.strip_prefix("cwnd:"));
    window
        .unwrap_or_else(|| panic!("no socket: {text}"))
        .parse()
        .unwrap()
}

/// The window that is left of one over which much was sent, on the backend that answers
/// next; and what the source had.
fn windows(setting: CongestionWindow) -> (u32, u32) {
    let cluster = Cluster::configured(2, move |config| {
        config.service.first_mut().congestion_window = setting;
    });
    let large = Object::new(cluster.key_on("be0", "large"), 8 << 20);
    // Too short an answer for a window to grow by it.
    let small = Object::new(cluster.key_on("be1", "small"), 10);
    cluster.put_all(&[large.clone(), small.clone()]);
    let mut client = cluster.connect();
    client.get(&cluster, &large);
    let source = window(&cluster, "be0", &client);
    client.get(&cluster, &small);
    (source, window(&cluster, "be1", &client))
}

#[test]
fn a_connection_that_has_moved_goes_on_with_its_window() {
    let Some(_turn) = turn() else { return };
    if let Err(error @ ProgramError::NoGroup) = InitialWindow::new() {
        say(&format!("SKIPPED: {error}"));
        return;
    }
    let (source, target) = windows(CongestionWindow::Carry);
    assert!(source > 2 * NEW_SEGMENTS, "8 MiB left a window of {source}");
    // Unless it rested for a retransmission timeout before it moved.
    assert!(target > NEW_SEGMENTS + 1, "{source} before, {target} now");
}

#[test]
fn without_that_it_begins_like_a_new_one() {
    let Some(_turn) = turn() else { return };
    let (_, target) = windows(CongestionWindow::Fresh);
    assert!(target <= NEW_SEGMENTS + 1, "{target} now");
}
