//! The fields of `[cluster.etcd]`.

use std::path::Path;

use prism_config::{ConfigError, ConfigFile};

/// The least configuration of a backend that joins a cluster.
fn with(etcd: &str) -> String {
    format!(
        r#"
[cluster]
name = "demo"
replicas = 3
[cluster.etcd]
{etcd}
[service]
address = "10.77.0.1:80"
[[node]]
name = "be7"
address = "10.77.0.11"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "pki"
"#
    )
}

fn faults(etcd: &str) -> Vec<String> {
    match ConfigFile::from_toml(&with(etcd)) {
        Err(ConfigError::Invalid(problems)) => problems.into_iter().map(|p| p.field).collect(),
        other => panic!("expected faults, got {other:?}"),
    }
}

#[test]
fn a_node_need_not_know_the_others_nor_the_users() {
    let config = ConfigFile::from_toml(&with(r#"endpoints = ["http://10.0.0.5:2379"]"#)).unwrap();
    assert_eq!(config.etcd_prefix().unwrap(), "/prism/demo/");
    let etcd = config.cluster.etcd.as_ref().unwrap();
    assert_eq!(etcd.lease_ttl_s, 5);
    assert_eq!(etcd.endpoints[0].host(), "10.0.0.5");
    let again = ConfigFile::from_toml(&toml::to_string_pretty(&config).unwrap()).unwrap();
    assert_eq!(again, config);
    // Without etcd the file needs all of these fields.
    let without = with("").replace("[cluster.etcd]", "");
    let Err(ConfigError::Invalid(problems)) = ConfigFile::from_toml(&without) else {
        panic!("accepted");
    };
    let fields: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(
        fields,
        ["cluster.replicas", "node", "s3.credentials_file"],
        "{problems:?}"
    );
}

#[test]
fn no_more_copies_have_to_be_in_sync_than_there_are() {
    let with_min = |min: u16| {
        let text = with(r#"endpoints = ["http://10.0.0.5:2379"]"#);
        let line = format!("replicas = 3\nmin_replicas = {min}");
        ConfigFile::from_toml(&text.replace("replicas = 3", &line))
    };
    for min in 1..=3 {
        let config = with_min(min).unwrap();
        assert_eq!(config.cluster.min_replicas, Some(min));
    }
    for min in [0, 4] {
        let Err(ConfigError::Invalid(problems)) = with_min(min) else {
            panic!("{min} accepted");
        };
        assert_eq!(problems[0].field, "cluster.min_replicas");
    }
}

#[test]
fn its_files_are_relative_to_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    let text = with(
        "endpoints = [\"https://etcd.example\"]\nca_file = \"etcd/ca.crt\"\n\
         cert_file = \"etcd/own.crt\"\nkey_file = \"/keys/own.key\"",
    );
    std::fs::write(&path, text).unwrap();
    let config = ConfigFile::load(&path).unwrap();
    let etcd = config.cluster.etcd.unwrap();
    assert_eq!(etcd.ca_file.unwrap(), directory.path().join("etcd/ca.crt"));
    let cert = directory.path().join("etcd/own.crt");
    assert_eq!(etcd.cert_file.unwrap(), cert);
    assert_eq!(etcd.key_file.unwrap(), Path::new("/keys/own.key"));
}

#[test]
fn what_cannot_work_is_told_with_its_field() {
    let http = "endpoints = [\"http://a\"]\n";
    let https = "endpoints = [\"https://a\"]\n";
    let all = "cluster.etcd.";
    for (text, field) in [
        (String::new(), "endpoints"),
        ("endpoints = [\"10.0.0.5:2379\"]".into(), "endpoints[0]"),
        (
            "endpoints = [\"http://a\", \"https://b\"]\nca_file = \"c\"".into(),
            "endpoints",
        ),
        (https.into(), "ca_file"),
        (format!("{http}ca_file = \"x\""), "endpoints"),
        (
            format!("{https}ca_file = \"x\"\nkey_file = \"y\""),
            "cert_file",
        ),
        (format!("{http}lease_ttl_s = 1"), "lease_ttl_s"),
        (format!("{http}lease_ttl_s = 301"), "lease_ttl_s"),
        (format!("{http}prefix = \"prism\""), "prefix"),
        (format!("{http}prefix = \"/a/\""), "prefix"),
        (format!("{http}prefix = \"/a b\""), "prefix"),
        (format!("{http}user = \"x\""), "user"),
    ] {
        assert_eq!(faults(&text), [format!("{all}{field}")], "{text}");
    }
}
