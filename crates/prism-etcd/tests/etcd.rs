//! Tests against a real etcd on loopback. They print SKIPPED if etcd is not installed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use prism_etcd::{Change, Condition, Endpoint, Error, EtcdClient, Event};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A client with such leases waits for 1 s for one endpoint's answer.
const LEASE_TTL: Duration = Duration::from_secs(4);

struct Etcd {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(arguments: &[String]) -> Child {
    let mut command = Command::new("etcd");
    command.args(arguments).stdout(Stdio::null());
    command
        .stderr(Stdio::null())
        .spawn()
        .expect("starting etcd")
}

impl Etcd {
    /// `None` if etcd is not installed.
    fn start(scheme: &str, host: &str, more: impl FnOnce(&Path) -> Vec<String>) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            assert!(std::env::var_os("CI").is_none(), "etcd is not installed");
            eprintln!("SKIPPED: etcd is not installed (Debian: etcd-server)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{scheme}://{host}:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let data = dir.path().join("data");
        let mut arguments: Vec<String> = [
            ("--name", "test"),
            ("--data-dir", data.to_str().unwrap()),
            ("--listen-client-urls", &url),
            ("--advertise-client-urls", &url),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &format!("test={peer}")),
        ]
        .iter()
        .flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()])
        .collect();
        arguments.extend(more(dir.path()));
        Some(Self {
            child: spawn(&arguments),
            url,
            dir,
            arguments,
        })
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn endpoint(&self) -> Endpoint {
        self.url.clone().try_into().unwrap()
    }

    /// The client has no call for a compaction.
    fn compact(&self, revision: u64) {
        let text = format!("{{\"revision\":\"{revision}\"}}");
        let url = format!("{}/v3/kv/compaction", self.url);
        let done = Command::new("curl")
            .args(["-sf", "--noproxy", "*", "-d", &text, &url])
            .output();
        assert!(done.unwrap().status.success());
    }

    async fn client(&self) -> EtcdClient {
        let client = EtcdClient::new(vec![self.endpoint()], None, LEASE_TTL);
        wait_for(&client).await;
        client
    }
}

async fn wait_for(client: &EtcdClient) {
    let begun = Instant::now();
    while let Err(error) = client.read("/t/").await {
        assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, test)
            .await
            .expect("the test hangs");
    });
}

fn plain() -> Option<Etcd> {
    Etcd::start("http", "127.0.0.1", |_| Vec::new())
}

#[test]
fn a_change_is_made_where_its_conditions_hold_and_a_watch_tells_of_it() {
    let Some(etcd) = plain() else { return };
    run(async {
        let client = etcd.client().await;
        let revision = client.read("/t/").await.unwrap().revision;
        let mut watch = client.watch("/t/", revision + 1).await.unwrap();
        let absent = Condition::Absent("/t/a".into());
        let both = [Change::put("/t/a", "1"), Change::put("/t/b", [0, 255])];
        assert!(client.change(from_ref(&absent), &both).await.unwrap());
        assert!(!client.change(&[absent], &both).await.unwrap());
        // Next to the prefix, and not below it.
        client
            .change(&[], &[Change::put("/t0", "x")])
            .await
            .unwrap();

        let found = client.read("/t/").await.unwrap();
        let keys: Vec<_> = found.entries.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["/t/a", "/t/b"]);
        assert_eq!(found.entries.last().unwrap().value, [0, 255]);
        let revision = found.entries.first().unwrap().mod_revision;
        let at = Condition::At("/t/a".into(), revision);
        let delete = Change::Delete("/t/a".into());
        let deleted = client
            .change(from_ref(&at), from_ref(&delete))
            .await
            .unwrap();
        assert!(deleted);
        assert!(!client.change(&[at], &[delete]).await.unwrap());

        // The watch reports the changes of one transaction in one update.
        let update = watch.next().await.unwrap();
        assert_eq!(update.revision, revision);
        assert_eq!(update.events.len(), 2);
        let update = watch.next().await.unwrap();
        assert_eq!(update.events, [Event::Delete { key: "/t/a".into() }]);
    });
}

