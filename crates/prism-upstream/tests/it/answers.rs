//! Answers of every form.

use crate::bed::{Bed, Served, Server, act, read, write};

const GET: &str = "GET /a HTTP/1.1\r\nHost: h";

/// The answer of a server as a client gets it, for random pieces on both sides.
fn answered(head: &'static str, answer: &'static [u8], seed: u64) -> (String, bool) {
    let server = Server::new(vec![act(move |stream| {
        read(stream, 0);
        write(stream, answer, seed);
    })]);
    let bed = Bed::new(server.address, seed, |_| {});
    let end = bed.ask(head, &[]);
    server.join();
    let text = end.client.text();
    (text, end.served.unwrap() == Served::Open)
}

#[test]
fn an_answer_is_passed_on_in_any_pieces() {
    let rows: [(&str, &[u8], &str); 8] = [
        (
            GET,
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\nConnection: close, x-c\r\nX-C: d\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nX-A: b\r\nX-C: d\r\nContent-Length: 5\r\n\r\nhello",
        ),
        (
            "HEAD /a HTTP/1.1\r\nHost: h",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDate: today\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDate: today\r\n\r\n",
        ),
        // The length of the answer to GET is unknown, and not 0.
        (
            "HEAD /a HTTP/1.1\r\nHost: h",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            GET,
            b"HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            GET,
            b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
        ),
        (
            GET,
            b"HTTP/1.1 103 Early Hints\r\nLink: </s>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: </s>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            "GET /a HTTP/1.0\r\nHost: h\r\nConnection: keep-alive",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
        ),
        (
            GET,
            b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 1\r\n\r\nx",
            "HTTP/1.1 421 Misdirected Request\r\nContent-Length: 1\r\n\r\nx",
        ),
    ];
    for (head, answer, expected) in rows {
        for seed in 0..20 {
            let (text, is_open) = answered(head, answer, seed);
            assert_eq!(text, expected, "seed {seed}");
            assert_eq!(is_open, !head.contains("HTTP/1.0"));
        }
    }
}

#[test]
fn chunks_and_trailers_are_passed_on_and_an_answer_without_length_gets_chunks() {
    for seed in 0..20 {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n\
                       4\r\nabcd\r\n2;x\r\nef\r\n0\r\nX-T: 1\r\n\r\n";
        let (text, is_open) = answered(GET, answer, seed);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(is_open && head.contains("Trailer: X-T"), "{head}");
        assert!(body.ends_with("\r\n0\r\nX-T: 1\r\n\r\n"), "{body}");
        let data: String = body
            .lines()
            .filter(|line| line.chars().all(char::is_alphabetic))
            .collect();
        assert_eq!(data.trim_end_matches('X'), "abcdef", "seed {seed}: {body}");
        let (text, is_open) = answered(GET, b"HTTP/1.0 200 OK\r\n\r\nabc", seed);
        assert!(
            is_open && text.contains("Transfer-Encoding: chunked"),
            "{text}"
        );
        assert!(text.ends_with("0\r\n\r\n"), "{text}");
    }
}

#[test]
fn a_connection_has_many_requests_and_bodies_are_whole() {
    let connection = act(|stream| {
        for n in 0..20 {
            let request = read(stream, n * 1_000);
            assert!(
                request.starts_with("PUT /a?b HTTP/1.1\r\nHost: h\r\n"),
                "{request}"
            );
            assert!(
                request.contains("\r\nX-Forwarded-For: 192.0.2.7\r\n"),
                "{request}"
            );
            assert!(request.contains(&format!("\r\nContent-Length: {}\r\n", n * 1_000)));
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{n:02}");
            write(stream, answer.as_bytes(), n as u64);
        }
    });
    let server = Server::new(vec![connection]);
    let bed = Bed::new(server.address, 7, |_| {});
    for n in 0..20 {
        let head = format!(
            "PUT /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: {}",
            n * 1_000
        );
        let end = bed.ask(&head, &vec![b'x'; n * 1_000]);
        assert!(end.client.text().ends_with(&format!("\r\n\r\n{n:02}")));
        assert_eq!(end.served.unwrap(), Served::Open);
        assert_eq!(end.status, Some(200));
    }
    server.join();
}

