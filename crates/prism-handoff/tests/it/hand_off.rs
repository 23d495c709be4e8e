//! Hand-offs between two nodes behind a switch, as root.

use std::sync::Arc;

use prism_handoff::{ClientBounds, ClientLimits};
use prism_proto::node::MAX_MOVES;

use crate::app::{BULK, Client, Node, eventually, run, with_nodes};

/// Waits until `is_so`, for a bounded time.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    run(eventually(what, is_so));
}

#[test]
fn a_connection_moves_with_its_unread_bytes_and_a_context_and_comes_back() {
    with_nodes(
        "moves",
        |_, _| {},
        |nodes| {
            let mut client = Client::connect();
            assert_eq!(client.ask("who"), "left, , origin left");
            for _ in 0..3 {
                let moved = client.ask("move");
                assert_eq!(moved, "right, moved by left, origin left");
                // Lines that the client sends at once move with the first of them.
                client.send("move a\nwho\nmove b\n");
                let answers = [(); 3].map(|()| client.answer());
                let expected = [
                    "left, moved by right, origin left",
                    "left, moved by right, origin left",
                    "right, moved by left, origin left",
                ];
                assert_eq!(answers, expected);
                assert_eq!(client.ask("move"), "left, moved by right, origin left");
            }
            for node in [&nodes.left, &nodes.right] {
                let counters = &node.process.counters;
                // A source learns a little later than the client that its connection moved.
                soon("all have moved", || counters.exports_moved.read() == 6);
                assert_eq!(counters.imported.read(), 6);
                assert_eq!(counters.exports_kept.read(), 0);
            }
        },
    );
}

#[test]
fn a_connection_that_is_passed_over_counts_as_accepted_by_the_other_node() {
    with_nodes(
        "pass",
        |_, _| {},
        |_| {
            let mut client = Client::connect();
            client.send("pass\n");
            assert_eq!(client.ask("who"), "right, , origin right");
        },
    );
}

#[test]
fn a_connection_that_the_target_refuses_stays_with_its_source() {
    with_nodes(
        "refused",
        |name, config| {
            if name == "right" {
                config.clients = Arc::new(ClientLimits::new(ClientBounds {
                    connections: 0,
                    ..ClientBounds::default()
                }));
            }
        },
        |nodes| {
            let mut client = Client::connect();
            for _ in 0..2 {
                assert_eq!(client.ask("move"), "left kept it: TargetRefused(Busy)");
                assert_eq!(client.ask("who"), "left, , origin left");
            }
            assert_eq!(nodes.right.process.counters.imports_refused.read(), 2);
        },
    );
}

#[test]
fn a_node_that_leaves_is_offered_nothing_and_hands_over_what_it_has() {
    with_nodes(
        "leaves",
        |_, _| {},
        |nodes| {
            let (mut stays, mut moved) = (Client::connect(), Client::connect());
            assert_eq!(moved.ask("move"), "right, moved by left, origin left");
            nodes.right.leave();
            assert!(nodes.left.process.is_leaving("right"));
            assert_eq!(stays.ask("move"), "left kept it: TargetRefused(Unwilling)");
            assert_eq!(stays.ask("who"), "left, , origin left");
            assert_eq!(moved.ask("move"), "left, moved by right, origin left");
        },
    );
}

#[test]
fn a_connection_stays_with_its_source_where_the_target_is_dead() {
    with_nodes(
        "dead",
        |_, _| {},
        |nodes| {
            let mut client = Client::connect();
            // There is a channel to the target, which its end closes.
            assert_eq!(client.ask("move"), "right, moved by left, origin left");
            assert_eq!(client.ask("move"), "left, moved by right, origin left");
            nodes.right.end();
            let answer = client.ask("move");
            assert_eq!(answer, "left kept it: TargetSilent");
            assert_eq!(client.ask("who"), "left, moved by right, origin left");
        },
    );
}

#[test]
fn a_connection_stays_with_its_source_where_the_target_falls_silent_and_moves_later() {
    with_nodes(
        "silent",
        |_, _| {},
        |nodes| {
            let mut client = Client::connect();
            assert_eq!(client.ask("move"), "right, moved by left, origin left");
            assert_eq!(client.ask("move"), "left, moved by right, origin left");
            nodes.network.set_link("right", false).unwrap();
            // The source sends its state, and the verdict never comes.
            assert_eq!(client.ask("move"), "left kept it: TargetSilent");
            assert_eq!(client.ask("who"), "left, moved by right, origin left");
            nodes.network.set_link("right", true).unwrap();
            let is_back = || client.ask("move") == "right, moved by left, origin left";
            let mut tries = std::iter::repeat_with(is_back).take(50);
            assert!(tries.any(|is_back| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                is_back
            }));
        },
    );
}

#[test]
fn nodes_that_disagree_who_answers_move_a_connection_a_bounded_number_of_times() {
    with_nodes(
        "bounce",
        |_, _| {},
        |nodes| {
            let mut client = Client::connect();
            for round in 1..3 {
                let answer = client.ask("bounce");
                assert!(answer.ends_with(" kept it: MovedTooOften"), "{answer}");
                let imported = |node: &Node| node.process.counters.imported.read();
                let moves = imported(&nodes.left) + imported(&nodes.right);
                assert_eq!(moves, round * u64::from(MAX_MOVES));
            }
        },
    );
}

#[test]
fn the_client_gets_all_of_an_answer_behind_which_the_target_closes() {
    with_nodes(
        "close",
        |_, _| {},
        |nodes| {
            let mut client = Client::connect();
            assert_eq!(client.ask("move"), "right, moved by left, origin left");
            client.send("bulk\n");
            assert!(client.rest() == BULK);
            // The target releases the flow at the switch once its socket is gone.
            let counters = &nodes.right.process.counters;
            soon("the flow is closing", || {
                counters.flows_closing.read() + counters.flows_released.read() == 1
            });
        },
    );
}
