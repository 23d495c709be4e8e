//! Backends that die.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{CONNECTIONS, OBJECTS, SEED};
use crate::support::bed::{Bed, NumberedClient, Way, content, path};
use crate::support::{eventually, say, turn};

/// A request for an object of a dead node: an error that S3 clients know.
fn assert_unavailable(client: &mut NumberedClient, n: usize) {
    let answer = client.request("GET", &path(n), b"").unwrap();
    assert_eq!(answer.status(), 503, "{}", answer.text());
    assert!(
        answer.text().contains("<Code>ServiceUnavailable</Code>"),
        "{}",
        answer.text()
    );
    assert!(
        answer.keep_alive(),
        "the client's connection is none the worse"
    );
}

#[test]
fn a_dead_backend_is_an_error_on_a_connection_that_lives_on() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("imp-dead", &Way::Direct);
    bed.fill(OBJECTS);
    let resets = bed.watch_resets();
    let [dead, other, third] = ["be0", "be1", "be2"].map(|host| bed.object_of(host));
    let mut at_backend = bed.client();
    // These requests open channels and relay streams between all nodes.
    for n in [dead, other, third, dead, third, other] {
        at_backend.get(n);
    }
    bed.lab.kill("be0").unwrap();
    let mut at_frontend = bed.client();
    assert_unavailable(&mut at_frontend, dead);
    assert_unavailable(&mut at_backend, dead);
    at_frontend.get(other);
    at_backend.get(third);
    assert_unavailable(&mut at_frontend, dead);
    at_frontend.get(third);

    bed.lab.restart("be0").unwrap();
    let back = Instant::now();
    for client in [&mut at_frontend, &mut at_backend] {
        // A node that dialled it without success tries again a moment later.
        for from in [other, third] {
            client.get(from);
            eventually("the backend is used again", Duration::from_secs(3), || {
                let answer = client.request("GET", &path(dead), b"").unwrap();
                answer.status() == 200 && answer.body == content(dead)
            });
        }
        client.get(other);
        client.get(dead);
    }
    eventually("it gets hand-offs again", Duration::from_secs(3), || {
        at_frontend.get(third);
        at_frontend.get(dead);
        bed.count("be0", "imported") > 0
    });
    say(&format!(
        "used again {:.1?} after its start",
        back.elapsed()
    ));
    drop((at_frontend, at_backend));
    bed.assert_drained();
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

/// The requests of one client while a backend dies.
#[derive(Debug, Default)]
struct Toll {
    answered: u64,
    unavailable: u64,
    /// The times at which its connections broke.
    broken: Vec<Instant>,
}

fn suffer(bed: &Bed, seed: u64, stop: &AtomicBool) -> Toll {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut toll, mut client) = (Toll::default(), bed.client());
    while !stop.load(Ordering::Relaxed) {
        let n = random.usize(..OBJECTS);
        match client.request("GET", &path(n), b"") {
            Ok(answer) if answer.status() == 200 => {
                assert!(answer.body == content(n), "object {n} has other bytes");
                toll.answered += 1;
            }
            Ok(answer) => {
                assert_eq!(answer.status(), 503, "{}", answer.text());
                assert_eq!(bed.owner_of(n), "be0", "others are well");
                toll.unavailable += 1;
            }
            Err(_) => {
                say(&bed.story(client.local()));
                toll.broken.push(Instant::now());
                client = bed.client();
            }
        }
    }
    toll
}

#[test]
fn a_backend_killed_amid_hand_offs_takes_only_its_own_connections_along() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("imp-kill", &Way::Direct);
    bed.fill(OBJECTS);
    let stop = AtomicBool::new(false);
    let rounds = 3;
    let mut kills = Vec::new();
    let tolls = {
        // This handle changes the lab while clients use the bed.
        let mut handle = prism_lab::Lab::attach(bed.lab.name()).unwrap();
        std::thread::scope(|scope| {
            let (bed, stop) = (&bed, &stop);
            let threads: Vec<_> = (0..CONNECTIONS)
                .map(|n| scope.spawn(move || suffer(bed, SEED + n, stop)))
                .collect();
            for _ in 0..rounds {
                std::thread::sleep(Duration::from_millis(700));
                kills.push(Instant::now());
                handle.kill("be0").unwrap();
                std::thread::sleep(Duration::from_millis(500));
                handle.restart("be0").unwrap();
            }
            std::thread::sleep(Duration::from_millis(700));
            stop.store(true, Ordering::Relaxed);
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Vec<_>>()
        })
    };
    let sum = |of: fn(&Toll) -> u64| tolls.iter().map(of).sum::<u64>();
    let (answered, unavailable) = (sum(|t| t.answered), sum(|t| t.unavailable));
    let delays: Vec<Duration> = tolls
        .iter()
        .flat_map(|toll| &toll.broken)
        .map(|at| {
            let kill = kills.iter().rev().find(|kill| *kill <= at).unwrap();
            *at - *kill
        })
        .collect();
    say(&format!(
        "seed {SEED:#x}: {answered} answered, {unavailable} times 503, broken {delays:.1?} after {rounds} kills"
    ));
    assert!(answered > 500 && unavailable > 0);
    for toll in &tolls {
        assert!(toll.broken.len() <= rounds, "broken more often than killed");
    }
    assert!(
        delays.iter().all(|d| *d < Duration::from_secs(3)),
        "{delays:?}"
    );
    // Nobody releases the dead process's flows, so they age out.
    bed.lab.restart("be0").unwrap();
    let mut client = bed.client();
    (0..OBJECTS).for_each(|n| client.get(n));
}
