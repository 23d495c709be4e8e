//! The words for each kind of value that has the wrong form.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use crate::{Config, ConfigError};

const FILE: &str = r#"
[cluster]
name = "demo"
[service]
address = "10.77.0.1:80"
upstream = "127.0.0.1:9000"
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
"#;

/// The faults of the file with `new` for `old`, one below the other.
fn faults(old: &str, new: &str) -> String {
    assert!(FILE.contains(old), "{old}");
    let Err(ConfigError::Invalid(problems)) = Config::from_toml(&FILE.replacen(old, new, 1)) else {
        panic!("{new} is no fault");
    };
    let all = problems.iter().map(ToString::to_string);
    all.collect::<Vec<_>>().join("\n")
}

const UPSTREAM: &str = "upstream = \"127.0.0.1:9000\"";
const SERVICE: &str = "address = \"10.77.0.1:80\"";
const HOST: &str = "address = \"10.77.0.11\"";

#[test]
fn a_wrong_type_is_explained_in_words_of_the_file() {
    let mut lacking = Vec::new();
    for (old, new, fault) in [
        (
            SERVICE,
            "address = 8080",
            "line 5: service.address: is the number 8080; use an address with a port, as in",
        ),
        (
            UPSTREAM,
            "upstream = 9000",
            "line 6: service.upstream: is the number 9000; use an address, a list of addresses, a \
             table [service.upstream], or tables [[service.upstream]]",
        ),
        (
            UPSTREAM,
            "upstream = [9000]",
            "line 6: service.upstream[0]: is the number 9000; use an address with a port",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\npaths = \"/api/\"",
            "line 8: service.upstream.paths: is the text \"/api/\"; make it a list: [\"/api/\"]",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nhosts = [1]",
            "service.upstream.hosts[0]: is the number 1; use a text in quotes",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nproxy_protocol = \"yes\"",
            "proxy_protocol: is the text \"yes\"; use true or false, without quotes",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nhealth = \"/up\"",
            "health: is the text \"/up\"; make it a table: write its fields below a line \
             [service.upstream.health]",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nbalance = \"rr\"",
            "service.upstream.balance: \"rr\" is not a value of this field; use one of \
             \"least-requests\", \"round-robin\",",
        ),
        (
            UPSTREAM,
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nbalance = 1",
            "service.upstream.balance: is the number 1; use a text in quotes",
        ),
        (
            "name = \"demo\"",
            "name = \"demo\"\nreplicas = \"two\"",
            "line 4: cluster.replicas: is the text \"two\"; use a whole number from 0 to 65535, \
             without quotes",
        ),
        (
            "name = \"demo\"",
            "name = \"demo\"\nreplicas = 70000",
            "cluster.replicas: is the number 70000; use a whole number from 0 to 65535",
        ),
        (
            "name = \"demo\"",
            "name = \"demo\"\nreplicas = -1",
            "cluster.replicas: is the number -1; use a whole number from 0 to 65535",
        ),
        (
            "name = \"demo\"",
            "name = \"demo\"\nreplicas = 1.5",
            "cluster.replicas: is the number 1.5; use a whole number",
        ),
        (
            "name = \"demo\"",
            "name = true",
            "cluster.name: is true; use a text in quotes",
        ),
        (
            "name = \"demo\"",
            "name = [\"demo\"]",
            "cluster.name: is a list; use a text in quotes",
        ),
        (
            "roles = [\"backend\"]",
            "roles = \"backend\"",
            "node[1].roles: is the text \"backend\"; make it a list: [\"backend\"]",
        ),
        (
            "roles = [\"backend\"]",
            "roles = [\"chef\"]",
            "node[1].roles[0]: \"chef\" is not a value of this field; use \"frontend\" or \
             \"backend\"",
        ),
        (
            "roles = [\"backend\"]",
            "roles = [1]",
            "node[1].roles[0]: is the number 1; use",
        ),
        (
            SERVICE,
            "address = \"10.77.0.1:80\"\nhand_off = 1",
            "service.hand_off: is the number 1; use",
        ),
        (
            "[peers]",
            "[service.tls.certificate]\nfile = \"a\"\n[peers]",
            "service.tls.certificate: is a table; make it a list: write \
             [[service.tls.certificate]] in the place of [service.tls.certificate]",
        ),
        (
            "[peers]",
            "[service.tls]\nmin_version = 1.3\n[peers]",
            "service.tls.min_version: is the number 1.3; use a text in quotes",
        ),
        (
            "[peers]",
            "[[limits]]\nconnections = 1\n[peers]",
            "limits[0]: there is no list [[limits]]; write [limits], only once",
        ),
        (
            "[peers]",
            "[limits]\nconnections = 2026-01-01\n[peers]",
            "limits.connections: is a date; use a whole number",
        ),
        (
            "[peers]",
            "[peers]\nprot = 1",
            "peers.prot: unknown field; correct the name or remove the line; the fields here are \
             `port`, `ca_file`, `cert_dir`",
        ),
        (
            "[peers]",
            "[admin]\nlisten = \"localhost\"\n[peers]",
            "admin.listen: \"localhost\" is not an address with a port; ",
        ),
    ] {
        let found = faults(old, new);
        if !found.contains(fault) {
            lacking.push(format!("{new}:\n{found}\nlacks\n{fault}"));
        }
        for jargon in [
            "invalid type",
            "invalid value",
            "sequence",
            "struct",
            "u16",
            "map",
            "integer",
            "variant",
        ] {
            if found.contains(jargon) {
                lacking.push(format!("{new}: {found}"));
            }
        }
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n\n"));
}

#[test]
fn a_text_that_is_no_address_gets_the_remedy_of_its_kind() {
    let server = |text: &str| {
        (
            UPSTREAM,
            format!("upstream = [\"127.0.0.1:1\", \"{text}\"]"),
        )
    };
    let service = |text: &str| (SERVICE, format!("address = \"{text}\""));
    let host = |text: &str| (HOST, format!("address = \"{text}\""));
    for ((old, new), fix) in [
        (
            server("https://10.0.0.1:443"),
            "Prism speaks HTTP without TLS to servers: write the address and port of the server",
        ),
        (
            server("http://10.0.0.1"),
            "a URL is not supported: write the address and port of the server",
        ),
        (server("tcp://10.0.0.1:1"), "a URL is not supported"),
        (server("localhost:9000"), "host names are not supported"),
        (server("app.internal"), "host names are not supported"),
        (
            server("unix:/run/app.sock"),
            "Unix sockets are not supported",
        ),
        (server("/run/app.sock"), "Unix sockets are not supported"),
        (
            server("9000"),
            "add the address in front of the port, as in \"127.0.0.1:9000\"",
        ),
        (server(":9000"), "add the address in front of the port"),
        (server("127.0.0.1"), "add the port: \"127.0.0.1:PORT\""),
        (
            server("fd00::1"),
            "brackets around the address: \"[fd00::1]:PORT\"",
        ),
        (
            server("[fd00::1]"),
            "brackets around the address: \"[fd00::1]:PORT\"",
        ),
        (
            service("https://shop.example"),
            "[service.tls] is for HTTPS",
        ),
        (service("shop.example:80"), "host names are not supported"),
        (service("10.0.0.1"), "add the port: \"10.0.0.1:PORT\""),
        (host("be0.internal"), "host names are not supported"),
        (host("10.77.0.11:80"), "leave the port out: \"10.77.0.11\""),
        (host("10.77.0.11/24"), "without a prefix length"),
    ] {
        let found = faults(old, &new);
        assert!(found.contains("is not an address"), "{new}: {found}");
        assert!(found.contains(fix), "{new}:\n{found}\nlacks\n{fix}");
    }
    let own = "upstream = [\"127.0.0.1:1\", \"app:9000\"]";
    let found = faults(
        "roles = [\"backend\"]",
        &format!("roles = [\"backend\"]\n{own}"),
    );
    let start = "line 15: node[1].upstream[1]: \"app:9000\" is not an address with a port; host \
                 names are not supported";
    assert!(found.starts_with(start), "{found}");
}

#[test]
fn a_long_value_is_shown_in_part() {
    let long = "ä".repeat(10_000);
    let found = faults(
        "name = \"demo\"",
        &format!("name = \"demo\"\nreplicas = \"{long}\""),
    );
    assert!(
        found.len() < 400 && found.contains("ä..; use a whole number"),
        "{found}"
    );
}
