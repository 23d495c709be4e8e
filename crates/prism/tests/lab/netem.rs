//! Connections that move while the network loses, delays and reorders packets: those of
//! clients, commands, and those between nodes. Netem does this, which not every kernel has:
//! without it each test says so and passes.

use crate::support::client::Request;
use crate::support::netem::{has_netem, impair_all};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{BUCKET, Cluster, say, turn};

const CLIENTS: usize = 3;
/// Objects that each client fetches.
const FETCHES: usize = 12;

#[test]
fn clients_get_and_put_every_byte_through_loss_and_delay() {
    let Some(_turn) = turn() else { return };
    if !has_netem() {
        return;
    }
    let cluster = Cluster::up(3);
    let mut objects = cluster.one_on_each("small", |n| 3_000 + n as u64);
    objects.extend(cluster.one_on_each("large", |n| 150_000 + n as u64));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "netem");
    let moved = cluster.sum("handoff", "exports_moved");
    let impaired = impair_all(&cluster);
    let rounds = rounds();
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for first in 0..CLIENTS {
                let (cluster, objects) = (&cluster, &objects);
                scope.spawn(move || {
                    let mut client = cluster.connect();
                    for n in 0..FETCHES {
                        client.get(cluster, &objects[(first + n) % objects.len()]);
                    }
                    let put = Object::new(format!("put-{round}-{first}"), 100_000);
                    client.put(cluster, &put);
                    client.get(cluster, &put);
                });
            }
        });
    }
    drop(impaired);
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    let refused = cluster.sum("handoff", "exports_kept");
    say(&format!("{moved} hand-offs, {refused} taken back"));
    let expected = rounds * CLIENTS * FETCHES / 2;
    assert!(moved >= expected as u64, "{moved} hand-offs");
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn curl_keeps_one_connection_through_loss_and_delay() {
    let Some(_turn) = turn() else { return };
    if !has_netem() {
        return;
    }
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each("curl", |n| 100_000 + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "netem-curl");
    let impaired = impair_all(&cluster);
    let dir = tempfile::tempdir().unwrap();
    let fetched: Vec<&Object> = objects.iter().cycle().take(9).collect();
    let mut curl = cluster.lab.command("client", "curl").unwrap();
    curl.arg("--fail-early");
    for (n, object) in fetched.iter().enumerate() {
        if n > 0 {
            curl.arg("--next");
        }
        curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*"]);
        curl.args(["--write-out", "%{num_connects} "]);
        let head = String::from_utf8(Request::get(object).encode(&cluster)).unwrap();
        for line in head.lines().skip(1).filter(|line| !line.is_empty()) {
            curl.args(["--header", line]);
        }
        curl.arg("--output").arg(dir.path().join(n.to_string()));
        let endpoint = cluster.lab.endpoint();
        curl.arg(format!("{endpoint}/{BUCKET}/{}", object.key));
    }
    let output = curl.output().unwrap();
    drop(impaired);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let connects = String::from_utf8_lossy(&output.stdout);
    assert_eq!(connects, "1 0 0 0 0 0 0 0 0 ", "{errors}");
    for (n, object) in fetched.iter().enumerate() {
        let got = std::fs::read(dir.path().join(n.to_string())).unwrap();
        assert_eq!(got.len() as u64, object.len);
        object.check(0, &got);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// How often each client does all of its requests: `PRISM_NETEM_ROUNDS`, or once.
fn rounds() -> usize {
    let rounds = std::env::var("PRISM_NETEM_ROUNDS");
    rounds.map_or(1, |rounds| rounds.parse().unwrap())
}
