//! Switches that fail under clients whose connections are at the backends: one that comes back
//! with an empty table, and a pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_lab::Failure;

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, say, tls, turn};

const BACKENDS: usize = 3;
/// Connections: half of them HTTPS, and half of each with IPv6.
const CLIENTS: usize = 40;
const LEN: u64 = 200_000;
/// Between two requests of a connection.
const REST: Duration = Duration::from_millis(20);
/// TCP sends again within this time of the end of an outage of `OUTAGE`. A socket that was restored
/// just before may have measured a round trip of seconds, and then waits for three times as long.
const GOES_ON_IN: Duration = Duration::from_secs(60);
const OUTAGE: Duration = Duration::from_secs(2);
/// Nodes try a silent standby again each second.
const COPIED_IN: Duration = Duration::from_secs(10);
/// A term is young for 10 s at most, and an agent has to start.
const SETTLED_IN: Duration = Duration::from_secs(20);
/// The time in which copies are counted.
const AT_REST: Duration = Duration::from_secs(2);

/// The answers that the connections have had.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    answers: Vec<AtomicU64>,
    /// The clients' ports.
    ports: Vec<u16>,
}

impl Progress {
    fn new(clients: &[Client]) -> Self {
        let answers = std::iter::repeat_with(AtomicU64::default);
        Self {
            answers: answers.take(CLIENTS).collect(),
            ports: clients.iter().map(|c| c.local().port()).collect(),
            ..Self::default()
        }
    }

    fn counts(&self) -> Vec<u64> {
        let all = self.answers.iter();
        all.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Prints what the switch and the hosts have of these connections.
    fn describe(&self, cluster: &Cluster, ports: &[u16]) {
        for known in cluster.flows() {
            if ports.contains(&known.flow.client.port()) {
                say(&format!("{known:?}"));
            }
        }
        for host in cluster.nodes().iter().map(String::as_str).chain(["client"]) {
            for port in ports {
                let mut ss = cluster.lab.command(host, "ss").unwrap();
                ss.args([
                    "-tnaoiH",
                    &format!("( sport = :{port} or dport = :{port} )"),
                ]);
                let found = String::from_utf8(ss.output().unwrap().stdout).unwrap();
                say(&format!("{host}: {found}"));
            }
        }
    }

    /// Waits until each connection has had two more answers.
    fn wait(&self, cluster: &Cluster, what: &str) {
        let before = self.counts();
        let until = Instant::now() + GOES_ON_IN;
        loop {
            let now = self.counts();
            let lag = |n: &usize| now[*n] < before[*n] + 2;
            let late: Vec<usize> = (0..CLIENTS).filter(lag).collect();
            if late.is_empty() {
                return;
            }
            if Instant::now() >= until {
                let ports: Vec<_> = late.iter().map(|n| self.ports[*n]).collect();
                self.describe(cluster, &ports);
                panic!("{what}: connections {late:?} do not");
            }
            std::thread::sleep(REST);
        }
    }
}

/// Asks for the objects in turn until it is told to stop. Returns the longest time of a request.
fn ask(mut client: Client, requests: &[(Vec<u8>, &Object)], n: usize, all: &Progress) -> Duration {
    let mut longest = Duration::ZERO;
    for (request, object) in requests.iter().cycle().skip(n) {
        if all.stop.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        let answer = client.try_call(request);
        let answer = answer.unwrap_or_else(|error| panic!("connection {n}: {error}"));
        assert_eq!(answer.status(), 200, "connection {n}: {}", answer.text());
        assert_eq!(answer.body.len() as u64, object.len);
        object.check(0, &answer.body);
        longest = longest.max(begun.elapsed());
        all.answers[n].fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(REST);
    }
    longest
}

/// Connections ask for objects of all backends while `fail` lets switches fail.
fn survives(cluster: &mut Cluster, fail: impl FnOnce(&mut Cluster, &Progress)) {
    let objects = cluster.one_on_each("switches", |_| LEN);
    cluster.put_all(&objects);
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    let clients = (0..CLIENTS).map(|n| match n % 2 {
        0 => cluster.connect(),
        _ => tls::connect(cluster, &config),
    });
    let clients = clients.map(|client| client.with_timeout(GOES_ON_IN));
    let clients: Vec<Client> = clients.collect();
    let requests = objects.iter();
    let requests = requests.map(|object| (Request::get(object).encode(cluster), object));
    let requests: Vec<_> = requests.collect();
    let progress = Progress::new(&clients);
    let longest = std::thread::scope(|scope| {
        let asking = clients.into_iter().enumerate().map(|(n, client)| {
            let (requests, progress) = (&requests, &progress);
            scope.spawn(move || ask(client, requests, n, progress))
        });
        let asking: Vec<_> = asking.collect();
        let failing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            progress.wait(cluster, "connections are at the backends");
            fail(cluster, &progress);
        }));
        progress.stop.store(true, Ordering::Relaxed);
        let mut longest: Vec<Duration> = asking.into_iter().map(|t| t.join().unwrap()).collect();
        if let Err(panic) = failing {
            std::panic::resume_unwind(panic);
        }
        longest.sort_unstable();
        longest
    });
    let (median, most) = (longest[CLIENTS / 2], longest[CLIENTS - 1]);
    let answers: u64 = progress.counts().iter().sum();
    say(&format!(
        "{answers} answers over {CLIENTS} connections; the longest wait of each: {median:.2?} in \
         the middle, {most:.2?} at most"
    ));
    let sum = |name| cluster.sum("handoff", name);
    assert!(sum("flows_announced") > 0, "nothing was announced");
    assert_eq!(sum("exports_lost") + sum("exports_unknown"), 0);
    cluster.assert_no_flows();
}

