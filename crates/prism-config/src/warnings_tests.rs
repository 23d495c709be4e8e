//! Each warning, and what gets none.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use super::*;

const FILE: &str = r#"
[cluster]
name = "demo"
[service]
address = "10.77.0.1:80"
[[service.upstream]]
RULE
address = "127.0.0.1:9000"
[[service.upstream]]
address = "127.0.0.1:9001"
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

fn warnings(text: &str) -> Vec<String> {
    let config = Config::from_toml(text);
    let config = config.unwrap_or_else(|error| panic!("{text}: {error}"));
    let all = config.warnings();
    all.iter().map(ToString::to_string).collect()
}

fn of_rule(rule: &str) -> Vec<String> {
    warnings(&FILE.replacen("RULE", rule, 1))
}

#[test]
fn a_rule_of_another_proxy_is_warned_of_with_what_to_write() {
    for (rule, why, fix) in [
        (
            "hosts = [\"www.example.com:8080\"]",
            "a host is compared without its port",
            "write \"www.example.com\"",
        ),
        (
            "hosts = [\"[fd00::1]:8080\"]",
            "a host is compared without its port",
            "write \"[fd00::1]\"",
        ),
        (
            "hosts = [\"fd00::1\"]",
            "a request has an IPv6 address in brackets",
            "write \"[fd00::1]\"",
        ),
        (
            "hosts = [\"_\"]",
            "there is no host of this name",
            "leave `hosts` out, in the last table",
        ),
        (
            "hosts = [\".example.com\"]",
            "a name does not begin with a dot",
            "write \"*.example.com\", and \"example.com\"",
        ),
        (
            "paths = [\"/api/*\"]",
            "`*` stands for itself",
            "in common: \"/api/\"",
        ),
        (
            "paths = [\"/*.php\"]",
            "`*` stands for itself",
            "in common: \"/\"",
        ),
        (
            "paths = [\"/api/.*\"]",
            "no regular expression",
            "in common: \"/api/\"",
        ),
        (
            "paths = [\"/api/v[0-9]+/\"]",
            "no regular expression",
            "in common: \"/api/v\"",
        ),
        (
            "paths = [\"/login$\"]",
            "no regular expression",
            "in common: \"/login\"",
        ),
        (
            "paths = [\"/x/(a|b)/\"]",
            "no regular expression",
            "write each beginning: [\"/x/a/\", \"/x/b/\"]",
        ),
        (
            "paths = [\"/(a|b.*)/\"]",
            "no regular expression",
            "in common: \"/\"",
        ),
        (
            "paths = [\"/api/{id}/x\"]",
            "has no placeholders",
            "in common: \"/api/\"",
        ),
        (
            "paths = [\"/list?page=\"]",
            "without the query",
            "in common: \"/list\"",
        ),
        (
            "methods = [\"ANY\"]",
            "the name of one method",
            "leave `methods` out",
        ),
        (
            "headers = [\"X-Beta: *\"]",
            "`*` stands for itself",
            "write \"X-Beta\" for any value",
        ),
        (
            "headers = [\"User-Agent: .*Mobile.*\"]",
            "is no regular expression",
            "or \"User-Agent\" for any value",
        ),
    ] {
        let found = of_rule(rule);
        let [only] = found.as_slice() else {
            panic!("{rule}: {found:?}");
        };
        let (field, _) = rule.split_once(' ').unwrap();
        let start = format!("service.upstream[0].{field}: \"");
        assert!(only.starts_with(&start), "{rule}: {only}");
        assert!(only.contains(why) && only.contains(fix), "{rule}: {only}");
    }
}

#[test]
fn a_good_rule_gets_no_warning() {
    for rule in [
        "hosts = [\"www.example.com\", \"*.example.com\", \"[fd00::1]\", \"my_host\", \"10.0.0.1\"]",
        "paths = [\"/\"]\nmethods = [\"GET\"]",
        "paths = [\"/api/v1.0/\", \"/~user/\", \"/a+b/\", \"/a%20b\", \"/Products(1)\", \"/$batch\"]",
        "methods = [\"GET\", \"PROPFIND\"]",
        "headers = [\"X-Beta\", \"X-Beta: yes\", \"Accept: */*\"]",
    ] {
        assert_eq!(of_rule(rule), Vec::<String>::new(), "{rule}");
    }
}

#[test]
fn an_upstream_whose_requests_an_earlier_one_gets_is_warned_of() {
    for (first, second, is_hidden) in [
        ("paths = [\"/api/\"]", "paths = [\"/api/v1/\"]", true),
        ("paths = [\"/api/v1/\"]", "paths = [\"/api/\"]", false),
        ("paths = [\"/a\"]", "paths = [\"/ab\", \"/b\"]", false),
        ("paths = [\"/\"]", "hosts = [\"a.example\"]", false),
        (
            "hosts = [\"*.example.com\"]",
            "hosts = [\"www.Example.com\", \"*.a.example.com\"]",
            true,
        ),
        (
            "hosts = [\"*.example.com\"]",
            "hosts = [\"example.com\"]",
            false,
        ),
        (
            "hosts = [\"a.example\"]",
            "hosts = [\"a.example\"]\npaths = [\"/x\"]",
            true,
        ),
        (
            "hosts = [\"a.example\"]\nmethods = [\"GET\"]",
            "hosts = [\"a.example\"]",
            false,
        ),
        (
            "headers = [\"X-Beta\"]",
            "headers = [\"X-Beta: yes\"]",
            true,
        ),
        (
            "headers = [\"X-Beta: yes\"]",
            "headers = [\"X-Beta\"]",
            false,
        ),
    ] {
        let text = FILE.replacen("RULE", first, 1);
        let second = format!("{second}\naddress = \"127.0.0.1:9001\"");
        let found = warnings(&text.replacen("address = \"127.0.0.1:9001\"", &second, 1));
        let is_told = found.iter().any(|warning| {
            warning.starts_with("service.upstream[1].") && warning.contains("gets no request")
        });
        assert_eq!(is_told, is_hidden, "{first}, {second}: {found:?}");
        assert_eq!(found.len(), usize::from(is_hidden), "{found:?}");
    }
}

