//! A cluster of two services.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use prism_config::{ConfigFile, S3, Service};
use prism_lab::LabSpec;
use prism_signer::Signer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::setup::set_up;
use crate::support::client::{Answer, Client, signed};
use crate::support::{BUCKET, Cluster, eventually};

pub const PATIENCE: Duration = Duration::from_secs(20);
/// The second service, and its node port.
pub const PHOTOS: &str = "photos";
pub const PHOTOS_PORT: u16 = 7401;
pub const OBJECTS: usize = 12;
pub const LEN: u64 = 40_000;

/// A cluster of two services. The first has the lab's name and addresses, and the backends be0 and
/// be1; the other has be2 and be3.
pub struct Two {
    pub cluster: Cluster,
    pub photos: Vec<SocketAddr>,
    pub signer: Signer,
    pub files: tempfile::TempDir,
}

pub fn write_secret(path: &Path, text: &str) {
    let mut open = std::fs::OpenOptions::new();
    let file = open.create(true).write(true).truncate(true).mode(0o600);
    file.open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

pub fn users(names: &[&str]) -> String {
    let users = names.iter().map(|name| {
        format!("[[credential]]\naccess_key = \"{name}\"\nsecret_key = \"{name}-secret\"\nadmin = true\n")
    });
    users.collect()
}

pub fn signer(name: &str) -> Signer {
    Signer::new(name, format!("{name}-secret"), "us-east-1")
}

/// The address two above that of the first service, which the lab leaves free.
fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => IpAddr::from((u32::from(v4) + 2).to_be_bytes()),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6) + 2).to_be_bytes()),
    }
}

/// The parts that the second service has of its own.
#[derive(Clone, Copy, PartialEq)]
pub enum At {
    /// Addresses, which `prism setup` gives to the hosts.
    Addresses,
    /// A port of the first service's addresses.
    Port,
}

/// Gives the configuration its second service, whose files are in `files`.
fn add_photos(config: &mut ConfigFile, files: &Path, at: At) {
    let hosts = config.service.first().address.hosts().into_iter();
    let photos = hosts.map(|ip| match at {
        At::Addresses => SocketAddr::new(next(ip), 80),
        At::Port => SocketAddr::new(ip, 8080),
    });
    let backends = |names: [&str; 2]| names.map(str::to_owned).to_vec();
    config
        .service
        .first_mut()
        .name
        .clone_from(&config.cluster.name);
    config.service.first_mut().backends = backends(["be0", "be1"]);
    config.service.first_mut().s3 = Some(std::mem::take(&mut config.s3));
    config.service.push(Service {
        name: PHOTOS.into(),
        address: photos.collect(),
        backends: backends(["be2", "be3"]),
        relay_up_to: config.service.first().relay_up_to,
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
    pub fn up(at: At, change: impl FnOnce(&mut LabSpec)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let secret = format!("secret {}", "7a".repeat(32));
        write_secret(&files.path().join("switch.key"), &secret);
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
        let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
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

    pub fn connect_to_photos(&self, n: usize) -> Client {
        let address = self.photos[n % self.photos.len()];
        self.cluster.connect_to(address, |_| {})
    }

    /// The answer of the other service; `key` is in the bucket.
    pub fn ask_photos(&self, signer: &Signer, method: &str, key: &str, body: &[u8]) -> Answer {
        let mut client = self.connect_to_photos(key.len());
        client.call(&self.for_photos(signer, method, key, body))
    }

    pub fn for_photos(&self, signer: &Signer, method: &str, key: &str, body: &[u8]) -> Vec<u8> {
        let target = match key {
            "" => format!("/{BUCKET}"),
            key => format!("/{BUCKET}/{key}"),
        };
        signed(signer, &self.photos[0].to_string(), method, &target, body).unwrap()
    }

    /// The answer of the first service to a request by this key.
    pub fn ask_first(&self, signer: &Signer, method: &str, key: &str) -> Answer {
        let target = format!("/{BUCKET}/{key}");
        let host = self.cluster.service.to_string();
        let request = signed(signer, &host, method, &target, b"").unwrap();
        self.cluster.connect().call(&request)
    }

    /// A counter of hand-offs at an admin socket.
    pub fn count(&self, socket: &str, counter: &str) -> u64 {
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
    pub fn use_photos(&self, label: &str) {
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

    pub fn hang_up(&self, host: &str) {
        let pid = self.cluster.lab.pid(host).unwrap().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
    }

    /// The hand-offs of the nodes with these sockets, once the sources have counted them.
    pub fn moved(&self, sockets: &[&str]) -> u64 {
        let sum = |counter| -> u64 { sockets.iter().map(|at| self.count(at, counter)).sum() };
        eventually("the sources know the ends", PATIENCE, || {
            sum("exports_moved") + sum("exports_kept") == sum("exports_started")
        });
        sum("exports_moved")
    }
}
