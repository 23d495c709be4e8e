//! Much data through a whole cluster: thousands of objects of all sizes over keep-alive
//! connections that move from backend to backend. Every byte is compared. The client sees no
//! reset, and no address but the service's. The objects do not pass the frontend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use prism_config::HandOffMode;
use prism_http::Method;
use prism_lab::LabSpec;

use crate::support::client::{Client, Request};
use crate::support::objects::{self, Object};
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls::{self, Version};
use crate::support::{Cluster, say, turn};

const MIB: u64 = 1 << 20;
/// The most bytes over the frontends' links, as a share of the objects' bytes.
const MAX_FRONTEND_PERCENT: f64 = 3.0;

/// Measures the time and the frontends' bytes until it ends.
struct Measure<'c> {
    cluster: &'c Cluster,
    label: &'c str,
    begun: Instant,
    frontend_bytes: u64,
}

impl<'c> Measure<'c> {
    fn begin(cluster: &'c Cluster, label: &'c str) -> Self {
        Self {
            cluster,
            label,
            begun: Instant::now(),
            frontend_bytes: cluster.frontend_bytes(),
        }
    }

    /// Fails when too much of `object_bytes` passed the frontends.
    fn end(self, requests: usize, object_bytes: u64) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let frontend_bytes = self.cluster.frontend_bytes() - self.frontend_bytes;
        let percent = 100.0 * frontend_bytes as f64 / object_bytes as f64;
        say(&format!(
            "{}: {requests} requests, {} MiB in {seconds:.1} s, {percent:.2} % of it at frontends",
            self.label,
            object_bytes / MIB,
        ));
        assert!(percent < MAX_FRONTEND_PERCENT, "{percent} % at frontends");
    }
}

/// Does each of `jobs` once, over connections that stay open until the end. Chance decides
/// which connection does which job.
fn spread(clients: Vec<Client>, jobs: &[&Object], job: impl Fn(&mut Client, &Object) + Sync) {
    let next = AtomicUsize::new(0);
    let (next, job) = (&next, &job);
    let work = |mut client: Client| {
        move || {
            while let Some(object) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                job(&mut client, object);
            }
            client
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|c| scope.spawn(work(c))).collect();
        let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        assert!(ended.iter().all(Result::is_ok), "a connection failed");
    });
}

/// That many connections over HTTP.
fn plain(cluster: &Cluster, connections: usize) -> Vec<Client> {
    (0..connections).map(|_| cluster.connect()).collect()
}

/// That many connections over HTTPS, half of them of each version of TLS.
fn secure(cluster: &Cluster, connections: usize) -> Vec<Client> {
    let config = |version: Version| Arc::new(tls::config(cluster, &[version.rustls()]));
    let configs = Version::ALL.map(config);
    (0..connections)
        .map(|n| tls::connect(cluster, &configs[n % configs.len()]))
        .collect()
}

