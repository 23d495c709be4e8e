//! Tests of files with several services.

use std::path::Path;

use prism_config::{Change, Config, ConfigError, ConfigFile, ConfigReader, Effect};

const TWO: &str = r#"
[cluster]
name = "demo"
[[service]]
name = "demo"
address = ["10.77.0.1:80", "[fd00::1]:80"]
backends = ["be0", "be1"]
replicas = 2
[service.s3]
credentials_file = "/etc/prism/demo.toml"
[[service]]
name = "photos"
address = "10.77.0.3:80"
backends = ["be2"]
peer_port = 7401
control_key_id = 2
control_key_file = "photos.key"
admin_listen = "127.0.0.1:9470"
[service.s3]
credentials_file = "/etc/prism/photos.toml"
[service.limits]
connections = 500
[service.tls]
[[service.tls.certificate]]
file = "photos.crt"
key_file = "/etc/prism/photos.key.pem"
[switch]
control = "10.77.0.2:7300"
key_file = "/etc/prism/switch.key"
interfaces = ["eth0"]
[[node]]
name = "fe0"
address = ["10.77.0.10", "fd00::10"]
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
[[node]]
name = "be1"
address = "10.77.0.12"
roles = ["backend"]
[[node]]
name = "be2"
address = "10.77.0.13"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
[cluster.etcd]
endpoints = ["http://10.77.0.5:2379"]
"#;

/// The same without etcd, whose cluster the file describes whole.
fn whole() -> String {
    TWO.split("[cluster.etcd]").next().unwrap().to_owned()
}

fn names(config: &Config) -> Vec<&str> {
    config.nodes.iter().map(|node| node.name.as_str()).collect()
}

#[test]
fn each_service_has_its_part_of_the_file() {
    let config = ConfigFile::from_toml(TWO).unwrap();
    let [demo, photos] = config.parts().try_into().unwrap();
    assert_eq!(names(&demo), ["fe0", "be0", "be1"]);
    assert_eq!(names(&photos), ["fe0", "be2"]);
    assert_eq!((demo.peers.port, photos.peers.port), (7400, 7401));
    assert_eq!((demo.cluster.replicas, photos.cluster.replicas), (2, 1));
    assert_eq!(photos.limits.connections, 500);
    assert_eq!(photos.limits.idle_timeout_s, config.limits.idle_timeout_s);
    let key = |part: &Config| {
        let switch = part.switch.clone().unwrap();
        (switch.key_id, switch.key_file.display().to_string())
    };
    assert_eq!(key(&demo), (1, "/etc/prism/switch.key".into()));
    assert_eq!(key(&photos), (2, "photos.key".into()));
    let users = &photos.s3.credentials_file;
    assert_eq!(users, Path::new("/etc/prism/photos.toml"));
    // A part is a whole configuration of one service.
    let text = toml::to_string(&photos).unwrap();
    assert!(ConfigFile::from_toml(&text).is_ok(), "{text}");
    // The service with the cluster's name has the keys and sockets of a single service.
    assert_eq!(demo.etcd_prefix().unwrap(), "/prism/demo/");
    assert_eq!(photos.etcd_prefix().unwrap(), "/prism/demo.photos/");
    let socket = |part: &Config, name| part.admin_socket(name).display().to_string();
    assert_eq!(socket(&demo, "fe0"), "/run/prism/fe0.sock");
    assert_eq!(socket(&photos, "fe0"), "/run/prism/fe0.photos.sock");
    assert_eq!(socket(&photos, "be2"), "/run/prism/be2.sock");
    let listen = |part: &Config, name| part.admin_listen(name).unwrap().port();
    assert_eq!((listen(&demo, "fe0"), listen(&photos, "fe0")), (9464, 9470));
    assert_eq!(listen(&photos, "be2"), 9464);
    // A backend serves one service, and a frontend all.
    assert_eq!(config.parts_at("be2").len(), 1);
    assert_eq!(config.parts_at("fe0").len(), 2);
    assert_eq!(config.parts_at("be2")[0].service.name, "photos");
}

#[test]
fn a_single_service_is_the_whole_file_in_either_form() {
    let one = whole().replace("[[service]]\nname = \"photos\"", "[[dropped]]");
    let (start, end) = (
        one.find("[[dropped]]").unwrap(),
        one.find("[switch]").unwrap(),
    );
    let listed = [&one[..start], &one[end..]].concat();
    let listed = listed.replace(
        r#"backends = ["be0", "be1"]"#,
        r#"backends = ["be0", "be1", "be2"]"#,
    );
    let table = listed.replace("[[service]]\nname = \"demo\"", "[service]");
    let (listed, table) = (listed.as_str(), table.as_str());
    for text in [listed, table] {
        let config = ConfigFile::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(config.parts().len(), 1);
        assert_eq!(names(&config.parts()[0]).len(), config.nodes.len());
        assert_eq!(config.part("demo"), config.part(""));
        assert!(config.part("photos").is_none());
    }
    let both = format!("{table}[s3]\ncredentials_file = \"/etc/prism/all.toml\"\n");
    let error = ConfigFile::from_toml(&both).unwrap_err().to_string();
    assert!(
        error.contains("service.s3: is there beside [s3]"),
        "{error}"
    );
}

