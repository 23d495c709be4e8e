//! The changes of each role, from a whole configuration.

#![allow(clippy::unwrap_used, reason = "test code")]

use prism_config::Config;

use super::change::{HostChange, of_kernel};
use super::networkd::Links;
use super::{needs, render};

const CONFIG: &str = r#"
[cluster]
name = "example"
[service]
address = "203.0.113.10:80"
[service.tls]
certificate = [{ file = "/etc/prism/s3.crt", key_file = "/etc/prism/s3.key" }]
[switch]
control = "10.0.1.1:7300"
key_file = "/etc/prism/switch.key"
interfaces = ["eth0", "eth1.5"]
[[node]]
name = "fe0"
address = "10.0.1.11"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.0.2.21"
gateway = "10.0.2.1"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
[s3]
credentials_file = "/etc/prism/credentials.toml"
"#;

fn live(config: &str, name: Option<&str>) -> Vec<HostChange> {
    let config = Config::from_toml(config).unwrap();
    let node = name.map(|name| config.node(name).unwrap());
    of_kernel(&needs(&config, node), "")
}

fn commands(changes: &[HostChange]) -> Vec<String> {
    changes.iter().filter_map(HostChange::command).collect()
}

fn files(changes: &[HostChange], links: &Links) -> Vec<(String, String)> {
    let files = render::files(changes, links).into_iter();
    let files = files.map(|change| match change {
        HostChange::File { path, text } => (path.display().to_string(), text),
        other => unreachable!("{other:?} is no file"),
    });
    files.collect()
}

#[test]
fn a_frontend_has_the_service_address_and_answers_through_the_switch() {
    let expected = [
        "ip address add 203.0.113.10/32 dev lo",
        "ip route add default via 10.0.1.1 table 7300",
        "ip rule add priority 32000 from 203.0.113.10 lookup 254 suppress_prefixlength 0",
        "ip rule add priority 32001 from 203.0.113.10 lookup 7300",
        "ip rule add priority 32000 from 10.0.1.11 lookup 254 suppress_prefixlength 0",
        "ip rule add priority 32001 from 10.0.1.11 lookup 7300",
        "sysctl -w net.ipv4.ip_local_reserved_ports=20000-29999",
        "sysctl -w net.ipv4.conf.all.rp_filter=2",
        "nft -f /etc/prism/notrack.nft",
    ];
    assert_eq!(commands(&live(CONFIG, Some("fe0"))), expected);
}

#[test]
fn a_backend_uses_the_gateway_of_its_network() {
    let expected = [
        "ip route add default via 10.0.2.1 table 7300",
        "ip rule add priority 32000 from 10.0.2.21 lookup 254 suppress_prefixlength 0",
        "ip rule add priority 32001 from 10.0.2.21 lookup 7300",
        "sysctl -w net.ipv4.ip_local_reserved_ports=20000-29999",
        "sysctl -w net.ipv4.conf.all.rp_filter=2",
        "nft -f /etc/prism/notrack.nft",
    ];
    assert_eq!(commands(&live(CONFIG, Some("be0"))), expected);
}

#[test]
fn the_switch_is_a_router() {
    let expected = [
        "sysctl -w net.ipv4.ip_forward=1",
        "sysctl -w net.ipv4.conf.all.send_redirects=0",
        "sysctl -w net.ipv4.conf.eth0.send_redirects=0",
        "sysctl -w net/ipv4/conf/eth1.5/send_redirects=0",
        "ip route add 203.0.113.10/32 via 10.0.1.11",
        "sysctl -w net.ipv4.conf.all.rp_filter=2",
        "nft -f /etc/prism/notrack.nft",
    ];
    assert_eq!(commands(&live(CONFIG, None)), expected);
}

#[test]
fn in_host_mode_every_node_has_the_service_address_and_no_host_is_a_router() {
    let config = CONFIG.replace("interfaces", "mode = \"host\"\ninterfaces");
    let expected = [
        "ip address add 203.0.113.10/32 dev lo",
        "sysctl -w net.ipv4.conf.all.arp_ignore=1",
        "sysctl -w net.ipv4.conf.all.arp_announce=2",
        "sysctl -w net.ipv4.conf.all.rp_filter=2",
        "nft -f /etc/prism/notrack.nft",
    ];
    for node in ["fe0", "be0"] {
        assert_eq!(commands(&live(&config, Some(node))), expected);
    }
    assert_eq!(live(&config, None), []);
}

/// The same configuration with addresses of both families, or of IPv6 alone.
fn with_ipv6(is_alone: bool) -> String {
    let mut config = CONFIG.to_owned();
    for (v4, v6) in [
        ("203.0.113.10:80", "[2001:db8::10]:80"),
        ("10.0.1.1:7300", "[fd00:1::1]:7300"),
        ("10.0.1.11", "fd00:1::11"),
        ("10.0.2.21", "fd00:2::21"),
        ("10.0.2.1", "fd00:2::1"),
    ] {
        let new = match is_alone {
            true => format!("\"{v6}\""),
            false => format!("[\"{v4}\", \"{v6}\"]"),
        };
        config = config.replace(&format!("\"{v4}\""), &new);
    }
    config
}

