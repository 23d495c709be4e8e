//! A backend that stands still (SIGSTOP) while other backends have its objects as well. After
//! the first timeout the backend is suspect, and no request waits for it until it goes on.
//! The tests need root; without it each test says so and passes, except under CI, where it
//! fails.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::replicas::{attempt, attempt_whole};
use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, turn};

const BACKENDS: [&str; 3] = ["be0", "be1", "be2"];
/// The backend that stands still.
const STOPPED: &str = "be1";
/// A hand-off to a host that stands still ends within 3 s.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
const AT_ONCE: Duration = Duration::from_secs(1);

/// Sends a signal to the process of `host`.
pub fn signal(cluster: &Cluster, host: &str, name: &str) {
    let pid = cluster.lab.pid(host).unwrap().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.unwrap().success());
}

/// Four objects whose primary is each backend, stored and decided.
fn objects(cluster: &Cluster) -> Vec<Object> {
    let of = |host, n: u32| Object::new(cluster.key_on(host, &n.to_string()), 10_000);
    let all = (0..4).flat_map(|n| BACKENDS.map(|host| of(host, n)));
    let objects: Vec<Object> = all.collect();
    cluster.put_all(&objects);
    // A replica cannot read a change that is open there without the primary.
    eventually("all is decided", Duration::from_secs(5), || {
        let open = |host| cluster.counter(host, "store", "open_changes");
        BACKENDS.map(open) == [0; 3]
    });
    objects
}

/// Stops the backend, and reads until the frontend suspects it. Every read is answered within
/// the first timeout.
fn notice(cluster: &Cluster, objects: &[Object]) {
    let suspected = || cluster.counter("fe0", "handoff", "peers_suspected");
    let (before, stopped) = (suspected(), Instant::now());
    signal(cluster, STOPPED, "STOP");
    let read_all = || {
        while suspected() == before && stopped.elapsed() < 2 * FIRST_TIMEOUT {
            for object in objects {
                let begun = Instant::now();
                let get = Request::get(object).encode(cluster);
                let answer = attempt(cluster, &get, b"").map(|(status, _)| status);
                let took = begun.elapsed();
                assert!(matches!(answer, Ok(200)), "{answer:?} after {took:?}");
                assert!(took < FIRST_TIMEOUT, "{took:?}");
            }
        }
    };
    std::thread::scope(|scope| {
        for reader in [(); 4].map(|()| scope.spawn(read_all)) {
            reader.join().unwrap();
        }
    });
    assert!(suspected() > before, "nobody has noticed");
    say(&format!("suspect after {:?}", stopped.elapsed()));
}

/// Reads every object, its head and its tags. Every answer comes at once.
fn read_at_once(cluster: &Cluster, objects: &[Object]) {
    let in_time = |what: &str, begun: Instant| {
        let took = begun.elapsed();
        assert!(took < AT_ONCE, "{what}: {took:?}");
    };
    for object in objects {
        let begun = Instant::now();
        cluster.connect().get(cluster, object);
        in_time("GET", begun);
        let tags = format!("/{}?tagging=", object.key);
        for (method, target) in [("HEAD", format!("/{}", object.key)), ("GET", tags)] {
            let begun = Instant::now();
            let answer = cluster.connect().call(&cluster.request(method, &target));
            assert_eq!(answer.status(), 200, "{method} {target}");
            in_time(method, begun);
        }
    }
}

/// Every write whose primary is the stopped backend is refused at once.
fn assert_refused_at_once(cluster: &Cluster, object: &Object) {
    let target = format!("/{}", object.key);
    let writes = [
        (
            Request::put_unsigned(object).encode(cluster),
            object.bytes(),
        ),
        (cluster.request("DELETE", &target), b""),
        (cluster.request("POST", &format!("{target}?uploads=")), b""),
    ];
    for (head, body) in writes {
        let begun = Instant::now();
        let refused = attempt_whole(cluster, &head, body).unwrap().0;
        let took = begun.elapsed();
        assert_eq!(refused.status(), 503);
        assert!(took < AT_ONCE, "{took:?}");
        let retry_after = refused.headers().get_str("retry-after");
        assert_eq!(retry_after, Some("1"));
    }
}

fn stands_still(cluster: &Cluster) {
    let objects = objects(cluster);
    // Streams and channels that are open when it stops.
    for object in &objects {
        cluster.connect().get(cluster, object);
    }
    notice(cluster, &objects);
    for _ in 0..5 {
        read_at_once(cluster, &objects);
    }
    let written = Object::new(cluster.key_on(STOPPED, "written"), 10_000);
    assert_refused_at_once(cluster, &written);

    let served = || {
        let counted = |name| cluster.counter(STOPPED, "requests", name);
        counted("served_relayed") + counted("served_direct")
    };
    signal(cluster, STOPPED, "CONT");
    let before = served();
    eventually("it is asked again", Duration::from_secs(3), || {
        let head = Request::put_unsigned(&written).encode(cluster);
        let put = attempt_whole(cluster, &head, written.bytes());
        put.is_ok_and(|(answer, _)| answer.status() == 200)
    });
    cluster.connect().get(cluster, &written);
    read_at_once(cluster, &objects);
    assert!(served() > before, "it has answered nothing");
}

#[test]
fn a_backend_that_stands_still_costs_nobody_more_than_its_first_timeout() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::replicated(3, 2);
    stands_still(&cluster);
    assert!(cluster.sum("handoff", "exports_moved") > 0);
}

#[test]
fn nor_does_it_where_every_request_is_relayed() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::relaying_replicated(3, 2);
    stands_still(&cluster);
    assert_eq!(cluster.sum("handoff", "exports_moved"), 0);
}