/// `count` GETs of 200 objects of 1 byte to 8 MiB in random order.
fn mass_get(
    cluster: &Cluster,
    label: &str,
    count: usize,
    connect: impl FnOnce(&Cluster) -> Vec<Client>,
) {
    let mut rng = fastrand::Rng::with_seed(17);
    let objects = objects::log_uniform("get", 200, 8 * MIB, &mut rng);
    cluster.put_all(&objects);
    let requests: Vec<Vec<u8>> = objects
        .iter()
        .map(|object| Request::get(object).encode(cluster))
        .collect();
    let order: Vec<usize> = (0..count).map(|_| rng.usize(..objects.len())).collect();
    let jobs: Vec<&Object> = order.iter().map(|n| &objects[*n]).collect();
    let number = |object: &Object| -> usize { object.key[4..].parse().unwrap() };

    let watch = Watch::events(cluster, label);
    let failed = cluster.sum("requests", "failed");
    let moved = cluster.sum("handoff", "exports_moved");
    let measure = Measure::begin(cluster, label);
    spread(connect(cluster), &jobs, |client, object| {
        client.send(&requests[number(object)]);
        client.expect(object);
    });
    measure.end(count, jobs.iter().map(|object| object.len).sum());
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    say(&format!("{label}: {moved} hand-offs"));
    assert!(moved as usize > count / 2, "only {moved} hand-offs");
    assert_eq!(cluster.sum("requests", "failed"), failed);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// PUTs of 1 byte to 64 MiB, read back over connections of their own.
fn mass_put(cluster: &Cluster, label: &str, connect: fn(&Cluster, usize) -> Vec<Client>) {
    let mut rng = fastrand::Rng::with_seed(18);
    let mut objects = objects::log_uniform("put", 300, 64 * MIB, &mut rng);
    objects.extend((0..3).map(|n| Object::new(format!("big-{n}"), 64 * MIB)));
    rng.shuffle(&mut objects);
    let total: u64 = objects.iter().map(|object| object.len).sum();
    let mut jobs: Vec<&Object> = objects.iter().collect();

    let watch = Watch::events(cluster, label);
    let failed = cluster.sum("requests", "failed");
    let measure = Measure::begin(cluster, label);
    spread(connect(cluster, 20), &jobs, |client, object| {
        // Half of the bodies are signed, large ones among them.
        if object.key.ends_with(['0', '2', '4', '6', '8']) {
            client.send(&Request::put_signed(object).encode(cluster));
            client.send_object(object);
            let answer = client.answer(&Method::PUT);
            assert_eq!(answer.status(), 200, "{}: {}", object.key, answer.text());
        } else {
            client.put(cluster, object);
        }
    });
    measure.end(jobs.len(), total);
    rng.shuffle(&mut jobs);
    let label = format!("{label} read back");
    let measure = Measure::begin(cluster, &label);
    spread(connect(cluster, 20), &jobs, |client, object| {
        client.get(cluster, object);
    });
    measure.end(jobs.len(), total);
    assert_eq!(cluster.sum("requests", "failed"), failed);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// One object of so many bytes up and down over one connection.
fn giant(cluster: &Cluster, label: &str, len: u64, connect: impl FnOnce(&Cluster) -> Client) {
    let object = Object::new("giant".into(), len);
    let watch = Watch::events(cluster, label);
    let measure = Measure::begin(cluster, label);
    let mut client = connect(cluster);
    client.put(cluster, &object);
    client.get(cluster, &object);
    measure.end(2, 2 * object.len);
    for host in ["fe0", cluster.owner(&object.key)] {
        let peak = peak_memory(cluster.lab.pid(host).unwrap());
        say(&format!("{label}: {host} used {} MiB at most", peak / MIB));
        assert!(peak < 64 * MIB, "{host} used {peak} bytes");
    }
    let deleted = client.call(&cluster.request("DELETE", "/giant"));
    assert_eq!(deleted.status(), 204);
    drop(client);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// The most memory that a process has used, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn ten_thousand_gets_come_from_the_backends_themselves() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(5);
    mass_get(&cluster, "gets", 10_000, |cluster| plain(cluster, 50));
}

#[test]
fn ten_thousand_gets_over_https_come_from_the_backends_themselves() {
    let Some(_turn) = turn() else { return };
    let cluster = tls::up(5, |_| {});
    mass_get(&cluster, "gets-https", 10_000, |cluster| {
        secure(cluster, 50)
    });
}

#[test]
fn connections_go_back_to_one_of_two_frontends_in_return_mode() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(3, |spec: &mut LabSpec| {
        spec.frontends = 2;
        spec.configure = Some(Box::new(|config| {
            config.service.first_mut().hand_off = HandOffMode::Return;
        }));
    });
    mass_get(&cluster, "gets-return", 2_000, |cluster| plain(cluster, 20));
    for frontend in cluster.frontends() {
        let accepted = cluster.counter(&frontend, "handoff", "accepted");
        say(&format!("{frontend} accepted {accepted}"));
    }
}

#[test]
fn two_frontends_share_the_connections() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(3, |spec: &mut LabSpec| spec.frontends = 2);
    mass_get(&cluster, "gets-two-frontends", 1_000, |cluster| {
        plain(cluster, 20)
    });
}

#[test]
fn objects_are_read_back_as_they_were_put() {
    let Some(_turn) = turn() else { return };
    mass_put(&Cluster::up(5), "puts", plain);
}

#[test]
fn objects_are_read_back_over_https_as_they_were_put() {
    let Some(_turn) = turn() else { return };
    mass_put(&tls::up(5, |_| {}), "puts-https", secure);
}

#[test]
fn two_gibibytes_pass_in_little_memory() {
    let Some(_turn) = turn() else { return };
    giant(&Cluster::up(2), "giant", 2048 * MIB, |cluster| {
        cluster.connect()
    });
}

#[test]
fn half_a_gibibyte_passes_over_https_in_little_memory() {
    let Some(_turn) = turn() else { return };
    let cluster = tls::up(2, |_| {});
    giant(&cluster, "giant-https", 512 * MIB, |cluster| {
        let config = tls::config(cluster, &[Version::Tls13.rustls()]);
        tls::connect(cluster, &Arc::new(config))
    });
}
