//! Two services in one cluster: one over HTTP and HTTPS, one over HTTP, both in both families. Each
//! has backends and users of its own, and neither reaches what the other has.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use prism_config::{Anonymous, Config, S3, Service, ServiceLimits};
use prism_lab::LabSpec;
use prism_proto::control::{
    Answer, ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request as Query, RunId, Status,
};
use prism_proto::node::ALPN_RELAY;
use prism_signer::Signer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::setup::{doctor, set_up};
use crate::successor::take_over;
use crate::support::client::{Answer as Answered, Client, signed};
use crate::support::objects::Object;
use crate::support::wire::{Wire, dialler};
use crate::support::{BUCKET, Cluster, eventually, output, tls, turn};

const PATIENCE: Duration = Duration::from_secs(20);
/// The second service, and its node port.
const PHOTOS: &str = "photos";
const PHOTOS_PORT: u16 = 7401;
const OBJECTS: usize = 12;
const LEN: u64 = 40_000;

/// A cluster of two services. The first has the lab's name and addresses, and the backends be0 and
/// be1; the other has be2 and be3.
struct Two {
    cluster: Cluster,
    photos: Vec<SocketAddr>,
    signer: Signer,
    files: tempfile::TempDir,
}

fn write_secret(path: &Path, text: &str) {
    let mut open = std::fs::OpenOptions::new();
    let file = open.create(true).write(true).truncate(true).mode(0o600);
    file.open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn users(names: &[&str]) -> String {
    let users = names.iter().map(|name| {
        format!("[[credential]]\naccess_key = \"{name}\"\nsecret_key = \"{name}-secret\"\nadmin = true\n")
    });
    users.collect()
}

fn signer(name: &str) -> Signer {
    Signer::new(name, format!("{name}-secret"), "us-east-1")
}

/// The address two above that of the first service, which the lab leaves free.
fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => IpAddr::from((u32::from(v4) + 2).to_be_bytes()),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6) + 2).to_be_bytes()),
    }
}

/// What the second service has of its own.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// Addresses, which `prism setup` gives to the hosts.
    Addresses,
    /// A port of the first service's addresses.
    Port,
}

/// Gives the configuration its second service, whose files are in `files`.
fn add_photos(config: &mut Config, files: &Path, at: At) {
    let hosts = config.service.address.hosts().into_iter();
    let photos = hosts.map(|ip| match at {
        At::Addresses => SocketAddr::new(next(ip), 80),
        At::Port => SocketAddr::new(ip, 8080),
    });
    let backends = |names: [&str; 2]| names.map(str::to_owned).to_vec();
    config.service.name.clone_from(&config.cluster.name);
    config.service.backends = backends(["be0", "be1"]);
    config.service.s3 = Some(std::mem::take(&mut config.s3));
    config.service.push(Service {
        name: PHOTOS.into(),
        address: photos.collect(),
        backends: backends(["be2", "be3"]),
        relay_up_to: config.service.relay_up_to,
        peer_port: Some(PHOTOS_PORT),
        control_key_id: Some(2),
        control_key_file: Some(files.join("switch.key")),
        s3: Some(S3 {
            credentials_file: files.join("users.toml"),
            ..S3::default()
        }),
        ..Service::default()
    });
}

impl Two {
    fn up(at: At, change: impl FnOnce(&mut LabSpec)) -> Self {
        let files = tempfile::tempdir().unwrap();
        write_secret(&files.path().join("switch.key"), &"7a".repeat(16));
        write_secret(&files.path().join("users.toml"), &users(&["PHOTOS"]));
        let directory = files.path().to_owned();
        let cluster = Cluster::up_with(4, |spec| {
            spec.tls = true;
            spec.configure = Some(Box::new(move |config| add_photos(config, &directory, at)));
            if at == At::Addresses {
                spec.prepare = Some(Box::new(|lab| {
                    for host in ["switch", "fe0", "be0", "be1", "be2", "be3"] {
                        set_up(lab, host);
                    }
                }));
            }
            change(spec);
        });
        let config = Config::load(&cluster.lab.config_path()).unwrap();
        let photos = config.part(PHOTOS).unwrap();
        let two = Self {
            photos: photos.service.address.iter().collect(),
            signer: signer("PHOTOS"),
            files,
            cluster,
        };
        eventually("the bucket of the other service is made", PATIENCE, || {
            let made = two.ask_photos(&two.signer, "PUT", "", b"");
            [200, 409].contains(&made.status())
        });
        two
    }

    fn connect_to_photos(&self, n: usize) -> Client {
        let address = self.photos[n % self.photos.len()];
        self.cluster.connect_to(address, |_| {})
    }