#[test]
fn a_switch_that_comes_back_without_its_table_costs_no_connection() {
    let Some(_turn) = turn() else { return };
    let mut cluster = tls::up(BACKENDS, |_| {});
    survives(&mut cluster, |cluster, progress| {
        for round in 0..2 {
            cluster.lab.fail("switch", Failure::Kill).unwrap();
            std::thread::sleep(OUTAGE);
            cluster.lab.heal("switch").unwrap();
            progress.wait(cluster, &format!("all go on after loss {round}"));
        }
    });
}

/// Waits until the standby has the flows of all connections, and the nodes know that.
fn standby_knows_all(cluster: &Cluster, progress: &Progress) {
    let until = Instant::now() + COPIED_IN;
    loop {
        let known = cluster.flows_of_standby();
        let has = |port: &u16| known.iter().any(|k| k.flow.client.port() == *port);
        let missing = progress.ports.iter().filter(|port| !has(port)).count();
        let lag = cluster.sum("handoff", "flows_uncopied");
        if (missing, lag) == (0, 0) {
            return;
        }
        assert!(
            Instant::now() < until,
            "the standby lacks {missing} flows, and the nodes say {lag}"
        );
        std::thread::sleep(REST / 4);
    }
}

/// Waits until the standby has no flow.
fn standby_forgets_all(cluster: &Cluster) {
    let until = Instant::now() + COPIED_IN;
    while !cluster.flows_of_standby().is_empty() {
        let left = cluster.flows_of_standby();
        assert!(Instant::now() < until, "left at the standby: {left:?}");
        std::thread::sleep(REST);
    }
}

/// The exit status and the output of `prism ctl switch status` on a node's host.
fn status(cluster: &Cluster) -> (Option<i32>, String) {
    let mut prism = cluster
        .lab
        .command("be0", env!("CARGO_BIN_EXE_prism"))
        .unwrap();
    prism.args(["ctl", "switch", "status", "--config"]);
    let output = prism.arg(cluster.lab.config_path()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Waits until one switch is active and knows all flows, and the other one stands by. With copies,
/// connections go on before that.
fn wait_for_both(cluster: &Cluster) {
    let until = Instant::now() + SETTLED_IN;
    loop {
        let (code, said) = status(cluster);
        let lines = said.lines().filter(|line| line.starts_with("switch"));
        let lines: Vec<_> = lines.collect();
        let has = |role| lines.iter().filter(|line| line.contains(role)).count() == 1;
        if code == Some(0) && lines.len() == 2 && has("active") && has("standby") {
            return;
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::sleep(REST);
    }
}

#[test]
fn the_death_of_the_active_switch_of_a_pair_costs_no_connection() {
    let Some(_turn) = turn() else { return };
    let mut cluster = tls::up(BACKENDS, |spec| spec.switches = 2);
    survives(&mut cluster, |cluster, progress| {
        for how in [Failure::Kill, Failure::Links, Failure::Kill] {
            standby_knows_all(cluster, progress);
            let active = cluster.lab.active_switch().unwrap().to_owned();
            cluster.lab.fail(&active, how).unwrap();
            let begun = Instant::now();
            progress.wait(cluster, &format!("all go on after {how} of {active}"));
            say(&format!("{how}: all go on after {:.2?}", begun.elapsed()));
            cluster.lab.heal(&active).unwrap();
            progress.wait(cluster, "all go on after the repair");
            wait_for_both(cluster);
            let dropped = cluster.switch_count("drop_young");
            assert_eq!(dropped, 0, "packets of copied flows wait for nothing");
        }
        standby_knows_all(cluster, progress);
        let sums = || ["flows_copied", "exports_moved"].map(|name| cluster.sum("handoff", name));
        let [copied, moved] = sums();
        std::thread::sleep(AT_REST);
        let [copied, moved] = [sums()[0] - copied, sums()[1] - moved];
        say(&format!("{copied} copies for {moved} hand-offs"));
        assert!(moved > 0 && copied < 2 * moved);
    });
    standby_forgets_all(&cluster);
}
