//! Traces, as the OpenTelemetry Collector receives them.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use prism_config::Networks;
use prism_http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, clients, eventually, say, turn};

/// The port of OTLP over HTTP.
const PORT: u16 = 4318;
const PATIENCE: Duration = Duration::from_secs(40);
/// A request for such an object is handed off.
const LEN: u64 = 20_000;
/// The client's own span.
const PARENT: &str = "00f067aa0ba902b7";
/// The client's identifier of each request.
const OF_PROXY: &str = "of-a-proxy";
/// Kinds of spans in OTLP.
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
/// The longest time of a request whose spans the collector does not take.
const MAX_ANSWER: Duration = Duration::from_secs(1);

/// The Collector, on the frontend's host.
struct Collector<'c> {
    cluster: &'c Cluster,
    child: Child,
    spans: PathBuf,
    _files: tempfile::TempDir,
}

impl<'c> Collector<'c> {
    fn start(cluster: &'c Cluster) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (config, spans) = (
            files.path().join("collector.yaml"),
            files.path().join("spans.json"),
        );
        let example = Path::new(env!("CARGO_MANIFEST_DIR"));
        let example = example.join("../../contrib/opentelemetry/collector.yaml");
        let text = fs::read_to_string(example).unwrap();
        let here = text.replace("127.0.0.1", "0.0.0.0");
        let here = here.replace("/var/lib/otelcol/spans.json", spans.to_str().unwrap());
        assert!(here.contains(&format!("0.0.0.0:{PORT}")), "{here}");
        fs::write(&config, here).unwrap();
        let program = clients().join("collector");
        assert!(program.exists(), "{program:?}: run scripts/setup.sh tests");
        let mut command = cluster.lab.command("fe0", &program).unwrap();
        command.arg("--config").arg(&config);
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        eventually("the collector listens", PATIENCE, || {
            let address: SocketAddr = (Ipv4Addr::LOCALHOST, PORT).into();
            cluster.on("fe0", || TcpStream::connect(address).is_ok())
        });
        Self {
            cluster,
            child,
            spans,
            _files: files,
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Span> {
        let text = fs::read_to_string(&self.spans).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let batches = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        batches.flat_map(|batch| spans_of(&batch)).collect()
    }

    /// The spans of a trace, when there are `count`. There are never more.
    fn trace(&self, trace_id: &str, count: usize) -> Vec<Span> {
        let mut found = Vec::new();
        eventually("the trace is whole", PATIENCE, || {
            found = self.spans();
            found.retain(|span| span.trace_id == trace_id);
            found.len() >= count
        });
        found.sort_by_key(|span| span.begun_ns);
        let names = found
            .iter()
            .map(|span| format!("{} {}", span.node, span.name));
        let names: Vec<_> = names.collect();
        assert_eq!(found.len(), count, "{names:?}");
        say(&format!("trace {trace_id}: {}", names.join(", ")));
        found
    }

    /// Spans of the frontend with this outcome, by its metrics.
    fn counted(&self, outcome: &str) -> u64 {
        counted(self.cluster, outcome)
    }
}

impl Drop for Collector<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Spans of the frontend with this outcome, by its metrics.
fn counted(cluster: &Cluster, outcome: &str) -> u64 {
    let mut curl = cluster.lab.command("fe0", "curl").unwrap();
    let page = curl.args(["-sS", "http://127.0.0.1:9464/metrics"]).output();
    let page = String::from_utf8(page.unwrap().stdout).unwrap();
    let start = format!("prism_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

#[derive(Clone, Debug)]
struct Span {
    node: String,
    service: String,
    trace_id: String,
    id: String,
    parent_id: String,
    name: String,
    kind: u64,
    begun_ns: u64,
    ended_ns: u64,
    attributes: BTreeMap<String, String>,
}

impl Span {
    fn is(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str)
    }
}

fn spans_of(batch: &Value) -> Vec<Span> {
    let resources = batch["resourceSpans"].as_array().unwrap();
    let mut all = Vec::new();
    for resource in resources {
        let of_resource = attributes(&resource["resource"]);
        let scopes = resource["scopeSpans"].as_array().unwrap();
        for span in scopes.iter().flat_map(|s| s["spans"].as_array().unwrap()) {
            let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
            all.push(Span {
                node: of_resource["service.instance.id"].clone(),
                service: of_resource["service.name"].clone(),
                trace_id: text("traceId"),
                id: text("spanId"),
                parent_id: text("parentSpanId"),
                name: text("name"),
                kind: span["kind"].as_u64().unwrap(),
                begun_ns: text("startTimeUnixNano").parse().unwrap(),
                ended_ns: text("endTimeUnixNano").parse().unwrap(),
                attributes: attributes(span),
            });
        }
    }
    all
}

fn attributes(of: &Value) -> BTreeMap<String, String> {
    let list = of["attributes"].as_array().cloned().unwrap_or_default();
    let pairs = list.iter().map(|attribute| {
        let value = attribute["value"].as_object().unwrap().values().next();
        let value = value.unwrap();
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        (attribute["key"].as_str().unwrap().to_owned(), text)
    });
    pairs.collect()
}

/// The one span of this node and name.
fn one<'s>(spans: &'s [Span], node: &str, name: &str) -> &'s Span {
    let mut found = spans.iter().filter(|s| s.node == node && s.name == name);
    let one = found.next();
    assert!(found.next().is_none(), "two of {node} {name}: {spans:?}");
    one.unwrap_or_else(|| panic!("no {node} {name}: {spans:?}"))
}

