//! Clients at work, until they are told to stop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use prism_config::ConfigFile;
use prism_store::Store;

use super::known::{Bucket, Known, Possible, data_of};
use crate::support::Cluster;
use crate::support::plain::{Connection, Target};

const CLIENTS: usize = 8;
/// Keys of a client in the shared bucket with one possible value.
const KEYS: usize = 10;
/// Keys in a bucket of its own.
const OWN_KEYS: usize = 3;
/// The pause after a request without an answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Clients at work.
pub struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Known>>,
}

impl Clients {
    pub fn start(target: &Target, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..CLIENTS).map(|n| {
            let (target, stop) = (target.clone(), stop.clone());
            let rng = fastrand::Rng::with_seed(seed ^ n as u64);
            std::thread::spawn(move || {
                target.run(|| {
                    let mut client = Client::new(&target, &stop, rng, n);
                    while !stop.load(Ordering::Relaxed) {
                        client.act();
                    }
                    client.known
                })
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }

    /// Whether a client saw an impossible value.
    pub fn have_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    pub fn stop(self) -> Vec<Known> {
        self.stop.store(true, Ordering::Relaxed);
        let known = self.threads.into_iter().map(JoinHandle::join);
        known.map(Result::unwrap).collect()
    }
}

struct Client<'a> {
    target: &'a Target,
    stop: &'a AtomicBool,
    rng: fastrand::Rng,
    connection: Option<Connection>,
    known: Known,
    /// This client's number, part of the names of its keys and buckets.
    number: usize,
    next: u64,
}

impl<'a> Client<'a> {
    fn new(target: &'a Target, stop: &'a AtomicBool, rng: fastrand::Rng, number: usize) -> Self {
        Self {
            target,
            stop,
            rng,
            connection: None,
            known: Known::new(number),
            number,
            next: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A new name.
    fn name(&mut self, kind: &str) -> String {
        let next = self.next();
        format!("{kind}-{}-{next}", self.number)
    }

    /// One request. None when no answer came, or a 503.
    fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
        let open = match self.connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(self.target),
        };
        let answer = open.and_then(|mut open| Ok((open.call(method, path, body)?, open)));
        match answer {
            Ok(((status, body), open)) if status < 500 && !says_not_now(&body) => {
                self.connection = Some(open);
                self.known.answered += 1;
                Some((status, body))
            }
            _ => {
                self.known.unanswered += 1;
                std::thread::sleep(PAUSE);
                None
            }
        }
    }

    /// The same until an answer, or the end of the run.
    fn insist(&mut self, method: &str, path: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
        while !self.stop.load(Ordering::Relaxed) {
            let answer = self.call(method, path, body);
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    fn act(&mut self) {
        match self.rng.u8(..100) {
            0..35 => {
                let key = self.a_key();
                self.write(|known| &mut known.shared, &key);
            }
            35..65 => self.read(|known| &mut known.shared),
            65..75 => {
                let key = format!("k{}", self.rng.usize(..OWN_KEYS));
                if self.known.own.exists {
                    self.write(|known| &mut known.own, &key);
                }
            }
            75..83 => self.read(|known| &mut known.own),
            83..90 => self.set_cors(),
            _ if self.known.own.exists => self.delete_bucket(),
            _ => self.create_bucket(),
        }
    }

    /// A key of the shared bucket with one possible value.
    fn a_key(&mut self) -> String {
        let keys = self.known.shared.keys.iter();
        let sure = keys.filter(|(_, possible)| possible.is_sure());
        let sure: Vec<&String> = sure.map(|(key, _)| key).collect();
        match sure.len() < KEYS {
            true => self.name("key"),
            false => sure[self.rng.usize(..sure.len())].clone(),
        }
    }

    fn write(&mut self, bucket: impl Fn(&mut Known) -> &mut Bucket, key: &str) {
        let path = format!("/{}/{key}", bucket(&mut self.known).name);
        let keys = &mut bucket(&mut self.known).keys;
        let possible = keys.entry(key.to_owned()).or_insert(Possible::nothing());
        if !possible.is_sure() {
            return;
        }
        let value = (self.rng.u8(..4) > 0).then(|| self.next());
        let answer = match value {
            Some(version) => self.call("PUT", &path, &data_of(&path[1..], version)),
            None => self.call("DELETE", &path, b""),
        };
        if let Some((status, body)) = &answer {
            let text = String::from_utf8_lossy(body);
            assert!([200, 204].contains(status), "{path}: {status} {text}");
        }
        let keys = &mut bucket(&mut self.known).keys;
        let possible = keys.get_mut(key).unwrap();
        possible.was_written(value, answer.is_some());
    }

    fn read(&mut self, bucket: impl Fn(&mut Known) -> &mut Bucket) {
        let keys: Vec<String> = bucket(&mut self.known).keys.keys().cloned().collect();
        if keys.is_empty() || !bucket(&mut self.known).exists {
            return;
        }
        let key = &keys[self.rng.usize(..keys.len())];
        let path = format!("/{}/{key}", bucket(&mut self.known).name);
        let answer = self.call("GET", &path, b"");
        bucket(&mut self.known).read(|_| answer.clone(), key);
    }

    fn set_cors(&mut self) {
        let own = &self.known.own;
        if !own.exists || !own.cors.is_sure() {
            return;
        }
        let path = format!("/{}?cors", own.name);
        let value = (self.rng.u8(..4) > 0).then(|| self.next());
        let answer = match value {
            Some(version) => self.call("PUT", &path, cors(version).as_bytes()),
            None => self.call("DELETE", &path, b""),
        };
        if let Some((status, body)) = &answer {
            let text = String::from_utf8_lossy(body);
            assert!([200, 204].contains(status), "{path}: {status} {text}");
        }
        self.known.own.cors.was_written(value, answer.is_some());
        let answer = self.call("GET", &path, b"");
        self.known.own.read_cors(|_| answer.clone());
    }

    fn create_bucket(&mut self) {
        let path = format!("/{}", self.known.own.name);
        let first = self.call("PUT", &path, b"");
        self.known.own = Bucket::new(self.known.own.name.clone(), true);
        match &first {
            Some((status, _)) => assert_eq!(*status, 200, "creating {path}"),
            // It may come into being at any later moment; only repeating the request makes it
            // sure.
            None => match self.insist("PUT", &path, b"") {
                Some((status, _)) => {
                    assert_eq!(status, 200, "creating {path} again");
                    self.rest();
                }
                None => self.forget(),
            },
        }
    }

    fn delete_bucket(&mut self) {
        let own = &self.known.own;
        let path = format!("/{}", own.name);
        if !own.is_sure() {
            return self.rest();
        }
        let is_empty = own.is_surely_empty();
        // Buckets with objects are rarely deleted, as they have to become empty first.
        if !is_empty && self.rng.u8(..4) > 0 {
            let keys = self.known.own.keys.iter();
            let held = keys.filter(|(_, possible)| !possible.is_surely_nothing());
            for key in held.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                let answer = self.call("DELETE", &format!("{path}/{key}"), b"");
                let possible = self.known.own.keys.get_mut(&key).unwrap();
                possible.was_written(None, answer.is_some());
            }
            return;
        }
        let answer = self.call("DELETE", &path, b"");
        match (&answer, is_empty) {
            (Some((204, _)), true) => self.known.own.exists = false,
            (Some((409, _)), false) => {}
            (Some((status, body)), _) => {
                let text = String::from_utf8_lossy(body);
                panic!("deleting {path}, empty: {is_empty}: {status} {text}");
            }
            // It may be carried out when the bucket is empty.
            (None, false) => self.rest(),
            (None, true) => match self.insist("DELETE", &path, b"") {
                Some((status, _)) => {
                    assert!([204, 404].contains(&status), "deleting {path}: {status}");
                    self.known.own.exists = false;
                    self.rest();
                }
                None => self.forget(),
            },
        }
        if !self.known.own.exists {
            self.known.lives += 1;
        }
    }

    /// Leaves the bucket alone, and goes on with another one.
    fn rest(&mut self) {
        let name = self.name("own");
        let rested = std::mem::replace(&mut self.known.own, Bucket::new(name, false));
        self.known.resting.push(rested);
    }

    /// The run ended while a bucket was in doubt: every state is possible.
    fn forget(&mut self) {
        let name = self.name("own");
        self.known.own = Bucket::new(name, false);
    }
}

/// A deletion that was not answered is still under way.
fn says_not_now(body: &[u8]) -> bool {
    String::from_utf8_lossy(body).contains("<Code>OperationAborted<")
}

fn cors(version: u64) -> String {
    format!(
        "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
         <AllowedMethod>GET</AllowedMethod><MaxAgeSeconds>{version}</MaxAgeSeconds>\
         </CORSRule></CORSConfiguration>"
    )
}

/// Stops the cluster. Each backend has every bucket that a client knows, and of other buckets
/// only those that all have.
pub fn compare_buckets(mut cluster: Cluster, known: &[Known]) {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let expected: BTreeSet<&str> = known.iter().flat_map(Known::buckets).collect();
    let mut first: Option<BTreeSet<String>> = None;
    for host in cluster.backends() {
        cluster.lab.stop(&host).unwrap();
        let path = &config.node(&host).unwrap().store;
        let store = Store::open(path.clone(), prism_store::Config::default()).unwrap();
        let found: BTreeSet<String> = store
            .buckets()
            .list()
            .unwrap()
            .into_iter()
            .map(|bucket| bucket.name)
            .collect();
        let lacking: Vec<_> = expected.iter().filter(|b| !found.contains(**b)).collect();
        assert!(lacking.is_empty(), "{host} lacks {lacking:?}");
        let first = first.get_or_insert_with(|| found.clone());
        assert_eq!(*first, found, "{host}");
    }
}
