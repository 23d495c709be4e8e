//! Clients and servers see of each other through Prism what they see through HAProxy and nginx,
//! where these define what is expected.

mod cases;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use prism_config::RelayUpTo;
use prism_lab::{Families, Family, Lab, LabName, LabSpec};

use cases::{CASES, SILENCE, get, kind, write};

use crate::support::client::Client;
use crate::support::{Cluster, eventually, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::{Running, configure};
use crate::upstreams::relayed::without_ipv6;

const SERVER: &str = "127.0.0.1:9300";
const HAPROXY: &str = "127.0.0.1:9301";
const NGINX: &str = "127.0.0.1:9302";

const HAPROXY_CONF: &str = "defaults
 mode http
 timeout connect 5s
 timeout client 20s
 timeout server 20s
listen proxy
 bind 127.0.0.1:9301
 server server 127.0.0.1:9300
";
const NGINX_CONF: &str = r#"daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
user root; events {}
http { access_log off; client_body_temp_path DIR/body;
proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi;
scgi_temp_path DIR/scgi;
map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
server { listen 127.0.0.1:9302; location / { proxy_pass http://127.0.0.1:9300;
  proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;
  proxy_set_header Connection $connection_upgrade; proxy_request_buffering off;
  proxy_buffer_size 32k; proxy_buffers 8 32k; proxy_busy_buffers_size 64k; } } }
"#;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Way {
    Haproxy,
    Nginx,
    Moved,
    /// The connection is at the node that answers already.
    Here,
    Relayed,
}

/// The server's view of each target, one line for each request.
type Views = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// Answers the requests of a connection, each as its target says.
fn serve(mut stream: TcpStream, views: &Views) -> io::Result<()> {
    loop {
        stream.set_read_timeout(None)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let number: Option<usize> = target.split('/').nth(1).and_then(|text| text.parse().ok());
        let Some(case) = number.and_then(|number| CASES.get(number)) else {
            write(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let view = (case.server)(&mut stream, &head);
        let ends = view.as_ref().is_ok_and(|view| view != "asked");
        let view = view.unwrap_or_else(|error| kind(&error));
        views.lock().unwrap().entry(target).or_default().push(view);
        if ends || socket2::SockRef::from(&stream).linger()?.is_some() {
            return Ok(());
        }
    }
}

fn up() -> (Cluster, Views) {
    let name: LabName = format!("o{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    (spec.family, spec.relay_up_to) = (Families::Dual, RelayUpTo::Bytes(0));
    spec.configure = Some(Box::new(|config| {
        configure(config, &format!("upstream = \"{SERVER}\"\n"));
    }));
    without_ipv6(&mut spec);
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    let views = Views::default();
    let listener = cluster.on("be0", || TcpListener::bind(SERVER).unwrap());
    let of_server = views.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let views = of_server.clone();
            // It ends as the client likes.
            std::thread::spawn(move || drop(serve(stream.unwrap(), &views)));
        }
    });
    cluster.await_servers();
    (cluster, views)
}

fn start(cluster: &Cluster, directory: &Path) -> [Running; 2] {
    let haproxy = directory.join("haproxy.cfg");
    std::fs::write(&haproxy, HAPROXY_CONF).unwrap();
    let nginx = directory.join("nginx.conf");
    let text = NGINX_CONF.replace("DIR", &directory.display().to_string());
    std::fs::write(&nginx, text).unwrap();
    let mut commands =
        ["haproxy", "nginx"].map(|program| cluster.lab.command("be0", program).unwrap());
    commands[0].args(["-db", "-q", "-f"]).arg(haproxy);
    commands[1].arg("-c").arg(nginx);
    let running = commands.map(|mut command| Running(command.spawn().unwrap()));
    for address in [HAPROXY, NGINX] {
        eventually("a proxy listens", PATIENCE, || {
            cluster.on("be0", || TcpStream::connect(address).is_ok())
        });
    }
    running
}

fn connect(cluster: &Cluster, way: Way) -> Client {
    let beside = |address| Client::new(cluster.on("be0", || TcpStream::connect(address).unwrap()));
    match way {
        Way::Haproxy => beside(HAPROXY),
        Way::Nginx => beside(NGINX),
        Way::Moved => cluster.connect_over(Family::V4),
        Way::Here => {
            let mut client = cluster.connect_over(Family::V4);
            assert_eq!(client.call(&get("/warm")).status(), 200);
            client
        }
        Way::Relayed => cluster.connect_over(Family::V6),
    }
    .with_timeout(SILENCE * 2)
}

#[test]
fn clients_and_servers_see_of_each_other_what_other_proxies_let_them_see() {
    let Some(_turn) = turn() else { return };
    let (cluster, views) = up();
    let directory = tempfile::tempdir().unwrap();
    let _proxies = start(&cluster, directory.path());
    let moved = || cluster.sum("handoff", "exports_moved");
    eventually("connections move", PATIENCE, || {
        let status = cluster
            .connect_over(Family::V4)
            .call(&get("/warm"))
            .status();
        status == 200 && moved() > 0
    });
    let relayed = cluster.sum("requests", "relayed");
    let mut faults = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let play = |way: Way| {
            let path = format!("/{number}/{way:?}");
            let client = (case.client)(connect(&cluster, way), &path);
            // The server's view may come later, or never.
            let until = Instant::now() + SILENCE * 2;
            while Instant::now() < until && !views.lock().unwrap().contains_key(&path) {
                std::thread::sleep(SILENCE / 30);
            }
            std::thread::sleep(SILENCE / 30);
            let server = views.lock().unwrap().remove(&path).unwrap_or_default();
            (client, server)
        };
        let ways = [
            Way::Haproxy,
            Way::Nginx,
            Way::Moved,
            Way::Here,
            Way::Relayed,
        ];
        let all: BTreeMap<Way, _> = ways.into_iter().map(|way| (way, play(way))).collect();
        let prism = &all[&Way::Moved];
        let same = case.prism.iter().chain(case.like);
        let differing: Vec<_> = same.filter(|way| all[way] != *prism).collect();
        println!("{}: {all:#?}", case.name);
        if !differing.is_empty() {
            faults.push(format!("{}: {differing:?} of {all:#?}", case.name));
        }
    }
    assert!(
        cluster.sum("requests", "relayed") > relayed,
        "nothing was relayed"
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