#[test]
fn each_fault_names_the_service_and_the_remedy() {
    for (good, bad, message) in [
        (
            r#"backends = ["be2"]"#,
            r#"backends = ["be2", "be1"]"#,
            "service[1].backends: be1 serves \"demo\" already; give each service backends of its own",
        ),
        (
            r#"backends = ["be2"]"#,
            r#"backends = ["be2", "be9"]"#,
            "service[1].backends: no node is called \"be9\"; name a [[node]]",
        ),
        (
            r#"backends = ["be2"]"#,
            r#"backends = ["be2", "fe0"]"#,
            "service[1].backends: fe0 is no backend",
        ),
        (
            r#"backends = ["be2"]"#,
            "",
            "service[1].backends: is missing; give the names of the backends",
        ),
        (
            r#"backends = ["be0", "be1"]"#,
            r#"backends = ["be0"]"#,
            "node[2].name: no service has the backend be1; name it in `backends` of one service",
        ),
        (
            r#"name = "photos""#,
            r#"name = "demo""#,
            "service[1].name: demo is another service's; give each service one of its own",
        ),
        (r#"name = "photos""#, "", "service[1].name: is missing"),
        (
            "10.77.0.3:80",
            "10.77.0.1:80",
            "service[1].address: 10.77.0.1:80 is another service's",
        ),
        (
            "[service.tls]",
            "[service.tls]\nport = 80",
            "service[1].tls.port: is the port of service.address, 80",
        ),
        (
            "peer_port = 7401",
            "",
            "service[1].peer_port: 7400 is another service's",
        ),
        (
            "control_key_id = 2",
            "",
            "service[1].control_key_id: 1 is another service's",
        ),
        (
            "photos.key\"",
            "/etc/prism/switch.key\"",
            "service[1].control_key_file: /etc/prism/switch.key is another service's",
        ),
        (
            "/etc/prism/photos.toml",
            "/etc/prism/demo.toml",
            "service[1].s3.credentials_file: /etc/prism/demo.toml is another service's",
        ),
        (
            "[service.s3]\ncredentials_file = \"/etc/prism/photos.toml\"",
            "",
            "service[1].s3.credentials_file: is missing; give the file of access keys",
        ),
        (
            "[peers]",
            "[s3]\ncredentials_file = \"/etc/prism/all.toml\"\n[peers]",
            "s3: is for one service only; move it to [service.s3] of each service",
        ),
        (
            "connections = 500",
            "connections = 0",
            "service[1].limits.connections: 0 is out of range",
        ),
        (
            "replicas = 2",
            "replicas = 3",
            "service[0].replicas: 3 is out of range; use 1 to 2",
        ),
        (
            "\"10.77.0.13\"\nroles = [\"backend\"]",
            "\"10.77.0.13\"\nroles = [\"frontend\", \"backend\"]",
            "node[3].roles: is a frontend of several services, and a backend of one",
        ),
        (
            "\"10.77.0.13\"\nroles",
            "\"10.77.0.3\"\nroles",
            "node[3].address: is the service address",
        ),
        (
            "address = \"10.77.0.3:80\"",
            "addres = \"10.77.0.3:80\"",
            "service[1].addres: unknown field",
        ),
    ] {
        assert!(whole().contains(good), "{good}");
        let error = ConfigFile::from_toml(&whole().replacen(good, bad, 1)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(message), "{bad}: {text}");
    }
}

#[test]
fn a_fault_of_all_services_is_told_once() {
    let text = whole().replacen("[peers]", "[limits]\nhead_bytes = 1\n[peers]", 1);
    let Err(ConfigError::Invalid(problems)) = ConfigFile::from_toml(&text) else {
        panic!("no fault");
    };
    let fields: Vec<_> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(fields, ["limits.head_bytes"]);
}

#[test]
fn a_change_names_its_service_and_has_the_rules_of_one_service() {
    let old = ConfigFile::from_toml(TWO).unwrap();
    let text = TWO.replace("connections = 500", "connections = 600");
    let new = ConfigFile::from_toml(&text.replace("10.77.0.3:80", "10.77.0.3:81")).unwrap();
    let changes = old.changes_to(&new);
    let fields: Vec<_> = changes.iter().map(Change::field).collect();
    let (address, limit) = (
        "service[photos].address",
        "service[photos].limits.connections",
    );
    assert_eq!(fields, [address, limit]);
    let effects = changes
        .iter()
        .map(|change| change.effect_at(ConfigReader::Node("fe0")));
    assert_eq!(
        effects.collect::<Vec<_>>(),
        [Effect::Restart, Effect::Reload]
    );
    assert_eq!(old.with_changes(&changes, &new).unwrap(), new);
    // A node acts by the part of its service.
    let (old, new) = (old.part("photos").unwrap(), new.part("photos").unwrap());
    let fields: Vec<_> = old.changes_to(&new).iter().map(Change::field).collect();
    assert_eq!(fields, ["limits.connections", "service.address"]);
}
