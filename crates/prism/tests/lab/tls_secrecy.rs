//! A TLS session that moves shows others nothing, neither on the network between nodes nor in
//! their logs. The tests search both for the objects and for the session's secrets by the
//! client, also those after KeyUpdates.

mod generations;
mod search;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use prism_lab::{Capture, CaptureOptions};
use rustls::{ConnectionTrafficSecrets, KeyLog};

use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::tls::{Version, config, connect, programs::path_of, up_configured};
use crate::support::{Cluster, say, turn};
use generations::TrafficSecret;
use search::Search;

/// The number of times that a session of TLS 1.3 gets new keys in both directions.
const KEY_UPDATES: usize = 3;

/// The client's secrets, each with its name.
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

/// Captures of whole packets on the links of all nodes.
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

    /// All captured bytes.
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

/// GETs, with new keys for both directions before each round but the first.
fn use_session(client: &mut Client, version: Version, objects: &[Object]) {
    get_all(client, objects);
    for _ in 0..KEY_UPDATES {
        if version == Version::Tls13 {
            client.ask_for_new_keys();
        }
        get_all(client, objects);
    }
}

/// The keys in use at a connection's end, for sent and received records.
fn last_keys(client: Client) -> [Vec<u8>; 2] {
    let tls = client.close_tls();
    let secrets = tls.dangerous_extract_secrets().unwrap();
    [secrets.tx.1, secrets.rx.1].map(|keys| {
        let (ConnectionTrafficSecrets::Aes128Gcm { key, .. }
        | ConnectionTrafficSecrets::Aes256Gcm { key, .. }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, .. }) = keys
        else {
            panic!("keys of another cipher");
        };
        key.as_ref().to_vec()
    })
}

/// Every secret and key of TLS 1.3 from the handshake to the connection's end. Reaching the
/// last keys, `last`, shows that none is missed.
fn add_generations(search: &mut Search, kept: &Secrets, last: &[Vec<u8>; 2]) {
    let kept = kept.lock().unwrap();
    let labels = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];
    for (label, last) in labels.into_iter().zip(last) {
        let (_, first) = kept.iter().find(|(kept, _)| kept == label).unwrap();
        let mut secret = TrafficSecret(first.clone());
        for generation in 0..=KEY_UPDATES {
            if generation > 0 {
                secret = secret.next();
            }
            let what = format!("{label} after {generation} KeyUpdates");
            search.add_secret(&what, &secret.0);
            search.add_secret(&format!("key of {what}"), &secret.key(last.len()));
        }
        assert_eq!(secret.key(last.len()), *last, "{label}: other KeyUpdates");
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

    // The search finds text that passes in the clear.
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
        use_session(&mut client, version, &objects);
        let last = last_keys(client);
        match version {
            Version::Tls13 => add_generations(&mut secrets, &kept, &last),
            Version::Tls12 => last
                .iter()
                .for_each(|key| secrets.add_secret("a key of TLS 1.2", key)),
        }
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

/// Returns the length.
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