    /// The answer of the other service; `key` is in the bucket.
    fn ask_photos(&self, signer: &Signer, method: &str, key: &str, body: &[u8]) -> Answered {
        let mut client = self.connect_to_photos(key.len());
        client.call(&self.for_photos(signer, method, key, body))
    }

    fn for_photos(&self, signer: &Signer, method: &str, key: &str, body: &[u8]) -> Vec<u8> {
        let target = match key {
            "" => format!("/{BUCKET}"),
            key => format!("/{BUCKET}/{key}"),
        };
        signed(signer, &self.photos[0].to_string(), method, &target, body).unwrap()
    }

    /// The answer of the first service to a request by this key.
    fn ask_first(&self, signer: &Signer, method: &str, key: &str) -> Answered {
        let target = format!("/{BUCKET}/{key}");
        let host = self.cluster.service.to_string();
        let request = signed(signer, &host, method, &target, b"").unwrap();
        self.cluster.connect().call(&request)
    }

    /// A counter of hand-offs at an admin socket.
    fn count(&self, socket: &str, counter: &str) -> u64 {
        let directory = self.cluster.lab.config_path().with_file_name("admin");
        let mut stream = UnixStream::connect(directory.join(format!("{socket}.sock"))).unwrap();
        writeln!(stream, "counters").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let document: Value = serde_json::from_str(&line).unwrap();
        document["handoff"][counter].as_u64().unwrap()
    }

    /// Stores objects at the other service and reads them over one connection of each family, which
    /// moves between its backends.
    fn use_photos(&self, label: &str) {
        let body = |n: usize| vec![n as u8; LEN as usize];
        let key = |n: usize| format!("{label}-{n}");
        for n in 0..OBJECTS {
            let put = self.ask_photos(&self.signer, "PUT", &key(n), &body(n));
            assert_eq!(put.status(), 200, "{}", put.text());
        }
        for family in 0..self.photos.len() {
            let mut client = self.connect_to_photos(family);
            for n in 0..OBJECTS {
                let got = client.call(&self.for_photos(&self.signer, "GET", &key(n), b""));
                assert_eq!(got.status(), 200, "{}", got.text());
                assert!(got.body == body(n), "another body");
            }
        }
    }

    fn hang_up(&self, host: &str) {
        let pid = self.cluster.lab.pid(host).unwrap().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
    }

    /// The hand-offs of the nodes with these sockets, once the sources have counted them.
    fn moved(&self, sockets: &[&str]) -> u64 {
        let sum = |counter| -> u64 { sockets.iter().map(|at| self.count(at, counter)).sum() };
        eventually("the sources know the ends", PATIENCE, || {
            sum("exports_moved") + sum("exports_kept") == sum("exports_started")
        });
        sum("exports_moved")
    }
}

fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&both).into_owned();
    (output.status.success(), text)
}

#[test]
fn two_services_have_keys_objects_and_hand_offs_of_their_own() {
    let Some(_turn) = turn() else { return };
    let two = Two::up(At::Addresses, |_| {});
    let cluster = &two.cluster;
    let first = ["fe0", "be0", "be1"];
    let second = ["fe0.photos", "be2", "be3"];

    // Hand-offs of each service are among its nodes.
    let before = (two.moved(&first), two.moved(&second));
    two.use_photos("album");
    assert!(
        two.moved(&second) > before.1 + 4,
        "no hand-offs at the second"
    );
    assert_eq!(two.moved(&first), before.0, "a hand-off at the first");
    let objects: Vec<_> = (0..OBJECTS)
        .map(|n| Object::new(format!("album-{n}"), LEN + n as u64))
        .collect();
    let before = (two.moved(&first), two.moved(&second));
    cluster.put_all(&objects);
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    for mut client in [cluster.connect(), tls::connect(cluster, &config)] {
        objects
            .iter()
            .for_each(|object| client.get(cluster, object));
    }
    assert!(
        two.moved(&first) > before.0 + 4,
        "no hand-offs at the first"
    );
    assert_eq!(two.moved(&second), before.1, "a hand-off at the second");

    // The same keys in buckets of the same name are other objects.
    let at_photos = two.ask_photos(&two.signer, "GET", "album-3", b"");
    assert_eq!(at_photos.body, vec![3; LEN as usize]);
    let other = two.ask_photos(&two.signer, "PUT", "alone", b"photo");
    assert_eq!(other.status(), 200);
    let absent = two.ask_first(&cluster.new_signer(), "GET", "alone");
    assert_eq!(absent.status(), 404, "{}", absent.text());

    // Keys of one service are unknown at the other.
    for answer in [
        two.ask_first(&two.signer, "GET", "album-1"),
        two.ask_photos(&cluster.new_signer(), "GET", "album-1", b""),
    ] {
        assert_eq!(answer.status(), 403);
        assert!(
            answer.text().contains("InvalidAccessKeyId"),
            "{}",
            answer.text()
        );
    }

    // An unmodified client at both.
    let credential = cluster.lab.credential();
    let copy = |endpoint: &str, name: &str, secret: &str| {
        let mut command = cluster.lab.command("client", "aws").unwrap();
        command.args([
            "--endpoint-url",
            endpoint,
            "s3",
            "ls",
            &format!("s3://{BUCKET}/"),
        ]);
        command.env("AWS_ACCESS_KEY_ID", name);
        run(command.env("AWS_SECRET_ACCESS_KEY", secret))
    };
    for address in &two.photos {
        let endpoint = format!("http://{}", host_of(*address));
        let (is_well, said) = copy(&endpoint, "PHOTOS", "PHOTOS-secret");
        assert!(is_well && said.contains("alone"), "{said}");
        let (is_well, said) = copy(&endpoint, &credential.access_key, &credential.secret_key);
        assert!(!is_well && said.contains("InvalidAccessKeyId"), "{said}");
    }
    for endpoint in cluster.lab.endpoints() {
        let (is_well, said) = copy(&endpoint, &credential.access_key, &credential.secret_key);
        assert!(is_well && !said.contains("alone"), "{said}");
    }

    for host in ["switch", "fe0", "be2"] {
        let (is_well, said) = doctor(&cluster.lab, host);
        assert!(is_well, "{host}: {said}");
    }
}

