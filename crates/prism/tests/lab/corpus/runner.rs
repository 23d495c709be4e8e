//! Runs the cases of a file, and compares what clients and servers got with the records.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_lab::Family;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::script::{Case, Over, Script, Way};
use super::server::{LONG_PATH, Server};
use super::transcript::Transcript;
use super::values::Values;
use super::wire::Wire;
use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, tls};

/// The longest time until connections move.
const WARM_UP: Duration = Duration::from_secs(20);
/// A node counts what it did a little after the client is served.
const COUNTED_IN: Duration = Duration::from_secs(1);
/// The buckets of the ways, of equal lengths.
const BUCKETS: [(Way, &str); 4] = [
    (Way::Direct, "bkt-d"),
    (Way::Here, "bkt-h"),
    (Way::Moved, "bkt-m"),
    (Way::Relayed, "bkt-r"),
];

/// What Prism did with the requests of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    relayed: u64,
    moved: u64,
    in_vain: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            relayed: self.relayed - before.relayed,
            moved: self.moved - before.moved,
            in_vain: self.in_vain - before.in_vain,
        }
    }

    /// One word, such as `moved` or `moved+relayed*2`.
    fn word(self) -> String {
        let all = [
            ("moved", self.moved),
            ("relayed", self.relayed),
            ("in-vain", self.in_vain),
        ];
        let words = all.iter().filter(|(_, count)| *count > 0);
        let words = words.map(|(word, count)| match count {
            1 => (*word).to_owned(),
            _ => format!("{word}*{count}"),
        });
        let words: Vec<String> = words.collect();
        match words.is_empty() {
            true => "stays".to_owned(),
            false => words.join("+"),
        }
    }
}

/// All that one way of a case gave.
struct Outcome {
    way: Way,
    word: String,
    lines: Vec<String>,
}

pub struct Runner<'c> {
    cluster: &'c Cluster,
    server: Option<&'c Server>,
    tls: [Arc<rustls::ClientConfig>; 2],
    values: Vec<(Way, Values<'c>)>,
    /// The first request of a new connection that can move.
    long: Vec<u8>,
    /// The counts after the last case.
    counted: Counts,
    faults: Vec<String>,
    cases: usize,
    runs: usize,
    begun: Instant,
}

