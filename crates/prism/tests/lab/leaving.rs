//! Nodes that end in order, by SIGTERM, while clients read and write without repeating a
//! request.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prism_http::Method;
use prism_lab::{Families, LabSpec, Programs};
use prism_netns::NetNs;
use prism_signer::Signer;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls;
use crate::support::{Cluster, Stop, eventually, say, turn};

pub const PRISM: &str = env!("CARGO_BIN_EXE_prism");
const MIB: u64 = 1 << 20;
/// The longest time until a node is in sync again.
pub const IN_SYNC: Duration = Duration::from_secs(30);
/// The longest answer while a node leaves. A stalled request is as bad as a broken one.
const LONGEST: Duration = Duration::from_secs(3);

pub fn up(frontends: usize, tls: bool) -> Cluster {
    up_by(Path::new(PRISM), frontends, tls)
}

pub fn up_by(program: &Path, frontends: usize, tls: bool) -> Cluster {
    Cluster::up_with(3, |spec: &mut LabSpec| {
        spec.programs = Programs::Prism(program.into());
        (spec.frontends, spec.etcd, spec.tls) = (frontends, true, tls);
        // A previous release knows neither IPv6 nor keys of nodes.
        spec.shared_key = std::env::var_os("PRISM_PREVIOUS").is_some();
        if spec.shared_key {
            spec.family = Families::V4;
        }
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            config.limits.drain_timeout_s = 8;
            // A previous release does not know this field, which labs do not need.
            config.nodes.iter_mut().for_each(|node| node.gateway = None);
        }));
    })
}

/// A client on the client's host, which knows only the service address.
#[derive(Clone)]
pub struct Caller {
    namespace: String,
    service: SocketAddr,
    https: Option<(SocketAddr, Arc<ClientConfig>)>,
    key: String,
    secret: String,
}

impl Caller {
    pub fn of(cluster: &Cluster) -> Self {
        let namespace = cluster.lab.namespace("client").unwrap();
        let namespace = namespace.file_name().unwrap().to_str().unwrap().to_owned();
        let credential = cluster.lab.credential();
        let https = cluster.lab.https_service().map(|service| {
            let config = tls::config(cluster, rustls::ALL_VERSIONS);
            (service, Arc::new(config))
        });
        Self {
            namespace,
            service: cluster.service,
            https,
            key: credential.access_key.clone(),
            secret: credential.secret_key.clone(),
        }
    }

    fn connect(&self, tls: bool) -> Client {
        let https = self.https.as_ref().filter(|_| tls);
        let address = https.map_or(self.service, |(service, _)| *service);
        let stream = NetNs::named(&self.namespace)
            .unwrap()
            .run(|| std::net::TcpStream::connect(address).unwrap())
            .unwrap();
        let client = Client::new(stream);
        match https {
            Some((service, config)) => {
                let name = ServerName::from(service.ip());
                let session = ClientConnection::new(config.clone(), name).unwrap();
                client.with_tls(session)
            }
            None => client,
        }
    }

    /// One request and its whole answer. Returns whether the connection goes on.
    fn call(&self, client: &mut Client, tls: bool, object: &Object, writes: bool) -> bool {
        let service = match &self.https {
            Some((service, _)) if tls => *service,
            _ => self.service,
        };
        let signer = Signer::new(&self.key, &self.secret, "us-east-1");
        let request = match writes {
            true => Request::put_unsigned(object),
            false => Request::get(object),
        };
        client.send(&request.encode_by(&signer, service));
        if writes {
            client.send_object(object);
            let answer = client.answer(&Method::PUT);
            assert_eq!(
                answer.status(),
                200,
                "PUT {}: {}",
                object.key,
                answer.text()
            );
            return answer.header("Connection") != "close";
        }
        let head = client.head();
        client.expect_body(&head, object);
        head.headers().get_str("Connection") != Some("close")
    }
}

/// Sends requests one after the other until told to stop.
pub struct Load {
    begun: Instant,
    /// The host that is being restarted.
    pub restarting: Mutex<String>,
    pub stop: AtomicBool,
    done: AtomicU64,
    failed: Mutex<Vec<String>>,
    longest: Mutex<Duration>,
}

