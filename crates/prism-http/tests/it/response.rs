//! Answers: written for every kind of request, and parsed as strictly.

use prism_http::{
    AnswerForm, HeadError, HeaderError, Headers, Limits, Method, PlainAnswer, ResponseFraming,
    ResponseHead, Version, Written,
};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn form(method: &Method, version: Version, keep_alive: bool) -> AnswerForm<'_> {
    AnswerForm {
        method,
        version,
        keep_alive,
        date: DATE,
        extra: [None; 2],
    }
}

fn write(status: u16, form: &AnswerForm<'_>, body: Option<u64>) -> (String, Written) {
    let head = ResponseHead::new(status).with("ETag", "\"x\"").unwrap();
    let mut out = Vec::new();
    let written = head.write_to(form, body, &mut out);
    (String::from_utf8(out).unwrap(), written)
}

#[test]
fn framing_fits_method_version_and_status() {
    use ResponseFraming as F;
    let (get, head) = (Method::GET, Method::HEAD);
    let (new, old) = (Version::Http11, Version::Http10);
    let rows = [
        (
            200,
            &get,
            new,
            true,
            Some(5),
            F::Length(5),
            "Content-Length: 5\r\n",
            true,
        ),
        (
            200,
            &get,
            new,
            true,
            Some(0),
            F::Length(0),
            "Content-Length: 0\r\n",
            true,
        ),
        (
            200,
            &get,
            new,
            true,
            None,
            F::Chunked,
            "Transfer-Encoding: chunked\r\n",
            true,
        ),
        (200, &get, old, true, None, F::UntilClose, "", false),
        (
            200,
            &get,
            old,
            true,
            Some(5),
            F::Length(5),
            "Content-Length: 5\r\n",
            true,
        ),
        (
            200,
            &get,
            new,
            false,
            Some(5),
            F::Length(5),
            "Content-Length: 5\r\n",
            false,
        ),
        (
            200,
            &head,
            new,
            true,
            Some(5),
            F::None,
            "Content-Length: 5\r\n",
            true,
        ),
        (200, &head, old, true, None, F::None, "", true),
        (204, &get, new, true, Some(0), F::None, "", true),
        (204, &get, new, true, Some(5), F::None, "", true),
        (304, &get, new, true, Some(5), F::None, "", true),
    ];
    for (status, method, version, keep, body, framing, line, alive) in rows {
        let (text, written) = write(status, &form(method, version, keep), body);
        assert_eq!(
            written,
            Written {
                framing,
                keep_alive: alive
            },
            "{text}"
        );
        let connection = match (alive, version) {
            (false, _) => "Connection: close\r\n",
            (true, Version::Http10) => "Connection: keep-alive\r\n",
            (true, Version::Http11) => "",
        };
        let (_, fields) = text.split_once("\r\n").unwrap();
        assert_eq!(
            fields,
            format!("ETag: \"x\"\r\n{line}Date: {DATE}\r\n{connection}\r\n")
        );
    }
}

#[test]
fn interim_answers_hold_no_framing() {
    let (text, written) = write(100, &form(&Method::PUT, Version::Http11, true), Some(1));
    assert_eq!(text, "HTTP/1.1 100 Continue\r\nETag: \"x\"\r\n\r\n");
    assert_eq!(written.framing, ResponseFraming::None);
}

#[test]
fn fields_of_the_writer_cannot_be_doubled_or_forged() {
    let head = ResponseHead::new(200)
        .with("content-length", "99")
        .unwrap()
        .with("Transfer-Encoding", "chunked")
        .unwrap()
        .with("Connection", "close")
        .unwrap()
        .with("date", "never")
        .unwrap();
    let mut out = Vec::new();
    let method = Method::GET;
    let _ = head.write_to(&form(&method, Version::Http11, true), Some(1), &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nDate: {DATE}\r\n\r\n")
    );
    assert_eq!(
        ResponseHead::new(200).with("X", "a\r\nY: b"),
        Err(HeaderError::Value)
    );
    let evil = AnswerForm {
        date: "x\r\nEvil: 1",
        ..form(&method, Version::Http11, true)
    };
    let mut out = Vec::new();
    let _ = ResponseHead::new(200).write_to(&evil, Some(0), &mut out);
    assert!(!String::from_utf8(out).unwrap().contains("Evil"));
    let mut extra = Headers::new();
    extra.append("Vary", "Origin").unwrap();
    extra.append("Content-Length", "7").unwrap();
    let varied = AnswerForm {
        extra: [Some(&extra), None],
        ..form(&method, Version::Http11, true)
    };
    let mut out = Vec::new();
    let _ = ResponseHead::new(200).write_to(&varied, Some(0), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("\r\nVary: Origin\r\n") && !text.contains(": 7"));
    assert_eq!(ResponseHead::new(7).status(), 500);
}

