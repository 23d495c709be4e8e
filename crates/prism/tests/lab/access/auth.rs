//! Forward authentication: a server of another upstream is asked about each request, at the node
//! that passes the request.

use std::sync::Arc;

use prism_config::RelayUpTo;
use prism_lab::LabSpec;

use crate::support::client::{Answer, Client};
use crate::support::{tls, turn};
use crate::upstreams::behind::{APP, Behind, pattern};
use crate::upstreams::{LONG, curl};

/// Behind the application, which is the upstream that asks.
const AUTH: &str = r#"name = "app"
[service.upstream.auth]
upstream = "login"
path = "/verify?by=prism"
fields = ["X-User"]
answer_fields = ["X-Asked", "Set-Cookie"]
[[upstream]]
name = "login"
address = "127.0.0.1:9000"
internal = true
request_headers = ["X-Env: lab"]
"#;

const ADA: &str = "Cookie: login=ada\r\n";

fn guarded(change: impl FnOnce(&mut LabSpec)) -> Behind {
    assert!(AUTH.contains(APP));
    Behind::up_without_warmth(change, AUTH)
}

/// The answer to a request with an identifier, and how often the application has carried it out.
fn ask(behind: &Behind, client: &mut Client, line: &str, fields: &str) -> (Answer, usize) {
    let id = behind.next_id();
    let text = format!("{line} HTTP/1.1\r\nHost: h\r\n{id}\r\n{fields}\r\n");
    let (head, _) = text.split_once(' ').unwrap();
    client.send(text.as_bytes());
    let answer = client.answer(&head.parse().unwrap());
    let number = id.trim_start_matches("X-Id: ");
    let count = behind.counts().get(number).copied().unwrap_or(0);
    (answer, usize::try_from(count).unwrap())
}

#[test]
fn a_server_gets_only_what_another_one_allows() {
    let Some(_turn) = turn() else { return };
    let behind = guarded(|_| {});
    let address = |client: &Client| client.local().ip().to_string();
    for _ in 0..4 {
        let mut client = behind.cluster.connect();
        // The answer of the other server goes to the client as it is, also a long one.
        for line in ["GET /headers", "HEAD /headers", "GET /bytes?n=1000000"] {
            let (refused, count) = ask(&behind, &mut client, line, "");
            assert_eq!((refused.status(), count), (401, 0), "{line}");
            assert_eq!(refused.header("www-authenticate"), "Basic realm=x");
            let bytes = if line.starts_with("HEAD") { 0 } else { 100_000 };
            assert!(refused.body == pattern(bytes), "{line}");
        }
        let forged = format!(
            "{ADA}X-User: root\r\nX_User: root\r\nX-Forwarded-Uri: /open\r\n\
             Connection: X-User\r\nRange: bytes=0-1\r\nIf-None-Match: \"x\"\r\n"
        );
        let (allowed, count) = ask(&behind, &mut client, "GET /headers?a=b", &forged);
        assert_eq!((allowed.status(), count), (200, 1), "{}", allowed.text());
        let asked = format!("GET GET /headers?a=b {}", address(&client));
        assert_eq!(allowed.header("x-asked"), asked);
        assert_eq!(allowed.header("set-cookie"), "seen=1");
        let seen: serde_json::Value = serde_json::from_slice(&allowed.body).unwrap();
        assert_eq!(seen["X-User"], serde_json::json!(["ada"]), "{seen}");
        for absent in ["X_user", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Env"] {
            assert!(seen[absent].is_null(), "{absent}: {seen}");
        }
        assert_eq!(seen["Range"], serde_json::json!(["bytes=0-1"]));
        // An answer without the field leaves the request without it.
        let anonymous = "Cookie: login=anonymous\r\nX-User: root\r\n";
        let (allowed, _) = ask(&behind, &mut client, "GET /headers", anonymous);
        let seen: serde_json::Value = serde_json::from_slice(&allowed.body).unwrap();
        assert!(seen["X-User"].is_null(), "{seen}");
        let (broken, count) = ask(
            &behind,
            &mut client,
            "GET /headers",
            "Cookie: login=broken\r\n",
        );
        assert_eq!((broken.status(), count), (500, 0));
        // Each request of a connection that has moved is asked about too.
        let (long, count) = ask(&behind, &mut client, "GET /bytes?n=1000000", ADA);
        assert_eq!((long.status(), count), (200, 1));
        assert!(long.body == pattern(1_000_000));
        let (refused, count) = ask(&behind, &mut client, "GET /bytes?n=1000000", "");
        assert_eq!((refused.status(), count), (401, 0));
    }
    assert!(behind.cluster.sum("handoff", "exports_moved") > 0);
}

