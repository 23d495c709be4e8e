//! Buckets in clusters whose backends stop and return while buckets are created and deleted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use prism_config::ConfigFile;
use prism_store::{Phase, Store};

use crate::refill::{SETTLED, ctl, surely, up};
use crate::replicas;
use crate::support::client::Request;
use crate::support::{BUCKET, Cluster, eventually, say, turn};

/// Name of the bucket that each test makes.
const NAME: &str = "made-meanwhile";
/// Objects put into it.
const OBJECTS: usize = 100;
/// Uploads under way in a bucket that is deleted.
const UPLOADS: usize = 2_000;
/// How often each document is read, of any backend.
const READS: usize = 40;
const CORS: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status>\
    </VersioningConfiguration>";

/// The head of a request for the bucket `NAME`.
fn request(cluster: &Cluster, method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let request = Request::new(method, target)
        .bucket(NAME)
        .signing(body)
        .header("Content-Length", body.len().to_string());
    request.encode(cluster)
}

/// Such a request's answer; 503 also where a connection breaks.
fn ask(cluster: &Cluster, method: &str, target: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let request = request(cluster, method, target, body);
    replicas::attempt(cluster, &request, body).unwrap_or((503, Vec::new()))
}

/// The bucket exists, keeps versions and has documents.
fn make(cluster: &Cluster) {
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::{NAME}/*"}}]}}"#
    );
    surely("the bucket", || ask(cluster, "PUT", "", b"").0, 200);
    surely("CORS", || ask(cluster, "PUT", "/?cors", CORS).0, 200);
    let put = || ask(cluster, "PUT", "/?policy", policy.as_bytes()).0;
    surely("the policy", put, 204);
    let put = || ask(cluster, "PUT", "/?versioning", VERSIONING).0;
    surely("versions", put, 200);
}

/// Begins uploads, over a few connections at the same time.
fn begin_uploads(cluster: &Cluster) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut client = cluster.connect();
                for n in 0..UPLOADS / 4 {
                    let target = format!("/u{thread}-{n}?uploads");
                    let request = Request::new("POST", &target).bucket(NAME);
                    let answer = client.call(&request.encode(cluster));
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                }
            });
        }
    });
}

/// All answers to one question about the bucket, from any backends.
fn answers(cluster: &Cluster, target: &str) -> BTreeSet<(u16, Vec<u8>)> {
    let one = |_| match ask(cluster, "GET", target, b"") {
        (200, text) => (200, text),
        // The text names the request.
        (status, _) => (status, Vec::new()),
    };
    (0..READS).map(one).collect()
}

/// The bucket's properties, on which every backend agrees.
fn agreed(cluster: &Cluster) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    for target in ["/?versioning", "/?policy", "/?cors"] {
        let mut said = BTreeSet::new();
        eventually(&format!("{target} is the same everywhere"), SETTLED, || {
            said = answers(cluster, target);
            said.len() == 1 && said.iter().all(|(status, _)| *status < 500)
        });
        all.extend(said);
    }
    all
}

/// Stops the cluster. Returns the bucket's entry in each backend's store.
fn known(mut cluster: Cluster) -> Vec<Option<Phase>> {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let backends = cluster.backends().into_iter();
    let known = backends.map(|host| {
        cluster.lab.stop(&host).unwrap();
        let path = config.node("be0").unwrap().store.with_file_name(&host);
        let store = Store::open(path, prism_store::Config::default()).unwrap();
        assert!(store.buckets().has(BUCKET), "{host}");
        let known = store.buckets().record(NAME).unwrap();
        if known
            .as_ref()
            .is_some_and(|known| known.phase == Phase::Gone)
        {
            eventually("uploads are gone", Duration::from_secs(1), || {
                store.catch_up().purge(NAME).is_ok()
            });
        }
        known.map(|known| known.phase)
    });
    known.collect()
}

#[test]
fn an_interrupted_deletion_leaves_the_bucket_the_same_everywhere() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(3, 3, 1);
    make(&cluster);
    begin_uploads(&cluster);
    // One of the backends, or the frontend that collects the deletion's answers.
    for (host, after) in [("be1", 0), ("fe0", 2), ("fe0", 5), ("be2", 4)] {
        let request = request(&cluster, "DELETE", "", b"");
        let client = cluster.connect();
        let answer = std::thread::scope(|scope| {
            let deleting = scope.spawn(|| replicas::attempt_over(&client, &request, b""));
            std::thread::sleep(Duration::from_millis(after));
            // By its process: the lab is in use.
            let process = i32::try_from(cluster.lab.pid(host).unwrap()).unwrap();
            let process = rustix::process::Pid::from_raw(process).unwrap();
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            deleting.join().unwrap()
        });
        cluster.lab.restart(host).unwrap();
        let said = agreed(&cluster);
        say(&format!(
            "{host} killed: answered {:?}, then {:?}",
            answer.map(|(head, _)| head.status()),
            said.first().map(|s| s.0)
        ));
        let exists = said.first().is_some_and(|(status, _)| *status == 200);
        if !exists {
            assert!(said.iter().all(|(status, _)| *status == 404), "{said:?}");
            make(&cluster);
        }
        assert!(agreed(&cluster).iter().all(|(status, _)| *status == 200));
        for n in 0..READS {
            let key = format!("v{n}");
            let put = Request::new("PUT", &format!("/{key}"))
                .bucket(NAME)
                .signing(b"x")
                .header("Content-Length", "1");
            let mut version = String::new();
            // The time after which a deletion that nobody continues is given up.
            let attempt = || {
                let request = [put.encode(&cluster), b"x".to_vec()].concat();
                let answer = cluster.connect().call(&request);
                version = answer.header("x-amz-version-id").to_owned();
                answer.status()
            };
            surely(&key, attempt, 200);
            assert!(!version.is_empty(), "no version of {key}");
            let gone = format!("/{key}?versionId={version}");
            surely(&key, || ask(&cluster, "DELETE", &gone, b"").0, 204);
        }
    }
}

#[test]
fn a_bucket_with_many_uploads_is_deleted_at_once_and_is_empty_when_it_is_made_again() {
    let Some(_turn) = turn() else { return };
    let cluster = up(3, 3, 2);
    make(&cluster);
    begin_uploads(&cluster);
    let begun = Instant::now();
    let (status, text) = ask(&cluster, "DELETE", "", b"");
    let took = begun.elapsed();
    say(&format!("{UPLOADS} uploads, deleted after {took:?}"));
    assert_eq!(status, 204, "{}", String::from_utf8_lossy(&text));
    for target in ["", "/?versioning", "/?uploads"] {
        assert_eq!(ask(&cluster, "GET", target, b"").0, 404, "{target}");
    }
    surely("again", || ask(&cluster, "PUT", "", b"").0, 200);
    let (status, text) = ask(&cluster, "GET", "/?uploads", b"");
    let text = String::from_utf8(text).unwrap();
    assert!(status == 200 && !text.contains("<Upload>"), "{text}");
    assert_eq!(ask(&cluster, "GET", "/?cors", b"").0, 404);
    surely("an object", || ask(&cluster, "PUT", "/k", b"k").0, 200);
    surely("gone", || ask(&cluster, "DELETE", "/k", b"").0, 204);
    surely("deleted", || ask(&cluster, "DELETE", "", b"").0, 204);
    assert_eq!(known(cluster), vec![Some(Phase::Gone); 3]);
}

#[test]
fn a_bucket_made_while_a_backend_was_away_keeps_every_answered_object() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(3, 3, 1);
    cluster.lab.kill("be0").unwrap();
    let (status, _) = ask(&cluster, "PUT", "", b"");
    assert!([200, 503].contains(&status), "{status}");
    say(&format!("made without be0: {status}"));
    cluster.lab.restart("be0").unwrap();
    if status == 503 {
        surely("the bucket", || ask(&cluster, "PUT", "", b"").0, 200);
    }
    // be0 knows the bucket, or asks others. It never answers that there is none.
    let keys: Vec<String> = (0..OBJECTS).map(|n| format!("o{n:03}")).collect();
    for key in &keys {
        let put = || ask(&cluster, "PUT", &format!("/{key}"), key.as_bytes()).0;
        surely(key, put, 200);
    }
    let begun = Instant::now();
    ctl(&cluster, &["drain", "be0", "--wait"]);
    say(&format!("be0 is drained after {:?}", begun.elapsed()));
    for key in &keys {
        let mut data = Vec::new();
        let read = || {
            let (status, found) = ask(&cluster, "GET", &format!("/{key}"), b"");
            data = found;
            status
        };
        surely(key, read, 200);
        assert_eq!(data, key.as_bytes());
    }
    assert!(begun.elapsed() < SETTLED + Duration::from_secs(20));
}

/// Each change leaves a revision of the record in etcd, which others may share.
#[test]
fn changes_of_one_bucket_have_a_rate_and_those_of_administrators_do_not() {
    let Some(_turn) = turn() else { return };
    /// More than a bucket has at once.
    const CHANGES: usize = 100;
    let cluster = up(2, 2, 1);
    surely("the bucket", || ask(&cluster, "PUT", "", b"").0, 200);
    let begun = Instant::now();
    let mut refused = None;
    for _ in 0..CHANGES {
        let request = request(&cluster, "PUT", "/?cors", CORS);
        let answer = cluster.connect().call(&[request, CORS.to_vec()].concat());
        if answer.status() == 503 && answer.text().contains("SlowDown") {
            refused = Some(answer);
            break;
        }
    }
    say(&format!("refused after {:.1?}", begun.elapsed()));
    let refused = refused.unwrap();
    let after_s: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=7).contains(&after_s), "{after_s}");
    let told = cluster
        .lab
        .ask("fe0", &format!("quota {NAME} bytes=1000000"));
    assert!(told.unwrap()["error"].is_null());
    // A node looks every 30 s.
    eventually("a node knows etcd's size", Duration::from_secs(40), || {
        let (_, metrics) = crate::observe::of_node(&cluster, "fe0", "/metrics");
        metrics.contains("\nprism_etcd_database_bytes ")
    });
}
