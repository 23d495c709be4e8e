//! Connections that move while netem loses, delays and reorders packets. Without netem in the
//! kernel, the tests say so and pass.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use crate::common::{App, DOWN, Family, Net, UP, both_families, bytes, eventually};
use prism_sys::tcp::info;

/// The faults of the links: delays, different enough to reorder, and losses.
const FAULTS: [&str; 2] = ["delay 2ms", "delay 3ms 2ms loss 2%"];
/// Moves of one connection, between two hosts.
const MOVES: usize = 12;
/// Bytes that each side sends between two moves.
const STEP: usize = 20_000;

/// The tests' network with this fault on every link, both ways; `None` without netem.
fn impaired(family: &'static Family, how: &str) -> Option<Net> {
    let net = Net::new(family);
    for host in [&net.client, &net.hosts[0], &net.hosts[1]] {
        let mut tc = Command::new("tc");
        tc.args(["qdisc", "add", "dev", "psys0", "root", "netem"]);
        tc.args(["limit", "10000"]).args(how.split(' '));
        let output = host.run(|| tc.output().unwrap()).unwrap();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let _ = writeln!(std::io::stderr(), "SKIPPED: no netem: {}", errors.trim());
            return None;
        }
    }
    Some(net)
}

#[test]
fn a_connection_that_moves_under_load_loses_no_byte_to_a_bad_network() {
    both_families(|family| {
        for how in FAULTS {
            let Some(net) = impaired(family, how) else {
                return;
            };
            let (mut client, server) = net.connect();
            client
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            let mut app = App::new(server);
            let total = MOVES * STEP;
            std::thread::scope(|scope| {
                let mut reader = client.try_clone().unwrap();
                scope.spawn(move || {
                    let mut got = vec![0; total];
                    reader.read_exact(&mut got).unwrap();
                    assert!(got == bytes(DOWN, 0, total), "wrong bytes at the client");
                });
                scope.spawn(move || client.write_all(&bytes(UP, 0, total)).unwrap());
                for round in 0..MOVES {
                    let wanted = ((round + 1) * STEP) as u64;
                    eventually("a step is written and read", 60, || {
                        let most = (wanted - app.written) as usize + app.owed();
                        app.write_some(most.max(app.owed()));
                        app.read_some((wanted - app.read) as usize);
                        app.read == wanted && app.written == wanted && app.owed() == 0
                    });
                    app.hand_off(&net, (round + 1) % 2, net.service());
                }
                eventually("all is acknowledged", 60, || {
                    app.write_some(app.owed());
                    app.owed() == 0 && info::send_queue_bytes(app.as_fd().as_fd()).unwrap() == 0
                });
            });
            assert_eq!(
                net.counts().resets + net.counts().fins,
                0,
                "{:?}, {how}",
                net.counts()
            );
        }
    });
}
