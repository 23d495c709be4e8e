//! The fields of `[service.tls]`, and the reports about faults.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use prism_config::{
    ConfigError, ConfigFile, KernelTls, Node, Problem, SecretError, Tls, TlsSuite, TlsVersion,
};

const WITHOUT_TLS: &str = r#"
[cluster]
name = "demo"
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend", "backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "pki"
[s3]
credentials_file = "credentials.toml"
[service]
address = "10.77.0.1:80"
"#;

const TLS: &str = r#"
[service.tls]
ticket_secret_file = "ticket.secrets"
min_version = "1.3"
suites = ["TLS_AES_128_GCM_SHA256", "TLS13_CHACHA20_POLY1305_SHA256"]
redirect_http = true
[[service.tls.certificate]]
file = "s3.crt"
key_file = "/etc/ssl/private/s3.key"
[[service.tls.certificate]]
file = "wild.crt"
key_file = "wild.key"
names = ["*.s3.example.com", "s3.example.com"]
"#;

fn config(tls: &str) -> Result<ConfigFile, ConfigError> {
    ConfigFile::from_toml(&format!("{WITHOUT_TLS}{tls}"))
}

fn tls(text: &str) -> Tls {
    config(text).unwrap().service.first().tls.clone().unwrap()
}

fn problems(tls: &str) -> Vec<Problem> {
    match config(tls) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => panic!("expected faults, got {other:?}"),
    }
}

fn fields(tls: &str) -> Vec<String> {
    problems(tls).into_iter().map(|p| p.field).collect()
}

#[test]
fn without_the_section_there_is_no_https() {
    let config = config("").unwrap();
    assert_eq!(config.service.first().tls, None);
    assert_eq!(config.parts()[0].tls_address(), None);
}

#[test]
fn a_good_section_gives_typed_values_and_defaults() {
    let config = config(TLS).unwrap();
    assert_eq!(
        config.parts()[0].tls_address().unwrap().to_string(),
        "10.77.0.1:443"
    );
    let tls = config.service.first().tls.clone().unwrap();
    assert_eq!(tls.min_version, TlsVersion::Tls13);
    assert_eq!(
        tls.suites,
        [
            TlsSuite::TLS_AES_128_GCM_SHA256,
            TlsSuite::TLS_CHACHA20_POLY1305_SHA256
        ]
    );
    assert_eq!(tls.ticket_rotation_s, 43_200);
    assert!(tls.redirect_http);
    assert!(tls.certificates[0].names.is_empty());
    assert_eq!(tls.certificates[1].names.len(), 2);

    let least = TLS.lines().filter(|line| !line.contains("= [\"TLS"));
    let least: Vec<&str> = least
        .filter(|line| !line.contains("ticket") && !line.contains("min_version"))
        .collect();
    let tls = self::tls(&least.join("\n"));
    assert_eq!(tls.min_version, TlsVersion::Tls12);
    assert_eq!(tls.ticket_secret_file, None);
    assert!(tls.suites.is_empty());
}

#[test]
fn certificates_may_stand_in_one_line() {
    let text = r#"
[service.tls]
port = 8443
certificate = [{ file = "a.crt", key_file = "a.key" }]
"#;
    assert_eq!(
        config(text).unwrap().parts()[0]
            .tls_address()
            .unwrap()
            .to_string(),
        "10.77.0.1:8443"
    );
}

