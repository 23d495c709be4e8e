#![allow(clippy::unwrap_used)]
use prism_config::STORE;

use super::*;

fn settings() -> Redirects {
    let locations = [
        ("http://store.internal:9000/", STORE),
        ("http://store.internal:9000/other/", "files"),
    ];
    Redirects {
        locations: locations.map(|(url, to)| (url.into(), to.into())).into(),
        ..Redirects::default()
    }
}

fn request(text: &str) -> RequestHead {
    let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
    parsed.unwrap().unwrap().0
}

fn get() -> RequestHead {
    request("GET /download?id=7 HTTP/1.1\r\nHost: app.example\r\nCookie: secret=1\r\n\r\n")
}

fn answer(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let mut head = ResponseHead::new(status);
    for (name, value) in fields {
        head.headers_mut().append(name, value).unwrap();
    }
    head
}

/// The part, host and target that an answer with these fields leads to.
fn led(status: u16, fields: &[(&str, &str)]) -> Result<(Option<String>, String), RedirectFault> {
    let answer = answer(status, fields);
    if !is_redirect(&settings(), &answer) {
        return Err(RedirectFault::NotAllowed);
    }
    let to = Destination::of(&settings(), &get(), &answer, &Limits::DEFAULT)?;
    let url = format!("{}{}", to.head.host().unwrap(), to.head.target());
    assert_eq!(
        to.has_host,
        fields.iter().any(|(name, _)| *name == "Location")
    );
    Ok((to.part, url))
}

#[test]
fn a_server_names_a_path_or_a_part_of_the_service() {
    for (value, part, url) in [
        ("/files/a.mp4", None, "app.example/files/a.mp4"),
        ("/files/a.mp4?x=1", None, "app.example/files/a.mp4?x=1"),
        // As nginx, which decodes the path, Prism takes both forms.
        (
            "/files/a b\u{e4}.mp4",
            None,
            "app.example/files/a%20b%C3%A4.mp4",
        ),
        ("/files/a%20b.mp4", None, "app.example/files/a%20b.mp4"),
        ("@store/media/a.mp4", Some(STORE), "app.example/media/a.mp4"),
        ("@files", Some("files"), "app.example/download?id=7"),
    ] {
        let expected = Ok((part.map(str::to_owned), url.to_owned()));
        assert_eq!(led(200, &[(ACCEL, value)]), expected, "{value}");
        // The status does not count.
        assert_eq!(led(404, &[(ACCEL, value)]), expected, "{value}");
    }
}

#[test]
fn a_location_is_followed_if_it_begins_as_the_configuration_says() {
    let location = |status, url| led(status, &[("Location", url)]);
    let stored = "http://store.internal:9000/media/a?X-Amz-Signature=1#part";
    for status in [302, 303, 307, 308] {
        let url = "store.internal:9000/media/a?X-Amz-Signature=1".to_owned();
        let expected = Ok((Some(STORE.to_owned()), url));
        assert_eq!(location(status, stored), expected);
    }
    let longest = location(302, "http://store.internal:9000/other/b");
    assert_eq!(longest.unwrap().0.as_deref(), Some("files"));
    for (status, url) in [
        (301, stored),
        (200, stored),
        (302, "https://store.internal:9000/media/a"),
        (302, "http://store.internal:9000.evil.example/"),
        (302, "http://store.internal:9000@evil.example/"),
        (302, "//store.internal:9000/media/a"),
        (302, "/media/a"),
    ] {
        assert_eq!(
            location(status, url),
            Err(RedirectFault::NotAllowed),
            "{url}"
        );
    }
}

#[test]
fn a_path_that_is_none_or_that_leads_elsewhere_is_refused() {
    for value in [
        "files",
        "",
        "@",
        "@store",
        "/files/../secret",
        "/files/%2e%2e/secret",
        "/files/..%2fsecret",
        "/files//a",
        "/files/a%zz",
        "http://evil.example/",
        "@store/../a",
    ] {
        let led = led(200, &[(ACCEL, value)]);
        match value {
            // The path is that of the request.
            "@" | "@store" => assert!(led.is_ok(), "{value}"),
            _ => assert_eq!(led, Err(RedirectFault::Path), "{value}"),
        }
    }
    let traversal = "http://store.internal:9000/media/../other";
    assert_eq!(
        led(302, &[("Location", traversal)]),
        Err(RedirectFault::Path)
    );
}

#[test]
fn the_client_gets_the_named_fields_of_the_server_alone() {
    let fields = [
        (ACCEL, "/files/a"),
        ("Content-Type", "video/mp4"),
        ("content-disposition", "attachment"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("ETag", "\"x\""),
        ("Content-Length", "7"),
        ("X-Internal", "1"),
    ];
    let to = Destination::of(&settings(), &get(), &answer(200, &fields), &Limits::DEFAULT).unwrap();
    let mut text = Vec::new();
    to.fields.write_to(&mut text);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "Content-Disposition: attachment\r\nContent-Type: video/mp4\r\nSet-Cookie: a=1\r\n\
         Set-Cookie: b=2\r\n"
    );
    let long = "x".repeat(MAX_FIELDS_BYTES);
    let fields = [(ACCEL, "/files/a"), ("Set-Cookie", long.as_str())];
    let long = Destination::of(&settings(), &get(), &answer(200, &fields), &Limits::DEFAULT);
    assert_eq!(long, Err(RedirectFault::Fields));
}

#[test]
fn the_resource_is_asked_for_as_the_client_wants_it() {
    let made = |text: &str| {
        let named = answer(200, &[(ACCEL, "/files/a")]);
        let to = Destination::of(&settings(), &request(text), &named, &Limits::DEFAULT).unwrap();
        String::from_utf8(to.head_bytes).unwrap()
    };
    let text = "HEAD /d HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\nAuthorization: Basic eA==\r\n\
                Cookie: a=1\r\nIf-None-Match: \"e\"\r\nX-Accel-Redirect: /evil\r\n\
                User-Agent: u\r\n\r\n";
    assert_eq!(
        made(text),
        "HEAD /files/a HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\nIf-None-Match: \"e\"\r\n\
         User-Agent: u\r\n\r\n"
    );
    let old = "GET /d HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(
        made(old),
        "GET /files/a HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n"
    );
    // The conditions of a change concern another resource.
    let posted = "POST /d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nIf-Match: \"e\"\r\n\
                  X-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n";
    assert_eq!(
        made(posted),
        "GET /files/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
         X-Forwarded-For: 192.0.2.7\r\n\r\n"
    );
}