/// A cluster whose nodes send spans to the frontend's host, and trust the client.
fn traced(sample_per_million: u32, log: PathBuf) -> Cluster {
    Cluster::configured(2, move |config| {
        let frontend = config.frontends().next().unwrap().address;
        let frontend = frontend.first().unwrap();
        config.trace.otlp = format!("http://{frontend}:{PORT}/v1/traces");
        config.trace.sample_per_million = sample_per_million;
        config.log.access = log;
        let service = config.service.first_mut();
        service.trusted_proxies = Networks::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap();
    })
}

fn with_trace(cluster: &Cluster, method: &str, object: &Object, traceparent: &str) -> Vec<u8> {
    let request = Request::new(method, &format!("/{}", object.key));
    let request = request.header("traceparent", traceparent);
    request.header("X-Request-ID", OF_PROXY).encode(cluster)
}

fn sampled(trace_id: &str) -> String {
    format!("00-{trace_id}-{PARENT}-01")
}

/// The line of the access log about a request.
fn line_of(log: &Path, id: &str) -> Value {
    let mut found = Value::Null;
    eventually("the line of a request is there", PATIENCE, || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_default());
        found = lines
            .find(|line: &Value| line["request_id"] == id)
            .unwrap_or_default();
        !found.is_null()
    });
    found
}

/// A request that was read at `source` and is answered at `target`, where its connection moved:
/// its spans, from the identifier that the client got.
fn assert_handed_off(spans: &[Span], id: &str, source: &str, target: &str) {
    let root = one(spans, source, "GetObject");
    assert_eq!(root.id.to_uppercase(), id, "{root:?}");
    assert_eq!((&*root.parent_id, root.kind), (PARENT, SERVER));
    assert_eq!(root.is("aws.request_id"), Some(id));
    let hand_off = one(spans, source, "hand-off");
    assert_eq!(hand_off.parent_id, root.id);
    assert_eq!(hand_off.is("prism.target"), Some(target));
    assert_eq!(hand_off.is("prism.outcome"), Some("moved"));
    let steps = |node, names: &[&str]| {
        let steps = names.iter().map(|name| one(spans, node, name));
        let steps: Vec<_> = steps.collect();
        for pair in steps.windows(2) {
            assert_eq!(pair[0].ended_ns, pair[1].begun_ns, "{pair:?}");
        }
        for step in &steps {
            assert_eq!(step.parent_id, hand_off.id, "{step:?}");
            assert!(step.begun_ns <= step.ended_ns, "{step:?}");
        }
        steps
    };
    let at_source = ["block", "save", "encode", "send", "close", "verdict"];
    let at_source = steps(source, &at_source);
    assert_eq!(at_source[0].begun_ns, hand_off.begun_ns);
    assert_eq!(at_source[5].ended_ns, hand_off.ended_ns);
    assert!(root.begun_ns <= hand_off.begun_ns && hand_off.ended_ns <= root.ended_ns);
    let at_target = steps(target, &["restore", "own", "resume"]);
    let switch = at_target[1];
    assert_eq!(
        (switch.kind, switch.is("peer.service")),
        (CLIENT, Some("switch"))
    );
    // The hosts share a clock here.
    assert!(at_source[2].begun_ns < at_target[0].begun_ns, "{spans:?}");
    let answer = one(spans, target, "GetObject");
    assert_eq!((&answer.parent_id, answer.kind), (&root.id, SERVER));
    assert_eq!(answer.service, "prism-backend");
    for span in [root, answer] {
        assert_eq!(span.is("prism.proxy_request_id"), Some(OF_PROXY));
    }
    let expected = [
        ("aws.request_id", id),
        ("http.response.status_code", "200"),
        ("prism.path", "direct"),
    ];
    for (name, value) in expected {
        assert_eq!(answer.is(name), Some(value), "{name} of {answer:?}");
    }
}

