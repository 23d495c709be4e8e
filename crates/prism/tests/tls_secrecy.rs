//! What others could learn of a TLS session that moves: nothing from the network
//! between nodes, and nothing from their logs. The sessions' secrets, as the
//! client knows them, and the objects are searched for in both.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "test code"
)]

mod support;
mod tls_support;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use prism_lab::{Capture, CaptureOptions};
use rustls::{ConnectionTrafficSecrets, KeyLog};

use support::client::Client;
use support::objects::Object;
use support::{Cluster, say, turn};
use tls_support::{Version, config, connect, programs::path_of, up_configured};

/// Bytes by which content is recognised: none of 2^128 comes by chance.
const MARK: usize = 16;
/// Distance of the marks of an object: that much of it cannot pass unseen.
const STRIDE: usize = 64;

/// What the client knows and nobody else should, with what it is.
type Secrets = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Keeps the secrets of handshakes.
#[derive(Debug)]
struct Keeper(Secrets);

impl KeyLog for Keeper {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap();
        secrets.push((label.to_owned(), secret.to_vec()));
    }
}

/// Finds any of many byte strings, by their first [`MARK`] bytes.
#[derive(Default)]
struct Search {
    marks: HashMap<[u8; MARK], String>,
}

impl Search {
    fn add(&mut self, what: &str, bytes: &[u8]) {
        let mark = *bytes.first_chunk().unwrap();
        self.marks.insert(mark, what.to_owned());
    }

    fn add_object(&mut self, object: &Object) {
        for piece in object.bytes().chunks_exact(STRIDE) {
            self.add(&object.key, piece);
        }
    }

    /// As it is, and as programs print bytes.
    fn add_secret(&mut self, what: &str, secret: &[u8]) {
        let hex = |digits: fn(&u8) -> String| secret.iter().map(digits).collect::<Vec<_>>();
        self.add(what, secret);
        self.add(what, hex(|b| format!("{b:02x}")).concat().as_bytes());
        self.add(what, hex(|b| format!("{b:02X}")).concat().as_bytes());
        self.add(what, hex(u8::to_string).join(", ").as_bytes());
        self.add(what, hex(|b| format!("{b:02x}")).join(" ").as_bytes());
    }

    /// What of it is in `bytes`.
    fn found(&self, bytes: &[u8]) -> HashSet<&str> {
        let windows = bytes.windows(MARK);
        let marks = windows.filter_map(|window| self.marks.get(window));
        marks.map(String::as_str).collect()
    }
}

/// Whole packets on the links of all nodes.
struct Recording {
    directory: tempfile::TempDir,
    captures: Vec<Capture>,
}

impl Recording {
    fn start(cluster: &Cluster) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let nodes = cluster.frontends().into_iter().chain(cluster.backends());
        let capture = |node: String| {
            let options = CaptureOptions {
                snaplen: 0,
                interface: Some(node.clone()),
                ..CaptureOptions::default()
            };
            let file = directory.path().join(&node);
            let lab = &cluster.lab;
            lab.capture_with("switch", &file, "", &options).unwrap()
        };
        let captures = nodes.map(capture).collect();
        Self {
            directory,
            captures,
        }
    }

    /// All that was recorded.
    fn stop(self) -> Vec<u8> {
        for capture in self.captures {
            assert_eq!(capture.stop().unwrap().dropped, 0, "the capture has gaps");
        }
        let files = std::fs::read_dir(self.directory.path()).unwrap();
        let bytes = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        bytes.collect::<Vec<_>>().concat()
    }
}

fn get_all(client: &mut Client, objects: &[Object]) {
    for object in objects {
        let head = format!("GET {} HTTP/1.1\r\nHost: s3\r\n\r\n", path_of(object));
        client.send(head.as_bytes());
        client.expect(object);
    }
}