#[test]
fn a_server_that_is_named_twice_is_warned_of_once() {
    let one = FILE.replacen("RULE", "paths = [\"/a\"]", 1);
    let double = "address = [\"127.0.0.1:9000\", \"[::1]:9\", \"127.0.0.1:9000\", \
                  \"127.0.0.1:9000\"]";
    let found = warnings(&one.replacen("address = \"127.0.0.1:9000\"", double, 1));
    let [only] = found.as_slice() else {
        panic!("{found:?}")
    };
    let start = "service.upstream[0].address: names 127.0.0.1:9000 more than once";
    assert!(only.starts_with(start), "{only}");

    let (before, after) = one.split_once("[[service.upstream]]").unwrap();
    let (_, nodes) = after.split_once("[[node]]").unwrap();
    let single = format!("{before}upstream = \"127.0.0.1:9000\"\n[[node]]{nodes}");
    let own = "roles = [\"backend\"]\nupstream = [\"127.0.0.1:7\", \"127.0.0.1:7\"]";
    let found = warnings(&single.replacen("roles = [\"backend\"]", own, 1));
    let [only] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(only.starts_with("node[1].upstream: names"), "{only}");
    assert_eq!(warnings(&single), Vec::<String>::new());
}

#[test]
fn fields_of_the_object_store_beside_an_upstream_are_warned_of() {
    let good = FILE.replacen("RULE", "paths = [\"/a\"]", 1);
    for (old, new, field) in [
        (
            "[peers]",
            "[s3]\ncredentials_file = \"users\"\n[peers]",
            "s3",
        ),
        ("[peers]", "[s3]\nanonymous = \"read\"\n[peers]", "s3"),
        ("[peers]", "[store]\nquota_bytes = 1000\n[peers]", "store"),
        (
            "name = \"demo\"",
            "name = \"demo\"\nmin_replicas = 1",
            "cluster.min_replicas",
        ),
        (
            "roles = [\"backend\"]",
            "roles = [\"backend\"]\ndurability = \"none\"",
            "node[1].durability",
        ),
    ] {
        let found = warnings(&good.replacen(old, new, 1));
        let [only] = found.as_slice() else {
            panic!("{new}: {found:?}")
        };
        let start = format!("{field}: has no effect: it is for the object store");
        assert!(only.starts_with(&start), "{new}: {only}");
    }
}

#[test]
fn an_etcd_that_no_service_uses_is_warned_of() {
    let good = FILE.replacen("RULE", "paths = [\"/a\"]", 1);
    let etcd = "name = \"demo\"\n[cluster.etcd]\nendpoints = [\"http://10.77.0.5:2379\"]";
    let found = warnings(&good.replacen("name = \"demo\"", etcd, 1));
    let [only] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(only.starts_with("cluster.etcd: has no effect"), "{only}");
}

#[test]
fn a_warning_of_a_file_has_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    std::fs::write(&path, FILE.replacen("RULE", "paths = [\"/a/*\"]", 1)).unwrap();
    let (_, warnings) = Config::load_with_warnings(&path).unwrap();
    let places: Vec<_> = warnings.iter().map(|warning| &warning.place).collect();
    let [place] = places.as_slice() else {
        panic!("{places:?}")
    };
    assert_eq!((&place.file, place.line), (&path, Some(7)));
}

#[test]
fn a_store_that_gets_no_request_of_a_client_is_warned_of() {
    let with = |objects: &str| {
        let text = FILE
            .replacen("RULE", "name = \"a\"\npaths = [\"/a\"]", 1)
            .replacen(
                "address = \"127.0.0.1:9001\"",
                "name = \"b\"\naddress = \"127.0.0.1:9001\"",
                1,
            )
            .replacen(
                "[[node]]",
                &format!("[service.objects]\n{objects}\n[[node]]"),
                1,
            );
        let text = format!("{text}[s3]\ncredentials_file = \"/etc/prism/users.toml\"\n");
        let text = text.replace(
            "roles = [\"backend\"]",
            "roles = [\"backend\"]\nstore = \"/s\"",
        );
        warnings(&text)
    };
    let [warned] = with("").try_into().unwrap();
    assert!(
        warned.contains("service.objects: gets no request of a client"),
        "{warned}"
    );
    for objects in ["internal = true", "paths = [\"/media/\"]"] {
        assert_eq!(with(objects), [""; 0], "{objects}");
    }
}
