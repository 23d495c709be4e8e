//! Tests of configuration files: valid ones, and the reports about faults.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use prism_config::{ConfigError, ConfigFile, HandOffMode, Problem, SecretError};
use prism_s3::access::{KeyRights, Rights};

const GOOD: &str = r#"
[cluster]
name = "demo"
[service]
address = "10.77.0.1:80"
hand_off = "return"
[switch]
control = "10.77.0.2:7300"
key_file = "switch.key"
interfaces = ["eth0", "eth1"]
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
store = "objects"
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "pki"
[s3]
credentials_file = "credentials.toml"
"#;

pub(crate) fn problems(text: &str) -> Vec<Problem> {
    match ConfigFile::from_toml(text) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => panic!("expected faults, got {other:?}"),
    }
}

pub(crate) fn fields(text: &str) -> Vec<String> {
    problems(text)
        .into_iter()
        .map(|problem| problem.field)
        .collect()
}

fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn a_good_file_gives_typed_values_and_defaults() {
    let config = ConfigFile::from_toml(GOOD).unwrap();
    assert_eq!(config.service.first().hand_off, HandOffMode::Return);
    assert_eq!(config.cluster.region, "us-east-1");
    assert_eq!(config.limits.max_object_bytes, 5 << 30);
    assert_eq!(config.frontends().count(), 1);
    assert_eq!(
        config.parts()[0].admin_socket("be0"),
        Path::new("/run/prism/be0.sock")
    );
}

#[test]
fn what_is_written_reads_back_the_same() {
    let config = ConfigFile::from_toml(GOOD).unwrap();
    assert_eq!(
        ConfigFile::from_toml(&toml::to_string_pretty(&config).unwrap()).unwrap(),
        config
    );
}

#[test]
fn a_domain_of_buckets_is_the_name_of_hosts() {
    let with = |domain: &str| GOOD.to_owned() + &format!("domains = [{domain:?}]\n");
    assert!(ConfigFile::from_toml(&with("S3.example.com")).is_ok());
    for wrong in ["10.0.0.1", "::1", "*.example.com", "s3.example.com:80", ""] {
        assert_eq!(fields(&with(wrong)), ["s3.domains"], "{wrong}");
    }
    // The URLs of the service name no bucket.
    let with = |url: &str| {
        let urls = format!("[service]\nurls = [{url:?}]\n");
        GOOD.replacen("[service]\n", &urls, 1)
            + "domains = [\"S3.example.com\", \"eu.s3.example.com\"]\n"
    };
    for url in [
        "https://s3.example.com",
        "https://EU.s3.example.com:8443",
        "https://its3.example.com",
        "http://[2001:db8::1]:80",
    ] {
        assert!(ConfigFile::from_toml(&with(url)).is_ok(), "{url}");
    }
    for url in [
        "https://page.s3.example.com",
        "http://a.EU.S3.example.com:80",
    ] {
        let found = fields(&with(url));
        assert!(
            found.iter().all(|field| field == "service.urls"),
            "{found:?}"
        );
        assert!(!found.is_empty(), "{url}");
    }
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    std::fs::write(&path, GOOD).unwrap();
    let config = ConfigFile::load(&path).unwrap();
    assert_eq!(
        config.peers.cert_file("be0"),
        directory.path().join("pki/be0.crt")
    );
    assert_eq!(config.peers.ca_file, Path::new("/etc/prism/ca.crt"));
    assert_eq!(
        config.node("be0").unwrap().store,
        directory.path().join("objects")
    );
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = GOOD
        .replace("hand_off = \"return\"", "hand_off = \"teleport\"\ntypo = 1")
        .replace("10.77.0.11\"", "10.77.0.10\"")
        .replace("roles = [\"frontend\"]", "roles = [\"frontend\", \"chef\"]")
        .replace("[peers]", "[peers]\nport = \"many\"")
        .replace("[\"eth0\", \"eth1\"]", "[]");
    let found = fields(&text);
    for field in [
        "service.hand_off",
        "service.typo",
        "node[0].roles[1]",
        "node[1].address",
        "peers.port",
        "switch.interfaces",
    ] {
        assert!(found.iter().any(|f| f == field), "{field} not in {found:?}");
    }
}

