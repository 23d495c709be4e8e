//! Two services in one cluster: one over HTTP and HTTPS, one over HTTP, both in both families. Each
//! has backends and users of its own, and neither reaches what the other has.

mod two;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use prism_config::{Anonymous, ConfigFile, ServiceLimits};
use prism_proto::control::{
    Answer, ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request as Query, RunId, Status,
};
use prism_proto::node::ALPN_RELAY;

use crate::setup::doctor;
use crate::successor::take_over;
use crate::support::objects::Object;
use crate::support::wire::{Wire, dialler};
use crate::support::{BUCKET, eventually, node_key, output, tls, turn};
use two::{At, LEN, OBJECTS, PATIENCE, PHOTOS, PHOTOS_PORT, Two, signer, users, write_secret};

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
    let config = ConfigFile::load(&two.cluster.lab.config_path()).unwrap();
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
    let key_of = |service: &str, node: &str| {
        let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
        let part = config.part(service).unwrap();
        node_key(part.switch.as_ref().unwrap(), node)
    };
    let objects = cluster.one_on_each("owned", |_| LEN);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    client.get(cluster, &objects[0]);
    let flow = cluster.flow_of(client.local()).unwrap().flow;
    // Neither the key of the other service nor an owner of it.
    assert_eq!(
        command(&two, "be2", flow, key_of(PHOTOS, "be2")),
        Status::Denied
    );
    assert_eq!(
        command(&two, "be2", flow, key_of("", "be0")),
        Status::Denied
    );
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

    // The second service has other rights for everybody, and a limit.
    let path = cluster.lab.config_path();
    let text = std::fs::read_to_string(&path).unwrap();
    let read = |text: &str| ConfigFile::from_toml(text).unwrap();
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
    let config = ConfigFile::load(&two.cluster.lab.config_path()).unwrap();
    let first = members(&["--service", &config.cluster.name]);
    assert!(first.contains("be1") && !first.contains("be3"), "{first}");
}
