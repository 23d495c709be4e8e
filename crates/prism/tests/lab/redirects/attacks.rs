//! Redirects that are not followed, and those that would not end.

use std::time::{Duration, Instant};

use super::*;
use crate::support::say;

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

/// An upstream whose every answer redirects to itself.
const STORM: &str = r#"
[[upstream]]
name = "storm"
address = "127.0.0.1:9103"
paths = ["/storm"]
[upstream.redirects]
"#;
const STORM_CONF: &str = r#"daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
user root; events {}
http { access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy;
fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
keepalive_requests 1000000;
server { listen 127.0.0.1:9103; location / { add_header X-Accel-Redirect $request_uri; return 200; } } }
"#;
/// Clients that have nothing but redirects, and for how long.
const STORMING: usize = 12;
const STORM_TIME: Duration = Duration::from_secs(5);
/// The growth of a node's memory that connections alone explain.
const MAX_GROWTH_KIB: u64 = 48 << 10;

#[test]
fn thousands_of_redirects_a_second_stop_nobody_and_cost_bounded_memory() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|_| {});
    let cluster = &guarded.cluster;
    let directories = tempfile::tempdir().unwrap();
    let servers = cluster.backends().into_iter().map(|host| {
        let own = directories.path().join(&host);
        std::fs::create_dir(&own).unwrap();
        let config = own.join("nginx.conf");
        let text = STORM_CONF.replace("DIR", &own.display().to_string());
        std::fs::write(&config, text).unwrap();
        let mut command = cluster.lab.command(&host, "nginx").unwrap();
        Running(command.arg("-c").arg(config).spawn().unwrap())
    });
    let _servers: Vec<Running> = servers.collect();
    let key = cluster.lab.status().access_key;
    let all = |config: &mut ConfigFile| {
        configure_both(config, &key);
        configure(
            config,
            &(STORM.to_owned() + &UPSTREAMS.replace("KEY", &key)),
        );
    };
    cluster.lab.reload(all).unwrap();
    let storm = |client: &mut Client| ask(client, "GET", "/storm?n=1", "").text();
    eventually("the storm begins", PATIENCE, || {
        storm(&mut cluster.connect()).contains("again and again")
    });
    let film = |client: &mut Client| ask(client, "GET", "/file/film%202.mp4", "");
    let expected = guarded.objects[2].bytes();
    let before: Vec<u64> = cluster
        .nodes()
        .iter()
        .map(|host| cluster.resident_kib(host))
        .collect();
    let (begun, orders) = (Instant::now(), guarded.sum("redirects"));
    let films = std::thread::scope(|scope| {
        for _ in 0..STORMING {
            scope.spawn(|| {
                let mut client = cluster.connect();
                while begun.elapsed() < STORM_TIME {
                    assert!(storm(&mut client).contains("again and again"));
                }
            });
        }
        let mut client = cluster.connect();
        let mut films = 0;
        while begun.elapsed() < STORM_TIME {
            let got = film(&mut client);
            assert!(
                got.status() == 200 && got.body == expected,
                "{}",
                got.text()
            );
            films += 1;
        }
        films
    });
    let took = begun.elapsed().as_secs_f64();
    let orders = guarded.sum("redirects") - orders;
    say(&format!(
        "{:.0} redirects a second, and {films} films",
        orders as f64 / took
    ));
    assert!(
        orders > 1_000 && films > 5,
        "{orders} redirects, {films} films"
    );
    for (host, before) in cluster.nodes().iter().zip(before) {
        let grown = cluster.resident_kib(host).saturating_sub(before);
        assert!(grown < MAX_GROWTH_KIB, "{host} has grown by {grown} KiB");
    }
}
