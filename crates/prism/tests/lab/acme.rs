//! A certificate by ACME from Pebble, Let's Encrypt's authority for tests. It refuses one nonce
//! in twenty on purpose, and asks the service on port 80 as an authority does.

mod pebble;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::{Acme, Anonymous, ConfigFile, RelayUpTo, Upstream};
use prism_lab::{Families, Lab, LabSpec};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};
use serde_json::Value;
use x509_cert::Certificate as X509;
use x509_cert::der::Decode;

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, lab_spec, output, say, turn};
use pebble::{DOMAIN, Pebble};

/// The longest time of an order: Pebble's pauses, and ours.
const ORDERED_IN: Duration = Duration::from_secs(40);
/// The lock of a dead node ends after 10 s, and the order follows.
const FOLLOWED_IN: Duration = Duration::from_secs(60);
/// The longest time until every frontend serves what is in etcd.
const SERVED_IN: Duration = Duration::from_secs(2);
/// New connections of one look. With so many, each of two frontends has some.
const CONNECTIONS: usize = 16;
const NO_CERTIFICATE: &str = "cannot get a certificate by ACME";

/// Two frontends whose only certificate comes by ACME, from an authority that does not run yet.
struct Bed {
    cluster: Cluster,
    files: tempfile::TempDir,
}

impl Bed {
    fn up() -> Self {
        Self::configured(|config| config.s3.anonymous = Anonymous::Read, Cluster::of)
    }

    fn configured(
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
        cluster_of: impl FnOnce(Lab) -> Cluster,
    ) -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut spec = lab_spec();
        spec.family = Families::Dual;
        (spec.frontends, spec.backends) = (2, 2);
        (spec.etcd, spec.tls) = (true, true);
        spec.relay_up_to = RelayUpTo::Bytes(0);
        let ca_file = pebble::write_files(&spec, files.path());
        let directory = pebble::directory(&spec);
        configure(&mut spec, directory, ca_file, change);
        let cluster = cluster_of(Lab::up(spec).unwrap());
        Self { cluster, files }
    }

    fn start_pebble(&self, validity: Duration) -> Pebble {
        Pebble::start(&self.cluster, self.files.path(), validity)
    }

    /// `prism ctl certificate`, at a frontend.
    fn ctl(&self, words: &[&str]) -> String {
        let alive = self.cluster.frontends();
        let alive = alive
            .iter()
            .find(|host| self.cluster.lab.pid(host).is_some());
        let program = env!("CARGO_BIN_EXE_prism");
        let mut command = self.cluster.lab.command(alive.unwrap(), program).unwrap();
        command.args(["ctl", "certificate"]).args(words);
        output(command.arg("--config").arg(self.cluster.lab.config_path()))
    }

    /// The certificate by ACME as `prism ctl` lists it.
    fn listed(&self) -> Value {
        let all: Value = serde_json::from_str(&self.ctl(&["list", "--json"])).unwrap();
        assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
        all[0].clone()
    }

    /// Its number, if there is one.
    fn serial(&self) -> Option<String> {
        self.listed()["serial"].as_str().map(str::to_owned)
    }

    /// Waits for another certificate than `before`, and returns its number.
    fn another(&self, before: Option<&str>, limit: Duration) -> String {
        let begun = Instant::now();
        eventually("another certificate", limit, || {
            self.serial().is_some_and(|now| Some(&*now) != before)
        });
        say(&format!(
            "another certificate after {:.1?}",
            begun.elapsed()
        ));
        self.serial().unwrap()
    }

    fn failures(&self) -> u64 {
        self.listed()["acme"]["failure"]["count"]
            .as_u64()
            .unwrap_or_default()
    }

    /// Lines of all frontends' logs with this text.
    fn lines_with(&self, text: &str) -> Vec<String> {
        let logs = self.cluster.frontends().into_iter().map(|host| {
            let log = self.cluster.lab.log_path(&host);
            std::fs::read_to_string(log).unwrap_or_default()
        });
        let logs: String = logs.collect();
        let lines = logs.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    /// An HTTPS connection, with the number of the certificate that it was shown.
    fn try_connect(&self, trusted: &Arc<ClientConfig>) -> Option<(Client, String)> {
        let service = SocketAddr::new(self.cluster.service.ip(), 443);
        let name = ServerName::try_from(DOMAIN).unwrap();
        let tls = ClientConnection::new(trusted.clone(), name).unwrap();
        let plain = self.cluster.connect_to(service, |_| {});
        let client = plain.try_with_tls(tls).ok()?;
        let shown = client.tls().peer_certificates()?.first()?;
        let serial = X509::from_der(shown).unwrap();
        let serial = serial.tbs_certificate().serial_number().as_bytes();
        let serial = serial.iter().map(|byte| format!("{byte:02x}")).collect();
        Some((client, serial))
    }

    /// The numbers of the certificates of many new connections, of which each frontend has some.
    fn shown(&self, pebble: &Pebble) -> BTreeSet<String> {
        let accepted = |host: &String| self.cluster.counter(host, "handoff", "accepted");
        let frontends = self.cluster.frontends();
        let before: Vec<u64> = frontends.iter().map(accepted).collect();
        let mut shown = BTreeSet::new();
        for _ in 0..CONNECTIONS {
            // A new configuration resumes no session, so it is shown a certificate.
            let (_, serial) = self.try_connect(&pebble.trusted()).unwrap();
            shown.insert(serial);
        }
        let after: Vec<u64> = frontends.iter().map(accepted).collect();
        assert!(
            before.iter().zip(&after).all(|(b, a)| a > b),
            "one frontend only"
        );
        shown
    }

    /// Waits until both frontends serve the certificate of this number alone.
    fn is_served_by_all(&self, pebble: &Pebble, serial: &str) {
        let only = BTreeSet::from([serial.to_owned()]);
        eventually("both frontends serve it", SERVED_IN, || {
            self.shown(pebble) == only
        });
    }
}