/// The keys in use at a connection's end.
fn add_keys(search: &mut Search, version: Version, client: Client) {
    let tls = client.close_tls();
    let keys = tls.dangerous_extract_secrets().unwrap();
    for (direction, keys) in [("sent", keys.tx.1), ("received", keys.rx.1)] {
        let (ConnectionTrafficSecrets::Aes128Gcm { key, .. }
        | ConnectionTrafficSecrets::Aes256Gcm { key, .. }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, .. }) = keys
        else {
            panic!("keys of another cipher");
        };
        search.add_secret(
            &format!("key of what was {direction}, {version:?}"),
            key.as_ref(),
        );
    }
}

#[test]
fn no_secret_and_no_plaintext_of_moving_sessions_is_seen_between_nodes_or_in_logs() {
    let Some(_turn) = turn() else { return };
    let cluster = up_configured(5, |_| {}, |config| config.log.level = "trace".into());
    let mut objects = cluster.one_on_each("secret", |n| 100 + 10 * n as u64);
    objects.extend(cluster.one_on_each("secrets", |n| 60_000 + n as u64));
    cluster.put_all(&objects);
    let mut plaintext = Search::default();
    for object in &objects {
        plaintext.add_object(object);
    }

    // The search sees what passes in the clear.
    let recording = Recording::start(&cluster);
    get_all(&mut cluster.connect(), &objects);
    let seen = recording.stop();
    assert_eq!(plaintext.found(&seen).len(), objects.len(), "over HTTP");

    let kept = Secrets::default();
    let moved = cluster.sum("handoff", "exports_moved");
    let recording = Recording::start(&cluster);
    let mut secrets = Search::default();
    for version in Version::ALL {
        let mut config = config(&cluster, &[version.rustls()]);
        config.key_log = Arc::new(Keeper(Arc::clone(&kept)));
        config.enable_secret_extraction = true;
        let mut client = connect(&cluster, &Arc::new(config));
        for _ in 0..3 {
            get_all(&mut client, &objects);
        }
        add_keys(&mut secrets, version, client);
    }
    let seen = recording.stop();
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    for (label, secret) in kept.lock().unwrap().iter() {
        secrets.add_secret(label, secret);
    }
    say(&format!(
        "{moved} hand-offs, {} KiB of packets, {} secrets",
        seen.len() >> 10,
        kept.lock().unwrap().len()
    ));
    assert!(moved >= 40, "{moved} hand-offs");
    assert!(kept.lock().unwrap().len() >= 6, "no secrets kept");
    assert_eq!(plaintext.found(&seen), HashSet::new(), "between nodes");
    assert_eq!(secrets.found(&seen), HashSet::new(), "between nodes");
    let hosts: Vec<String> = cluster.lab.hosts().map(str::to_owned).collect();
    let logs = hosts.iter().map(|host| cluster.lab.log_path(host));
    let bytes = logs
        .filter(|log| log.exists())
        .map(|log| check_log(&log, &secrets));
    let bytes: usize = bytes.sum();
    say(&format!("{} KiB of logs", bytes >> 10));
    assert!(bytes > 10_000, "the logs are not those of level trace");
}

/// Gives how long it is.
fn check_log(log: &Path, secrets: &Search) -> usize {
    let bytes = std::fs::read(log).unwrap();
    assert_eq!(
        secrets.found(&bytes),
        HashSet::new(),
        "in {}",
        log.display()
    );
    bytes.len()
}

#[test]
fn the_search_finds_a_secret_in_every_form() {
    let secret: Vec<u8> = (100..132).collect();
    let mut search = Search::default();
    search.add_secret("it", &secret);
    let is_found = |bytes: &[u8]| search.found(&[b"before", bytes, b"after"].concat()).len() == 1;
    assert!(is_found(&secret));
    assert!(is_found(format!("{secret:?}").as_bytes()));
    assert!(is_found(
        format!("{secret:02x?}").replace(", ", "").as_bytes()
    ));
    assert!(!is_found(&secret[1..]));
}
