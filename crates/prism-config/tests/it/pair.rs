//! Tests of the hosts of a pair of switches.

use prism_config::ConfigFile;

use crate::config::{DUAL, dual, fields, problems};

/// The configuration with these hosts of a pair.
fn with_hosts(hosts: &str) -> String {
    let key = "key_file = \"switch.key\"";
    dual().replace(key, &format!("{key}\nhosts = [{hosts}]"))
}

#[test]
fn a_pair_of_switches_names_its_two_hosts() {
    let both = r#"{ name = "sw0", address = ["10.77.0.3", "fd77::3"] },
        { name = "sw1", address = "10.77.0.4" }"#;
    let config = ConfigFile::from_toml(&with_hosts(both)).unwrap();
    let written = toml::to_string_pretty(&config).unwrap();
    assert_eq!(ConfigFile::from_toml(&written).unwrap(), config);
    let hosts = config.switch.unwrap().hosts;
    assert_eq!((hosts.len(), hosts[1].name.as_str()), (2, "sw1"));
    let single = ConfigFile::from_toml(&dual()).unwrap();
    let written = toml::to_string_pretty(&single).unwrap();
    assert!(!written.contains("hosts"), "an older release refuses it");
}

#[test]
fn hosts_of_a_pair_that_cannot_be_are_faults() {
    let first = r#"{ name = "sw0", address = "10.77.0.3" }"#;
    for (second, field, part) in [
        (
            r#"{ name = "sw0", address = "10.77.0.4" }"#,
            "[1].name",
            "other host's name",
        ),
        (
            r#"{ name = "sw1", address = "10.77.0.3" }"#,
            "[1].address",
            "other host's address",
        ),
        (
            r#"{ name = "sw1", address = "10.77.0.2" }"#,
            "[1].address",
            "moves between",
        ),
        (
            r#"{ name = "sw1", address = "fd77::1" }"#,
            "[1].address",
            "service address",
        ),
        (r#"{ name = "sw1" }"#, "[1].address", "missing"),
        (r#"{ address = "10.77.0.4" }"#, "[1].name", "missing"),
        (
            r#"{ name = "sw1", address = "10.77.0.4" }, { name = "sw2", address = "10.77.0.5" }"#,
            "",
            "more than 2",
        ),
    ] {
        let found = problems(&with_hosts(&format!("{first}, {second}")));
        let field = format!("switch.hosts{field}");
        assert_eq!(found.len(), 1, "{second}: {found:?}");
        assert_eq!(found[0].field, field, "{second}");
        assert!(found[0].fault.contains(part), "{second}: {}", found[0]);
    }
    let text = with_hosts(first).replace(DUAL[3].1, "\"10.77.0.11\"\ngateway = \"10.77.0.3\"");
    assert_eq!(fields(&text), ["node[1].gateway"]);
}

/// Host mode with two frontends.
fn spread(lines: &str) -> String {
    let further = "[[node]]\nname = \"fe1\"\naddress = [\"10.77.0.12\", \"fd77::12\"]\n\
                   roles = [\"frontend\"]\n[peers]";
    dual()
        .replace("[peers]", further)
        .replace("[switch]", &format!("[switch]\nmode = \"host\"\n{lines}"))
}

#[test]
fn in_host_mode_one_of_several_frontends_has_the_control_address_of_each_family() {
    let pair = r#"hosts = [{ name = "fe0", address = ["10.77.0.10", "fd77::10"] },
        { name = "fe1", address = ["10.77.0.12", "fd77::12"] }]"#;
    let tunnel = format!("tunnel_mtu_bytes = 1500\n{pair}");
    ConfigFile::from_toml(&spread(&tunnel)).unwrap();
    let alone = dual().replace(
        "[switch]",
        "[switch]\nmode = \"host\"\ntunnel_mtu_bytes = 1500",
    );
    ConfigFile::from_toml(&alone.replace(DUAL[1].1, DUAL[1].0)).unwrap();

    let found = problems(&spread(""));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "switch.hosts");
    assert!(found[0].fault.contains("two hosts"), "{}", found[0]);

    let of_v4 = |lines: &str| spread(lines).replace(DUAL[1].1, DUAL[1].0);
    ConfigFile::from_toml(&of_v4(pair)).unwrap();
    let found = problems(&of_v4(&tunnel));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "switch.control");
    assert!(found[0].fault.contains("no IPv6 address"), "{}", found[0]);

    let own = alone.replace(DUAL[2].1, "[\"10.77.0.2\", \"fd77::10\"]");
    let found = problems(&own);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].field, "switch.control");
    assert!(found[0].fault.contains("node \"fe0\""), "{}", found[0]);
    ConfigFile::from_toml(&own.replace("mode = \"host\"\ntunnel_mtu_bytes = 1500", "")).unwrap();
}