fn configure(
    spec: &mut LabSpec,
    directory: String,
    ca_file: PathBuf,
    change: impl FnOnce(&mut ConfigFile) + Send + 'static,
) {
    spec.configure = Some(Box::new(move |config| {
        change(config);
        let service = config.service.first_mut();
        service.tls.as_mut().unwrap().certificates.clear();
        service.acme = Some(Acme {
            directory,
            domains: vec![DOMAIN.into()],
            terms_agreed: true,
            contact: vec!["mailto:admin@lab.example".into()],
            ca_file: Some(ca_file),
        });
    }));
}

#[test]
fn an_authority_that_comes_late_and_a_node_that_dies_in_an_order_are_survived() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up();
    eventually("an order has failed", ORDERED_IN, || bed.failures() > 0);
    let lines = bed.lines_with(NO_CERTIFICATE);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("refused"), "{lines:?}");
    assert_eq!(bed.serial(), None);

    let pebble = bed.start_pebble(Duration::from_secs(3_600));
    assert!(
        bed.try_connect(&pebble.trusted()).is_none(),
        "there is no certificate"
    );
    // The pause after the failure is a minute. The administrator does not wait for it.
    bed.ctl(&["renew"]);
    let mut orderer = None;
    eventually("a frontend orders", SERVED_IN, || {
        orderer = bed.listed()["acme"]["ordered_by"]
            .as_str()
            .map(str::to_owned);
        orderer.is_some()
    });
    let orderer = orderer.unwrap();
    bed.cluster.lab.kill(&orderer).unwrap();
    assert_eq!(bed.serial(), None, "{orderer} was too fast");
    say(&format!("{orderer} is killed in its order"));
    let serial = bed.another(None, FOLLOWED_IN);
    bed.cluster.lab.restart(&orderer).unwrap();
    eventually("it is back", Duration::from_secs(10), || {
        let _ = bed.try_connect(&pebble.trusted());
        bed.cluster.counter(&orderer, "handoff", "accepted") > 0
    });
    bed.is_served_by_all(&pebble, &serial);
    let listed = bed.listed();
    assert_eq!(listed["names"][0], DOMAIN);
    assert_eq!(listed["acme"]["failure"], Value::Null);
    assert!(listed["acme"]["due_s"].as_u64() < listed["end_s"].as_u64());
    assert_eq!(bed.lines_with(NO_CERTIFICATE).len(), 1);
}