fn parse(text: &str) -> Result<ResponseHead, HeadError> {
    let (head, consumed) = ResponseHead::parse(text.as_bytes(), &Limits::DEFAULT)?.unwrap();
    assert_eq!(consumed, text.len());
    Ok(head)
}

#[test]
fn what_is_written_is_parsed_back() {
    let method = Method::GET;
    let (text, _) = write(206, &form(&method, Version::Http11, false), Some(7));
    let head = parse(&text).unwrap();
    assert_eq!(head.status(), 206);
    assert_eq!(head.headers().get("etag"), Some(&b"\"x\""[..]));
    assert_eq!(head.framing(&method), Ok(ResponseFraming::Length(7)));
    assert!(!head.keep_alive());
    for end in 0..text.len() {
        assert_eq!(
            ResponseHead::parse(&text.as_bytes()[..end], &Limits::DEFAULT),
            Ok(None)
        );
    }
}

#[test]
fn parsed_framing_fits_method_and_status() {
    use ResponseFraming as F;
    let rows = [
        ("HTTP/1.1 200 OK", "", Method::GET, Ok(F::UntilClose)),
        (
            "HTTP/1.1 200 OK",
            "Content-Length: 4\r\n",
            Method::GET,
            Ok(F::Length(4)),
        ),
        (
            "HTTP/1.1 200 OK",
            "Content-Length: 4\r\n",
            Method::HEAD,
            Ok(F::None),
        ),
        (
            "HTTP/1.1 200",
            "Transfer-Encoding: chunked\r\n",
            Method::GET,
            Ok(F::Chunked),
        ),
        ("HTTP/1.1 204 No Content", "", Method::GET, Ok(F::None)),
        (
            "HTTP/1.1 304 Not Modified",
            "Content-Length: 4\r\n",
            Method::GET,
            Ok(F::None),
        ),
        ("HTTP/1.1 100 Continue", "", Method::PUT, Ok(F::None)),
        (
            "HTTP/1.1 200 OK",
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            Method::GET,
            Err(HeadError::AmbiguousLength),
        ),
        (
            "HTTP/1.0 200 OK",
            "Transfer-Encoding: chunked\r\n",
            Method::GET,
            Err(HeadError::TransferEncoding),
        ),
    ];
    for (line, fields, method, framing) in rows {
        let head = parse(&format!("{line}\r\n{fields}\r\n")).unwrap();
        assert_eq!(head.framing(&method), framing, "{line} {fields}");
    }
}

#[test]
fn malformed_answers_are_refused() {
    use HeadError::*;
    let rows = [
        ("HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", BareCr),
        ("HTTP/1.1 200 OK\nA: b\n c\n\n", LineFolding),
        ("HTTP/1.1 099 Low\r\n\r\n", Status),
        ("HTTP/1.1 600 High\r\n\r\n", Status),
        ("HTTP/1.1 2x0 OK\r\n\r\n", StartLine),
        ("HTTP/2.0 200 OK\r\n\r\n", Version),
        ("ICY 200 OK\r\n\r\n", StartLine),
        ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", HeaderName),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", LineFolding),
    ];
    for (text, error) in rows {
        assert_eq!(parse(text).unwrap_err(), error, "{text:?}");
    }
}

#[test]
fn lines_of_an_answer_may_end_with_lf_alone() {
    for text in [
        "HTTP/1.1 200 OK\nA: b\nContent-Length: 3\n\n",
        "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 3\r\n\n",
        "HTTP/1.1 200 OK\nA: b\r\nContent-Length: 3\n\r\n",
    ] {
        let head = parse(text).unwrap();
        assert_eq!(head.headers().get_str("a"), Some("b"), "{text:?}");
        assert_eq!(head.framing(&Method::GET), Ok(ResponseFraming::Length(3)));
        // A node does not write it, so that its bytes cannot go on unchanged.
        assert_eq!(PlainAnswer::find(text.as_bytes(), &Limits::ANSWER), None);
    }
}

#[test]
fn a_reason_goes_on_as_the_server_has_given_it() {
    let form = AnswerForm {
        method: &Method::GET,
        version: Version::Http11,
        keep_alive: true,
        date: "",
        extra: [None; 2],
    };
    for (line, expected) in [
        ("HTTP/1.1 200 OK", "HTTP/1.1 200 OK"),
        ("HTTP/1.1 200 Fine, thanks", "HTTP/1.1 200 Fine, thanks"),
        ("HTTP/1.1 200 ", "HTTP/1.1 200 OK"),
        ("HTTP/1.1 200", "HTTP/1.1 200 OK"),
        ("HTTP/1.1 413", "HTTP/1.1 413 Content Too Large"),
        ("HTTP/1.1 299 Own", "HTTP/1.1 299 Own"),
        ("HTTP/1.1 299 ", "HTTP/1.1 299 "),
    ] {
        let head = parse(&format!("{line}\r\n\r\n")).unwrap();
        let mut out = Vec::new();
        let _ = head.write_to(&form, Some(0), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.split("\r\n").next(), Some(expected), "{line}");
    }
}

