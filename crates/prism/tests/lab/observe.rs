//! Metrics and alerts by Debian's Prometheus, health, and the access log.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use prism_http::Method;
use serde_json::Value;

use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, say, turn};

const NODE_PORT: u16 = 9464;
const SWITCH_PORT: u16 = 9465;
const PROMETHEUS_PORT: u16 = 9090;
const PATIENCE: Duration = Duration::from_secs(40);
/// A request for such an object is handed off.
const LEN: u64 = 20_000;
/// The least number of flows of a switch.
const MAX_FLOWS: u32 = 1_024;
const QUOTA_BYTES: u64 = 4 << 20;

/// The page of a process, asked for on its own host or on another one.
fn page(cluster: &Cluster, on: &str, address: SocketAddr, path: &str) -> (u16, String) {
    cluster.on(on, || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    })
}

pub(crate) fn of_node(cluster: &Cluster, host: &str, path: &str) -> (u16, String) {
    page(cluster, host, (Ipv4Addr::LOCALHOST, NODE_PORT).into(), path)
}

/// Prometheus on the switch's host, with the rules and their waiting times shortened.
struct Prometheus<'c> {
    cluster: &'c Cluster,
    child: Child,
    _files: tempfile::TempDir,
}

impl<'c> Prometheus<'c> {
    fn start(cluster: &'c Cluster) -> Self {
        let files = tempfile::tempdir().unwrap();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus");
        let rules = fs::read_to_string(example.join("prism.rules.yml")).unwrap();
        let rules = rules
            .lines()
            .map(|line| match line.trim().starts_with("for: ") {
                true => "        for: 1s".to_owned(),
                false => line.to_owned(),
            });
        let rules: Vec<String> = rules.collect();
        fs::write(files.path().join("prism.rules.yml"), rules.join("\n")).unwrap();
        let nodes = cluster.nodes().into_iter().map(|host| {
            let address = cluster.lab.address(&host).unwrap();
            format!("\"{address}:{NODE_PORT}\"")
        });
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        let config = fs::read_to_string(example.join("prometheus.yml")).unwrap();
        let config = config.replace("15s", "1s");
        let config = config.replace(
            "\"10.0.0.11:9464\", \"10.0.0.21:9464\", \"10.0.0.22:9464\"",
            &nodes,
        );
        assert!(config.contains(&nodes), "{config}");
        let path = files.path().join("prometheus.yml");
        fs::write(&path, config).unwrap();
        // It checks the rules that the configuration names too.
        let mut promtool = Command::new("promtool");
        let checked = promtool.args(["check", "config"]).arg(&path).output();
        let checked = checked.unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{said}");
        let mut command = cluster.lab.command("switch", "prometheus").unwrap();
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                files.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"))
            .arg("--log.level=error");
        Self {
            cluster,
            child: command.spawn().unwrap(),
            _files: files,
        }
    }

    /// The document of a path of its API; `None` while it does not answer.
    fn ask(&self, path: &str) -> Option<Value> {
        let address: SocketAddr = (Ipv4Addr::LOCALHOST, PROMETHEUS_PORT).into();
        self.cluster.on("switch", || {
            let mut stream = TcpStream::connect(address).ok()?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
        })
    }

    fn query(&self, expression: &str) -> Option<Value> {
        let bytes = expression.bytes();
        let encoded: String = bytes.map(|byte| format!("%{byte:02x}")).collect();
        self.ask(&format!("/api/v1/query?query={encoded}"))
    }

    /// The sum of an expression; `None` if it has no value yet.
    fn value(&self, expression: &str) -> Option<f64> {
        let answer = self.query(&format!("sum({expression})"))?;
        answer["data"]["result"][0]["value"][1]
            .as_str()?
            .parse()
            .ok()
    }

