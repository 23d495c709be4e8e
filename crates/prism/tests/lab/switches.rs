//! Switches that fail under clients whose connections are at the backends: one that comes back
//! with an empty table, and a pair.
//!
//! `PRISM_SWITCH_CONNECTIONS=1000 PRISM_SWITCH_DEATHS=50` is the long form, also of the frontends
//! of [`crate::host_mode`].

pub mod pauses;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_lab::Failure;

use self::pauses::Outage;
use crate::support::client::{Client, Request, Wait};
use crate::support::objects::Object;
use crate::support::packets::{RST, one_of};
use crate::support::{Cluster, eventually, say, tls, turn};

pub const BACKENDS: usize = 3;
/// Connections: half of them HTTPS, and half of each with IPv6.
const CLIENTS: usize = 40;
const LEN: u64 = 50_000;
/// The clients' link, both ways.
pub const LINK: &str = "400mbit";
/// Deaths of active switches of a pair.
const DEATHS: usize = 3;
/// Between two requests of a connection, times their number, on average: they fill half of the
/// link. With equal rests, all connections would go on in step after an outage, and fill it at
/// once.
const REST: Duration = Duration::from_millis(2);
/// Between two looks at all connections.
const LOOK: Duration = Duration::from_millis(20);
/// TCP sends again within this time of the end of an outage. A socket that was restored
/// just before may have measured a round trip of seconds, and then waits for three times as long.
const GOES_ON_IN: Duration = Duration::from_secs(60);
const OUTAGES: &[Duration] = &[Duration::from_secs(2); 2];
const LONG_OUTAGES: &[Duration] = &[Duration::from_secs(2), Duration::from_secs(30)];
/// keepalived's part.
const TAKES_OVER_IN: Duration = Duration::from_secs(10);
/// Nodes try a silent standby again each second.
const COPIED_IN: Duration = Duration::from_secs(10);
/// A term is young for 10 s at most, and an agent has to start.
const SETTLED_IN: Duration = Duration::from_secs(20);
/// The time in which copies are counted.
const AT_REST: Duration = Duration::from_secs(2);
/// Late connections that are described.
const MOST_DESCRIBED: usize = 10;

/// The number in this environment variable.
pub fn number(variable: &str, default: usize) -> usize {
    let asked = std::env::var(variable).ok();
    asked.map_or(default, |number| number.parse().unwrap())
}

/// The answers that the connections have had.
#[derive(Default)]
pub struct Progress {
    stop: AtomicBool,
    answers: Vec<AtomicU64>,
    /// The clients' ports.
    ports: Vec<u16>,
}

impl Progress {
    fn new(clients: &[Client]) -> Self {
        let answers = std::iter::repeat_with(AtomicU64::default);
        Self {
            answers: answers.take(clients.len()).collect(),
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
            for port in ports.iter().take(MOST_DESCRIBED) {
                let mut ss = cluster.lab.command(host, "ss").unwrap();
                ss.args([
                    "-tnaoiH",
                    &format!("( sport = :{port} or dport = :{port} )"),
                ]);
                let found = String::from_utf8(ss.output().unwrap().stdout).unwrap();
                say(&format!("{host}: {found}"));
            }
        }
        let counters = cluster.view().counters().unwrap().into_iter();
        for counter in counters.filter(|counter| counter.value > 0) {
            say(&format!("{} {}", counter.name, counter.value));
        }
    }

