//! Request heads: accepted ones, and refused ones with their errors.

use prism_http::{
    BodyFraming, HeadError, Headers, Limits, Method, RequestHead, Version, are_alike, is_forwarding,
};

fn parse(bytes: impl AsRef<[u8]>) -> Result<RequestHead, HeadError> {
    let bytes = bytes.as_ref();
    let (head, consumed) = RequestHead::parse(bytes, &Limits::DEFAULT)?.expect_complete(bytes);
    assert_eq!(consumed, bytes.len());
    Ok(head)
}

trait ExpectComplete<T> {
    fn expect_complete(self, bytes: &[u8]) -> T;
}

impl<T> ExpectComplete<T> for Option<T> {
    fn expect_complete(self, bytes: &[u8]) -> T {
        self.unwrap_or_else(|| panic!("incomplete: {:?}", String::from_utf8_lossy(bytes)))
    }
}

/// A request with `Host` and these further header lines.
fn with(lines: &str) -> String {
    format!("PUT /b/k HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
}

#[test]
fn a_plain_request_is_taken_apart() {
    let head = parse("GET /b/k%20?x=1&y HTTP/1.1\r\nHost: s3:80\r\nX-Amz-Date:  a b \t\r\n\r\n");
    let head = head.unwrap();
    assert_eq!(head.method(), &Method::GET);
    assert_eq!(head.target(), "/b/k%20?x=1&y");
    assert_eq!((head.path(), head.query()), ("/b/k%20", Some("x=1&y")));
    assert_eq!(head.version(), Version::Http11);
    assert_eq!(head.headers().get("x-amz-date"), Some(&b"a b"[..]));
    assert_eq!(head.framing(), BodyFraming::None);
    assert_eq!(head.host(), Some("s3:80"));
    assert!(head.keep_alive() && !head.expects_continue());
}

#[test]
fn syntax_that_could_be_read_in_two_ways_is_refused() {
    use HeadError::*;
    let rows: &[(&[u8], HeadError)] = &[
        (b"GET / HTTP/1.1\nHost: h\r\n\r\n", BareLf),
        (b"GET / HTTP/1.1\r\nHost: h\n\r\n", BareLf),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\n", BareLf),
        (b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", BareCr),
        (b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", BareCr),
        (b"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", LineFolding),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\n\tfolded\r\n\r\n",
            LineFolding,
        ),
        (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", LineFolding),
        (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost\t: h\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost: h\r\nnocolon\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost: h\r\n: empty\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX(y): 1\r\n\r\n", HeaderName),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX\xff: 1\r\n\r\n", HeaderName),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
            ControlCharacter,
        ),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x0bb\r\n\r\n",
            ControlCharacter,
        ),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x7fb\r\n\r\n",
            ControlCharacter,
        ),
        (b"\x16\x03\x01\x02\x00\x01", ControlCharacter),
        (b"GET / HTTP/1.1\r\n\r\n", HostMissing),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
            HostRepeated,
        ),
        (
            b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
            HostRepeated,
        ),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Host),
        (b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", Host),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Host),
        (b"GET / HTTP/1.1\r\nHost: a\xc3\xa9\r\n\r\n", Host),
        (b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", HostDiffers),
        (
            b"GET http://a/ HTTP/1.1\r\nHost: a:443\r\n\r\n",
            HostDiffers,
        ),
        (
            b"GET https://a/ HTTP/1.1\r\nHost: a:80\r\n\r\n",
            HostDiffers,
        ),
        (b"GET http://a/ HTTP/1.1\r\n\r\n", HostMissing),
    ];
    for (bytes, error) in rows {
        let text = String::from_utf8_lossy(bytes);
        let got = RequestHead::parse(bytes, &Limits::DEFAULT);
        assert_eq!(got.unwrap_err(), *error, "{text:?}");
        assert_eq!(error.status(), 400, "{text:?}");
    }
}

