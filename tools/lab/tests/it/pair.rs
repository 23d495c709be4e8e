//! Labs with two switches, between which keepalived moves the addresses.

use std::time::Duration;

use prism_lab::testing::eventually;
use prism_lab::{Failure, Families, Lab, LabError};

use crate::lab::{new_name, ping, small};
use crate::turn;

/// The longest time of a take-over.
const TAKE_OVER: Duration = Duration::from_secs(2);

/// A lab of both families with two switches and no programs but keepalived.
fn pair() -> Lab {
    let mut spec = small(&new_name(), &[]);
    (spec.switches, spec.family) = (2, Families::Dual);
    let lab = Lab::up(spec).unwrap();
    eventually("a switch is active", TAKE_OVER, || {
        lab.active_switch().is_some()
    });
    // In its first second a standby may announce an address of IPv6 late.
    std::thread::sleep(TAKE_OVER);
    lab
}

/// Checks that hosts reach each other over both families.
fn assert_connected(lab: &Lab) {
    for (from, to) in [("client", "fe0"), ("be0", "client"), ("fe0", "be0")] {
        for address in lab.addresses(to).unwrap().iter() {
            let reached = ping(lab, from, &address.to_string());
            assert!(reached, "{from} does not reach {to} at {address}");
        }
    }
    for service in lab.services() {
        let service = service.ip().to_string();
        assert!(ping(lab, "client", &service), "no way to {service}");
    }
}

#[test]
fn the_other_switch_takes_over_and_a_healed_one_stands_by() {
    let Some(_turn) = turn() else { return };
    let mut lab = pair();
    assert_connected(&lab);
    for how in [Failure::Links, Failure::Kill, Failure::Links] {
        let active = lab.active_switch().unwrap().to_owned();
        let other = lab.switches().find(|other| *other != active);
        let other = other.unwrap().to_owned();
        lab.fail(&active, how).unwrap();
        eventually("the other one is active", TAKE_OVER, || {
            lab.active_switch() == Some(&other)
        });
        assert_connected(&lab);
        lab.heal(&active).unwrap();
        let own = lab.address(&active).unwrap().to_string();
        eventually("the healed one is in reach", TAKE_OVER, || {
            ping(&lab, "be0", &own)
        });
        std::thread::sleep(TAKE_OVER);
        assert_eq!(lab.active_switch(), Some(other.as_str()), "{how}");
        assert_connected(&lab);
    }
    lab.down().unwrap();
}

#[test]
fn the_status_names_the_active_one_of_two_switches() {
    let Some(_turn) = turn() else { return };
    let lab = pair();
    let roles = lab.status().hosts.into_iter().map(|host| host.active);
    let roles: Vec<_> = roles.collect();
    let (switches, others) = roles.split_at(2);
    assert!(switches == [Some(true), Some(false)] || switches == [Some(false), Some(true)]);
    assert!(others.iter().all(Option::is_none));
    lab.down().unwrap();
}

#[test]
fn a_node_and_a_single_switch_fail_and_heal() {
    let Some(_turn) = turn() else { return };
    let sleeper = || vec!["sleep".to_owned(), "600".to_owned()];
    let mut spec = small(&new_name(), &[("be0", sleeper()), ("switch", sleeper())]);
    spec.family = Families::Dual;
    let mut lab = Lab::up(spec).unwrap();
    assert_connected(&lab);
    let be0 = lab.address("be0").unwrap().to_string();
    for host in ["be0", "switch"] {
        for how in Failure::ALL {
            let before = lab.pid(host).unwrap();
            lab.fail(host, how).unwrap();
            let cut = how == Failure::Links || (how, host) == (Failure::Kill, "switch");
            assert_eq!(ping(&lab, "client", &be0), !cut, "{host}, {how}");
            lab.heal(host).unwrap();
            let is_new = lab.pid(host).unwrap() != before;
            assert_eq!(is_new, how == Failure::Kill, "{host}, {how}");
            assert_connected(&lab);
        }
    }
    assert!(lab.active_switch().is_some());
    let unknown = lab.fail("be7", Failure::Links);
    assert!(matches!(unknown, Err(LabError::UnknownHost { .. })));
    let idle = lab.fail("fe0", Failure::Stop);
    assert!(matches!(idle, Err(LabError::NoProcess { .. })));
    lab.down().unwrap();
}
