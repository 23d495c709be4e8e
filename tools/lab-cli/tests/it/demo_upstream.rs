//! A test of `prism-lab demo --upstream`.

use std::path::PathBuf;

use prism_lab::testing::{say, turn};

use crate::demo::{DEMO_TIMEOUT, Demo, check_connection, parts, value};

#[test]
fn the_demo_of_an_upstream_shows_that_no_request_fails_while_a_server_is_away() {
    let Some(_turn) = turn() else { return };
    let mut demo = Demo::start_with("2", &["--upstream"]);
    let (status, output, errors) = demo.end(DEMO_TIMEOUT);
    assert!(status.success(), "{status}\n{output}\n{errors}");
    assert!(!output.contains("FAIL"), "{output}");
    let (connections, outage) = output.split_once("While a server was away").unwrap();
    for (part, is_v6) in parts(connections).zip([false, true, true]) {
        check_connection(part, is_v6);
        // The server of the connection has answered all of its requests.
        let shares = value(part, "answered by");
        let words: Vec<_> = shares.split(' ').collect();
        assert!(words[0].starts_with("be") && words[1] == "30", "{shares}");
        assert_eq!(words.len(), 3, "{shares}");
        assert!(value(part, "time of hand-off").contains("(1 hand-offs)"));
    }
    assert_eq!(
        value(outage, "answers compared").split(' ').next(),
        Some("50")
    );
    assert!(value(outage, "client connections").starts_with("1, "));
    let row: Vec<_> = value(outage, "row of status").split(' ').collect();
    assert_eq!(row[..2], ["/", "127.0.0.1:3000"], "{row:?}");
    assert_eq!(row[3], "unhealthy", "{row:?}");
    let (killed, others) = (row[2], value(outage, "answered by others"));
    assert!(
        killed.starts_with("be") && !others.contains(killed),
        "{others}"
    );
    say(&format!("named {}", value(outage, "named by status")));
    assert_eq!(demo.left(), [] as [PathBuf; 0], "left behind");
}