impl Load {
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            restarting: Mutex::default(),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            failed: Mutex::default(),
            longest: Mutex::default(),
        }
    }

    /// One client, which keeps its connections or opens one for each request. It writes and
    /// reads its own objects, and never repeats a request.
    pub fn run(&self, caller: &Caller, number: usize, tls: bool, keeps: bool) {
        let objects = (0..4).map(|n| Object::new(format!("c{number}-{n}"), 3000 + 40_000 * n));
        let objects: Vec<Object> = objects.collect();
        let mut open: Option<Client> = None;
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let object = &objects[turn % objects.len()];
            // It writes each object before it reads it.
            let writes = turn < objects.len() || turn.is_multiple_of(3);
            let begun = Instant::now();
            let called = catch_unwind(AssertUnwindSafe(|| {
                let mut client = open.take().unwrap_or_else(|| caller.connect(tls));
                let goes_on = caller.call(&mut client, tls, object, writes);
                (client, goes_on)
            }));
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(begun.elapsed());
            drop(longest);
            match called {
                Ok((client, true)) if keeps => open = Some(client),
                Ok((client, _)) => end(client, tls),
                Err(panic) => {
                    let why = panic.downcast_ref::<String>().cloned();
                    let what = if writes { "PUT" } else { "GET" };
                    let kind = if keeps { "kept" } else { "new" };
                    self.failed.lock().unwrap().push(format!(
                        "{:?} after the start, while {:?} restarts: {what} tls {tls} {kind} of \
                         {:?}: {}",
                        self.begun.elapsed(),
                        self.restarting.lock().unwrap(),
                        begun.elapsed(),
                        why.unwrap_or_default()
                    ));
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            turn += 1;
        }
        if let Some(client) = open {
            end(client, tls);
        }
    }

    pub fn assert_well(&self) {
        let failed = self.failed.lock().unwrap();
        let longest = *self.longest.lock().unwrap();
        say(&format!(
            "{} requests, {} failed, the longest took {longest:?}",
            self.done.load(Ordering::Relaxed),
            failed.len()
        ));
        for failure in failed.iter().take(20) {
            say(failure);
        }
        assert!(failed.is_empty(), "{} requests failed", failed.len());
        assert!(longest < LONGEST, "a request took {longest:?}");
    }
}

fn end(client: Client, tls: bool) {
    if tls {
        client.close_tls();
    }
}

/// A client that has asked for `object`. `host`, one of its replicas, is answering.
fn slow_answer_of(cluster: &Cluster, host: &str, object: &Object) -> Client {
    loop {
        let before = cluster.counter(host, "handoff", "imported");
        let mut client = cluster.connect();
        client.send(&Request::get(object).encode(cluster));
        std::thread::sleep(Duration::from_millis(200));
        if cluster.counter(host, "handoff", "imported") > before {
            return client;
        }
        client.expect(object);
    }
}

pub fn all_in_sync(cluster: &Cluster) -> bool {
    let seen = cluster.lab.ask("fe0", "cluster");
    seen.is_ok_and(|seen| {
        let backends = seen["backends"].as_array().unwrap();
        seen["phase"] == "settled" && backends.iter().all(|b| b["status"] == "in-sync")
    })
}

