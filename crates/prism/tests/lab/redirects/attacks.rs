//! Redirects that are not followed, and those that would not end.

use super::*;

/// The answer to `/order` with these fields.
fn order(client: &mut Client, query: &[(&str, &str)]) -> Answer {
    let query: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    ask(client, "GET", &format!("/order?{}", query.join("&")), "")
}

#[test]
fn only_the_servers_that_may_redirect_do_and_only_where_they_may() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|_| {});
    let cluster = &guarded.cluster;
    let mut client = cluster.connect();
    let film = format!("{BUCKET}/film%202.mp4");
    let bytes = guarded.objects[2].bytes();
    // By a part of the service, and by a path of it.
    for value in [format!("@store/{film}"), "/protected/film 2.mp4".into()] {
        let got = order(&mut client, &[("X-Accel-Redirect", &value)]);
        assert_eq!(got.status(), 200, "{value}: {}", got.text());
        assert!(
            got.body == bytes && got.header("x-got").is_empty(),
            "{value}"
        );
    }
    // Another upstream, which no client reaches.
    let got = order(&mut client, &[("X-Accel-Redirect", "/inner/")]);
    assert_eq!(got.text(), "the application\n");
    let inner = ask(&mut client, "GET", "/inner/", "");
    assert_eq!(inner.status(), 404);
    for value in [
        "/protected/../secret",
        "/protected/..%2fsecret",
        "@store/../x",
        "@nobody/x",
        "http://evil.example/",
        "nothing",
    ] {
        let got = order(&mut client, &[("X-Accel-Redirect", value)]);
        assert_eq!(got.status(), 502, "{value}");
        assert!(got.text().contains("names a resource"), "{}", got.text());
    }
    // Its own rights: the store denies what the key may not do, and knows no key of the client.
    let missing = order(&mut client, &[("X-Accel-Redirect", "@store/other/key")]);
    assert_eq!(missing.status(), 404);
    // A server without redirects, and one that is behind an order and has none.
    let foreign = ask(
        &mut client,
        "GET",
        &format!(
            "/foreign/order?X-Accel-Redirect={}",
            escaped("/protected/film 2.mp4")
        ),
        "",
    );
    assert_eq!(foreign.status(), 200);
    assert_eq!(foreign.header("x-accel-redirect"), "/protected/film 2.mp4");
    let value = format!(
        "/inner/order?X-Accel-Redirect={}",
        escaped("/protected/film 2.mp4")
    );
    let second = order(&mut client, &[("X-Accel-Redirect", &value)]);
    assert_eq!(second.header("x-accel-redirect"), "/protected/film 2.mp4");
    // A client's own field, and a redirect that is the client's.
    let own = ask(
        &mut client,
        "GET",
        "/",
        "X-Accel-Redirect: /protected/film%202.mp4\r\n",
    );
    assert_eq!(own.text(), "the application\n");
    let elsewhere = "http://store.internal:9000.evil.example/";
    let open = order(&mut client, &[("status", "302"), ("Location", elsewhere)]);
    assert_eq!((open.status(), open.header("location")), (302, elsewhere));
    // A POST gets the resource too, as from nginx.
    let path = format!(
        "/order?X-Accel-Redirect={}",
        escaped("/protected/film 2.mp4")
    );
    let text = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    let posted = client.call(text.as_bytes());
    assert_eq!((posted.status(), posted.body.len()), (200, bytes.len()));
}

#[test]
fn redirects_that_lead_on_and_on_end() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|_| {});
    let mut client = guarded.cluster.connect();
    let begun = guarded.sum("redirects");
    for _ in 0..20 {
        let got = ask(&mut client, "GET", "/loop", "");
        assert_eq!(got.status(), 502);
        assert!(got.text().contains("again and again"), "{}", got.text());
    }
    assert_eq!(guarded.sum("redirects") - begun, 20 * 5);
    // The sixth resource is not the last one.
    let nested = |steps: usize| {
        let mut value = "@store/".to_owned() + BUCKET + "/film%201.mp4";
        for _ in 0..steps {
            value = format!("/order?X-Accel-Redirect={}", escaped(&value));
        }
        value
    };
    for (steps, status) in [(1, 200), (5, 200), (6, 502)] {
        let got = ask(&mut client, "GET", &nested(steps), "");
        assert_eq!(got.status(), status, "{steps}");
    }
}