/// The host of an address without a port, as a URL has it.
fn host_of(address: SocketAddr) -> String {
    let text = address.to_string();
    text.strip_suffix(":80").unwrap().to_owned()
}

/// The status of the switch's answer to a command of `host` for `flow`, signed by a key.
fn command(two: &Two, host: &str, flow: FlowKey, key: (u32, ControlKey)) -> Status {
    let address = two.cluster.address_like(host, flow.client.ip());
    let known = two.cluster.flow_of(flow.client).unwrap();
    let request = Query {
        key_id: key.0,
        request_id: 1,
        time_ns: 0,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: known.epoch + 1,
        flow,
        owner: Owner {
            addr: SocketAddr::new(address, 20_000),
            via: address,
        },
        run: RunId::NONE,
    };
    let config = Config::load(&two.cluster.lab.config_path()).unwrap();
    let control = config.switch.unwrap().control.of(address).unwrap();
    let answer = |request: &Query| {
        two.cluster.on(host, || {
            let socket = UdpSocket::bind(SocketAddr::new(address, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            socket.connect(control).unwrap();
            socket.send(&request.encode(&key.1)).unwrap();
            let mut bytes = [0; MESSAGE_BYTES];
            socket.recv(&mut bytes).unwrap();
            Answer::decode(&bytes, key.0, &key.1).unwrap()
        })
    };
    // A late command is answered with the switch's time.
    let late = answer(&request);
    assert_eq!(late.status, Status::Late);
    let in_time = Query {
        time_ns: late.time_ns,
        ..request
    };
    answer(&in_time).status
}

#[test]
fn nodes_of_one_service_cannot_command_flows_or_dial_nodes_of_the_other() {
    let Some(_turn) = turn() else { return };
    let two = Two::up(At::Addresses, |_| {});
    let cluster = &two.cluster;
    let key_of = |service: &str| {
        let config = Config::load(&cluster.lab.config_path()).unwrap();
        let part = config.part(service).unwrap();
        let switch = part.switch.unwrap();
        (
            switch.key_id,
            ControlKey::new(*switch.load_key().unwrap().bytes()),
        )
    };
    let objects = cluster.one_on_each("owned", |_| LEN);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    client.get(cluster, &objects[0]);
    let flow = cluster.flow_of(client.local()).unwrap().flow;
    // Neither the key of the other service nor an owner of it.
    assert_eq!(command(&two, "be2", flow, key_of(PHOTOS)), Status::Denied);
    assert_eq!(command(&two, "be2", flow, key_of("")), Status::Denied);
    assert!(cluster.switch_count("control_denied") >= 2);
    client.get(cluster, &objects[1]);

    let pki = cluster.lab.config_path().with_file_name("pki");
    let refused = |host: &str, socket: &str, port: u16, by: &str| {
        let before = two.count(socket, "peers_refused");
        let address = SocketAddr::new(cluster.lab.address(host).unwrap(), port);
        let config = dialler(&pki, Some((&pki, by)), ALPN_RELAY);
        cluster.on(by, || {
            if let Ok(mut wire) = Wire::dial(address, host, config) {
                wire.assert_ended();
            }
        });
        eventually("the peer is refused", PATIENCE, || {
            two.count(socket, "peers_refused") > before
        });
    };
    refused("be0", "be0", 7400, "be2");
    refused("fe0", "fe0", 7400, "be2");
    refused("fe0", "fe0.photos", PHOTOS_PORT, "be0");
}

#[test]
fn a_reload_changes_one_service_and_a_take_over_replaces_a_frontend_of_both() {
    let Some(_turn) = turn() else { return };
    let two = Two::up(At::Addresses, |_| {});
    let cluster = &two.cluster;
    two.use_photos("before");
    let object = Object::new("kept".into(), LEN);
    let (mut first, mut second) = (cluster.connect(), two.connect_to_photos(0));
    first.put(cluster, &object);
    let get = two.for_photos(&two.signer, "GET", "before-1", b"");
    assert_eq!(second.call(&get).status(), 200);

    // Another user at the second service.
    write_secret(
        &two.files.path().join("users.toml"),
        &users(&["PHOTOS", "GUEST"]),
    );
    eventually("the new key counts", PATIENCE, || {
        let answer = two.ask_photos(&signer("GUEST"), "GET", "before-1", b"");
        answer.status() == 200
    });
    let answer = two.ask_first(&signer("GUEST"), "GET", "kept");
    assert_eq!(answer.status(), 403);

    // What everybody may, and a limit, of the second service.
    let path = cluster.lab.config_path();
    let text = std::fs::read_to_string(&path).unwrap();
    let read = |text: &str| Config::from_toml(text).unwrap();
    let mut config = read(&text);
    let photos = config.service.iter().find(|service| service.name == PHOTOS);
    let mut photos = photos.unwrap().clone();
    photos.limits = Some(ServiceLimits {
        connections: Some(77),
        ..ServiceLimits::default()
    });
    photos.s3.as_mut().unwrap().anonymous = Anonymous::Read;
    let main = config.service.iter().next().unwrap().clone();
    config.service = main.into();
    config.service.push(photos);
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    for host in ["fe0", "be0", "be1", "be2", "be3"] {
        two.hang_up(host);
    }
    let anonymous = |host: SocketAddr, key: &str| {
        let request = format!("GET /{BUCKET}/{key} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let mut client = cluster.connect_to(host, |_| {});
        client.call(request.as_bytes()).status()
    };
    eventually("everybody reads there", PATIENCE, || {
        anonymous(two.photos[0], "before-1") == 200
    });
    assert_eq!(anonymous(cluster.service, "kept"), 403);
    let log = std::fs::read_to_string(cluster.lab.log_path("fe0")).unwrap();
    assert!(log.contains("limits.connections: 10000 -> 77"), "{log}");

    // The connections of both pass to the next process of the frontend.
    take_over(cluster, "fe0");
    first.get(cluster, &object);
    assert_eq!(second.call(&get).status(), 200);
    two.use_photos("after");
    first.get(cluster, &object);
    let listed = ctl(&two, &["reload", "--node", "fe0"]);
    assert_eq!(listed.matches("fe0: no changes").count(), 2, "{listed}");
    let (is_well, said) = run(prism(&two, "fe0")
        .args(["ctl", "status", "--config"])
        .arg(&path));
    assert!(
        !is_well && said.contains("name one with --service"),
        "{said}"
    );
    let listed = ctl(&two, &["status", "--service", PHOTOS]);
    assert!(
        listed.contains("be2") && !listed.contains("be0"),
        "{listed}"
    );
}

fn prism(two: &Two, host: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_prism");
    two.cluster.lab.command(host, program).unwrap()
}

fn ctl(two: &Two, words: &[&str]) -> String {
    let mut command = prism(two, "fe0");
    command.arg("ctl").args(words).arg("--config");
    output(command.arg(two.cluster.lab.config_path()))
}

#[test]
fn each_service_has_a_state_of_its_own_in_etcd() {
    let Some(_turn) = turn() else { return };
    let two = Two::up(At::Port, |spec| spec.etcd = true);
    two.use_photos("etcd");
    let members = |words: &[&str]| ctl(&two, &[&["cluster"], words].concat());
    let photos = members(&["--service", PHOTOS]);
    assert!(
        photos.contains("be3") && !photos.contains("be1"),
        "{photos}"
    );
    let config = Config::load(&two.cluster.lab.config_path()).unwrap();
    let first = members(&["--service", &config.cluster.name]);
    assert!(first.contains("be1") && !first.contains("be3"), "{first}");
}
