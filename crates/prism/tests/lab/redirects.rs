//! Internal redirects: an application says who may read a file, and the node that has the file
//! sends it, on the connection of the client. Beside nginx, which defines `X-Accel-Redirect`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use prism_config::{ConfigFile, ObjectRoutes, RelayUpTo};
use prism_lab::{Families, Lab, LabName, LabSpec, Mode};
use prism_signer::Body;
use time::OffsetDateTime;

use crate::manners::beside::start_nginx;
use crate::support::client::{Answer, Client, signed};
use crate::support::objects::Object;
use crate::support::tls::{self, connect};
use crate::support::{BUCKET, Cluster, eventually, output, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::{Running, configure};

mod attacks;

const NGINX: &str = "127.0.0.1:9100";
const APP: &str = "127.0.0.1:9101";
/// A server whose redirects nobody follows, behind which is the same application.
const FOREIGN: &str = "127.0.0.1:9102";
const UPSTREAMS: &str = r#"
[[upstream]]
name = "foreign"
address = "127.0.0.1:9102"
paths = ["/foreign/"]
replace_prefix = "/"
[[upstream]]
name = "inner"
address = "127.0.0.1:9102"
paths = ["/inner/"]
internal = true
replace_prefix = "/"
[[upstream]]
name = "app"
address = "127.0.0.1:9101"
[upstream.redirects]
access_key = "KEY"
locations = { "http://store.internal:9000/" = "store" }
"#;
const NGINX_CONF: &str = r#"daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
user root; events {}
http { access_log off; client_body_temp_path DIR/body; if_modified_since before;
proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi;
scgi_temp_path DIR/scgi;
server { listen 127.0.0.1:9100; proxy_set_header Host $http_host;
  location /protected/ { internal; alias DIR/files/; }
  location / { proxy_pass http://127.0.0.1:9101; } } }
"#;

/// A lab with the application behind each backend, and objects that it guards.
struct Guarded {
    cluster: Cluster,
    objects: Vec<Object>,
    directory: tempfile::TempDir,
    running: Vec<Running>,
}

impl Guarded {
    fn up(change: impl FnOnce(&mut LabSpec)) -> Self {
        let name: LabName = format!("x{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
        spec.family = Families::Dual;
        spec.backends = 3;
        spec.relay_up_to = RelayUpTo::Bytes(0);
        spec.configure = Some(Box::new(|config| configure_both(config, "KEY")));
        change(&mut spec);
        let cluster = Cluster::around(Lab::up(spec).unwrap());
        let key = cluster.lab.status().access_key;
        cluster
            .lab
            .reload(|config| configure_both(config, &key))
            .unwrap();
        let mut guarded = Self {
            objects: objects(),
            directory: tempfile::tempdir().unwrap(),
            running: Vec::new(),
            cluster,
        };
        for host in guarded.cluster.backends() {
            for address in [APP, FOREIGN] {
                let application = guarded.application(&host, address);
                guarded.running.push(application);
            }
        }
        guarded.cluster.await_servers();
        guarded.fill();
        guarded
    }

    fn application(&self, host: &str, address: &str) -> Running {
        let app = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/redirects/app.py");
        let mut command = self.cluster.lab.command(host, "/usr/bin/python3").unwrap();
        let running = Running(command.arg(app).arg(address).spawn().unwrap());
        let connect = || {
            self.cluster
                .on(host, || std::net::TcpStream::connect(address))
        };
        eventually("the application listens", PATIENCE, || connect().is_ok());
        running
    }

    /// Stores the objects. The store sees another beginning of paths than clients.
    fn fill(&self) {
        eventually("the bucket is made", PATIENCE, || {
            let made = self.signed_put(&format!("/{BUCKET}/"), b"");
            let made = self.cluster.connect().call(&made);
            made.status() == 200
        });
        for object in &self.objects {
            self.put(&object.key, object.bytes());
        }
    }

    fn put(&self, key: &str, body: &[u8]) {
        let target = format!("/{BUCKET}/{}", key.replace(' ', "%20"));
        let stored = self.cluster.connect().call(&self.signed_put(&target, body));
        assert_eq!(stored.status(), 200, "{}", stored.text());
    }

    /// A PUT that is signed for the path that the store sees.
    fn signed_put(&self, target: &str, body: &[u8]) -> Vec<u8> {
        let host = self.cluster.service.to_string();
        let signed = signed(&self.cluster.signer, &host, "PUT", target, body);
        let text = signed.unwrap();
        let own = target.replace(&format!("/{BUCKET}/"), "/protected/");
        let at = text.iter().position(|byte| *byte == b'\r').unwrap();
        let line = format!("PUT {own} HTTP/1.1");
        [line.as_bytes(), &text[at..]].concat()
    }

    /// The same objects as files for nginx.
    fn write_files(&self) -> PathBuf {
        let files = self.directory.path().join("files");
        std::fs::create_dir(&files).unwrap();
        for object in &self.objects {
            std::fs::write(files.join(&object.key), object.bytes()).unwrap();
        }
        files
    }

    fn sum(&self, name: &str) -> u64 {
        self.cluster.sum("requests", name)
    }
}

fn objects() -> Vec<Object> {
    let sizes = [0, 1, 5_000, 300_000, 3 << 20];
    let named = sizes.into_iter().enumerate();
    named
        .map(|(n, len)| Object::new(format!("film {n}.mp4"), len))
        .collect()
}

fn configure_both(config: &mut ConfigFile, key: &str) {
    configure(config, &UPSTREAMS.replace("KEY", key));
    config.service.first_mut().objects = Some(ObjectRoutes {
        paths: vec!["/protected/".into()],
        replace_prefix: Some(format!("/{BUCKET}/")),
        ..ObjectRoutes::default()
    });
}

/// A request of somebody who has logged in.
fn request(method: &str, target: &str, fields: &str) -> Vec<u8> {
    let host = "app.example";
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nCookie: login=yes\r\n{fields}\r\n")
        .into()
}

fn ask(client: &mut Client, method: &str, target: &str, fields: &str) -> Answer {
    client.send(&request(method, target, fields));
    client.answer(&method.parse().unwrap())
}

/// The parts of an answer that nginx and Prism have in common.
fn shown(answer: &Answer) -> Vec<String> {
    let mut shown = vec![answer.status().to_string()];
    // An error has a text of its own.
    let names = match answer.status() {
        200 | 206 | 304 => &[
            "content-type",
            "content-disposition",
            "cache-control",
            "content-range",
            "content-length",
            "set-cookie",
            "x-internal",
            "x-accel-redirect",
        ][..],
        // nginx drops all fields of this one, cookies too.
        412 => &["x-internal", "x-accel-redirect"],
        _ => &["set-cookie", "x-internal", "x-accel-redirect"],
    };
    shown.extend(
        names
            .iter()
            .map(|name| format!("{name}: {}", answer.header(name))),
    );
    shown
}

#[test]
fn a_django_application_guards_objects_as_it_guards_files_behind_nginx() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|spec| spec.tls = true);
    guarded.write_files();
    let cluster = &guarded.cluster;
    let _nginx = start_nginx(cluster, NGINX_CONF, guarded.directory.path());
    let beside = || cluster.on("be0", || std::net::TcpStream::connect(NGINX));
    eventually("nginx listens", PATIENCE, || beside().is_ok());
    let trusted = Arc::new(tls::config(cluster, &[&rustls::version::TLS13]));
    // It ends some connections with an error.
    let nginx = || Client::new(beside().unwrap());
    let mut prism = [cluster.connect(), connect(cluster, &trusted)];
    let mut redirects = 0;
    for object in &guarded.objects {
        let target = format!("/file/{}", object.key.replace(' ', "%20"));
        for (method, fields) in [
            ("GET", ""),
            ("HEAD", ""),
            ("GET", "Range: bytes=0-0\r\n"),
            ("GET", "Range: bytes=100-4999\r\n"),
            ("GET", "Range: bytes=-7\r\n"),
            ("HEAD", "Range: bytes=0-0\r\n"),
            ("GET", "Range: bytes=99999999-\r\n"),
            ("GET", "If-None-Match: *\r\n"),
            (
                "GET",
                "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
            ),
            (
                "GET",
                "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n",
            ),
            ("GET", "If-Range: \"other\"\r\nRange: bytes=0-0\r\n"),
        ] {
            if object.len == 0 && !fields.is_empty() {
                // nginx answers 200 to every condition and range, and S3 refuses.
                continue;
            }
            let expected = ask(&mut nginx(), method, &target, fields);
            let mut fresh = [cluster.connect(), connect(cluster, &trusted)];
            for client in fresh.iter_mut().chain(&mut prism) {
                let got = ask(client, method, &target, fields);
                let case = format!("{method} {target} {fields}");
                assert_eq!(shown(&got), shown(&expected), "{case}: {}", got.text());
                if expected.status() < 400 {
                    assert!(got.body == expected.body, "{case}");
                }
                redirects += 1;
            }
        }
    }
    for (target, fields) in [("/file/none.mp4", ""), ("/", "")] {
        let expected = ask(&mut nginx(), "GET", target, fields);
        for client in &mut prism {
            let got = ask(client, "GET", target, fields);
            assert_eq!(shown(&got), shown(&expected), "{target}");
        }
    }
    // Nobody reads a file without the application's word.
    let stranger = |client: &mut Client, target: &str| {
        client
            .call(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())
            .status()
    };
    for client in [&mut nginx()].into_iter().chain(&mut prism) {
        assert_eq!(stranger(client, "/file/film%202.mp4"), 403);
        assert!([403, 404].contains(&stranger(client, "/protected/film%202.mp4")));
    }
    assert_eq!(guarded.sum("redirects"), redirects + 2);
    assert!(cluster.sum("handoff", "exports_moved") > redirects / 2);
    assert!(guarded.sum("redirected_bytes") > 20 << 20);
}

#[test]
fn a_presigned_location_is_followed_by_whichever_node_has_read_the_request() {
    let Some(_turn) = turn() else { return };
    for relay_up_to in [RelayUpTo::Bytes(0), RelayUpTo::Auto] {
        let guarded = Guarded::up(|spec| spec.relay_up_to = relay_up_to);
        let cluster = &guarded.cluster;
        let mut client = cluster.connect();
        for round in 0..4 {
            for object in &guarded.objects {
                let key = object.key.replace(' ', "%20");
                let target = format!("/{BUCKET}/{key}");
                let host = "store.internal:9000";
                let now = OffsetDateTime::now_utc();
                let signed = cluster
                    .signer
                    .presign("GET", &target, host, Body::Unsigned, 60, now)
                    .unwrap();
                let location = escaped(&format!("http://{host}{signed}"));
                let order = format!("/order?status=307&Location={location}");
                let got = ask(&mut client, "GET", &order, "");
                assert_eq!(got.status(), 200, "{round} {}", got.text());
                assert!(got.body == object.bytes(), "{}", object.key);
                // A signature for another host is none.
                let signed = cluster
                    .signer
                    .presign("GET", &target, "h", Body::Unsigned, 60, now)
                    .unwrap();
                let location = escaped(&format!("http://{host}{signed}"));
                let order = format!("/order?status=307&Location={location}");
                let refused = ask(&mut client, "GET", &order, "");
                assert_eq!(refused.status(), 403);
                assert!(refused.text().contains("SignatureDoesNotMatch"));
            }
        }
        // One that the store refuses by its signature is not counted.
        assert_eq!(guarded.sum("redirects"), 4 * guarded.objects.len() as u64);
    }
}

/// The film is of some hundred kilobytes a second, so that a browser does not read all of it ahead.
const FILM: [&str; 14] = [
    "-v",
    "error",
    "-f",
    "lavfi",
    "-i",
    "testsrc2=size=320x180:rate=25",
    "-t",
    "20",
    "-c:v",
    "libvpx",
    "-b:v",
    "4M",
    "-deadline",
    "realtime",
];

#[test]
fn a_browser_plays_a_film_by_ranges_and_the_login_of_the_application_guards_it() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|spec| spec.family = Families::V4);
    let film = guarded.directory.path().join("film.webm");
    let mut ffmpeg = Command::new("ffmpeg");
    output(ffmpeg.args(FILM).arg(&film));
    guarded.put("film.webm", &std::fs::read(&film).unwrap());
    let before = guarded.sum("redirects");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/redirects/play.mjs");
    let mut node = guarded.cluster.lab.command("client", "node").unwrap();
    output(node.arg(script).arg(guarded.cluster.lab.endpoint()));
    assert!(guarded.sum("redirects") - before >= 2);
}

#[test]
fn nodes_without_a_switch_follow_redirects_too() {
    let Some(_turn) = turn() else { return };
    let guarded = Guarded::up(|spec| spec.mode = Mode::Host);
    let mut client = guarded.cluster.connect();
    for object in &guarded.objects {
        let target = format!("/file/{}", object.key.replace(' ', "%20"));
        let got = ask(&mut client, "GET", &target, "");
        assert_eq!(got.status(), 200, "{}", got.text());
        assert!(got.body == object.bytes(), "{}", object.key);
    }
    assert_eq!(guarded.sum("redirects"), guarded.objects.len() as u64);
    assert!(guarded.cluster.sum("handoff", "exports_moved") > 0);
}

/// A value of a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let pieces = text.bytes().map(|byte| match byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    pieces.collect()
}
