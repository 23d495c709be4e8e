//! Rules that answer in the place of a server, beside nginx with the same directives, on a
//! connection that moves between the frontend and the backend.

use prism_config::{ConfigFile, RelayUpTo, Rule};
use prism_http::Method;
use prism_lab::{Lab, LabName, LabSpec};

use super::beside::start_nginx;
use crate::support::client::{Answer, Client};
use crate::support::{Cluster, eventually, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::configure;

/// nginx in the place of Prism.
const NGINX: &str = "127.0.0.1:9100";
const UPSTREAMS: &str = r#"
[[upstream]]
address = "127.0.0.1:9101"
paths = ["/api/"]
replace_prefix = "/"
request_headers = ["X-Seen: {host}"]
[[upstream]]
address = "127.0.0.1:9101"
request_headers = ["X-Seen: {host}"]
answer_headers = ["X-Id: {request_id}"]
"#;
const RULES: &str = r#"
[[rule]]
hosts = ["old.example", "*.old.example"]
redirect = "http://www.example{uri}"
status = 301
[[rule]]
paths = ["=/login"]
redirect = "/session"
[[rule]]
paths = ["~^/u/(\\d+)/(.*)$"]
redirect = "http://{host}/users/{1}/{2}"
status = 308
[[rule]]
paths = ["/admin/"]
except_clients = ["203.0.113.0/24"]
status = 403
[[rule]]
paths = ["=/robots.txt"]
status = 200
answer = "Disallow: /"
"#;
const NGINX_CONF: &str = r#"daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
user root; events {}
http { access_log off; client_body_temp_path DIR/body; default_type "text/plain; charset=utf-8";
proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi;
scgi_temp_path DIR/scgi;
log_format seen "$http_x_request_id $request_uri";
server { listen 127.0.0.1:9100; server_name old.example *.old.example;
  return 301 http://www.example$request_uri; }
server { listen 127.0.0.1:9100 default_server; absolute_redirect off;
  proxy_set_header Host $http_host; proxy_set_header X-Seen $host;
  location = /login { return 302 /session; }
  location ~ ^/u/(\d+)/(.*)$ { return 308 http://$host/users/$1/$2; }
  location /admin/ { deny all; }
  location = /robots.txt { return 200 "Disallow: /"; }
  location /api/ { proxy_pass http://127.0.0.1:9101/; }
  location / { proxy_pass http://127.0.0.1:9101; } }
server { listen 127.0.0.1:9101; access_log DIR/seen seen;
  return 200 "$request_uri for $http_x_seen"; } }
"#;
const HOSTS: [&str; 4] = [
    "new.example",
    "old.example",
    "a.OLD.example",
    "old.example:8080",
];
const TARGETS: [&str; 18] = [
    "/",
    "/x?y=%20z",
    "/login",
    "/login?next=/x",
    "/login/",
    "/%6cogin",
    "/u/12/profile",
    "/u/x/profile",
    "/u/12/a/b?q",
    "/admin/",
    "/admin",
    "/x/..//admin/x",
    "/robots.txt",
    "/robots.txt?x",
    "/api/",
    "/api/users?a=1",
    "/api/a%20b",
    "/x/../api/users",
];
/// A redirect of these must not lead to another host.
const ELSEWHERE: [&str; 2] = ["//evil.example/u/1/x", "/u/1//evil.example/x"];

fn ask(client: &mut Client, target: &str, host: &str) -> Answer {
    client.call(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
}

/// The status, the URL of a redirect, and the text of an answer that has been asked for.
fn shown(answer: &Answer) -> (u16, String, String) {
    let text = if answer.status() == 200 {
        answer.text()
    } else {
        String::new()
    };
    (answer.status(), answer.header("location").to_owned(), text)
}

fn set_rules(config: &mut ConfigFile, text: &str) {
    #[derive(serde::Deserialize)]
    struct File {
        rule: Vec<Rule>,
    }
    let file: File = toml::from_str(text).unwrap();
    config.service.first_mut().rule = file.rule;
}

#[test]
fn rules_answer_as_directives_of_nginx_do_and_no_server_sees_the_request() {
    let Some(_turn) = turn() else { return };
    let name: LabName = format!("r{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    // Every answer of a server moves the connection, and rules apply at the frontend and there.
    (spec.backends, spec.relay_up_to) = (1, RelayUpTo::Bytes(0));
    spec.configure = Some(Box::new(|config| {
        configure(config, UPSTREAMS);
        set_rules(config, RULES);
    }));
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let _nginx = start_nginx(&cluster, NGINX_CONF, directory.path());
    let connect = || cluster.on("be0", || std::net::TcpStream::connect(NGINX));
    eventually("nginx listens", PATIENCE, || connect().is_ok());
    cluster.await_servers();
    let mut nginx = Client::new(connect().unwrap());
    let mut prism = cluster.connect();
    let mut by_servers = 0;
    for host in HOSTS {
        for target in TARGETS {
            // The first request of a connection is read by the frontend.
            let first = ask(&mut cluster.connect(), target, host);
            let later = ask(&mut prism, target, host);
            let expected = shown(&ask(&mut nginx, target, host));
            assert_eq!(shown(&first), expected, "{target} of {host}, first");
            assert_eq!(shown(&later), expected, "{target} of {host}, later");
            if expected.2.contains(" for ") {
                by_servers += 2;
                // The other upstream adds no such field.
                let has_id = later.header("x-id") == later.header("x-request-id");
                assert_eq!(has_id, !target.contains("/api/"), "{target}");
            }
        }
    }
    for target in ELSEWHERE {
        let answer = ask(&mut prism, target, "new.example");
        assert!(!answer.header("location").starts_with("//"), "{target}");
        by_servers += u32::from(answer.status() == 200);
    }
    assert_eq!(ask(&mut prism, "/admin%2fx", "new.example").status(), 400);
    // HEAD is relayed, and the backend replaces the beginning as for a connection of its own.
    let mut client = cluster.connect();
    client.send(b"HEAD /api/relayed HTTP/1.1\r\nHost: new.example\r\n\r\n");
    assert_eq!(client.answer(&Method::HEAD).status(), 200);
    by_servers += 1;
    // nginx writes a line when the answer has gone.
    let seen = || std::fs::read_to_string(directory.path().join("seen")).unwrap();
    eventually("nginx has a line of HEAD", PATIENCE, || {
        seen().contains(" /relayed\n")
    });
    let seen = seen();
    let of_prism = seen.lines().filter(|line| !line.starts_with("- "));
    assert_eq!(of_prism.count(), by_servers as usize, "{seen}");
    let reloaded = cluster
        .lab
        .reload(|config| set_rules(config, "[[rule]]\nstatus = 503\nanswer = \"Later.\""));
    reloaded.unwrap();
    for client in [&mut prism, &mut cluster.connect()] {
        let answer = ask(client, "/", "new.example");
        assert_eq!((answer.status(), answer.text()), (503, "Later.".to_owned()));
    }
}