#[test]
fn a_gateway_is_another_host_and_an_interface_has_a_name() {
    let with = |gateway: &str| {
        let line = format!("address = \"10.77.0.11\"\ngateway = \"{gateway}\"");
        GOOD.replace("address = \"10.77.0.11\"", &line)
    };
    let config = ConfigFile::from_toml(&with("10.77.0.2")).unwrap();
    let gateway = config.node("be0").unwrap().gateway;
    assert_eq!(gateway, Some(prism_config::HostAddrs::from([10, 77, 0, 2])));
    for gateway in ["10.77.0.11", "0.0.0.0", "255.255.255.255"] {
        assert_eq!(fields(&with(gateway)), ["node[1].gateway"], "{gateway}");
    }
    for name in ["", ".", "..", "a/b"] {
        let text = GOOD.replace("\"eth1\"", &format!("{name:?}"));
        assert_eq!(fields(&text), ["switch.interfaces"], "{name:?}");
    }
}

#[test]
fn the_names_of_the_admin_address_are_names_and_those_of_nodes() {
    let with = |name: &str| format!("{GOOD}\n[admin]\nnames = [{name:?}]\n");
    let config = ConfigFile::from_toml(&with("be0.example.com")).unwrap();
    let names = config.admin_names();
    for name in ["be0.example.com", "fe0", "be0"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    for name in ["", "be0.example.com:9464", "http://be0", "*", "a..b"] {
        assert_eq!(fields(&with(name)), ["admin.names"], "{name:?}");
    }
}

#[test]
fn a_misspelt_field_does_not_hide_the_missing_one() {
    let found = fields(&GOOD.replace("name = \"demo\"", "nam = \"demo\""));
    assert_eq!(found, ["cluster.name", "cluster.nam"]);
}

#[test]
fn a_missing_field_is_reported_once_with_its_fix() {
    let found = problems(&GOOD.replace("address = \"10.77.0.1:80\"", ""));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].to_string(),
        "line 4: service.address: is missing; give the address and port of clients, as in \"10.0.0.1:80\""
    );
}

#[test]
fn a_log_level_that_would_say_nothing_is_refused() {
    let with = |level: &str| GOOD.to_owned() + &format!("[log]\nlevel = \"{level}\"\n");
    for level in [
        "info",
        "off",
        "WARN,prism_handoff=debug",
        "prism::node=trace",
    ] {
        let read = ConfigFile::from_toml(&with(level)).unwrap();
        assert_eq!(read.log.level, level);
    }
    for level in [
        "",
        "loud",
        "info,",
        "=debug",
        "info, prism=debug",
        "prism",
        "prism=loud",
    ] {
        assert_eq!(fields(&with(level)), ["log.level"], "{level:?}");
    }
}

#[test]
fn a_tunnel_is_for_host_mode_and_carries_what_ipv6_needs() {
    let with = |lines: &str| GOOD.replace("[switch]", &format!("[switch]\n{lines}"));
    ConfigFile::from_toml(&with("mode = \"host\"\ntunnel_mtu_bytes = 1500")).unwrap();
    for lines in [
        "mode = \"host\"\ntunnel_mtu_bytes = 1279",
        "tunnel_mtu_bytes = 1500",
    ] {
        let expected = ["switch.tunnel_mtu_bytes"];
        assert_eq!(fields(&with(lines)), expected, "{lines}");
    }
}

#[test]
fn a_flow_must_outlive_a_silent_connection() {
    let text = GOOD.replace("[switch]", "[switch]\nidle_timeout_s = 30");
    assert_eq!(fields(&text), ["switch.idle_timeout_s"]);
}

#[test]
fn nodes_need_both_roles_and_unique_names() {
    assert_eq!(
        fields(&GOOD.replace("[\"backend\"]", "[\"frontend\"]")),
        ["node"]
    );
    assert_eq!(
        fields(&GOOD.replace("\"be0\"", "\"fe0\"")),
        ["node[1].name"]
    );
}

#[test]
fn text_that_is_not_toml_names_the_place() {
    let error = ConfigFile::from_toml("[cluster\n").unwrap_err();
    assert!(matches!(error, ConfigError::Syntax { .. }));
    assert!(error.to_string().contains("line 1"), "{error}");
}

#[test]
fn an_address_that_is_none_is_reported_with_its_line() {
    for address in [
        "\"10.0.0.1\"",
        "\"fd00::1\"",
        "\"ten:80\"",
        "80",
        "[]",
        "\"127.0.0.1:80\"",
    ] {
        let found = problems(&GOOD.replace("\"10.77.0.1:80\"", address));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].field, "service.address", "{found:?}");
        assert_eq!(found[0].place.line, Some(5), "{found:?}");
    }
}

pub(crate) const DUAL: [(&str, &str); 4] = [
    ("\"10.77.0.1:80\"", "[\"10.77.0.1:80\", \"[fd77::1]:80\"]"),
    (
        "\"10.77.0.2:7300\"",
        "[\"10.77.0.2:7300\", \"[fd77::2]:7300\"]",
    ),
    ("\"10.77.0.10\"", "[\"10.77.0.10\", \"fd77::10\"]"),
    ("\"10.77.0.11\"", "[\"10.77.0.11\", \"fd77::11\"]"),
];