#[test]
fn a_426_keeps_the_protocol_that_it_wants_and_no_other_status_does() {
    for (status, stays) in [(426, true), (200, false)] {
        let text = format!("HTTP/1.1 {status} x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n");
        let mut head = parse(&text).unwrap();
        head.remove_hop_by_hop();
        assert_eq!(head.headers().get_str("upgrade").is_some(), stays);
        let form = AnswerForm {
            method: &Method::GET,
            version: Version::Http11,
            keep_alive: false,
            date: "",
            extra: [None; 2],
        };
        let mut out = Vec::new();
        let _ = head.write_to(&form, Some(0), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text.contains("\r\nConnection: upgrade\r\n"),
            stays,
            "{text}"
        );
        assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
    }
}

#[test]
fn relaying_drops_hop_by_hop_fields() {
    let mut head =
        parse("HTTP/1.1 200 OK\r\nConnection: close, X-Keep, Hop\r\nHop: 1\r\nX-Keep: 1\r\nKeep-Alive: 1\r\nETag: e\r\nContent-Length: 3\r\n\r\n")
            .unwrap();
    assert_eq!(head.declared_length(), Ok(Some(3)));
    head.remove_hop_by_hop();
    let names: Vec<_> = head.headers().iter().map(|(n, _)| n.to_owned()).collect();
    assert_eq!(names, ["X-Keep", "ETag"]);
}

#[test]
fn a_plain_answer_is_what_the_parser_says_it_is() {
    let answer = b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 12\r\nX-Odd: \t a:b \r\n\
        Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\nhello";
    let plain = PlainAnswer::find(answer, &Limits::DEFAULT).unwrap();
    let parsed = ResponseHead::parse(answer, &Limits::DEFAULT);
    let (parsed, head_bytes) = parsed.unwrap().unwrap();
    assert_eq!((plain.status, plain.head_bytes), (200, head_bytes));
    assert_eq!(plain.body_bytes, 12);
    let framing = parsed.framing(&Method::GET);
    assert_eq!(framing, Ok(ResponseFraming::Length(12)));
    for len in 0..head_bytes {
        let found = PlainAnswer::find(&answer[..len], &Limits::DEFAULT);
        assert_eq!(found, None, "{len}");
    }
}

#[test]
fn what_a_relay_has_to_look_into_is_not_plain() {
    let find = |start: &str, fields: &str| {
        let answer = format!("{start}\r\nContent-Length: 1\r\nDate: now\r\n{fields}\r\n");
        PlainAnswer::find(answer.as_bytes(), &Limits::DEFAULT)
    };
    for status in [200, 206, 301, 404, 412, 421, 503, 599] {
        let plain = find(&format!("HTTP/1.1 {status} "), "").unwrap();
        assert_eq!((plain.status, plain.body_bytes), (status, 1));
    }
    assert!(find("HTTP/1.1 200 OK", "x-amz-meta-a: 1\r\n").is_some());
    for start in [
        "HTTP/1.0 200 OK",
        "HTTP/1.1 200",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1 100 Continue",
        "HTTP/1.1 199 a",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 600 a",
        "HTTP/2 200 OK",
        " HTTP/1.1 200 OK",
        "",
    ] {
        assert_eq!(find(start, ""), None, "{start}");
    }
    for fields in [
        "Connection: close\r\n",
        "connection: keep-alive\r\n",
        "Keep-Alive: timeout=5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Upgrade: b\r\n",
        "TE: trailers\r\n",
        "Proxy-Authenticate: c\r\n",
        "Proxy-Connection: d\r\n",
        "content-length: 1\r\n",
        "Content-Length: 2\r\n",
        "A : b\r\n",
        ": b\r\n",
        "no colon\r\n",
        "A: b\n",
        " folded: b\r\n",
        "A: b\x01\r\n",
    ] {
        assert_eq!(find("HTTP/1.1 200 OK", fields), None, "{fields:?}");
    }
    let without = [
        "Date: now\r\n",
        "Content-Length: 1\r\n",
        "Date: now\r\nContent-Length: -1\r\n",
        "Date: now\r\nContent-Length: \r\n",
        "Date: now\r\nContent-Length: 18446744073709551616\r\n",
    ];
    for fields in without {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let found = PlainAnswer::find(answer.as_bytes(), &Limits::DEFAULT);
        assert_eq!(found, None, "{fields:?}");
    }
    let many = "X: y\r\n".repeat(Limits::DEFAULT.headers - 2);
    assert!(find("HTTP/1.1 200 OK", &many).is_some());
    assert_eq!(find("HTTP/1.1 200 OK", &format!("{many}X: y\r\n")), None);
}