    /// Waits until each connection has had two more answers.
    pub fn wait(&self, cluster: &Cluster, what: &str) {
        let before = self.counts();
        let until = Instant::now() + GOES_ON_IN;
        loop {
            let now = self.counts();
            let lag = |n: &usize| now[*n] < before[*n] + 2;
            let late: Vec<usize> = (0..now.len()).filter(lag).collect();
            if late.is_empty() {
                return;
            }
            if Instant::now() >= until {
                let ports: Vec<_> = late.iter().map(|n| self.ports[*n]).collect();
                self.describe(cluster, &ports);
                panic!("{what}: connections {late:?} do not");
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Asks for the objects in turn until it is told to stop. Returns the long waits for bytes.
fn ask(mut client: Client, requests: &[(Vec<u8>, &Object)], n: usize, all: &Progress) -> Vec<Wait> {
    let rest = REST * u32::try_from(all.answers.len()).unwrap();
    let mut chance = fastrand::Rng::with_seed(n as u64);
    for (request, object) in requests.iter().cycle().skip(n) {
        if all.stop.load(Ordering::Relaxed) {
            break;
        }
        let answer = client.try_call(request);
        let answer = answer.unwrap_or_else(|error| panic!("connection {n}: {error}"));
        assert_eq!(answer.status(), 200, "connection {n}: {}", answer.text());
        assert_eq!(answer.body.len() as u64, object.len);
        object.check(0, &answer.body);
        all.answers[n].fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(rest.mul_f64(0.5 + chance.f64()));
    }
    client.waits
}

/// Connects the clients, half of them over TLS.
fn connect(cluster: &Cluster) -> Vec<Client> {
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    let clients = (0..number("PRISM_SWITCH_CONNECTIONS", CLIENTS)).map(|n| match n % 2 {
        0 => cluster.connect(),
        _ => tls::connect(cluster, &config),
    });
    let clients = clients.map(|client| client.with_timeout(GOES_ON_IN));
    clients.collect()
}

/// Connections ask for objects of all backends while `fail` lets switches fail.
pub fn survives(cluster: &mut Cluster, fail: impl FnOnce(&mut Cluster, &Progress) -> Vec<Outage>) {
    let objects = cluster.one_on_each("switches", |_| LEN);
    cluster.put_all(&objects);
    let name = format!("resets-{}.pcap", cluster.lab.name());
    let captured = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let filter = format!("{} and {RST}", one_of("src host", &cluster.vips()));
    let resets = cluster.lab.capture("client", &captured, &filter).unwrap();
    let clients = connect(cluster);
    let requests = objects.iter();
    let requests = requests.map(|object| (Request::get(object).encode(cluster), object));
    let requests: Vec<_> = requests.collect();
    let progress = Progress::new(&clients);
    let (waits, outages) = std::thread::scope(|scope| {
        let asking = clients.into_iter().enumerate().map(|(n, client)| {
            let (requests, progress) = (&requests, &progress);
            scope.spawn(move || ask(client, requests, n, progress))
        });
        let asking: Vec<_> = asking.collect();
        let failing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            progress.wait(cluster, "connections are at the backends");
            fail(cluster, &progress)
        }));
        progress.stop.store(true, Ordering::Relaxed);
        let waits: Vec<Vec<Wait>> = asking.into_iter().map(|t| t.join().unwrap()).collect();
        (
            waits,
            failing.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    for outage in &outages {
        say(&outage.describe(&waits));
    }
    let answers: u64 = progress.counts().iter().sum();
    let connections = waits.len();
    say(&format!("{answers} answers over {connections} connections"));
    let sum = |name| cluster.sum("handoff", name);
    assert!(sum("flows_announced") > 0, "nothing was announced");
    assert_eq!(sum("exports_lost"), 0);
    // Nodes are out of each other's reach as well, and a source does not ask for ever.
    let is_long = |outage: &Outage| outage.replaced - outage.begun > Duration::from_secs(10);
    if !outages.iter().any(is_long) {
        assert_eq!(sum("exports_unknown"), 0);
    }
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
    cluster.assert_no_flows();
}

/// Backends and a frontend behind `switches` switches, and clients with a slow link.
fn up(switches: usize) -> Cluster {
    tls::up(BACKENDS, |spec| {
        spec.switches = switches;
        spec.uplink = Some(LINK.parse().unwrap());
    })
}

#[test]
fn a_switch_that_comes_back_without_its_table_costs_no_connection() {
    let Some(_turn) = turn() else { return };
    let is_long = std::env::var_os("PRISM_SWITCH_DEATHS").is_some();
    let outages = if is_long { LONG_OUTAGES } else { OUTAGES };
    survives(&mut up(1), |cluster, progress| {
        let outages = outages.iter().enumerate().map(|(round, away)| {
            let begun = Instant::now();
            cluster.lab.fail("switch", Failure::Kill).unwrap();
            std::thread::sleep(*away);
            cluster.lab.heal("switch").unwrap();
            let replaced = Instant::now();
            progress.wait(cluster, &format!("all go on after loss {round}"));
            Outage {
                what: format!("away for {away:?}"),
                begun,
                replaced,
                over: Instant::now(),
            }
        });
        outages.collect()
    });
}

/// Waits until the standby has the flows of all connections, and the nodes know that.
pub fn standby_knows_all(cluster: &Cluster, progress: &Progress) {
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
        std::thread::sleep(LOOK / 4);
    }
}

/// Waits until the standby has no flow.
pub fn standby_forgets_all(cluster: &Cluster) {
    let until = Instant::now() + COPIED_IN;
    while !cluster.flows_of_standby().is_empty() {
        let left = cluster.flows_of_standby();
        assert!(Instant::now() < until, "left at the standby: {left:?}");
        std::thread::sleep(LOOK);
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
pub fn wait_for_both(cluster: &Cluster) {
    let until = Instant::now() + SETTLED_IN;
    loop {
        let (code, said) = status(cluster);
        let is_host = |line: &&str| cluster.lab.switches().any(|name| line.starts_with(name));
        let lines = said.lines().filter(is_host);
        let lines: Vec<_> = lines.collect();
        let has = |role| lines.iter().filter(|line| line.contains(role)).count() == 1;
        if code == Some(0) && lines.len() == 2 && has("active") && has("standby") {
            return;
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::sleep(LOOK);
    }
}

/// Lets the active switch of a pair fail, and repairs it.
pub fn fail_active(cluster: &mut Cluster, progress: &Progress, how: Failure) -> Outage {
    let active = cluster.lab.active_switch().unwrap().to_owned();
    let begun = Instant::now();
    cluster.lab.fail(&active, how).unwrap();
    let mut switches = cluster.lab.switches();
    let other = switches.find(|switch| *switch != active).unwrap();
    let other = other.to_owned();
    drop(switches);
    eventually("the other one takes over", TAKES_OVER_IN, || {
        cluster.lab.is_active(&other)
    });
    let replaced = Instant::now();
    let what = format!("{how} of {active}");
    progress.wait(cluster, &format!("all go on after {what}"));
    let over = Instant::now();
    cluster.lab.heal(&active).unwrap();
    progress.wait(cluster, "all go on after the repair");
    Outage {
        what,
        begun,
        replaced,
        over,
    }
}

/// No more than two copies are made for a hand-off.
fn copies_are_few(cluster: &Cluster) {
    let sums = || ["flows_copied", "exports_moved"].map(|name| cluster.sum("handoff", name));
    let [copied, moved] = sums();
    std::thread::sleep(AT_REST);
    let [copied, moved] = [sums()[0] - copied, sums()[1] - moved];
    say(&format!("{copied} copies for {moved} hand-offs"));
    assert!(moved > 0 && copied < 2 * moved);
}

#[test]
fn the_death_of_the_active_switch_of_a_pair_costs_no_connection() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(2);
    survives(&mut cluster, |cluster, progress| {
        let ways = [Failure::Kill, Failure::Links].iter().cycle();
        let deaths = ways.take(number("PRISM_SWITCH_DEATHS", DEATHS));
        let outages = deaths.map(|how| {
            standby_knows_all(cluster, progress);
            let outage = fail_active(cluster, progress, *how);
            wait_for_both(cluster);
            let dropped = cluster.switch_count("drop_young");
            say(&format!("{dropped} packets waited for the owners' word"));
            outage
        });
        let outages = outages.collect();
        standby_knows_all(cluster, progress);
        copies_are_few(cluster);
        outages
    });
    standby_forgets_all(&cluster);
}