#[test]
fn the_port_of_the_scheme_says_nothing_more() {
    for (target, host) in [
        ("http://a/", "a:80"),
        ("http://a:80/", "A"),
        ("https://a/", "a:443"),
        ("HTTPS://a:443", "a"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        assert_eq!(head.host_name().unwrap().to_lowercase(), "a", "{text}");
    }
    let text = b"GET / HTTP/1.1\r\nHost: a.example.:8080\r\n\r\n";
    let (head, _) = RequestHead::parse(text, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(head.host(), Some("a.example.:8080"));
    assert_eq!(head.host_name(), Some("a.example"));
}

#[test]
fn start_lines_are_strict() {
    use HeadError::*;
    let rows: &[(&str, HeadError)] = &[
        ("GET  / HTTP/1.1", StartLine),
        ("GET /  HTTP/1.1", StartLine),
        (" GET / HTTP/1.1", StartLine),
        ("GET / HTTP/1.1 ", StartLine),
        ("GET\t/ HTTP/1.1", StartLine),
        ("GET /", StartLine),
        ("GET / http/1.1", StartLine),
        ("GET / HTTP/11", StartLine),
        ("GET / HTTP/1.10", StartLine),
        ("GET / HTTP/+1.1", StartLine),
        ("GET / ICAP/1.0", StartLine),
        ("G(T / HTTP/1.1", StartLine),
        ("GET /a b HTTP/1.1", StartLine),
        ("GET / HTTP/1.2", Version),
        ("GET / HTTP/0.9", Version),
        ("GET / HTTP/3.0", Version),
        ("PRI * HTTP/2.0", Version),
        ("CONNECT h:443 HTTP/1.1", Method),
        ("ABCDEFGHIJKLMNOPQRSTUVWXY / HTTP/1.1", Method),
        ("GET h:443 HTTP/1.1", Target),
        ("GET * HTTP/1.1", Target),
        ("GET b/k HTTP/1.1", Target),
        ("GET /a#b HTTP/1.1", Target),
        ("GET ftp://h/ HTTP/1.1", Target),
        ("GET http://u:p@h/ HTTP/1.1", Target),
    ];
    for (line, error) in rows {
        let got = parse(format!("{line}\r\nHost: h\r\n\r\n"));
        assert_eq!(got.unwrap_err(), *error, "{line:?}");
    }
    assert_eq!(HeadError::Version.status(), 505);
    assert_eq!(HeadError::Method.status(), 501);
}

#[test]
fn lengths_are_exact_or_refused() {
    use HeadError::*;
    let rows: &[(&str, Result<BodyFraming, HeadError>)] = &[
        ("", Ok(BodyFraming::None)),
        ("Content-Length: 0\r\n", Ok(BodyFraming::Length(0))),
        ("Content-Length: 0012\r\n", Ok(BodyFraming::Length(12))),
        ("content-length:\t7 \r\n", Ok(BodyFraming::Length(7))),
        (
            "Content-Length: 9223372036854775807\r\n",
            Ok(BodyFraming::Length(i64::MAX as u64)),
        ),
        ("Content-Length: 9223372036854775808\r\n", Err(BodyTooLong)),
        (
            "Content-Length: 18446744073709551616\r\n",
            Err(ContentLength),
        ),
        (
            "Content-Length: 99999999999999999999999\r\n",
            Err(ContentLength),
        ),
        ("Content-Length:\r\n", Err(ContentLength)),
        ("Content-Length: -1\r\n", Err(ContentLength)),
        ("Content-Length: +1\r\n", Err(ContentLength)),
        ("Content-Length: 1.0\r\n", Err(ContentLength)),
        ("Content-Length: 0x10\r\n", Err(ContentLength)),
        ("Content-Length: 1 2\r\n", Err(ContentLength)),
        ("Content-Length: 5, 5\r\n", Err(ContentLength)),
        ("Content-Length: \u{661}\r\n", Err(ContentLength)),
        (
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            Err(ContentLengthRepeated),
        ),
        (
            "Content-Length: 5\r\ncontent-length: 6\r\n",
            Err(ContentLengthRepeated),
        ),
        ("Transfer-Encoding: chunked\r\n", Ok(BodyFraming::Chunked)),
        ("transfer-encoding: Chunked\r\n", Ok(BodyFraming::Chunked)),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            Err(AmbiguousLength),
        ),
        (
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            Err(AmbiguousLength),
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
            Err(AmbiguousLength),
        ),
        ("Transfer-Encoding: identity\r\n", Err(TransferEncoding)),
        ("Transfer-Encoding:\r\n", Err(TransferEncoding)),
        ("Transfer-Encoding: xchunked\r\n", Err(TransferEncoding)),
        ("Transfer-Encoding: chunked;q=1\r\n", Err(TransferEncoding)),
        ("Transfer-Encoding: \"chunked\"\r\n", Err(TransferEncoding)),
        ("Transfer-Encoding: chunked,\r\n", Err(TransferEncoding)),
        (
            "Transfer-Encoding: chunked, chunked\r\n",
            Err(TransferEncoding),
        ),
        (
            "Transfer-Encoding: chunked, gzip\r\n",
            Err(TransferEncoding),
        ),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(TransferCoding)),
        (
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            Err(TransferCoding),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Err(TransferEncoding),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            Err(TransferEncoding),
        ),
        ("Transfer-Encoding : chunked\r\n", Err(HeaderName)),
        ("Content-Length : 5\r\n", Err(HeaderName)),
        ("Transfer-Encoding:\x0bchunked\r\n", Err(ControlCharacter)),
        ("X: y\r\n Transfer-Encoding: chunked\r\n", Err(LineFolding)),
        ("X: y\nTransfer-Encoding: chunked\r\n", Err(BareLf)),
    ];
    for (lines, expected) in rows {
        let got = parse(with(lines)).map(|head| head.framing());
        assert_eq!(got, *expected, "{lines:?}");
    }
    let old = parse("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(old.unwrap_err(), TransferEncoding);
    assert_eq!(BodyTooLong.status(), 413);
    assert_eq!(TransferCoding.status(), 501);
}

#[test]
fn keep_alive_follows_version_and_tokens() {
    let rows = [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: foo, CLOSE\r\n", false),
        ("1.1", "Connection: foo\r\nConnection: close\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ];
    for (version, lines, expected) in rows {
        let head = parse(format!("GET / HTTP/{version}\r\nHost: h\r\n{lines}\r\n")).unwrap();
        assert_eq!(head.keep_alive(), expected, "{version} {lines:?}");
    }
}

#[test]
fn continue_is_expected_only_with_a_body_and_in_http_1_1() {
    let rows = [
        (
            "1.1",
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
            Ok(true),
        ),
        (
            "1.1",
            "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n",
            Ok(true),
        ),
        (
            "1.1",
            "Expect: 100-continue\r\nContent-Length: 0\r\n",
            Ok(true),
        ),
        ("1.1", "Expect: 100-continue\r\n", Ok(false)),
        (
            "1.1",
            "Expect: 200-ok\r\nContent-Length: 1\r\n",
            Err(HeadError::Expectation),
        ),
        (
            "1.0",
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
            Ok(false),
        ),
    ];
    for (version, lines, expected) in rows {
        let got = parse(format!("PUT / HTTP/{version}\r\nHost: h\r\n{lines}\r\n"));
        assert_eq!(
            got.map(|h| h.expects_continue()),
            expected,
            "{version} {lines:?}"
        );
    }
    assert_eq!(HeadError::Expectation.status(), 417);
}

#[test]
fn limits_hold_at_their_exact_values() {
    let limits = Limits {
        head_bytes: 200,
        target_bytes: 10,
        headers: 3,
        body_bytes: 5,
    };
    let parse = |text: &str| RequestHead::parse(text.as_bytes(), &limits);
    let head =
        |target: &str, lines: &str| format!("PUT {target} HTTP/1.1\r\nHost: h\r\n{lines}\r\n");

    assert!(parse(&head("/234567890", "")).unwrap().is_some());
    assert_eq!(
        parse(&head("/2345678901", "")),
        Err(HeadError::TargetTooLong)
    );
    assert!(parse(&head("/", "A: 1\r\nB: 2\r\n")).unwrap().is_some());
    assert_eq!(
        parse(&head("/", "A: 1\r\nB: 2\r\nC: 3\r\n")),
        Err(HeadError::TooManyHeaders)
    );
    assert!(
        parse(&head("/", "Content-Length: 5\r\n"))
            .unwrap()
            .is_some()
    );
    assert_eq!(
        parse(&head("/", "Content-Length: 6\r\n")),
        Err(HeadError::BodyTooLong)
    );

    let fixed = head("/", "A: \r\n").len();
    let of_length = |n: usize| head("/", &format!("A: {}\r\n", "x".repeat(n - fixed)));
    assert!(parse(&of_length(200)).unwrap().is_some());
    assert_eq!(parse(&of_length(201)), Err(HeadError::HeadTooLong));
    assert!(parse(&of_length(300)[..199]).unwrap().is_none());
    assert_eq!(parse(&of_length(300)[..200]), Err(HeadError::HeadTooLong));

    let endless = format!("GET /{}", "a".repeat(100));
    assert_eq!(parse(&endless), Err(HeadError::TargetTooLong));
    let statuses = [
        HeadError::TargetTooLong,
        HeadError::HeadTooLong,
        HeadError::TooManyHeaders,
    ];
    assert_eq!(statuses.map(HeadError::status), [414, 431, 431]);
}

#[test]
fn limits_above_the_array_are_clamped() {
    let limits = Limits {
        headers: usize::MAX,
        ..Limits::DEFAULT
    };
    let text = with(&"A: 1\r\n".repeat(Limits::MAX_HEADERS));
    assert_eq!(
        RequestHead::parse(text.as_bytes(), &limits),
        Err(HeadError::TooManyHeaders)
    );
}

#[test]
fn one_empty_line_in_front_is_skipped_and_counted() {
    let text = b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\nX";
    let (_, consumed) = RequestHead::parse(text, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(&text[consumed..], b"X");
    for partial in [&b""[..], b"\r", b"\r\n", b"\r\nG"] {
        assert_eq!(RequestHead::parse(partial, &Limits::DEFAULT), Ok(None));
    }
    assert!(RequestHead::parse(b"\r\n\r\nGET / HTTP/1.1\r\n", &Limits::DEFAULT).is_err());
}

#[test]
fn every_prefix_is_incomplete_and_the_rest_is_left_alone() {
    let first = with("Content-Length: 3\r\nX-Meta: \u{e9}\r\n");
    let stream = format!("{first}abcGET /2 HTTP/1.1\r\nHost: h\r\n\r\n");
    for end in 0..first.len() {
        let got = RequestHead::parse(&stream.as_bytes()[..end], &Limits::DEFAULT);
        assert_eq!(got, Ok(None), "at {end}");
    }
    for end in first.len()..=stream.len() {
        let (_, consumed) = RequestHead::parse(&stream.as_bytes()[..end], &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        assert_eq!(consumed, first.len());
    }
}

#[test]
fn random_bytes_never_panic_and_never_take_too_much() {
    let mut rng = fastrand::Rng::with_seed(0x5eed_0001);
    let seed = with("Content-Length: 3\r\nExpect: 100-continue\r\nConnection: a, b\r\n");
    for round in 0..20_000 {
        let mut bytes = seed.clone().into_bytes();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..3) {
                0 => bytes[at] = rng.u8(..),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, *rng.choice(b"\r\n :,\t\0/ \xff").unwrap()),
            }
        }
        if let Ok(Some((head, consumed))) = RequestHead::parse(&bytes, &Limits::DEFAULT) {
            assert!(
                consumed <= bytes.len() && bytes[..consumed].ends_with(b"\r\n\r\n"),
                "{round}"
            );
            let mut again = Vec::new();
            head.write_forward(head.framing(), &Headers::new(), &mut again);
            let reparsed = RequestHead::parse(&again, &Limits::DEFAULT)
                .unwrap()
                .unwrap();
            assert_eq!(reparsed.0.path(), head.path(), "round {round}");
            assert_eq!(reparsed.0.framing(), head.framing(), "round {round}");
        }
    }
}

#[test]
fn forwarding_drops_what_ends_at_this_hop_and_nothing_else() {
    let head = parse(
        "PUT http://h/b/k?q=%2F HTTP/1.1\r\nHost: h\r\nX-Amz-Date: now\r\nAuthorization: sig\r\n\
         Connection: keep-alive, X-Amz-Date, authorization, My-Hop\r\nMy-Hop: 1\r\nTE: trailers\r\n\
         Keep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\
         Expect: 100-continue\r\n\r\n",
    )
    .unwrap();
    let mut extra = Headers::new();
    extra.append("Forwarded", "for=1.2.3.4").unwrap();
    let mut out = Vec::new();
    head.write_forward(BodyFraming::Length(7), &extra, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "PUT /b/k?q=%2F HTTP/1.1\r\nHost: h\r\nX-Amz-Date: now\r\nAuthorization: sig\r\n\
         Forwarded: for=1.2.3.4\r\nContent-Length: 7\r\n\r\n"
    );
}

#[test]
fn a_method_goes_on_as_the_client_has_written_it() {
    for method in [
        "GET",
        "get",
        "QUERY",
        "VERSION-CONTROL",
        "UPDATEREDIRECTREF",
        "ABCDEFGHIJKLMNOPQRSTUVWX",
    ] {
        let text = format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut out = Vec::new();
        let head = parse(&text).unwrap();
        head.write_forward(BodyFraming::None, &Headers::new(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}

#[test]
fn a_field_that_is_added_stays_whatever_a_client_names_in_connection() {
    let mut head = parse(
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Env, upgrade, Team\r\nConnection: close\r\n\
         Env: test\r\nTeam: red\r\nUpgrade: websocket\r\nA: 1\r\n\r\n",
    )
    .unwrap();
    head.end_named_fields();
    assert_eq!(head.headers().get_str("Connection"), Some("upgrade, close"));
    assert_eq!(head.headers().get_str("Upgrade"), Some("websocket"));
    head.headers_mut().set("Env", "production").unwrap();
    let mut out = Vec::new();
    head.write_forward(BodyFraming::None, &Headers::new(), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        text,
        "GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nEnv: production\r\n\r\n"
    );
}

#[test]
fn fields_that_a_client_cannot_vouch_for_are_known_in_every_spelling() {
    for name in [
        "Forwarded",
        "X-Forwarded-For",
        "x_forwarded_for",
        "X-FORWARDED_Client-Cert",
        "X_Real-IP",
    ] {
        assert!(is_forwarding(name.as_bytes()), "{name}");
    }
    for name in ["X-Forwarded", "Forwarded-For", "X-Real-IPs", "Via", ""] {
        assert!(!is_forwarding(name.as_bytes()), "{name}");
    }
    assert!(are_alike(b"Client_Cert", b"client-cert") && !are_alike(b"a-b", b"ab"));
}