#[test]
fn a_backend_that_ends_cuts_nobody_and_keeps_nobody_waiting() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(1, false);
    eventually("all are in sync", IN_SYNC, || all_in_sync(&cluster));
    let long = Object::new(cluster.key_on("be0", "long"), 100 * MIB);
    let upload = Object::new(cluster.key_on("be0", "upload"), 20 * MIB);
    cluster.connect().put(&cluster, &long);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "leaving");
    let (caller, load) = (Caller::of(&cluster), Load::new());
    let mut slow = slow_answer_of(&cluster, "be0", &long);
    let mut slow_put = cluster.connect();
    slow_put.send(&Request::put_unsigned(&upload).encode(&cluster));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let stop = Stop(&load.stop);
        let clients: Vec<_> = (0..20)
            .map(|n| {
                let (load, caller) = (&load, &caller);
                scope.spawn(move || load.run(caller, n, false, true))
            })
            .collect();
        let reading = scope.spawn(|| {
            let head = slow.head();
            let mut offset = 0;
            slow.body(&head, &Method::GET, |piece| {
                long.check(offset, piece);
                offset += piece.len() as u64;
                if begun.elapsed() < Duration::from_secs(3) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            offset
        });
        let writing = scope.spawn(|| {
            let mut offset = 0;
            while offset < upload.len {
                let piece = upload.at(offset);
                let piece = &piece[..piece.len().min(64 << 10)];
                slow_put.send(piece);
                offset += piece.len() as u64;
                let due = Duration::from_millis(2000 * offset / upload.len);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            slow_put.answer(&Method::PUT).status()
        });
        std::thread::sleep(Duration::from_millis(500));
        let stopping = Instant::now();
        cluster.lab.stop("be0").unwrap();
        let took = stopping.elapsed();
        say(&format!("be0 ended within {took:?}"));
        assert!(
            took > Duration::from_secs(1),
            "it did not wait for what is slow"
        );
        assert_eq!(reading.join().unwrap(), long.len);
        assert_eq!(writing.join().unwrap(), 200);
        std::thread::sleep(Duration::from_millis(300));
        drop(stop);
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
    load.assert_well();
    watch.finish(ClientResets::None);
}

/// The number of restarts of each process: `PRISM_ROLLING_ROUNDS`, or one.
fn rounds() -> usize {
    let rounds = std::env::var("PRISM_ROLLING_ROUNDS");
    rounds.map_or(1, |rounds| rounds.parse().unwrap())
}

/// The program of a lab, which each process runs from its next start.
pub struct Installed(tempfile::TempDir);

impl Installed {
    /// First it is the program `PRISM_PREVIOUS` of another release, if that is set.
    pub fn new() -> Self {
        let installed = Self(tempfile::tempdir().unwrap());
        let previous = std::env::var_os("PRISM_PREVIOUS");
        installed.replace(previous.unwrap_or_else(|| PRISM.into()));
        installed
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("prism")
    }

    pub fn replace(&self, program: impl AsRef<Path>) {
        let next = self.path().with_extension("next");
        std::os::unix::fs::symlink(program, &next).unwrap();
        std::fs::rename(next, self.path()).unwrap();
    }
}

/// A rolling upgrade: with `PRISM_PREVIOUS`, from the program of the previous release.
#[test]
fn every_process_restarts_under_load_and_no_request_fails() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    let mut cluster = up_by(&installed.path(), 2, true);
    installed.replace(PRISM);
    eventually("all are in sync", IN_SYNC, || all_in_sync(&cluster));
    let watch = Watch::events(&cluster, "rolling");
    let (caller, load) = (Caller::of(&cluster), Load::new());
    std::thread::scope(|scope| {
        let stop = Stop(&load.stop);
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (load, caller) = (&load, &caller);
                scope.spawn(move || load.run(caller, n, n % 2 == 0, n < 4))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..rounds() {
            for host in ["be0", "fe0", "be1", "fe1", "be2", "switch"] {
                let begun = Instant::now();
                host.clone_into(&mut load.restarting.lock().unwrap());
                cluster.lab.restart(host).unwrap();
                let restarted = begun.elapsed();
                if host.starts_with("fe") {
                    let accepted = || cluster.counter(host, "handoff", "accepted");
                    eventually("it has new clients", IN_SYNC, || accepted() > 0);
                }
                eventually("all are in sync", IN_SYNC, || all_in_sync(&cluster));
                let failed = load.failed.lock().unwrap().len();
                say(&format!(
                    "{host}: restarted within {restarted:?}, well after {:?}, {failed} failed",
                    begun.elapsed()
                ));
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(stop);
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
    load.assert_well();
    watch.finish(ClientResets::None);
}

#[test]
fn a_frontend_leaves_right_after_the_other_is_back_and_refuses_no_new_client() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(2, true);
    eventually("all are in sync", IN_SYNC, || all_in_sync(&cluster));
    let watch = Watch::events(&cluster, "by-turns");
    let (caller, load) = (Caller::of(&cluster), Load::new());
    std::thread::scope(|scope| {
        let stop = Stop(&load.stop);
        let clients: Vec<_> = (0..4)
            .map(|n| {
                let (load, caller) = (&load, &caller);
                scope.spawn(move || load.run(caller, n, n % 2 == 0, false))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        for host in ["fe0", "fe1", "fe0", "fe1"] {
            let begun = Instant::now();
            host.clone_into(&mut load.restarting.lock().unwrap());
            cluster.lab.restart(host).unwrap();
            let failed = load.failed.lock().unwrap().len();
            say(&format!(
                "{host}: restarted within {:?}, {failed} failed",
                begun.elapsed()
            ));
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(stop);
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
    load.assert_well();
    watch.finish(ClientResets::None);
}

#[test]
fn connections_that_wait_move_when_they_are_told_to_and_their_node_goes_on() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let object = Object::new(cluster.key_on("be0", "drained"), 20_000);
    cluster.put_all(std::slice::from_ref(&object));
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "drained");
    let mut clients: Vec<Client> = (0..8).map(|_| cluster.connect()).collect();
    for client in &mut clients {
        client.get(&cluster, &object);
    }
    let open = || cluster.counter("be0", "handoff", "connections_open");
    assert_eq!(open(), 8);
    let mut ctl = cluster
        .lab
        .command("be0", env!("CARGO_BIN_EXE_prism"))
        .unwrap();
    ctl.args(["ctl", "drain-connections", "be0", "--config"]);
    let told = ctl.arg(cluster.lab.config_path()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("8 connections"), "{told}");
    eventually("all have moved", Duration::from_secs(5), || open() == 0);
    for client in &mut clients {
        client.get(&cluster, &object);
    }
    assert_eq!(open(), 8, "it takes connections as before");
    drop(clients);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}
