//! The fields of `[service.acme]`.

use prism_config::{ConfigError, ConfigFile};

/// A configuration of a frontend whose certificate comes by ACME.
fn with(acme: &str) -> String {
    format!(
        r#"
[cluster]
name = "demo"
[cluster.etcd]
endpoints = ["http://10.0.0.5:2379"]
[service]
address = "10.77.0.1:80"
[service.tls]
[service.acme]
{acme}
[[node]]
name = "fe0"
address = "10.77.0.11"
roles = ["frontend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "pki"
"#
    )
}

const GOOD: &str = "directory = \"https://acme.example/dir\"\ndomains = [\"s3.example.com\"]\n\
                    terms_agreed = true\nca_file = \"acme/ca.crt\"";

#[test]
fn a_section_stands_in_the_place_of_certificates_and_reads_back_the_same() {
    let config = ConfigFile::from_toml(&with(GOOD)).unwrap();
    assert!(
        config
            .service
            .first()
            .tls
            .as_ref()
            .unwrap()
            .certificates
            .is_empty()
    );
    let again = ConfigFile::from_toml(&toml::to_string_pretty(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn its_file_is_relative_to_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    std::fs::write(&path, with(GOOD)).unwrap();
    let acme = ConfigFile::load(&path)
        .unwrap()
        .service
        .first()
        .acme
        .clone()
        .unwrap();
    assert_eq!(acme.ca_file.unwrap(), directory.path().join("acme/ca.crt"));
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = with("domains = [\"*.example.com\"]");
    let text = text.replace("[service.tls]", "");
    let text = text.replace("[cluster.etcd]\nendpoints = [\"http://10.0.0.5:2379\"]", "");
    let Err(ConfigError::Invalid(problems)) = ConfigFile::from_toml(&text) else {
        panic!("accepted");
    };
    let found: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
    for (field, count) in [
        ("service.acme", 2),
        ("service.acme.directory", 1),
        ("service.acme.domains", 1),
        ("service.acme.terms_agreed", 1),
    ] {
        let times = found.iter().filter(|found| **found == field).count();
        assert_eq!(times, count, "{field} in {problems:?}");
    }
}
