//! Servers that fail, and what the client gets.

use std::io::Read;

use prism_config::Balance;
use prism_upstream::Error;

use crate::bed::{Bed, Served, Server, act, read, write};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nHost: h";
const POST: &str = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0";

#[test]
fn a_request_on_an_idle_connection_that_ends_is_sent_again_if_that_is_safe() {
    // The first request makes the connection idle, the second one meets its end.
    let ends = || {
        act(|stream| {
            read(stream, 0);
            write(stream, OK, 1);
            read(stream, 0);
        })
    };
    let answers = act(|stream| {
        read(stream, 0);
        write(stream, OK, 1);
    });
    let server = Server::new(vec![ends(), answers]);
    let bed = Bed::new(server.address, 1, |_| {});
    assert_eq!(bed.ask(GET, &[]).served.unwrap(), Served::Open);
    let end = bed.ask("DELETE / HTTP/1.1\r\nHost: h", &[]);
    assert!(end.client.text().starts_with("HTTP/1.1 200 "));
    server.join();
    let server = Server::new(vec![ends()]);
    let bed = Bed::new(server.address, 1, |_| {});
    bed.ask(GET, &[]);
    let end = bed.ask(POST, &[]);
    assert!(end.client.text().starts_with("HTTP/1.1 502 "));
    assert_eq!((end.served.unwrap(), end.status), (Served::Open, Some(502)));
    server.join();
}

#[test]
fn a_request_that_kills_its_servers_does_not_visit_all_of_them() {
    for (retries, goes_on) in [(0, true), (1, true), (2, false)] {
        let server = Server::new(vec![act(|stream| drop(read(stream, 0)))]);
        let bed = Bed::new(server.address, 1, |_| {});
        let end = bed.ask_again(GET, retries);
        server.join();
        match end.served.unwrap() {
            Served::Elsewhere(_) => assert!(goes_on, "{retries}"),
            _ => assert!(!goes_on && end.status == Some(502), "{retries}"),
        }
    }
    // Three servers have got it elsewhere, so no other one does.
    let bed = Bed::new("127.0.0.1:9".parse().unwrap(), 1, |_| {});
    assert_eq!(bed.ask_again(GET, 3).status, Some(502));
    assert_eq!(bed.are_in(), [true]);
}