#[test]
fn hosts_of_both_families_have_the_changes_of_each() {
    let lines_of_ipv6 = |name| {
        let both = commands(&live(&with_ipv6(false), name));
        let (v6, v4): (Vec<_>, Vec<_>) = both
            .into_iter()
            .partition(|line| line.contains("::") || line.contains("ipv6"));
        assert_eq!(v4, commands(&live(CONFIG, name)));
        v6
    };
    let expected = [
        "ip address add 2001:db8::10/128 dev lo",
        "ip -6 route add default via fd00:1::1 table 7300",
        "ip -6 rule add priority 32000 from 2001:db8::10 lookup 254 suppress_prefixlength 0",
        "ip -6 rule add priority 32001 from 2001:db8::10 lookup 7300",
        "ip -6 rule add priority 32000 from fd00:1::11 lookup 254 suppress_prefixlength 0",
        "ip -6 rule add priority 32001 from fd00:1::11 lookup 7300",
    ];
    assert_eq!(lines_of_ipv6(Some("fe0")), expected);
    let expected = [
        "ip -6 route add default via fd00:2::1 table 7300",
        "ip -6 rule add priority 32000 from fd00:2::21 lookup 254 suppress_prefixlength 0",
        "ip -6 rule add priority 32001 from fd00:2::21 lookup 7300",
    ];
    assert_eq!(lines_of_ipv6(Some("be0")), expected);
    let expected = [
        "sysctl -w net.ipv6.conf.all.forwarding=1",
        "ip -6 route add 2001:db8::10/128 via fd00:1::11",
    ];
    assert_eq!(lines_of_ipv6(None), expected);
}

#[test]
fn a_switch_of_ipv6_alone_forwards_no_ipv4() {
    let expected = [
        "sysctl -w net.ipv6.conf.all.forwarding=1",
        "ip -6 route add 2001:db8::10/128 via fd00:1::11",
        "nft -f /etc/prism/notrack.nft",
    ];
    assert_eq!(commands(&live(&with_ipv6(true), None)), expected);
}

#[test]
fn a_cluster_without_a_switch_has_the_service_address_only() {
    let start = CONFIG.find("[switch]").unwrap();
    let end = CONFIG.find("[[node]]").unwrap();
    let config = [&CONFIG[..start], &CONFIG[end..]].concat();
    let frontend = live(&config, Some("fe0"));
    assert_eq!(
        commands(&frontend),
        ["ip address add 203.0.113.10/32 dev lo"]
    );
    assert_eq!(files(&frontend, &Links::default()), []);
    assert_eq!(live(&config, Some("be0")), []);
}

#[test]
fn a_host_that_is_the_switch_and_a_frontend_has_no_route_to_itself() {
    let config = CONFIG.replace("10.0.1.1:7300", "10.0.1.11:7300");
    for name in [None, Some("fe0")] {
        let commands = commands(&live(&config, name)).join("\n");
        assert!(!commands.contains("ip route"), "{commands}");
    }
}

#[test]
fn the_files_have_what_the_commands_do() {
    let files = files(&live(CONFIG, None), &Links::default());
    let [(sysctl_path, sysctl), (notrack_path, notrack)] = &files[..] else {
        unreachable!("{files:?}");
    };
    assert_eq!(sysctl_path, "/etc/sysctl.d/60-prism.conf");
    let expected = "\
# Kernel parameters of this host of a Prism cluster. `prism setup` has written this file.
net.ipv4.ip_forward = 1
net.ipv4.conf.all.send_redirects = 0
net.ipv4.conf.eth0.send_redirects = 0
net/ipv4/conf/eth1.5/send_redirects = 0
net.ipv4.conf.all.rp_filter = 2
";
    assert_eq!(sysctl, expected);
    assert_eq!(notrack_path, "/etc/prism/notrack.nft");
    assert!(notrack.contains("define prism_service = { 80, 443 }\n"));
    assert!(notrack.contains("define prism_backend = 20000-29999\n"));
    assert!(!notrack.contains('@'), "{notrack}");
}

#[test]
fn links_of_networkd_get_addresses_routes_and_rules() {
    let additions = ("/etc/lo.d/60-prism.conf", "/etc/eth0.d/60-prism.conf");
    let links = Links::of(additions.0, &[([10, 0, 1, 1].into(), additions.1)]);
    let files = files(&live(CONFIG, Some("fe0")), &links);
    let text = |path: &str| &files.iter().find(|(of, _)| of == path).unwrap().1;
    let head = "# `prism setup` has written this file.\n";
    let expected = format!("{head}\n[Address]\nAddress=203.0.113.10/32\n");
    assert_eq!(*text(additions.0), expected);
    let rules = ["203.0.113.10", "10.0.1.11"].map(|from| {
        format!(
            "\n[RoutingPolicyRule]\nPriority=32000\nFrom={from}/32\nTable=254\n\
             SuppressPrefixLength=0\n\n[RoutingPolicyRule]\nPriority=32001\nFrom={from}/32\n\
             Table=7300\n"
        )
    });
    let route = "\n[Route]\nGateway=10.0.1.1\nTable=7300\n";
    assert_eq!(
        *text(additions.1),
        format!("{head}{route}{}", rules.concat())
    );
}

#[test]
fn reserved_ports_of_others_stay() {
    for (before, after) in [
        ("", "20000-29999"),
        ("8080", "8080,20000-29999"),
        ("40000,8080-8081", "8080-8081,20000-29999,40000"),
        ("19000-19999,30000", "19000-30000"),
        ("10000-40000", "10000-40000"),
        ("65535", "20000-29999,65535"),
    ] {
        let with_ours = render::with_our_ports(before);
        assert_eq!(with_ours, after);
        assert!(render::has_our_ports(&with_ours) && !render::has_our_ports("20000-29998"));
        assert_eq!(render::with_our_ports(&with_ours), with_ours);
    }
}