    fn is_firing(&self, alert: &str) -> bool {
        let answer = self.ask("/api/v1/alerts").unwrap_or_default();
        let alerts = answer["data"]["alerts"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let firing = |a: &Value| a["labels"]["alertname"] == alert && a["state"] == "firing";
        alerts.iter().any(firing)
    }

    fn wait_for(&self, alert: &str, fires: bool) {
        let begun = Instant::now();
        while self.is_firing(alert) != fires {
            assert!(begun.elapsed() < PATIENCE, "{alert}: firing is not {fires}");
            std::thread::sleep(Duration::from_millis(200));
        }
        let state = if fires { "fires" } else { "ends" };
        say(&format!("{alert} {state} after {:.1?}", begun.elapsed()));
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The GETs that all nodes have answered with 200, by their own pages.
fn answered_gets(cluster: &Cluster) -> f64 {
    let pages = cluster
        .nodes()
        .into_iter()
        .map(|host| of_node(cluster, &host, "/metrics").1);
    let of_page = |page: String| -> f64 {
        let is_get = |line: &&str| {
            line.starts_with("prism_s3_requests_total{operation=\"GetObject\",code=\"200\"")
        };
        let lines = page.lines().filter(is_get);
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        values.sum()
    };
    pages.map(of_page).sum()
}

fn observed(log: PathBuf) -> Cluster {
    Cluster::up_with(2, |spec| {
        spec.tls = true;
        spec.configure = Some(Box::new(move |config| {
            config.log.access = log;
            config.store.quota_bytes = QUOTA_BYTES;
            if let Some(switch) = &mut config.switch {
                switch.max_flows = MAX_FLOWS;
            }
        }));
    })
}

/// Prometheus understands each expression of the dashboard and of the rules, and knows its
/// metrics.
fn assert_expressions_are_known(prometheus: &Prometheus<'_>) {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let dashboard = fs::read(contrib.join("grafana/prism.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    let expressions: Vec<_> = expressions
        .map(|e| e.replace("$__rate_interval", "1m"))
        .collect();
    for expression in &expressions {
        let answer = prometheus.query(expression).unwrap_or_default();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }
    let rules = fs::read_to_string(contrib.join("prometheus/prism.rules.yml")).unwrap();
    let names = prometheus.ask("/api/v1/label/__name__/values").unwrap();
    let known: Vec<_> = names["data"].as_array().unwrap().iter().collect();
    let text = format!("{rules} {}", expressions.join(" "));
    // A service with an upstream has names of its own.
    let text = text.replace("prism_(s3|http)_", "prism_s3_");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics: BTreeSet<_> = words.filter(|word| word.starts_with("prism_")).collect();
    // A cluster without [service.acme] has no orders, one without etcd no database, and the object
    // store no upstreams.
    let unknown: Vec<_> = metrics
        .iter()
        .filter(|name| **name != "prism_acme_orders_total")
        .filter(|name| !name.starts_with("prism_etcd_"))
        .filter(|name| !name.starts_with("prism_upstream_"))
        .filter(|name| !known.contains(&&Value::from(**name)))
        .collect();
    assert!(
        unknown.is_empty() && metrics.len() > 15,
        "{unknown:?} of {metrics:?}"
    );
}

/// The metrics, which everybody may read who reaches them, name no bucket.
fn assert_quotas_are_told_to_administrators_only(cluster: &Cluster) {
    let told = cluster.lab.ask("be0", "quota").unwrap();
    let limited = &told["quotas"][0];
    assert_eq!(limited["bucket"], BUCKET, "{told}");
    assert_eq!(limited["quota"]["bytes"], QUOTA_BYTES, "{told}");
    assert!(limited["estimate"]["objects"].as_u64() > Some(0), "{told}");
    let label = format!("\"{BUCKET}\"");
    for host in cluster.nodes() {
        let (_, metrics) = of_node(cluster, &host, "/metrics");
        assert!(!metrics.contains(&label), "{metrics}");
    }
}

/// A certificate that is valid for these days, at `file` and `key`.
fn make_certificate(file: &Path, key: &Path, days: u32) {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args([
        "-nodes",
        "-subj",
        "/CN=prism",
        "-addext",
        "subjectAltName=DNS:prism",
    ]);
    openssl.arg("-days").arg(days.to_string());
    openssl.arg("-out").arg(file).arg("-keyout").arg(key);
    assert!(openssl.output().unwrap().status.success());
}

#[test]
fn prometheus_scrapes_every_process_and_its_alerts_come_and_go() {
    let Some(_turn) = turn() else { return };
    let mut cluster = observed(PathBuf::new());
    let objects = cluster.one_on_each("seen", |_| LEN);
    cluster.put_all(&objects);
    let config = prism_config::ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let tls = config.service.first().tls.clone().unwrap();
    {
        let before = answered_gets(&cluster);
        let mut client = cluster.connect();
        for object in objects.iter().cycle().take(20) {
            client.get(&cluster, object);
        }
        drop(client);
        // The only bucket has the quota of a store.
        let limit = |words: &str| {
            let told = cluster.lab.ask("fe0", &format!("quota {BUCKET} {words}"));
            let told = told.unwrap();
            assert_eq!(told["error"], Value::Null);
        };
        limit(&format!("bytes={QUOTA_BYTES} objects=1000"));
        let prometheus = Prometheus::start(&cluster);
        let gets = "prism_s3_requests_total{operation=\"GetObject\",code=\"200\"}";
        eventually("each GET is counted once", || {
            prometheus.value(gets) == Some(before + 20.0)
        });
        // It scrapes one process after the other.
        eventually("all are up", || prometheus.value("up") == Some(4.0));
        assert!(
            prometheus
                .value("prism_handoffs_total{outcome=\"moved\"}")
                .unwrap()
                >= 20.0
        );
        assert!(
            prometheus
                .value("prism_switch_packets_total{verdict=\"forward\"}")
                .unwrap()
                > 40.0
        );
        assert_eq!(prometheus.value("prism_ready"), Some(3.0));
        assert_eq!(prometheus.value("prism_switch_node_up"), Some(3.0));
        let alerts = prometheus.ask("/api/v1/alerts").unwrap();
        assert_eq!(
            alerts["data"]["alerts"].as_array().unwrap().len(),
            0,
            "{alerts}"
        );

        assert_expressions_are_known(&prometheus);
        assert_eq!(prometheus.value("max(prism_buckets_with_quota)"), Some(1.0));
        assert_eq!(prometheus.value("max(prism_buckets_near_quota)"), Some(0.0));
        assert_quotas_are_told_to_administrators_only(&cluster);

        // A table with little room.
        let connections = usize::try_from(MAX_FLOWS * 9 / 10).unwrap();
        let idle: Vec<_> = (0..connections).map(|_| cluster.connect()).collect();
        prometheus.wait_for("PrismFlowTableNearlyFull", true);
        drop(idle);
        prometheus.wait_for("PrismFlowTableNearlyFull", false);

        // A store with little room.
        let large = Object::new(cluster.key_on("be0", "large"), QUOTA_BYTES / 100 * 95);
        cluster.put_all(std::slice::from_ref(&large));
        prometheus.wait_for("PrismStoreNearlyFull", true);
        prometheus.wait_for("PrismBucketNearQuota", true);
        let deletion = cluster.request("DELETE", &format!("/{}", large.key));
        assert_eq!(cluster.connect().call(&deletion).status(), 204);
        prometheus.wait_for("PrismStoreNearlyFull", false);
        prometheus.wait_for("PrismBucketNearQuota", false);
        limit("bytes=none objects=none");
        eventually("the bucket is not shown any more", || {
            prometheus.value("prism_buckets_with_quota") == Some(0.0)
        });

        // A certificate that is about to expire.
        let (file, key) = (&tls.certificates[0].file, &tls.certificates[0].key_file);
        make_certificate(file, key, 2);
        prometheus.wait_for("PrismCertificateExpires", true);
        make_certificate(file, key, 300);
        prometheus.wait_for("PrismCertificateExpires", false);
    }
    cluster.lab.kill("be1").unwrap();
    {
        let prometheus = Prometheus::start(&cluster);
        prometheus.wait_for("PrismNodeDown", true);
        prometheus.wait_for("PrismNotScraped", true);
    }
    cluster.lab.restart("be1").unwrap();
    let prometheus = Prometheus::start(&cluster);
    eventually("all nodes are up again", || {
        prometheus.value("prism_switch_node_up") == Some(3.0)
    });
    assert!(!prometheus.is_firing("PrismNodeDown"));
}

#[test]
fn a_request_is_followed_by_its_identifier_into_the_log() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let cluster = observed(log.clone());
    let objects = cluster.one_on_each("logged", |_| LEN);
    cluster.put_all(&objects);
    let lines = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let line_of = |id: &str| {
        let mut found = Value::Null;
        eventually("the line of a request is there", || {
            let same: Vec<_> = lines()
                .into_iter()
                .filter(|l| l["request_id"] == id)
                .collect();
            assert!(same.len() < 2, "{same:?}");
            found = same.first().cloned().unwrap_or_default();
            !found.is_null()
        });
        found
    };
    let mut client = cluster.connect();
    for object in &objects {
        let answer = client.call(&cluster.request("GET", &format!("/{}", object.key)));
        let line = line_of(answer.header("x-amz-request-id"));
        let expected = [
            ("operation", Value::from("GetObject")),
            ("key", object.key.as_str().into()),
            ("status", 200.into()),
            ("bytes_out", LEN.into()),
            ("frontend", "fe0".into()),
            ("backend", cluster.owner(&object.key).into()),
            ("path", "direct".into()),
            ("hand_offs", 1.into()),
            ("client", client.local().to_string().into()),
            ("tls", false.into()),
        ];
        for (name, value) in expected {
            assert_eq!(line[name], value, "{name} of {line}");
        }
        assert!(
            line["first_byte_us"].as_u64() <= line["total_us"].as_u64(),
            "{line}"
        );
    }
    // HEAD is relayed by the node at which the connection is.
    let head = cluster.request("HEAD", &format!("/{}", objects[0].key));
    client.send(&head);
    let answer = client.answer(&Method::HEAD);
    let line = line_of(answer.header("x-amz-request-id"));
    assert_eq!(
        (&line["path"], &line["backend"]),
        (&"relayed".into(), &"be0".into()),
        "{line}"
    );
    let missing = client.call(&cluster.request("GET", "/nothing"));
    let line = line_of(missing.header("x-amz-request-id"));
    assert_eq!(
        (&line["status"], &line["error"]),
        (&404.into(), &"NoSuchKey".into()),
        "{line}"
    );

    // The log goes on in a new file.
    let old = directory.path().join("access.log.1");
    fs::rename(&log, &old).unwrap();
    for host in cluster.nodes() {
        let pid = cluster.lab.pid(&host).unwrap();
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }
    eventually("the new log exists", || log.exists());
    let before = fs::metadata(&old).unwrap().len();
    let answer = client.call(&cluster.request("GET", &format!("/{}", objects[1].key)));
    assert_eq!(line_of(answer.header("x-amz-request-id"))["status"], 200);
    assert_eq!(fs::metadata(&old).unwrap().len(), before);
}

#[test]
fn a_node_that_leaves_is_not_ready_and_still_shows_its_metrics() {
    let Some(_turn) = turn() else { return };
    // With another frontend, this one serves for a while after it was told to end.
    let cluster = Cluster::up_with(2, |spec| {
        spec.frontends = 2;
        spec.configure = Some(Box::new(|config| config.limits.drain_timeout_s = 5));
    });
    assert_eq!(
        of_node(&cluster, "be0", "/-/ready"),
        (200, "ready\n".into())
    );
    assert_eq!(of_node(&cluster, "be0", "/-/healthy").0, 200);
    assert_eq!(of_node(&cluster, "be0", "/nothing").0, 404);
    let at_switch = (Ipv4Addr::LOCALHOST, SWITCH_PORT).into();
    assert_eq!(page(&cluster, "switch", at_switch, "/-/ready").0, 200);
    let pid = cluster.lab.pid("fe0").unwrap();
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    eventually("the frontend is not ready", || {
        of_node(&cluster, "fe0", "/-/ready").0 == 503
    });
    assert_eq!(of_node(&cluster, "fe0", "/-/ready").1, "leaving\n");
    let (status, metrics) = of_node(&cluster, "fe0", "/metrics");
    assert_eq!(status, 200);
    assert!(
        metrics.contains("\nprism_ready 0.0\n") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
}