#[test]
fn what_is_written_reads_back_the_same() {
    let config = config(TLS).unwrap();
    let text = toml::to_string_pretty(&config).unwrap();
    assert_eq!(ConfigFile::from_toml(&text).unwrap(), config, "{text}");
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prism.toml");
    std::fs::write(&path, format!("{WITHOUT_TLS}{TLS}")).unwrap();
    let tls = ConfigFile::load(&path)
        .unwrap()
        .service
        .first()
        .tls
        .clone()
        .unwrap();
    let inside = |name: &str| directory.path().join(name);
    assert_eq!(tls.certificates[0].file, inside("s3.crt"));
    assert_eq!(
        tls.certificates[0].key_file,
        Path::new("/etc/ssl/private/s3.key")
    );
    assert_eq!(tls.certificates[1].key_file, inside("wild.key"));
    assert_eq!(tls.ticket_secret_file, Some(inside("ticket.secrets")));
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = TLS
        .replace("[service.tls]", "[service.tls]\nport = 7400\ntypo = 1")
        .replace("min_version", "ticket_rotation_s = 60\nmin_version")
        .replace("file = \"s3.crt\"", "")
        .replace("*.s3", "*.*.s3");
    let found = fields(&text);
    for field in [
        "service.tls.port",
        "service.tls.typo",
        "service.tls.ticket_rotation_s",
        "service.tls.certificate[0].file",
        "service.tls.certificate[1].names[0]",
    ] {
        assert!(found.iter().any(|f| f == field), "{field} not in {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
fn a_section_without_a_certificate_says_what_to_add() {
    let found = problems("[service.tls]\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].to_string(),
        "line 15: service.tls.certificate: is missing; give at least one, with `file` and \
         `key_file`, or a section [service.acme]"
    );
}

#[test]
fn an_unknown_suite_or_version_is_told_the_known_ones() {
    let found = problems(&TLS.replace("TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_MD5"));
    assert_eq!(found[0].field, "service.tls.suites[0]");
    assert!(found[0].fix.contains("TLS_AES_256_GCM_SHA384"), "{found:?}");
    let found = problems(&TLS.replace("\"1.3\"", "\"1.1\""));
    assert_eq!(found[0].field, "service.tls.min_version");
    assert!(found[0].fix.contains("1.2"), "{found:?}");
}

#[test]
fn suites_must_fit_the_lowest_version() {
    let text = TLS.replace(
        "[\"TLS_AES_128_GCM_SHA256\", \"TLS13_CHACHA20_POLY1305_SHA256\"]",
        "[\"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"]",
    );
    assert_eq!(fields(&text), ["service.tls.suites"]);
    assert!(config(&text.replace("\"1.3\"", "\"1.2\"")).is_ok());
}

#[test]
fn https_has_a_port_of_its_own() {
    for port in [80, 7400, 0] {
        let text = TLS.replace("[service.tls]", &format!("[service.tls]\nport = {port}"));
        assert_eq!(fields(&text), ["service.tls.port"], "{port}");
    }
}

#[test]
fn ticket_secrets_must_be_private_and_well_formed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ticket.secrets");
    let tls = Tls {
        ticket_secret_file: Some(path.clone()),
        ..Tls::default()
    };
    let write = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    assert!(Tls::default().load_ticket_secrets().unwrap().is_empty());
    assert!(matches!(
        tls.load_ticket_secrets(),
        Err(SecretError::Read { .. })
    ));
    let (one, other) = ("01".repeat(32), "aB".repeat(32));
    write(&one, 0o640);
    assert!(matches!(
        tls.load_ticket_secrets(),
        Err(SecretError::Exposed { mode: 0o640, .. })
    ));
    write(&format!("{one}\n\n  {other}\n"), 0o600);
    let secrets = tls.load_ticket_secrets().unwrap();
    assert_eq!(secrets.len(), 2);
    assert_eq!(secrets[1].bytes(), &[0xab; 32]);
    assert_eq!(format!("{:?}", secrets[0]), "SecretBytes(..)");
    for bad in [
        "",
        &one[1..],
        &format!("{one}0"),
        &format!("{one}\n").repeat(5),
        &one.replace('0', "+"),
    ] {
        write(bad, 0o600);
        let error = tls.load_ticket_secrets().unwrap_err();
        assert!(
            matches!(error, SecretError::Form { .. }),
            "{bad:?}: {error}"
        );
        assert!(!error.to_string().contains("0101"), "{error}");
    }
}

#[test]
fn each_node_says_whether_its_kernel_makes_records() {
    let mut config = ConfigFile {
        nodes: vec![Node::default()],
        ..ConfigFile::default()
    };
    assert_eq!(config.nodes[0].kernel_tls, KernelTls::Auto);
    config.nodes[0].kernel_tls = KernelTls::Off;
    let text = toml::to_string_pretty(&config).unwrap();
    assert!(text.contains("kernel_tls = \"off\""), "{text}");
    let unknown = text.replace("\"off\"", "\"on\"");
    let error = ConfigFile::from_toml(&unknown).unwrap_err().to_string();
    assert!(error.contains("kernel_tls"), "{error}");
}
