//! A frontend that is cut off from etcd. It cannot know which keys were deleted, so it refuses
//! requests with keys, is not ready and gets no new clients, until etcd answers again.

use std::time::{Duration, Instant};

use prism_signer::Signer;

use super::{AT_ONCE, all_answered, ctl, cut_off, up};
use crate::observe::of_node;
use crate::support::client::{Client, Request};
use crate::support::{BUCKET, Cluster, eventually, say, turn};

/// The key that is deleted.
const KEY: (&str, &str) = ("REVOKED", "revoked-secret");
/// A lease lasts 5 s, and its holder stops a tenth earlier.
const ENDS_IN: Duration = Duration::from_secs(5);
/// The lists of frontends change within 2 s, and a node notices news of etcd within 1 s.
const LISTED_IN: Duration = Duration::from_secs(4);
const CLIENTS: usize = 12;

fn list(cluster: &Cluster, signer: &Signer) -> Vec<u8> {
    Request::new("GET", "/").encode_by(signer, cluster.service)
}

/// Clients whose connections are at fe1. Each has made a request by the key.
fn clients_of_fe1(cluster: &Cluster, signer: &Signer) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| cluster.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.call(&list(cluster, signer)).status(), 200);
    }
    eventually("all are claimed", AT_ONCE, || {
        cluster.flows().len() >= CLIENTS
    });
    let there = cluster.clients_at("fe1");
    clients.retain(|client| there.contains(&client.local()));
    clients
}

#[test]
fn a_frontend_that_is_cut_off_admits_no_key_that_may_be_deleted() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    // An agent that has just started judges no host yet.
    std::thread::sleep(AT_ONCE);
    let add = ["key", "new", KEY.0, "--secret-stdin", "--admin"];
    ctl(&cluster, &add, &format!("{}\n", KEY.1));
    let revoked = Signer::new(KEY.0, KEY.1, "us-east-1");
    let ask = |client: &mut Client, signer| client.call(&list(&cluster, signer));
    eventually("the key is known", AT_ONCE, || {
        (0..CLIENTS).all(|_| ask(&mut cluster.connect(), &revoked).status() == 200)
    });
    let mut clients = clients_of_fe1(&cluster, &revoked);
    assert!(clients.len() > 2, "{}", clients.len());
    let (mut good, mut anonymous) = (clients.pop().unwrap(), clients.pop().unwrap());
    let kept = clients.first_mut().unwrap();

    cut_off(&cluster, "fe1", "add");
    let begun = Instant::now();
    ctl(&cluster, &["key", "delete", KEY.0], "");
    // The frontend vouches for the key, and the owner of an object asks etcd for it.
    let delete = Request::new("DELETE", "/nothing").encode_by(&revoked, cluster.service);
    eventually("an owner knows better", AT_ONCE, || {
        kept.call(&delete).status() == 403
    });
    assert_eq!(ask(&mut good, &cluster.signer).status(), 200);
    assert_eq!(of_node(&cluster, "fe1", "/-/ready").0, 200);

    let refused = loop {
        let answer = ask(kept, &revoked);
        if answer.status() == 503 {
            break answer;
        }
        assert_eq!(answer.status(), 200);
        assert!(begun.elapsed() < ENDS_IN, "the frontend serves on");
        std::thread::sleep(Duration::from_millis(50));
    };
    say(&format!("refused after {:?}", begun.elapsed()));
    let text = refused.text();
    assert!(text.contains("has heard nothing from etcd for"), "{text}");
    // The next connection may reach another frontend.
    assert!(!refused.keep_alive());
    let service = cluster.service;
    let unsigned = format!("GET /{BUCKET}/ HTTP/1.1\r\nHost: {service}\r\n\r\n");
    assert_eq!(anonymous.call(unsigned.as_bytes()).status(), 403);
    let answer = ask(&mut good, &cluster.signer);
    assert_eq!(answer.status(), 503, "{}", answer.text());
    let (status, reason) = of_node(&cluster, "fe1", "/-/ready");
    assert_eq!(status, 503);
    assert!(reason.contains("etcd does not answer"), "{reason}");
    assert_eq!(of_node(&cluster, "fe1", "/-/healthy").0, 200);
    assert_eq!(of_node(&cluster, "fe0", "/-/ready").0, 200);

    let answers = |signer| {
        let mut fresh = (0..2 * CLIENTS).map(|_| cluster.connect());
        let found: Vec<u16> = fresh
            .by_ref()
            .map(|mut c| ask(&mut c, signer).status())
            .collect();
        found
    };
    eventually("new clients go to fe0", LISTED_IN, || {
        answers(&cluster.signer).iter().all(|status| *status == 200)
    });
    let accepted = cluster.counter("fe1", "handoff", "accepted");
    assert!(answers(&revoked).iter().all(|status| *status == 403));
    assert_eq!(cluster.counter("fe1", "handoff", "accepted"), accepted);

    cut_off(&cluster, "fe1", "del");
    let begun = Instant::now();
    eventually("fe1 is ready", ENDS_IN, || {
        of_node(&cluster, "fe1", "/-/ready").0 == 200
    });
    eventually("fe1 has new clients", LISTED_IN, || {
        assert!(answers(&cluster.signer).iter().all(|status| *status == 200));
        cluster.counter("fe1", "handoff", "accepted") > accepted
    });
    say(&format!("back after {:?}", begun.elapsed()));
    assert!(answers(&revoked).iter().all(|status| *status == 403));
    all_answered(&cluster, 200);

    // The second time it says so by another run, and then leaves in order.
    cut_off(&cluster, "fe1", "add");
    eventually("fe1 is not ready again", ENDS_IN, || {
        of_node(&cluster, "fe1", "/-/ready").0 == 503
    });
    eventually("new clients go to fe0 again", LISTED_IN, || {
        answers(&cluster.signer).iter().all(|status| *status == 200)
    });
    cut_off(&cluster, "fe1", "del");
}
