//! Commands that change the members at the same time, or while a member is away.

use std::process::Output;
use std::time::Duration;

use prism_lab::Failure;

use super::{TAKEN_OUT, ctl, refused_ctl, run_ctl, seen_by, start_ctl, status_of};
use crate::support::{Cluster, eventually, say, turn};

const BACKENDS: usize = 4;
/// The longest time until few keys are copied, or until a member is back.
const SETTLED: Duration = Duration::from_secs(30);
/// The time in which a command starts and asks etcd, which stands still.
const ASKED: Duration = Duration::from_millis(700);

fn up() -> Cluster {
    Cluster::up_with(BACKENDS, |spec| {
        spec.etcd = true;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            config.cluster.min_replicas = Some(1);
        }));
    })
}

/// Waits until exactly these backends hold keys.
fn wait_for_holders(cluster: &Cluster, holders: &[String]) {
    eventually(&format!("{holders:?} hold keys"), SETTLED, || {
        let seen = seen_by(&cluster.lab, "fe0");
        let backends = seen["backends"].as_array().unwrap();
        let names = backends.iter().map(|backend| backend["name"].as_str());
        seen["phase"] == "settled" && names.eq(holders.iter().map(|name| Some(name.as_str())))
    });
}

#[test]
fn of_two_drains_at_once_both_are_made_or_one_is_told_of_the_other() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    let mut told = 0;
    for pair in [["be0", "be1"], ["be2", "be3"], ["be1", "be3"]] {
        cluster.lab.fail("etcd", Failure::Stop).unwrap();
        let drains = pair.map(|backend| start_ctl(&cluster, &["drain", backend]));
        std::thread::sleep(ASKED);
        cluster.lab.heal("etcd").unwrap();
        let outputs = drains.map(|drain| drain.wait_with_output().unwrap());
        let has_timed_out =
            |output: &Output| String::from_utf8_lossy(&output.stderr).contains("timed out");
        if outputs.iter().any(has_timed_out) {
            say("etcd was away for too long: this round says nothing");
            ctl(&cluster, &["rebalance", "--wait"], "");
            continue;
        }
        let mut holders = cluster.backends();
        for ((backend, other), output) in [(pair[0], pair[1]), (pair[1], pair[0])]
            .into_iter()
            .zip(outputs)
        {
            if output.status.success() {
                holders.retain(|name| name != backend);
                continue;
            }
            let said = String::from_utf8(output.stderr).unwrap();
            let reason = format!("another command came first: it drains {other} (members ");
            assert!(said.contains(&reason), "{said}");
            told += 1;
        }
        assert!(holders.len() < BACKENDS, "none is made");
        wait_for_holders(&cluster, &holders);
        ctl(&cluster, &["rebalance", "--wait"], "");
        wait_for_holders(&cluster, &cluster.backends());
    }
    say(&format!("{told} of 6 drains were told of the other one"));
}

#[test]
fn a_member_that_is_away_stays_one_and_who_waits_for_a_replaced_change_is_told() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    cluster.lab.kill("be3").unwrap();
    eventually("be3 is out", TAKEN_OUT, || {
        status_of(&seen_by(&cluster.lab, "fe0"), "be3") == "out"
    });
    let all = "to hold keys: be0, be1, be2, be3; replicas of each object: 2";
    let said = ctl(&cluster, &["rebalance"], "");
    assert!(said.contains(all), "{said}");
    assert!(said.contains("not running now: be3;"), "{said}");

    // It ends when be3 is back, and another one comes before.
    let waits = start_ctl(&cluster, &["drain", "be0", "--wait"]);
    eventually("be0 is being drained", SETTLED, || {
        seen_by(&cluster.lab, "fe0")["phase"] == "filling"
    });
    let said = ctl(&cluster, &["drain", "be1"], "");
    assert!(
        said.contains("to hold keys: be2, be3;"),
        "both are drained: {said}"
    );
    let output = waits.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let reason =
        "another command has replaced this change: it drains be1 (members be2, be3; replicas 2)";
    assert!(!output.status.success() && told.contains(reason), "{told}");
    let too_few = refused_ctl(&cluster, &["drain", "be2"]);
    assert!(too_few.contains("replicas"), "{too_few}");

    let said = ctl(&cluster, &["rebalance"], "");
    assert!(said.contains(all), "{said}");
    cluster.lab.restart("be3").unwrap();
    let output = run_ctl(&cluster, &["rebalance", "--wait"], "");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    wait_for_holders(&cluster, &cluster.backends());
    eventually("be3 is in sync", SETTLED, || {
        status_of(&seen_by(&cluster.lab, "fe0"), "be3") == "in-sync"
    });
}
