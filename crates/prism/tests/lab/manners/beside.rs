//! The upstream of a request, beside nginx with the same hosts and paths: both find the same server,
//! however the host and the path are written. Prism refuses what could be read in two ways.

use std::path::Path;

use prism_config::RelayUpTo;
use prism_lab::{Lab, LabName, LabSpec};

use crate::support::client::Client;
use crate::support::{Cluster, eventually, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::{Running, configure};

/// nginx, and the servers that it has the place of.
const NGINX: &str = "127.0.0.1:9100";
const UPSTREAMS: &str = r#"
[[upstream]]
address = "127.0.0.1:9101"
hosts = ["a.example"]
paths = ["/in/"]
[[upstream]]
address = "127.0.0.1:9102"
hosts = ["a.example"]
[[upstream]]
address = "127.0.0.1:9103"
paths = ["/in/"]
[[upstream]]
address = "127.0.0.1:9104"
"#;
const NGINX_CONF: &str = r#"daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
user root; events {}
http { access_log off; client_body_temp_path DIR/body;
proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi;
scgi_temp_path DIR/scgi;
server { listen 127.0.0.1:9100 default_server; server_name _;
  location /in/ { return 200 "in"; } location / { return 200 "other"; } }
server { listen 127.0.0.1:9100; server_name a.example;
  location /in/ { return 200 "in of a"; } location / { return 200 "a"; } }
server { listen 127.0.0.1:9101; return 200 "in of a"; }
server { listen 127.0.0.1:9102; return 200 "a"; }
server { listen 127.0.0.1:9103; return 200 "in"; }
server { listen 127.0.0.1:9104; return 200 "other"; } }
"#;

const TARGETS: [&str; 29] = [
    "/",
    "/in/x",
    "/in/",
    "/in",
    "/IN/x",
    "/inside/x",
    "/./in/x",
    "/in/./x",
    "/x/../in/x",
    "/a/b/../../in/",
    "/in/../x",
    "/in/..",
    "/in/.",
    "/in/../in/",
    "/x/..in/x",
    "//in/x",
    "/in//x",
    "//in//x",
    "/x//../in/x",
    "/%69n/x",
    "/%2e/in/x",
    "/x/%2E%2e/in/x",
    "/in/%2e%2e/x",
    "/in%20/x",
    "/in/%C3%A4",
    "/in/x?/../../y",
    "/x?/in/",
    "/in?x",
    "/in/;x",
];
/// nginx goes by the target and does not look at `Host`. HAProxy and Prism refuse two hosts that
/// differ.
const ABSOLUTE: &str = "http://a.example/in/x";
/// Another reader could take them for other paths.
const AMBIGUOUS: [&str; 7] = [
    "/x%2f..%2fin/x",
    "/in%2fx",
    "/%5cin/x",
    "/in%5c..%5cx",
    "/in%00/x",
    "/in/..;/x",
    "/../in/x",
];
const HOSTS: [&str; 9] = [
    "a.example",
    "A.Example",
    "a.example.",
    "a.example:80",
    "a.example.:80",
    "b.example",
    "sub.a.example",
    "a.example.b",
    "10.0.0.1",
];

/// Starts nginx at `be0` with a configuration in which `DIR` stands for its directory.
pub fn start_nginx(cluster: &Cluster, config: &str, directory: &Path) -> Running {
    let text = config.replace("DIR", &directory.display().to_string());
    let config = directory.join("nginx.conf");
    std::fs::write(&config, text).unwrap();
    let mut command = cluster.lab.command("be0", "nginx").unwrap();
    Running(command.arg("-c").arg(config).spawn().unwrap())
}

/// The status and the server that answers.
fn answer(client: &mut Client, target: &str, host: &str) -> (u16, String) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = client.call(request.as_bytes());
    let server = if answer.status() == 200 {
        answer.text()
    } else {
        String::new()
    };
    (answer.status(), server)
}

#[test]
fn the_upstream_of_a_request_is_the_one_that_nginx_finds() {
    let Some(_turn) = turn() else { return };
    let name: LabName = format!("b{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    (spec.backends, spec.relay_up_to) = (1, RelayUpTo::Bytes(0));
    spec.configure = Some(Box::new(|config| configure(config, UPSTREAMS)));
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let _nginx = start_nginx(&cluster, NGINX_CONF, directory.path());
    let by_nginx = |target: &str, host: &str| {
        let stream = cluster.on("be0", || std::net::TcpStream::connect(NGINX).unwrap());
        answer(&mut Client::new(stream), target, host)
    };
    let by_prism = |target: &str, host: &str| answer(&mut cluster.connect(), target, host);
    eventually("nginx listens", PATIENCE, || {
        cluster.on("be0", || std::net::TcpStream::connect(NGINX).is_ok())
    });
    cluster.await_servers();
    let mut faults = Vec::new();
    for host in HOSTS {
        for target in TARGETS {
            let [nginx, prism] = [by_nginx(target, host), by_prism(target, host)];
            if nginx != prism {
                faults.push(format!(
                    "{target} of {host}: nginx {nginx:?}, Prism {prism:?}"
                ));
            }
        }
    }
    for host in HOSTS {
        let is_same = host
            .to_ascii_lowercase()
            .trim_end_matches(":80")
            .trim_end_matches('.')
            == "a.example";
        let expected = match is_same {
            true => (200, "in of a".to_owned()),
            false => (400, String::new()),
        };
        let prism = by_prism(ABSOLUTE, host);
        if prism != expected {
            faults.push(format!("{ABSOLUTE} of {host}: {prism:?}"));
        }
    }
    for target in AMBIGUOUS {
        let (status, server) = by_prism(target, "a.example");
        if status != 400 {
            faults.push(format!("{target}: {status}, {server}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
