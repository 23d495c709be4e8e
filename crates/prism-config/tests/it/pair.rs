//! Tests of the hosts of a pair of switches.

use prism_config::Config;

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
    let config = Config::from_toml(&with_hosts(both)).unwrap();
    let written = toml::to_string_pretty(&config).unwrap();
    assert_eq!(Config::from_toml(&written).unwrap(), config);
    let hosts = config.switch.unwrap().hosts;
    assert_eq!((hosts.len(), hosts[1].name.as_str()), (2, "sw1"));
    let single = Config::from_toml(&dual()).unwrap();
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