#[test]
fn a_renewal_is_not_noticed_by_clients_and_a_refusal_leaves_the_certificate() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up();
    eventually("an order has failed", ORDERED_IN, || bed.failures() > 0);
    let pebble = bed.start_pebble(Duration::from_secs(60));
    bed.ctl(&["renew"]);
    let first = bed.another(None, ORDERED_IN);
    bed.is_served_by_all(&pebble, &first);

    let object = Object::new("renewed".into(), 10_000);
    bed.cluster.put_all(std::slice::from_ref(&object));
    let trusted = pebble.trusted();
    let (mut client, _) = bed.try_connect(&trusted).unwrap();
    let begun = Instant::now();
    let (mut count, mut looked) = (0, Instant::now());
    let second = loop {
        let answer = client.call(&Request::get(&object).encode(&bed.cluster));
        assert_eq!(answer.status(), 200);
        object.check(0, &answer.body);
        count += 1;
        if looked.elapsed() > Duration::from_millis(500) {
            looked = Instant::now();
            match bed.serial() {
                Some(now) if now != first => break now,
                _ => assert!(begun.elapsed() < FOLLOWED_IN, "it is not renewed"),
            }
        }
    };
    let after = begun.elapsed();
    say(&format!(
        "{count} requests on one connection until the renewal, {after:.1?}"
    ));
    bed.is_served_by_all(&pebble, &second);
    let answer = client.call(&Request::get(&object).encode(&bed.cluster));
    assert_eq!(answer.status(), 200);
    drop(client);
    // The ticket that a client got under the first certificate is still good.
    let (resumed, _) = bed.try_connect(&trusted).unwrap();
    assert_eq!(resumed.tls().handshake_kind(), Some(HandshakeKind::Resumed));

    // The name leads to another host, so the authority refuses.
    pebble.lead_to(&bed.cluster, bed.cluster.lab.address("client").unwrap());
    let lines = bed.lines_with(NO_CERTIFICATE);
    bed.ctl(&["renew"]);
    let mut present = second;
    eventually("the order has failed", ORDERED_IN, || {
        // An authority may remember the proof of the order before.
        if let Some(serial) = bed.serial().filter(|serial| *serial != present) {
            present = serial;
            bed.ctl(&["renew"]);
        }
        bed.failures() > 0
    });
    assert_eq!(bed.serial(), Some(present.clone()));
    assert_eq!(bed.shown(&pebble), BTreeSet::from([present]));
    let mut new = bed.lines_with(NO_CERTIFICATE);
    new.retain(|line| !lines.contains(line));
    assert_eq!(new.len(), 1, "{new:?}");
    assert!(
        new[0].contains(DOMAIN) && new[0].contains("refuse"),
        "{new:?}"
    );
    shows_the_certificate_and_the_failure(&bed);
}

#[test]
fn a_service_with_an_upstream_has_a_certificate_by_acme() {
    let Some(_turn) = turn() else { return };
    let in_front_of_a_server = |config: &mut ConfigFile| {
        let upstream = Upstream {
            address: [SocketAddr::from(([127, 0, 0, 1], 9_000))]
                .into_iter()
                .collect(),
            ..Upstream::default()
        };
        config.service.first_mut().upstream = Some(vec![upstream].into());
    };
    let bed = Bed::configured(in_front_of_a_server, Cluster::around);
    let pebble = bed.start_pebble(Duration::from_secs(60));
    bed.ctl(&["renew"]);
    let first = bed.another(None, FOLLOWED_IN);
    bed.is_served_by_all(&pebble, &first);
    let second = bed.another(Some(&first), FOLLOWED_IN);
    bed.is_served_by_all(&pebble, &second);
    // Requests are the upstream's, and its server does not run.
    let (mut client, _) = bed.try_connect(&pebble.trusted()).unwrap();
    let answer = client.call(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(answer.status(), 503, "{}", answer.text());
}

/// Metrics, the doctor and `prism ctl` name the certificate and the failure of its renewal.
fn shows_the_certificate_and_the_failure(bed: &Bed) {
    let lab = &bed.cluster.lab;
    let mut failed = 0;
    for host in bed.cluster.frontends() {
        let mut curl = lab.command(&host, "curl").unwrap();
        let page = output(curl.args(["-s", "http://127.0.0.1:9464/metrics"]));
        let value = |series: &str| {
            let line = page.lines().find(|line| line.starts_with(series));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        };
        let expiry = "prism_tls_certificate_expiry_timestamp_seconds{file=\"service.acme\"}";
        assert!(value(expiry).unwrap() > 1.7e9, "{host}");
        failed += value("prism_acme_orders_total{outcome=\"failed\"}").unwrap() as u64;
    }
    assert!(failed >= 2, "{failed} failures are counted");
    let mut doctor = lab.command("fe0", env!("CARGO_BIN_EXE_prism")).unwrap();
    doctor.arg("doctor").arg("--config").arg(lab.config_path());
    let found = doctor.args(["--node", "fe0"]).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        found.contains("service.acme") && found.contains("orders by ACME have failed"),
        "{found}"
    );
    let text = bed.ctl(&["list"]);
    assert!(
        text.contains(DOMAIN) && text.contains("failed  1 times"),
        "{text}"
    );
}

/// A client's configuration that trusts one authority.
fn trusting(root: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(root).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}
