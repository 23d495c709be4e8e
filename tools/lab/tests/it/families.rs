//! Labs with addresses of IPv4, of IPv6 and of both.

use std::collections::BTreeSet;

use prism_lab::{Families, Lab};

use crate::lab::{new_name, ping, small};
use crate::turn;

#[test]
fn every_host_reaches_every_other_through_the_switch() {
    let Some(_turn) = turn() else { return };
    for family in [Families::V4, Families::V6, Families::Dual] {
        let mut spec = small(&new_name(), &[]);
        spec.family = family;
        let lab = Lab::up(spec).unwrap();
        for (from, to) in [
            ("client", "fe0"),
            ("client", "be0"),
            ("be0", "fe0"),
            ("fe0", "switch"),
            ("switch", "client"),
        ] {
            for address in lab.addresses(to).unwrap().iter() {
                let address = address.to_string();
                assert!(ping(&lab, from, &address), "{from} does not reach {to}");
            }
        }
        for service in lab.services() {
            let service = service.ip().to_string();
            assert!(ping(&lab, "client", &service), "no way to {service}");
        }
        lab.down().unwrap();
    }
}

/// The addresses of `host`, without those of its loopback and of its links alone.
fn addresses_at(lab: &Lab, host: &str) -> BTreeSet<String> {
    let mut ip = lab.command(host, "ip").unwrap();
    let output = ip.args(["-o", "address"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text
        .lines()
        .map(|line| line.split_whitespace().nth(3).unwrap());
    let addresses = words.map(|address| address.split_once('/').unwrap().0.to_owned());
    addresses
        .filter(|address| !["127.0.0.1", "::1"].contains(&address.as_str()))
        .filter(|address| !address.starts_with("fe80:"))
        .collect()
}

#[test]
fn hosts_have_addresses_of_the_chosen_families_and_no_others() {
    let Some(_turn) = turn() else { return };
    for family in [Families::V4, Families::V6, Families::Dual] {
        let mut spec = small(&new_name(), &[]);
        spec.family = family;
        let lab = Lab::up(spec).unwrap();
        assert_eq!(lab.services().count(), family.iter().count());
        for host in lab.status().hosts {
            assert_eq!(host.addresses.len(), family.iter().count(), "{host:?}");
            let mut expected: BTreeSet<_> =
                host.addresses.iter().map(ToString::to_string).collect();
            if host.name == "fe0" {
                expected.extend(lab.services().map(|service| service.ip().to_string()));
            }
            let mut found = addresses_at(&lab, &host.name);
            if host.name == "switch" {
                // Its ends of the links have no names.
                found.retain(|address| expected.contains(address));
            }
            assert_eq!(found, expected, "{}", host.name);
        }
        lab.down().unwrap();
    }
}

/// A packet of IPv6 needs a neighbour, and a service address is no source of other packets.
#[test]
fn packets_of_ipv6_come_from_the_address_of_their_link() {
    let Some(_turn) = turn() else { return };
    let mut spec = small(&new_name(), &[]);
    spec.family = Families::V6;
    let lab = Lab::up(spec).unwrap();
    for to in ["client", "be0", "switch"] {
        let mut ip = lab.command("fe0", "ip").unwrap();
        let to = lab.address(to).unwrap().to_string();
        let output = ip.args(["-6", "route", "get", &to]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let own = format!(" src {} ", lab.address("fe0").unwrap());
        assert!(text.contains(&own), "{text}");
    }
    lab.down().unwrap();
}
