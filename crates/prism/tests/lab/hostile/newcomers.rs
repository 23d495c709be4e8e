//! Clients that hold connections and are never authenticated.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use prism_http::Method;

use super::OBJECTS;
use crate::support::bed::{Bed, NumberedClient, Way};
use crate::support::{eventually, turn};

/// The most connections of the frontend.
const CONNECTIONS: u32 = 60;

fn bed(label: &str, per_address: u32, timeout_s: u32) -> Bed {
    let bed = Bed::up_with(label, &Way::Direct, move |config| {
        config.limits.connections = CONNECTIONS;
        config.limits.unknown_per_address = Some(CONNECTIONS);
        config.limits.unauthenticated_per_address = per_address;
        config.limits.unauthenticated_timeout_s = timeout_s;
    });
    bed.fill(OBJECTS);
    bed
}

/// A PUT whose signature is wrong, with a body to come.
fn forged(client: &NumberedClient, body_bytes: usize) -> Vec<u8> {
    let put = client.signed("PUT", "/bucket/k", &vec![7; body_bytes]);
    let head = put.len() - body_bytes;
    let text = String::from_utf8(put[..head].to_vec()).unwrap();
    let (before, signature) = text.split_once("Signature=").unwrap();
    format!("{before}Signature={}{}", "0".repeat(64), &signature[64..]).into_bytes()
}

/// Whether the server has ended the connection of `client`, which has sent no request.
fn is_ended(client: &mut NumberedClient) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    match client.stream.read(&mut [0; 1]) {
        Ok(0) => true,
        Ok(_) => panic!("an answer to nothing"),
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn hundreds_of_slow_clients_that_are_not_known_shut_nobody_out() {
    let Some(_turn) = turn() else { return };
    let bed = bed("hos-crowd", 1_000, 60);
    let mut known = bed.client();
    known.get(0);
    let mut crowd: Vec<NumberedClient> = Vec::new();
    for n in 0..6 * CONNECTIONS as usize {
        let mut client = bed.client();
        // Nothing, the beginning of a head, or a request that is refused.
        let bytes = match n % 3 {
            0 => Vec::new(),
            1 => b"PUT /bucket/k HT".to_vec(),
            _ => forged(&client, 100_000),
        };
        client.stream.write_all(&bytes).unwrap();
        crowd.push(client);
        if n % 10 == 0 {
            bed.client().get(n % OBJECTS);
        }
    }
    known.get(1);
    // A later byte changes nothing.
    for client in &mut crowd {
        let _ = client.stream.write_all(b"T");
    }
    for n in 0..OBJECTS {
        bed.client().get(n);
    }
    assert!(bed.count("fe0", "unauthenticated_evicted") >= u64::from(CONNECTIONS));
    assert!(bed.count("fe0", "connections_open") <= u64::from(CONNECTIONS));
    known.get(2);
    drop((crowd, known));
    bed.assert_drained_after_time_wait();
    assert_eq!(bed.count("fe0", "unauthenticated_open"), 0);
}

#[test]
fn a_caller_who_is_not_known_has_its_answer_before_the_body_and_then_an_end() {
    let Some(_turn) = turn() else { return };
    let bed = bed("hos-forged", 1_000, 60);
    let mut client = bed.client();
    let put = forged(&client, 100_000);
    let begun = Instant::now();
    client
        .stream
        .write_all(&[&put[..], b"some"].concat())
        .unwrap();
    let answer = client.answer(&Method::PUT);
    assert_eq!(answer.status(), 403, "{}", answer.text());
    assert!(!answer.keep_alive());
    assert!(begun.elapsed() < Duration::from_secs(1));
    client.expect_end();
}

#[test]
fn an_address_and_a_silent_connection_have_no_more_than_their_share() {
    let Some(_turn) = turn() else { return };
    // Half of the connections are of each family, so of each of two addresses.
    let bed = bed("hos-share", 10, 2);
    let mut known = bed.client();
    known.get(0);
    let begun = Instant::now();
    let mut silent: Vec<NumberedClient> = (0..40).map(|_| bed.client()).collect();
    let ended = |silent: &mut Vec<NumberedClient>| {
        silent
            .iter_mut()
            .filter_map(|c| is_ended(c).then_some(()))
            .count()
    };
    eventually("half of them end", Duration::from_secs(1), || {
        ended(&mut silent) == 20
    });
    assert_eq!(bed.count("fe0", "address_over_limit"), 20);
    eventually("the others end", Duration::from_secs(4), || {
        ended(&mut silent) == 40
    });
    assert!(begun.elapsed() >= Duration::from_millis(1_900));
    // A client that was authenticated once has no such limit.
    std::thread::sleep(Duration::from_millis(2_500).saturating_sub(begun.elapsed()));
    known.get(1);
    bed.client().get(2);
}

#[test]
fn clients_that_do_not_wait_for_answers_take_turns_with_others() {
    let Some(_turn) = turn() else { return };
    /// The time in which they send.
    const SENDING: Duration = Duration::from_secs(5);
    /// The longest that an answer takes to somebody else on a slow machine.
    const LONGEST: Duration = Duration::from_secs(3);
    let bed = bed("hos-turns", 1_000, 60);
    let refused = b"GET /bucket/k HTTP/1.1\r\nHost: s3\r\n\r\n".repeat(1_000);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..6 {
            let client = bed.client();
            let mut output = client.stream.try_clone().unwrap();
            let mut input = client.stream.try_clone().unwrap();
            scope.spawn(move || while input.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
            let refused = &refused;
            scope.spawn(move || {
                while begun.elapsed() < SENDING && output.write_all(refused).is_ok() {}
                let _ = output.shutdown(Shutdown::Both);
            });
        }
        let mut answers = 0;
        while begun.elapsed() < SENDING {
            let asked = Instant::now();
            bed.client().get(answers % OBJECTS);
            assert!(asked.elapsed() < LONGEST, "{:?}", asked.elapsed());
            answers += 1;
        }
        assert!(answers > 10, "{answers}");
    });
}