#[test]
fn a_body_waits_for_the_servers_word() {
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue";
    // Asked for, refused, and sent to a server that does not know of it.
    let willing = act(|stream| {
        assert!(read(stream, 0).contains("\r\nExpect: 100-continue\r\n"));
        write(stream, b"HTTP/1.1 100 Continue\r\n\r\n", 1);
        let mut body = [0; 3];
        std::io::Read::read_exact(stream, &mut body).unwrap();
        write(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1);
    });
    let refusing = act(|stream| {
        read(stream, 0);
        write(stream, b"HTTP/1.1 401 \r\nContent-Length: 0\r\n\r\n", 1);
    });
    let old = act(|stream| {
        read(stream, 3);
        write(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1);
    });
    for (server, expected) in [
        (willing, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "),
        (refusing, "HTTP/1.1 401 "),
        (old, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "),
    ] {
        let server = Server::new(vec![server]);
        let bed = Bed::new(server.address, 1, |upstream| upstream.answer_timeout_s = 3);
        let end = bed.ask(head, b"abc");
        server.join();
        assert!(
            end.client.text().starts_with(expected),
            "{}",
            end.client.text()
        );
    }
}

#[test]
fn an_answer_to_a_body_that_was_not_asked_for_may_pause() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        write(stream, b"HTTP/1.1 401 \r\nContent-Length: 4\r\n\r\nno", 1);
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        write(stream, b"ne", 1);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.answer_timeout_s = 5);
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue";
    let end = bed.ask(head, b"abc");
    server.join();
    assert_eq!(end.served.unwrap(), Served::Closed);
    let text = end.client.text();
    assert!(
        text.starts_with("HTTP/1.1 401 ") && text.ends_with("\r\n\r\nnone"),
        "{text}"
    );
}

#[test]
fn a_long_answer_waits_for_its_connection_and_a_short_one_does_not() {
    let long = act(|stream| {
        read(stream, 0);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
        write(stream, head, 3);
        std::thread::sleep(std::time::Duration::from_millis(50));
        write(stream, b"lo", 3);
    });
    let unknown = act(|stream| {
        read(stream, 0);
        write(
            stream,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
            3,
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
        write(stream, b"0\r\n\r\n", 3);
    });
    let short = act(|stream| {
        read(stream, 0);
        write(stream, b"HTTP/1.1 421 \r\nContent-Length: 2\r\n\r\nhe", 3);
    });
    let server = Server::new(vec![long, unknown, short]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.idle_connections = 0);
    for (id, ending) in [(7, "\r\n\r\nhello"), (8, "\r\n\r\n1\r\na\r\n0\r\n\r\n")] {
        let asked = bed.ask_relayed("POST /a HTTP/1.1\r\nHost: h", id, Some(4));
        let text = asked.client.text();
        assert!(
            text.starts_with("HTTP/1.1 421 Misdirected Request\r\nPrism-Answer: parked\r\n"),
            "{text}"
        );
        let answer = bed.ask_relayed("POST /a HTTP/1.1\r\nHost: h", id, None);
        assert!(
            answer.client.text().ends_with(ending),
            "{}",
            answer.client.text()
        );
    }
    let short = bed.ask_relayed("POST /a HTTP/1.1\r\nHost: h", 9, Some(4));
    let text = short.client.text();
    assert!(
        text.starts_with("HTTP/1.1 421 Misdirected Request\r\nPrism-Answer: final\r\n"),
        "{text}"
    );
    server.join();
}

#[test]
fn server_and_client_get_the_identifier_of_the_request() {
    for (answer, expected) in [
        ("", "X-Request-ID: 0000000000000000\r\n"),
        (
            "X-Request-Id: of-the-server\r\n",
            "X-Request-Id: of-the-server\r\n",
        ),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{answer}Content-Length: 0\r\n\r\n");
        let server = Server::new(vec![act(move |stream| {
            let request = read(stream, 0);
            let ids: Vec<_> = request
                .split("\r\n")
                .filter(|line| line.contains("quest"))
                .collect();
            assert_eq!(ids, ["X-Request-ID: 0000000000000000"]);
            write(stream, head.as_bytes(), 1);
        })]);
        let bed = Bed::new(server.address, 1, |_| {});
        let end = bed.ask(&format!("{GET}\r\nx_request_id: of-the-client"), &[]);
        server.join();
        let text = String::from_utf8(end.client.got).unwrap();
        let ids = text
            .split_inclusive("\r\n")
            .filter(|line| line.contains("quest"));
        assert_eq!(ids.collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn an_answer_names_its_server_also_if_it_has_waited() {
    let answer = || {
        act(|stream| {
            let request = read(stream, 0);
            let is_relayed = request.starts_with("GET /b ");
            assert!(is_relayed || request.contains("\r\nX-Real-IP: 192.0.2.7\r\n"));
            let head = b"HTTP/1.1 200 OK\r\nX-Frame-Options: no\r\nContent-Length: 5\r\n\r\nhello";
            write(stream, head, 3);
        })
    };
    let server = Server::new(vec![answer(), answer(), answer()]);
    let bed = Bed::new(server.address, 1, |upstream| {
        upstream.idle_connections = 0;
        upstream.cookie = Some("SRV".into());
        upstream.request_headers = vec!["X-Real-IP: {client}".into()];
        upstream.answer_headers = vec!["X-Frame-Options: DENY".into()];
    });
    let own = "HTTP/1.1 200 OK\r\nX-Frame-Options: DENY\r\n";
    let cookie = "Set-Cookie: SRV=be0; Path=/; HttpOnly\r\nCache-Control: private\r\n";
    let rest = "Content-Length: 5\r\n\r\nhello";
    let first = bed.ask(&format!("{GET}\r\nX-Real-IP: 1"), &[]);
    assert_eq!(first.client.text(), format!("{own}{cookie}{rest}"));
    let again = bed.ask(&format!("{GET}\r\nCookie: a=b; SRV=be0"), &[]);
    assert_eq!(again.client.text(), format!("{own}{rest}"));
    let parked = bed.ask_relayed("GET /b HTTP/1.1\r\nHost: h", 7, Some(4));
    assert!(!parked.client.text().contains("SRV"));
    let moved = bed.ask_relayed("GET /b HTTP/1.1\r\nHost: h", 7, None);
    assert_eq!(moved.client.text(), format!("{own}{cookie}{rest}"));
    server.join();
}

#[test]
fn a_tunnel_without_a_byte_ends_after_its_time() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        write(stream, b"HTTP/1.1 101 \r\nUpgrade: echo\r\n\r\n", 1);
        // The bytes behind the request, and the end.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(stream, &mut rest).unwrap();
        assert_eq!(rest, b"GET /next");
    })]);
    let bed = Bed::new(server.address, 1, |upstream| {
        upstream.tunnel_timeout_s = Some(1);
        upstream.answer_timeout_s = 60;
    });
    let begun = std::time::Instant::now();
    let end = bed.ask(
        &format!("{GET}\r\nConnection: upgrade\r\nUpgrade: echo"),
        &[],
    );
    assert_eq!(end.served.unwrap(), Served::Closed);
    let lasted = begun.elapsed().as_secs_f64();
    assert!((1.0..10.0).contains(&lasted), "{lasted} s");
    server.join();
}

