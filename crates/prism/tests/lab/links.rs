//! Links that fail for a while, and the time until requests are answered again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::objects::Object;
use crate::support::plain::Target;
use crate::support::{Cluster, say, turn};

/// Long enough that TCP waits for seconds until it sends again.
const OUTAGE: Duration = Duration::from_millis(3200);
/// Far more than the time until a probe is answered, and less than until TCP sends again.
const BACK_IN: Duration = Duration::from_millis(1800);
/// The time for which requests are watched after the link is back.
const WATCHED: Duration = Duration::from_secs(4);
const REST: Duration = Duration::from_millis(5);
/// A request for such an object is handed off.
const LEN: u64 = 20_000;
const CLIENTS: usize = 4;

struct Asked {
    begun: Instant,
    ended: Instant,
    outcome: io::Result<u16>,
}

fn ask(target: &Target, key: &str, stop: &AtomicBool) -> Vec<Asked> {
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let outcome = target.get(key).map(|(status, _)| status);
        let ended = Instant::now();
        all.push(Asked {
            begun,
            ended,
            outcome,
        });
        std::thread::sleep(REST);
    }
    all
}

fn run(cluster: &Cluster, host: &str, line: &str) {
    let mut ip = cluster.lab.command(host, "ip").unwrap();
    let output = ip.args(line.split(' ')).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {line}: {errors}");
}

/// The port of `be0` at the switch.
fn link_of_backend(cluster: &Cluster, is_up: bool) {
    let state = if is_up { "up" } else { "down" };
    run(cluster, "switch", &format!("link set be0 {state}"));
}

/// Drops what `fe0` sends to `be0`, or no longer does.
fn way_of_frontend(cluster: &Cluster, is_up: bool) {
    let to = cluster.lab.address("be0").unwrap();
    let nobody = format!("neigh replace {to} lladdr 02:00:00:00:00:01 nud permanent dev eth0");
    let (route, neighbour) = match is_up {
        false => ("add", nobody),
        true => ("del", format!("neigh del {to} dev eth0")),
    };
    run(cluster, "fe0", &neighbour);
    run(cluster, "fe0", &format!("route {route} {to}/32 dev eth0"));
}

/// Clients ask through `fe0` for an object of `be0` while the way between them is cut.
fn is_used_again(what: &str, set: fn(&Cluster, bool)) {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let object = Object::new(cluster.key_on("be0", "small"), LEN);
    cluster.put_all(std::slice::from_ref(&object));
    let (target, stop) = (Target::of(&cluster), AtomicBool::new(false));
    let (healed, asked) = std::thread::scope(|scope| {
        let client = || scope.spawn(|| ask(&target, &object.key, &stop));
        let clients: Vec<_> = std::iter::repeat_with(client).take(CLIENTS).collect();
        std::thread::sleep(Duration::from_secs(1));
        set(&cluster, false);
        std::thread::sleep(OUTAGE);
        set(&cluster, true);
        let healed = Instant::now();
        std::thread::sleep(WATCHED);
        stop.store(true, Ordering::Relaxed);
        let asked = clients.into_iter().flat_map(|c| c.join().unwrap());
        (healed, asked.collect::<Vec<_>>())
    });
    let is_well = |asked: &Asked| matches!(asked.outcome, Ok(200));
    assert!(asked.iter().any(|a| a.ended < healed && !is_well(a)));
    let after = || asked.iter().filter(|a| a.begun > healed);
    let failed = after().filter(|a| !is_well(a)).map(|a| a.ended - healed);
    let failed = failed.max().unwrap_or_default();
    let slowest = after().map(|a| a.ended - a.begun).max().unwrap();
    say(&format!(
        "{what}: the last request fails {failed:.0?} after the link is back; the slowest takes \
         {slowest:.0?}"
    ));
    assert!(failed < BACK_IN && slowest < BACK_IN);
}

#[test]
fn a_backend_whose_link_is_back_is_used_at_once() {
    is_used_again("a backend's link", link_of_backend);
}

#[test]
fn a_backend_to_which_the_way_is_back_is_used_at_once() {
    is_used_again("a frontend's way to a backend", way_of_frontend);
}