impl<'c> Runner<'c> {
    pub fn new(cluster: &'c Cluster, server: Option<&'c Server>) -> Self {
        let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
        let values = BUCKETS.map(|(way, bucket)| {
            let mut values = Values::new(cluster, bucket);
            let client = cluster.lab.addresses("client").unwrap();
            for service in cluster.lab.services() {
                values.addresses.push((service.ip().to_string(), "service"));
                let client = client.of(service.ip()).unwrap();
                values.addresses.push((client.to_string(), "client"));
            }
            (way, values)
        });
        let long = match server {
            Some(_) => format!("GET {LONG_PATH} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(),
            None => {
                let object = Object::new(cluster.key_on("be1", "long"), 100_000);
                cluster.put_all(std::slice::from_ref(&object));
                cluster.request("GET", &format!("/{}", object.key))
            }
        };
        Self {
            cluster,
            server,
            tls: versions.map(|version| Arc::new(tls::config(cluster, &[version]))),
            values: values.into(),
            long,
            counted: Counts::default(),
            faults: Vec::new(),
            cases: 0,
            runs: 0,
            begun: Instant::now(),
        }
    }

    /// Waits until connections move.
    pub fn warm_up(&self) {
        eventually("connections move", WARM_UP, || {
            let before = self.counts();
            self.move_to_backend(&mut Wire::new(self.cluster.connect_over(Family::V4)));
            self.counts().moved > before.moved
        });
    }

    /// Runs all cases of a file.
    pub fn check(&mut self, file: &str) {
        let script = Script::load(file);
        self.counted = self.counts();
        let only = std::env::var("PRISM_CORPUS_CASE").unwrap_or_default();
        let mut records = Vec::new();
        for case in &script.cases {
            if !case.name.contains(&only) {
                records.push(case.recorded.clone());
                continue;
            }
            let ways = case.ways.iter();
            let outcomes: Vec<Outcome> = ways.map(|way| self.run(case, *way)).collect();
            std::thread::sleep(case.settle);
            let record = record_of(&outcomes);
            if record != case.recorded {
                let diff = diff(&case.recorded, &record);
                self.faults
                    .push(format!("{file}, case {:?}:\n{diff}", case.name));
            }
            records.push(record);
            self.cases += 1;
            self.runs += outcomes.len();
        }
        if std::env::var("PRISM_CORPUS").is_ok_and(|value| value == "write") {
            script.write(&records);
            self.faults.clear();
        }
    }

    /// Fails with all differences.
    pub fn finish(self) {
        let took = self.begun.elapsed();
        say(&format!(
            "{} cases, {} runs in {took:.1?}",
            self.cases, self.runs
        ));
        let count = self.faults.len();
        assert!(
            self.faults.is_empty(),
            "{count} cases differ from their records (-) now (+):\n{}",
            self.faults.join("\n")
        );
    }

    fn run(&mut self, case: &Case, way: Way) -> Outcome {
        let mut wire = Wire::new(self.connect(case.over, way));
        let mut before = self.counted;
        if way == Way::Here {
            self.move_to_backend(&mut wire);
            before = self.counts();
        }
        if let Some(server) = self.server {
            server.begin(&case.serves);
        }
        let values = self.values.iter_mut().find(|(of, _)| *of == way);
        let (_, values) = values.unwrap();
        let mut transcript = Transcript {
            values,
            lines: Vec::new(),
        };
        let after = transcript.steps(&case.steps, &mut wire);
        if let Some(server) = self.server {
            server.await_requests();
        }
        transcript.ending(after, wire);
        if let Some(server) = self.server {
            for request in server.finish() {
                transcript.fact("the server gets");
                transcript.bytes("|", &request);
            }
        }
        let lines = transcript.lines;
        self.counted = self.settled_counts();
        let word = self.counted.since(before).word();
        Outcome { way, word, lines }
    }

    fn connect(&self, over: Over, way: Way) -> Client {
        let family = match way {
            Way::Relayed => Family::V6,
            _ => Family::V4,
        };
        if over == Over::Plain {
            return self.cluster.connect_over(family);
        }
        let config = &self.tls[usize::from(over == Over::Tls13)];
        let service = self.cluster.https_service_of(family);
        let name = ServerName::from(service.ip());
        let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
        self.cluster
            .connect_to(service, |_| {})
            .with_tls(connection)
    }

    /// The connection moves to a backend, with an answer of no case.
    fn move_to_backend(&self, wire: &mut Wire) {
        wire.send(&self.long);
        let answer = wire.message("GET");
        assert!(answer.bytes.starts_with(b"HTTP/1.1 200 "), "it has to move");
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for host in self.cluster.nodes() {
            let all = self.cluster.lab.admin(&host).unwrap();
            let count = |group: &str, name: &str| all[group][name].as_u64().unwrap();
            counts.relayed += count("requests", "relayed");
            counts.in_vain += count("requests", "asked_in_vain");
            counts.moved += count("handoff", "exports_started");
        }
        counts
    }

    /// The counts when they stand still.
    fn settled_counts(&self) -> Counts {
        let begun = Instant::now();
        let mut counts = self.counts();
        while begun.elapsed() < COUNTED_IN {
            std::thread::sleep(Duration::from_millis(2));
            let next = self.counts();
            if next == counts {
                break;
            }
            counts = next;
        }
        counts
    }
}

/// The record of a case: ways with equal answers stand together.
fn record_of(outcomes: &[Outcome]) -> Vec<String> {
    let mut record = Vec::new();
    let mut written: Vec<Way> = Vec::new();
    for outcome in outcomes {
        if written.contains(&outcome.way) {
            continue;
        }
        let same = outcomes.iter().filter(|other| other.lines == outcome.lines);
        let words = same.map(|other| {
            written.push(other.way);
            format!("{}={}", other.way.name(), other.word)
        });
        record.push(format!(": {}", words.collect::<Vec<_>>().join(" ")));
        record.extend_from_slice(&outcome.lines);
    }
    record
}

/// The lines that differ, with those around them.
fn diff(before: &[String], after: &[String]) -> String {
    let equal = |(a, b): &(&String, &String)| a == b;
    let first = before.iter().zip(after).take_while(equal).count();
    let [rest_before, rest_after] = [&before[first..], &after[first..]];
    let last = rest_before.iter().rev().zip(rest_after.iter().rev());
    let last = last.take_while(equal).count();
    let mut text = String::new();
    for line in &before[first.saturating_sub(3)..first] {
        let _ = writeln!(text, "    {line}");
    }
    for line in &rest_before[..rest_before.len() - last] {
        let _ = writeln!(text, "  - {line}");
    }
    for line in &rest_after[..rest_after.len() - last] {
        let _ = writeln!(text, "  + {line}");
    }
    text
}