pub(crate) fn dual() -> String {
    let mut text = GOOD.to_owned();
    for (one, both) in DUAL {
        text = text.replace(one, both);
    }
    text
}

#[test]
fn hosts_may_have_both_families_or_one() {
    let config = ConfigFile::from_toml(&dual()).unwrap();
    assert_eq!(
        config.service.first().address.to_string(),
        "10.77.0.1:80, [fd77::1]:80"
    );
    let written = toml::to_string_pretty(&config).unwrap();
    assert_eq!(ConfigFile::from_toml(&written).unwrap(), config);
    let mut only_v6 = GOOD.to_owned();
    for (one, both) in DUAL {
        let (_, v6) = both.trim_end_matches(']').rsplit_once(", ").unwrap();
        only_v6 = only_v6.replace(one, v6);
    }
    ConfigFile::from_toml(&only_v6).unwrap();
    assert!(!only_v6.contains("10.77"), "{only_v6}");
}

#[test]
fn a_backend_without_a_family_of_the_service_is_no_fault_but_is_known() {
    let config = ConfigFile::from_toml(&dual().replace(DUAL[3].1, DUAL[3].0)).unwrap();
    let missing = |name: &str| config.families_missing_at(config.node(name).unwrap());
    assert_eq!(missing("be0"), ["IPv6"]);
    assert!(missing("fe0").is_empty());
}

#[test]
fn hosts_that_cannot_reach_each_other_are_faults() {
    let with = |n: usize, text: &str| dual().replace(DUAL[n].1, text);
    let v6_only = with(3, "\"fd77::11\"");
    assert_eq!(
        fields(&v6_only.replace(DUAL[1].1, DUAL[1].0)),
        ["node[1].address"]
    );
    assert_eq!(
        fields(&v6_only.replace(DUAL[2].1, DUAL[2].0)),
        ["service.address", "node[1].address"]
    );
    for (n, text, field) in [
        (0, "[\"10.77.0.1:80\", \"10.77.0.1:80\"]", "service.address"),
        (
            0,
            "[\"10.77.0.1:80\", \"[fd77::1]:7400\"]",
            "service.address",
        ),
        (0, "[\"10.77.0.1:80\", \"fd77::1\"]", "service.address[1]"),
        (
            1,
            "[\"10.77.0.2:7300\", \"[fd77::1]:7300\"]",
            "switch.control",
        ),
        (
            1,
            "[\"10.77.0.2:7300\", \"[fd77::2]:7301\"]",
            "switch.control",
        ),
        (3, "[\"10.77.0.11\", \"fd77::10\"]", "node[1].address"),
        (3, "[\"10.77.0.11\", \"fd77::1\"]", "node[1].address"),
        (3, "[\"10.77.0.11\", \"10.77.0.12\"]", "node[1].address"),
        (3, "[\"10.77.0.11\", \"fe80::1\"]", "node[1].address"),
        (
            3,
            "\"10.77.0.11\"\ngateway = \"fd77::2\"",
            "node[1].gateway",
        ),
    ] {
        assert_eq!(fields(&with(n, text)), [field], "{text}");
    }
}

#[test]
fn a_fault_of_the_credentials_names_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("credentials.toml");
    let settings = prism_config::S3 {
        credentials_file: path.clone(),
        ..Default::default()
    };
    let good = "# Users\n[[credential]]\naccess_key = \"a\"\nsecret_key = \"hush\"\n";
    let other = |line: &str| format!("{good}[[credential]]\naccess_key = \"b\"\n{line}\n");
    for (text, line) in [
        (other("secret_key = 5"), Some(7)),
        (other("secret_key = \"h\"\nsecret = \"hush\""), Some(8)),
        (other("secret_key = \"\""), Some(5)),
        (other("secret_key ="), Some(7)),
        (other("secret_key = \"h\"\nbuckets = { A_ = [] }"), Some(5)),
        (format!("{good}{}", &good[8..]), Some(5)),
        (String::new(), None),
    ] {
        write_private(&path, &text);
        let error = settings.load_credentials().unwrap_err();
        assert!(!error.to_string().contains("hush"), "{error}");
        let SecretError::Form { place, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((place.file, place.line), (path.clone(), line), "{text}");
    }
}