#[test]
fn each_change_below_a_prefix_changes_its_fingerprint() {
    let Some(etcd) = plain() else { return };
    run(async {
        let client = etcd.client().await;
        let change = async |change: Change| {
            client.change(&[], &[change]).await.unwrap();
            client.fingerprint("/t/").await.unwrap()
        };
        let (first, revision) = change(Change::put("/t/a", "1")).await;
        assert_eq!((first.keys, first.last_change), (1, revision));
        let (second, _) = change(Change::put("/t/b", "1")).await;
        assert_eq!((second.keys, second.last_change), (2, revision + 1));
        let (put, _) = change(Change::put("/t/a", "2")).await;
        assert_eq!((put.keys, put.last_change), (2, revision + 2));
        // The deletion of the last key that has changed leaves an earlier revision.
        let (deleted, last) = change(Change::Delete("/t/a".into())).await;
        assert_eq!((deleted.keys, deleted.last_change), (1, revision + 1));
        assert_eq!(last, revision + 3);
        let (other, _) = change(Change::put("/t0", "x")).await;
        assert_eq!(other, deleted);
        let (none, _) = change(Change::Delete("/t/b".into())).await;
        assert_eq!((none.keys, none.last_change), (0, 0));
        let found = client.read_key("/t").await.unwrap();
        assert_eq!(found, None, "a longer key is another one");
        let found = client.read_key("/t0").await.unwrap();
        assert_eq!(found.unwrap().value, b"x");
    });
}

#[test]
fn what_is_bound_to_a_lease_ends_with_it() {
    let Some(etcd) = plain() else { return };
    run(async {
        let client = etcd.client().await;
        let (lease, ttl) = client.grant(Duration::from_secs(2)).await.unwrap();
        assert!(ttl >= Duration::from_secs(2) && ttl < Duration::from_secs(10));
        let put = Change::Put {
            key: "/t/live".into(),
            value: b"me".to_vec(),
            lease: Some(lease),
        };
        assert!(client.change(&[], &[put]).await.unwrap());
        let made = client.read("/t/").await.unwrap();
        let mut watch = client.watch("/t/", made.revision + 1).await.unwrap();
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(client.keep_alive(lease).await.unwrap(), Some(ttl));
        }
        assert_eq!(client.read("/t/").await.unwrap().entries.len(), 1);
        let since = Instant::now();
        let update = watch.next().await.unwrap();
        assert_eq!(
            update.events,
            [Event::Delete {
                key: "/t/live".into()
            }]
        );
        let late = since.elapsed();
        assert!(late + Duration::from_millis(100) >= ttl, "{late:?}");
        assert_eq!(client.keep_alive(lease).await.unwrap(), None);
        assert!(client.revoke(lease).await.is_err());
        let (lease, _) = client.grant(ttl).await.unwrap();
        client.revoke(lease).await.unwrap();
        assert_eq!(client.keep_alive(lease).await.unwrap(), None);
    });
}

#[test]
fn a_watch_from_before_a_compaction_says_so() {
    let Some(etcd) = plain() else { return };
    run(async {
        let client = etcd.client().await;
        for n in 0..5 {
            let put = Change::put("/t/a", n.to_string());
            client.change(&[], &[put]).await.unwrap();
        }
        let revision = client.read("/t/").await.unwrap().revision;
        assert!(client.keeps(1).await.unwrap() && client.keeps(revision).await.unwrap());
        etcd.compact(revision);
        assert!(!client.keeps(1).await.unwrap() && client.keeps(revision).await.unwrap());
        let mut watch = client.watch("/t/", revision - 2).await.unwrap();
        let error = watch.next().await.unwrap_err();
        assert!(
            matches!(error, Error::Compacted(r) if r == revision),
            "{error}"
        );
        // The present can be watched.
        let mut watch = client.watch("/t/", revision + 1).await.unwrap();
        client
            .change(&[], &[Change::put("/t/a", "x")])
            .await
            .unwrap();
        assert_eq!(watch.next().await.unwrap().events.len(), 1);
    });
}

#[test]
fn a_member_tells_the_size_of_its_database_and_that_it_is_full() {
    let limited = |_: &Path| vec!["--quota-backend-bytes".into(), "1000000".into()];
    let Some(etcd) = Etcd::start("http", "127.0.0.1", limited) else {
        return;
    };
    run(async {
        let client = etcd.client().await;
        let before = client.database().await.unwrap();
        assert!(!before.is_full && before.size_bytes > 0, "{before:?}");
        assert!(before.in_use_bytes <= before.size_bytes, "{before:?}");
        let put = Change::put("/t/a", vec![7; 50_000]);
        let mut count = 0;
        while client.change(&[], from_ref(&put)).await.is_ok() {
            count += 1;
            assert!(count < 100, "etcd takes more than its quota");
        }
        let after = client.database().await.unwrap();
        assert!(
            after.is_full && after.size_bytes > before.size_bytes,
            "{after:?}"
        );
        assert!(after.revision >= before.revision + count, "{after:?}");
    });
}