#[test]
fn one_trace_shows_frontend_hand_off_switch_and_backend() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let cluster = traced(0, log.clone());
    let collector = Collector::start(&cluster);
    let objects = cluster.one_on_each("traced", |_| LEN);
    cluster.put_all(&objects);

    // From the frontend to a backend, and from there to the other one.
    let mut client = cluster.connect();
    for (n, source) in ["fe0", "be0"].into_iter().enumerate() {
        let trace = format!("4bf92f3577b34da6a3ce929d0e0e473{n}");
        let get = with_trace(&cluster, "GET", &objects[n], &sampled(&trace));
        let answer = client.call(&get);
        assert_eq!(answer.status(), 200);
        let id = answer.header("x-amz-request-id").to_owned();
        let spans = collector.trace(&trace, 12);
        let target = cluster.owner(&objects[n].key);
        assert_handed_off(&spans, &id, source, target);
        let block = one(&spans, source, "block");
        if source == "fe0" {
            // Only the switch can stop a connection's packets the first time.
            assert_eq!(block.is("peer.service"), Some("switch"));
            assert_eq!(one(&spans, source, "GetObject").service, "prism-frontend");
        }
        let line = line_of(&log, &id);
        assert_eq!(
            (&line["trace_id"], &line["backend"]),
            (&trace.into(), &target.into())
        );
    }

    // A request that the frontend relays.
    let trace = "5bf92f3577b34da6a3ce929d0e0e4736";
    let mut client = cluster.connect();
    client.send(&with_trace(&cluster, "HEAD", &objects[1], &sampled(trace)));
    let answer = client.answer(&Method::HEAD);
    let id = answer.header("x-amz-request-id").to_owned();
    let spans = collector.trace(trace, 2);
    let (root, answer) = (
        one(&spans, "fe0", "HeadObject"),
        one(&spans, "be1", "HeadObject"),
    );
    assert_eq!(
        (root.id.to_uppercase(), &*root.parent_id),
        (id.clone(), PARENT)
    );
    assert_eq!(
        (root.is("prism.path"), root.is("prism.relayed_to")),
        (Some("relayed"), Some("be1"))
    );
    assert_eq!((&answer.parent_id, answer.kind), (&root.id, SERVER));
    assert_eq!(answer.is("aws.request_id"), Some(&*id));
    assert_eq!(answer.is("prism.relayed_by"), Some("fe0"));
    assert_eq!(line_of(&log, &id)["trace_id"], trace);

    // A client that does not record its trace, and one that has none.
    let not_sampled = sampled("6bf92f3577b34da6a3ce929d0e0e4736").replace("-01", "-00");
    let not_sampled = with_trace(&cluster, "GET", &objects[0], &not_sampled);
    for request in [
        not_sampled,
        cluster.request("GET", &format!("/{}", objects[1].key)),
    ] {
        let answer = client.call(&request);
        let line = line_of(&log, answer.header("x-amz-request-id"));
        assert_eq!(
            (&line["status"], &line["trace_id"]),
            (&200.into(), &Value::Null),
            "{line}"
        );
    }
    assert_eq!(collector.spans().len(), 12 + 12 + 2);
    assert_eq!(
        collector.counted("dropped") + collector.counted("failed"),
        0
    );
}

#[test]
fn no_request_waits_for_a_collector_that_is_gone_or_silent() {
    let Some(_turn) = turn() else { return };
    let cluster = traced(1_000_000, PathBuf::new());
    let object = Object::new(cluster.key_on("be0", "traced"), LEN);
    cluster.put_all(std::slice::from_ref(&object));
    let head = cluster.request("HEAD", &format!("/{}", object.key));
    let mut client = cluster.connect();
    let mut ask = || {
        let begun = Instant::now();
        client.send(&head);
        assert_eq!(client.answer(&Method::HEAD).status(), 200);
        assert!(begun.elapsed() < MAX_ANSWER, "{:?}", begun.elapsed());
    };
    ask();
    eventually("spans without a collector are counted", PATIENCE, || {
        counted(&cluster, "failed") > 0
    });
    assert_eq!(counted(&cluster, "sent"), 0);

    let collector = Collector::start(&cluster);
    ask();
    // Spans of earlier requests may still come.
    let is_root = |span: &Span| span.node == "fe0" && span.name == "HeadObject";
    eventually("a collector that has come gets spans", PATIENCE, || {
        collector.counted("sent") > 0 && collector.spans().iter().any(is_root)
    });
    // Without a `traceparent`, the frontend's span has none above it.
    let spans = collector.spans();
    let root = spans.iter().find(|span| is_root(span)).unwrap();
    assert_eq!(&*root.parent_id, "");

    collector.signal(Signal::STOP);
    let begun = Instant::now();
    let mut count = 0;
    while collector.counted("dropped") == 0 {
        assert!(
            begun.elapsed() < PATIENCE,
            "{count} requests: no span was dropped"
        );
        for _ in 0..1_000 {
            ask();
            count += 1;
        }
    }
    say(&format!(
        "{count} requests in {:.1?} with a silent collector",
        begun.elapsed()
    ));
    collector.signal(Signal::CONT);
    let before = collector.counted("sent");
    eventually("spans are sent again", PATIENCE, || {
        ask();
        collector.counted("sent") > before
    });
}