#[test]
fn a_connection_that_its_server_has_just_closed_gets_no_request() {
    let closes = || {
        act(|stream| {
            read(stream, 0);
            write(stream, OK, 1);
        })
    };
    let server = Server::new((0..20).map(|_| closes()).collect());
    let bed = Bed::new(server.address, 1, |_| {});
    for _ in 0..20 {
        assert_eq!(bed.ask(POST, &[]).status, Some(200));
        // The loopback interface delivers at once what the server does.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.join();
}

#[test]
fn an_idle_connection_is_not_used_for_longer_than_its_server_says() {
    // A server that ends it in 1 s may have ended it when the request comes.
    for (field, idle_timeout_s, is_kept) in [
        ("", 4, true),
        ("Keep-Alive: max=5, timeout=2\r\n", 4, true),
        ("Keep-Alive: timeout=1\r\n", 4, false),
        ("Keep-Alive: timeout=x\r\n", 4, true),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 0\r\n\r\n").into_bytes();
        let (again, last) = (answer.clone(), answer.clone());
        let stays = act(move |stream| {
            read(stream, 0);
            write(stream, &answer, 1);
            if is_kept {
                read(stream, 0);
                write(stream, &again, 1);
            }
        });
        let second = act(move |stream| {
            read(stream, 0);
            write(stream, &last, 1);
        });
        let connections = if is_kept {
            vec![stays]
        } else {
            vec![stays, second]
        };
        let server = Server::new(connections);
        let bed = Bed::new(server.address, 1, |upstream| {
            upstream.idle_timeout_s = idle_timeout_s;
        });
        for _ in 0..2 {
            assert_eq!(bed.ask(GET, &[]).status, Some(200), "{field}");
        }
        server.join();
    }
}

#[test]
fn what_may_have_run_does_not_go_elsewhere() {
    for (head, answer, expected) in [
        (GET, &b""[..], Err("ended the connection")),
        (POST, b"", Ok("HTTP/1.1 502 ")),
        (GET, b"HTTP/1.1 200", Ok("HTTP/1.1 502 ")),
        (GET, b"nonsense\r\n\r\n", Ok("HTTP/1.1 502 ")),
        (
            GET,
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            Ok("HTTP/1.1 502 "),
        ),
    ] {
        let server = Server::new(vec![act(move |stream| {
            read(stream, 0);
            write(stream, answer, 1);
        })]);
        let bed = Bed::new(server.address, 1, |_| {});
        let end = bed.ask(head, &[]);
        server.join();
        match (end.served.unwrap(), expected) {
            (Served::Elsewhere(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{error}");
                assert!(end.client.got.is_empty());
            }
            (Served::Open | Served::Closed, Ok(expected)) => {
                assert!(
                    end.client.text().starts_with(expected),
                    "{}",
                    end.client.text()
                );
            }
            (served, _) => panic!("{head}: {served:?}"),
        }
    }
}

#[test]
fn a_server_that_is_out_of_reach_or_silent_is_named() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let bed = Bed::new(closed, 1, |_| {});
    let served = bed.ask(POST, &[]).served.unwrap();
    assert!(
        matches!(served, Served::Elsewhere(Error::NotConnected)),
        "{served:?}"
    );
    let silent = Server::new(vec![act(|stream| {
        read(stream, 0);
        std::thread::sleep(std::time::Duration::from_millis(1_500));
    })]);
    let bed = Bed::new(silent.address, 1, |_| {});
    let end = bed.ask(GET, &[]);
    assert!(
        end.client.text().starts_with("HTTP/1.1 504 "),
        "{}",
        end.client.text()
    );
    silent.join();
}

#[test]
fn a_relaying_node_hears_that_a_slow_server_is_at_work() {
    // The relaying node gives up after 1 s of silence.
    let slow = |works_for_ms| {
        Server::new(vec![act(move |stream| {
            read(stream, 0);
            std::thread::sleep(std::time::Duration::from_millis(works_for_ms));
            write(stream, OK, 1);
        })])
    };
    let processing = "HTTP/1.1 102 Processing\r\nPrism-Answer: at-work\r\n\r\n";
    for (answer_timeout_s, works_for_ms, expected) in
        [(3, 1_200, "HTTP/1.1 200 "), (1, 1_500, "HTTP/1.1 504 ")]
    {
        let server = slow(works_for_ms);
        let bed = Bed::new(server.address, 1, |upstream| {
            upstream.answer_timeout_s = answer_timeout_s;
        });
        let text = bed.ask_relayed(POST, 1, None).client.text();
        server.join();
        let count = text.matches(processing).count();
        assert!((2..=3).contains(&count), "{text}");
        let rest = text.strip_prefix(&processing.repeat(count));
        assert!(
            rest.is_some_and(|rest| rest.starts_with(expected)),
            "{text}"
        );
    }
    // A client waits by itself.
    let server = slow(500);
    let bed = Bed::new(server.address, 1, |_| {});
    let text = bed.ask(GET, &[]).client.text();
    server.join();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn a_server_hears_of_a_relayed_request_when_its_body_begins() {
    let server = Server::new(vec![act(|stream| {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), "");
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue";
    let end = bed.ask_broken_off(head);
    assert!(end.served.is_err());
    assert_eq!(end.client.text(), "HTTP/1.1 100 Continue\r\n\r\n");
    server.join();
}

#[test]
fn an_answer_that_breaks_off_ends_the_connection() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        write(
            stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            1,
        );
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let end = bed.ask(GET, &[]);
    assert!(end.served.is_err());
    assert!(end.client.text().ends_with("half"));
    server.join();
}

/// A server that answers without a length, and resets the connection in the body: what it has not
/// read makes its end a reset.
fn resets() -> Server {
    Server::new(vec![act(|stream| {
        std::io::Read::read_exact(stream, &mut [0; 10]).unwrap();
        write(stream, b"HTTP/1.1 200 OK\r\n\r\nhalf", 1);
    })])
}

#[test]
fn an_answer_without_length_that_a_reset_cuts_is_not_complete() {
    let server = resets();
    let bed = Bed::new(server.address, 1, |_| {});
    let end = bed.ask(GET, &[]);
    server.join();
    assert!(end.served.is_err());
    let text = end.client.text();
    assert!(!text.ends_with("0\r\n\r\n"), "{text}");
}

#[test]
fn a_relayed_answer_without_length_that_a_reset_cuts_is_not_complete_either() {
    let server = resets();
    let bed = Bed::new(server.address, 1, |_| {});
    let asked = bed.ask_relayed(GET, 7, Some(9));
    server.join();
    let text = asked.client.text();
    // If the reset comes late, the answer is parked.
    if text.contains("Prism-Answer: parked") {
        let end = bed.ask_relayed(GET, 7, None);
        assert!(end.served.is_err());
    } else {
        assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    }
}

#[test]
fn bodies_have_a_bound() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.max_body_bytes = 3);
    let end = bed.ask("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 4", b"abcd");
    let served = end.served.unwrap();
    assert!(
        matches!(served, Served::Elsewhere(Error::BodyTooLong)),
        "{served:?}"
    );
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked";
    let end = bed.ask(head, b"4\r\nabcd\r\n0\r\n\r\n");
    assert!(
        end.client.text().starts_with("HTTP/1.1 413 "),
        "{}",
        end.client.text()
    );
    server.join();
}

#[test]
fn a_tunnel_whose_server_resets_it_does_not_end_in_order() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        let consent = b"HTTP/1.1 101 \r\nConnection: upgrade\r\nUpgrade: a\r\n\r\nbye";
        write(stream, consent, 1);
        // Bytes that nobody reads make the end a reset.
        std::thread::sleep(std::time::Duration::from_millis(50));
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let asks = "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: a";
    let end = bed.ask(asks, &[]);
    server.join();
    assert!(end.served.is_err());
    assert!(end.client.text().ends_with("\r\n\r\nbye"));
}