#[test]
fn another_member_is_asked_when_one_is_silent() {
    let (Some(silent), Some(etcd)) = (plain(), plain()) else {
        return;
    };
    run(async {
        let _ = silent.client().await;
        let _ = etcd.client().await;
        let refusing = format!("http://127.0.0.1:{}", free_port());
        let refusing = refusing.try_into().unwrap();
        let endpoints = vec![silent.endpoint(), refusing, etcd.endpoint()];
        let client = EtcdClient::new(endpoints, None, LEASE_TTL);
        client.read("/t/").await.unwrap();
        silent.signal(rustix::process::Signal::STOP);
        let begun = Instant::now();
        client
            .change(&[], &[Change::put("/t/a", "1")])
            .await
            .unwrap();
        assert!(begun.elapsed() < Duration::from_secs(4));
        // From now on the client asks first the endpoint that answered. The silent one would cost
        // each call its timeout of 1 s.
        let begun = Instant::now();
        for _ in 0..6 {
            client.read("/t/").await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(3));
        silent.signal(rustix::process::Signal::CONT);
    });
}

#[test]
fn an_etcd_that_is_started_again_has_what_it_had() {
    let Some(mut etcd) = plain() else { return };
    run(async {
        let client = etcd.client().await;
        let (lease, _) = client.grant(Duration::from_secs(5)).await.unwrap();
        let put = Change::Put {
            key: "/t/live".into(),
            value: Vec::new(),
            lease: Some(lease),
        };
        assert!(client.change(&[], &[put]).await.unwrap());
        let made = client.read("/t/").await.unwrap();
        let mut watch = client.watch("/t/", made.revision + 1).await.unwrap();
        etcd.child.kill().unwrap();
        etcd.child.wait().unwrap();
        assert!(watch.next().await.is_err());
        let down = client.keep_alive(lease).await.unwrap_err();
        assert!(matches!(down, Error::Unreachable { .. }), "{down}");
        etcd.child = spawn(&etcd.arguments);
        wait_for(&client).await;
        assert!(client.keep_alive(lease).await.unwrap().is_some());
        let mut watch = client.watch("/t/", made.revision + 1).await.unwrap();
        client
            .change(&[], &[Change::put("/t/a", "1")])
            .await
            .unwrap();
        assert_eq!(watch.next().await.unwrap().events.len(), 1);
    });
}

/// An authority, and a certificate of it for loopback, in the files `NAME.crt` and
/// `NAME.key`.
fn make_certificates(dir: &Path, name: &str) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(["127.0.0.1", "::1"].map(str::to_owned)).unwrap();
    // etcd's gateway is its own client.
    params.extended_key_usages = vec![
        rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        rcgen::ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let own = params.signed_by(&key, &issuer).unwrap();
    let files = [
        ("ca", issuer.pem()),
        ("crt", own.pem()),
        ("key", key.serialize_pem()),
    ];
    for (kind, text) in files {
        std::fs::write(dir.join(format!("{name}.{kind}")), text).unwrap();
    }
}

#[test]
fn over_tls_both_sides_have_to_know_each_other() {
    for host in ["127.0.0.1", "[::1]"] {
        over_tls_at(host);
    }
}

fn over_tls_at(host: &str) {
    let started = Etcd::start("https", host, |dir| {
        make_certificates(dir, "right");
        make_certificates(dir, "wrong");
        let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        [
            ("--cert-file", file("right.crt")),
            ("--key-file", file("right.key")),
            ("--trusted-ca-file", file("right.ca")),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .chain(["--client-cert-auth".to_owned()])
        .collect()
    });
    let Some(etcd) = started else { return };
    run(async {
        let file = |name: &str| etcd.dir.path().join(name);
        let with = |ca: &str, own: Option<&str>| {
            let own = own.map(|own| (file(&format!("{own}.crt")), file(&format!("{own}.key"))));
            let own = own
                .as_ref()
                .map(|(cert, key)| (cert.as_path(), key.as_path()));
            let tls = prism_pki::https_client(&file(ca), own).unwrap();
            EtcdClient::new(vec![etcd.endpoint()], Some(tls), LEASE_TTL)
        };
        let client = with("right.ca", Some("right"));
        wait_for(&client).await;
        let revision = client.read("/t/").await.unwrap().revision;
        let mut watch = client.watch("/t/", revision + 1).await.unwrap();
        client
            .change(&[], &[Change::put("/t/a", "1")])
            .await
            .unwrap();
        assert_eq!(watch.next().await.unwrap().events.len(), 1);
        assert!(with("wrong.ca", Some("right")).read("/t/").await.is_err());
        assert!(with("right.ca", Some("wrong")).read("/t/").await.is_err());
        assert!(with("right.ca", None).read("/t/").await.is_err());
    });
}