#[test]
fn a_body_waits_until_its_request_is_allowed() {
    let Some(_turn) = turn() else { return };
    for relay_up_to in [RelayUpTo::Bytes(0), RelayUpTo::Auto] {
        let behind = guarded(|spec| {
            spec.tls = true;
            spec.relay_up_to = relay_up_to;
        });
        let lab = &behind.cluster.lab;
        let urls: Vec<String> = lab.endpoints().chain(lab.https_endpoints()).collect();
        let file = behind.long_file();
        let digest = format!("{LONG} {}", behind.long_digest());
        for url in urls {
            let url = format!("{url}/digest");
            for form in [
                &["--upload-file", &file] as &[&str],
                &["-H", "Transfer-Encoding: chunked", "--upload-file", &file],
                &["-H", "Expect:", "--upload-file", &file],
            ] {
                let id = behind.next_id();
                let login = [form, &["--header", &id, "--header", "Cookie: login=ada"]].concat();
                let digested = curl(&behind, &url, &login);
                assert!(digested.starts_with(&digest), "{form:?}: {digested}");
                let id = behind.next_id();
                let status = [
                    "--header",
                    &id,
                    "--output",
                    "/dev/null",
                    "--write-out",
                    "%{http_code} %{size_upload}",
                ];
                let refused = curl(&behind, &url, &[form, &status].concat());
                let (code, sent) = refused.split_once(' ').unwrap();
                assert_eq!(code, "401", "{form:?}");
                // A client that asks is not invited.
                let asks = form.len() == 2;
                assert!(!asks || sent == "0", "{form:?}: {sent}");
            }
        }
        let counts = behind.counts();
        assert!(
            counts.len() == 12 && counts.values().all(|count| *count == 1),
            "{counts:?}"
        );
        // The next request behind a small body that nobody has read.
        let mut client = behind.cluster.connect();
        let two = "POST /digest HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\
             GET /headers HTTP/1.1\r\nHost: h\r\nCookie: login=ada\r\n\r\n";
        client.send(two.as_bytes());
        let statuses = [(); 2].map(|()| client.answer(&prism_http::Method::GET).status());
        assert_eq!(statuses, [401, 200]);
    }
}

#[test]
fn an_upgrade_is_allowed_first() {
    let Some(_turn) = turn() else { return };
    let behind = guarded(|spec| spec.tls = true);
    let trusted = Arc::new(tls::config(&behind.cluster, &[&rustls::version::TLS13]));
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
    for is_tls in [false, true] {
        let connect = || match is_tls {
            false => behind.cluster.connect(),
            true => tls::connect(&behind.cluster, &trusted),
        };
        let (refused, count) = ask(&behind, &mut connect(), "GET /tunnel", upgrade);
        assert_eq!((refused.status(), count), (401, 0));
        let mut client = connect();
        let text = format!("GET /tunnel HTTP/1.1\r\nHost: h\r\n{ADA}{upgrade}\r\n");
        client.send(text.as_bytes());
        assert_eq!(client.head().status(), 101);
        client.send(b"ping\n");
        assert_eq!(client.take(5), b"ping\n");
    }
}