/// A node with two servers of which each gets every second request, `count` each. They do this, and
/// end the connection.
fn two_servers(count: usize, work: fn(&mut std::net::TcpStream)) -> (Bed, [Server; 2]) {
    let server = || Server::new((0..count).map(|_| act(work)).collect());
    let servers = [server(), server()];
    let addresses = servers.each_ref().map(|server| server.address);
    let bed = Bed::new(addresses[0], 1, |upstream| {
        upstream.address = addresses.into_iter().collect();
        upstream.balance = Balance::RoundRobin;
    });
    (bed, servers)
}

#[test]
fn a_client_that_is_left_unanswered_takes_at_most_half_of_the_servers_out() {
    let (bed, servers) = two_servers(3, |stream| drop(read(stream, 0)));
    for _ in 0..6 {
        assert!(matches!(bed.ask(GET, &[]).served, Ok(Served::Elsewhere(_))));
    }
    servers.into_iter().for_each(Server::join);
    let are_in = bed.are_in();
    assert_eq!(are_in.iter().filter(|is_in| **is_in).count(), 1);
}

#[test]
fn a_client_that_gets_errors_takes_at_most_half_of_the_servers_out() {
    let (bed, servers) = two_servers(5, |stream| {
        read(stream, 0);
        let answer = b"HTTP/1.1 503 \r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        write(stream, answer, 1);
    });
    for _ in 0..10 {
        assert_eq!(bed.ask(GET, &[]).status, Some(503));
    }
    servers.into_iter().for_each(Server::join);
    let are_in = bed.are_in();
    assert_eq!(are_in.iter().filter(|is_in| **is_in).count(), 1);
}

#[test]
fn uploads_that_a_server_does_not_wait_for_take_none_out() {
    let (bed, servers) = two_servers(4, |stream| drop(read(stream, 2)));
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000";
    for _ in 0..8 {
        assert_eq!(bed.ask(head, b"abcd").status, Some(502));
    }
    servers.into_iter().for_each(Server::join);
    assert_eq!(bed.are_in(), [true, true]);
}

#[test]
fn a_server_does_not_answer_for_faults_of_this_host() {
    // Without an interface such an address is invalid here, whatever the server does.
    let bed = Bed::new("[fe80::1]:9".parse().unwrap(), 1, |_| {});
    let served = bed.ask(GET, &[]).served.unwrap();
    assert!(
        matches!(served, Served::Elsewhere(Error::NotConnected)),
        "{served:?}"
    );
    assert_eq!(bed.are_in(), [true]);
}