#[test]
fn secrets_must_be_private_and_well_formed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    std::fs::write(&path, GOOD).unwrap();
    let config = ConfigFile::load(&path).unwrap();
    let switch = config.switch.clone().unwrap();

    assert!(matches!(
        switch.load_node_key("be0"),
        Err(SecretError::Read { .. })
    ));
    std::fs::write(&switch.key_file, "00112233445566778899aabbccddeeff\n").unwrap();
    std::fs::set_permissions(&switch.key_file, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(
        switch.load_node_key("be0"),
        Err(SecretError::Exposed { mode: 0o644, .. })
    ));
    write_private(&switch.key_file, "00112233445566778899aabbccddeeff\n");
    let key = switch.load_node_key("be0").unwrap();
    assert_eq!(key.key.bytes()[..3], [0x00, 0x11, 0x22]);
    assert!(format!("{key:?}").contains("SecretBytes(..)"));
    write_private(&switch.key_file, "+0112233445566778899aabbccddeeff");
    assert!(matches!(
        switch.load_node_key("be0"),
        Err(SecretError::Form { .. })
    ));

    let users = &config.s3.credentials_file;
    write_private(
        users,
        "[[credential]]\naccess_key = \"a\"\nsecret_key = \"hush\"\n",
    );
    let credentials = config.s3.load_credentials().unwrap();
    assert!(!format!("{credentials:?}").contains("hush"));
    write_private(
        users,
        "[[credential]]\naccess_key = \"a\"\nsecret = \"hush\"\n",
    );
    let error = config.s3.load_credentials().unwrap_err();
    assert!(!error.to_string().contains("hush"), "{error}");
}

#[test]
fn a_key_has_the_rights_that_its_record_says_or_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ConfigFile::from_toml(GOOD).unwrap();
    config.s3.credentials_file = dir.path().join("users");
    let read = |fields: &str| {
        let text = format!("[[credential]]\naccess_key = \"a\"\nsecret_key = \"s\"\n{fields}");
        write_private(&config.s3.credentials_file, &text);
        config.s3.load_credentials().map(|users| {
            let user = users.first().unwrap();
            (user.rights(), user.is_unlimited_by_omission())
        })
    };
    let photos = Rights::READ | Rights::WRITE;
    let photos = KeyRights::Buckets([("photos".to_owned(), photos)].into());
    for (fields, rights, is_by_omission) in [
        ("", KeyRights::Admin, true),
        ("admin = true", KeyRights::Admin, false),
        ("admin = false", KeyRights::NONE, false),
        ("buckets = {}", KeyRights::NONE, false),
        (
            "buckets = { photos = [\"read\", \"write\"] }",
            photos.clone(),
            false,
        ),
        (
            "admin = true\nbuckets = { photos = [\"read\"] }",
            KeyRights::Admin,
            false,
        ),
    ] {
        assert_eq!(read(fields).unwrap(), (rights, is_by_omission), "{fields}");
    }
    for fields in [
        "buckets = { photos = [\"all\"] }",
        "buckets = { Photos = [\"read\"] }",
        "bucket = { photos = [\"read\"] }",
        "admin = 1",
    ] {
        assert!(read(fields).is_err(), "{fields}");
    }
}

#[test]
fn spans_go_to_a_url_or_nowhere() {
    let with = |trace: &str| GOOD.to_owned() + "[trace]\n" + trace;
    let sent = |url: &str| with(&format!("otlp = \"{url}\"\nsample_per_million = 1000000\n"));
    for url in [
        "http://127.0.0.1:4318/v1/traces",
        "http://collector.example/v1/traces",
        "http://[2001:db8::1]:4318/v1/traces",
        "http://[2001:db8::1]/",
    ] {
        let read = ConfigFile::from_toml(&sent(url)).unwrap();
        assert_eq!(
            (read.trace.otlp.as_str(), read.trace.is_sent()),
            (url, true)
        );
    }
    for url in [
        "127.0.0.1:4318",
        "http://127.0.0.1:4318",
        "https://127.0.0.1:4318/v1/traces",
        "http:///v1/traces",
        "http://127.0.0.1:70000/v1/traces",
        "http://user@host/v1/traces",
        "http://host/v1 traces",
    ] {
        assert_eq!(fields(&sent(url)), ["trace.otlp"], "{url:?}");
    }
    let samples = |count: &str| fields(&with(&format!("sample_per_million = {count}\n")));
    assert!(ConfigFile::from_toml(&with("sample_per_million = 0\n")).is_ok());
    // Traces that begin have to go somewhere.
    assert_eq!(samples("1"), ["trace.sample_per_million"]);
    let url = "otlp = \"http://h/v1/traces\"\nsample_per_million = 1000001\n";
    assert_eq!(fields(&with(url)), ["trace.sample_per_million"]);
}