#[test]
fn the_proxy_header_has_the_address_that_the_client_has_connected_to() {
    let server = Server::new(vec![act(|stream| {
        let mut header = [0; 28];
        std::io::Read::read_exact(stream, &mut header).unwrap();
        let ends = [192, 0, 2, 7, 203, 0, 113, 10, 0x12, 0x67, 1, 0xbb];
        assert_eq!(header[16..], ends);
        read(stream, 0);
        write(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.proxy_protocol = true);
    assert_eq!(bed.ask(GET, &[]).status, Some(200));
    server.join();
}

#[test]
fn a_server_cannot_have_fields_of_prism_dropped() {
    let server = Server::new(vec![
        act(|stream| {
            read(stream, 0);
            let answer =
                b"HTTP/1.1 421 \r\nConnection: Prism-Answer\r\nPrism-Answer: elsewhere\r\n\
                           Content-Length: 0\r\n\r\n";
            write(stream, answer, 1);
        }),
        act(|stream| {
            read(stream, 0);
            let answer = b"HTTP/1.1 200 \r\nConnection: close, Set-Cookie, referrer-policy\r\n\
                           Set-Cookie: a=1\r\nContent-Length: 0\r\n\r\n";
            write(stream, answer, 1);
        }),
    ]);
    let bed = Bed::new(server.address, 1, |upstream| {
        upstream.idle_connections = 0;
        upstream.cookie = Some("SRV".into());
        upstream.answer_headers = vec!["Referrer-Policy: same-origin".into()];
    });
    let relayed = bed.ask_relayed("POST /a HTTP/1.1\r\nHost: h", 1, None);
    let text = relayed.client.text();
    assert_eq!(text.matches("Prism-Answer").count(), 1, "{text}");
    assert!(text.contains("Prism-Answer: final\r\n"), "{text}");
    let text = bed.ask(GET, &[]).client.text();
    assert!(text.contains("Referrer-Policy: same-origin\r\n"), "{text}");
    assert!(text.contains("Set-Cookie: SRV="), "{text}");
    assert!(!text.contains("a=1"), "{text}");
    server.join();
}

#[test]
fn a_redirect_is_no_answer_for_the_client_and_the_body_is_read() {
    for seed in 0..8 {
        let server = Server::new(vec![act(move |stream| {
            read(stream, 3);
            let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\
                           X-Accel-Redirect: /files/a\r\n\r\n";
            write(stream, answer, seed);
        })]);
        let bed = Bed::new(server.address, seed, |upstream| {
            upstream.redirects = Some(prism_config::Redirects::default());
        });
        let head = "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3";
        let end = bed.ask(head, b"abc");
        server.join();
        assert_eq!(end.client.text(), "");
        let Served::Redirected(answer) = end.served.unwrap() else {
            panic!("{seed}");
        };
        let named = answer.headers().get_str("x-accel-redirect");
        assert_eq!((answer.status(), named), (201, Some("/files/a")));
    }
}
