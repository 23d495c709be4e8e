//! The certificate that a client gets, and the effect of a reload.

use std::path::Path;
use std::sync::Arc;

use prism_tls::accept::{CertificateFiles, Certificates, ServerConfig, Settings};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;

use crate::support::*;

struct Site {
    authority: Authority,
    client: Arc<ClientConfig>,
}

impl Site {
    fn new() -> Self {
        let authority = Authority::new();
        let client = Arc::new(authority.client(default_provider()));
        Self { authority, client }
    }

    fn issue(&self, file: &str, names: &[&str]) -> CertificateFiles {
        self.authority.issue(file, names, &PKCS_ECDSA_P256_SHA256)
    }

    /// Whether `server` shows `host` the certificate in `file`.
    fn shows(&self, server: &ServerConfig, host: &str, file: &Path) -> bool {
        let mut connection = connect_to(&self.client, host);
        handshake(&mut connection, server, Cut::Nowhere, &[]).unwrap();
        connection.peer_certificates().unwrap()[0] == certificate_in(file)
    }
}

fn serve(certificates: &Arc<Certificates>) -> ServerConfig {
    ServerConfig::new(
        &Settings::default(),
        certificates.clone(),
        None,
        system_clock(),
    )
    .unwrap()
}

#[test]
fn the_host_name_chooses_exact_before_wildcard_before_default() {
    let site = Site::new();
    // The default is for all three names, so that a client accepts it.
    let hosts = ["other.test", "a.s3.test", "s3.test", "b.a.s3.test"];
    let default = site.issue("default", &hosts);
    let default = CertificateFiles {
        names: vec!["other.test".into()],
        ..default
    };
    let wild = site.issue("wild", &["*.s3.test"]);
    let exact = site.issue("exact", &["a.s3.test"]);
    let files = vec![default.clone(), wild.clone(), exact.clone()];
    let certificates = Arc::new(Certificates::load(files).unwrap());
    assert_eq!(
        certificates.names(),
        ["*.s3.test", "a.s3.test", "other.test"]
    );
    let server = serve(&certificates);
    for (host, expected) in [
        ("a.s3.test", &exact),
        ("b.s3.test", &wild),
        ("B.S3.Test", &wild),
        ("other.test", &default),
        ("s3.test", &default),
        ("b.a.s3.test", &default),
    ] {
        assert!(site.shows(&server, host, &expected.certificate), "{host}");
    }
}

#[test]
fn a_client_that_names_no_host_gets_the_default() {
    let site = Site::new();
    let default = site.issue("default", &["127.0.0.1"]);
    let other = site.issue("other", &["s3.test"]);
    let files = vec![default.clone(), other];
    let server = serve(&Arc::new(Certificates::load(files).unwrap()));
    assert!(site.shows(&server, "127.0.0.1", &default.certificate));
}

#[test]
fn of_two_keys_for_a_host_a_client_gets_one_that_it_can_verify() {
    let server = server();
    for (suite, files) in [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", &FIXTURE.rsa),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", &FIXTURE.ecdsa),
        ("TLS_AES_128_GCM_SHA256", &FIXTURE.ecdsa),
    ] {
        let mut client = connect(client_of_suite(suite));
        handshake(&mut client, &server, Cut::Nowhere, &[]).unwrap();
        let shown = &client.peer_certificates().unwrap()[0];
        assert_eq!(*shown, certificate_in(&files.certificate), "{suite}");
    }
}

#[test]
fn a_reload_changes_the_next_handshake_and_a_bad_one_changes_nothing() {
    let site = Site::new();
    let files = site.issue("site", &["s3.test"]);
    let old = site.authority.directory().join("old.crt");
    std::fs::copy(&files.certificate, &old).unwrap();
    let certificates = Arc::new(Certificates::load(vec![files.clone()]).unwrap());
    let server = serve(&certificates);

    // The certificate of a new pair comes before its key.
    let key = std::fs::read_to_string(&files.key).unwrap();
    site.issue("site", &["s3.test"]);
    let new_key = std::fs::read_to_string(&files.key).unwrap();
    write_private(&files.key, &key);
    let error = certificates.reload().unwrap_err();
    let error = error.to_string();
    assert!(error.contains("site.key is not the key of"), "{error}");
    assert!(site.shows(&server, "s3.test", &old));

    write_private(&files.key, &new_key);
    certificates.reload().unwrap();
    assert!(site.shows(&server, "s3.test", &files.certificate));

    std::fs::remove_file(&files.certificate).unwrap();
    let error = certificates.reload().unwrap_err();
    assert!(error.to_string().contains("site.crt"), "{error}");
}

#[test]
fn a_given_certificate_is_replaced_at_once_and_comes_after_files() {
    let site = Site::new();
    let give = |certificates: &Certificates, files: &CertificateFiles| {
        let chain = std::fs::read(&files.certificate).unwrap();
        let key = std::fs::read(&files.key).unwrap();
        certificates.give("given", &chain, &key)
    };
    let none = Arc::new(Certificates::load(Vec::new()).unwrap());
    let server = serve(&none);
    let mut client = connect_to(&site.client, "s3.test");
    assert!(handshake(&mut client, &server, Cut::Nowhere, &[]).is_err());
    let first = site.issue("first", &["s3.test", "a.test"]);
    let second = site.issue("second", &["s3.test"]);
    give(&none, &first).unwrap();
    assert!(site.shows(&server, "s3.test", &first.certificate));
    give(&none, &second).unwrap();
    assert!(site.shows(&server, "s3.test", &second.certificate));
    assert_eq!(none.names(), ["s3.test"]);
    none.reload().unwrap();
    assert!(site.shows(&server, "s3.test", &second.certificate));

    // One that cannot be served changes nothing.
    let mixed = CertificateFiles {
        key: second.key.clone(),
        ..first.clone()
    };
    let error = give(&none, &mixed).unwrap_err().to_string();
    assert!(error.contains("given is not the key of given"), "{error}");
    assert!(site.shows(&server, "s3.test", &second.certificate));

    // A faulty file does not hold a given one back.
    let file = site.issue("file", &["s3.test", "file.test"]);
    let both = Arc::new(Certificates::load(vec![file.clone()]).unwrap());
    let server = serve(&both);
    std::fs::write(&file.key, "broken").unwrap();
    give(&both, &first).unwrap();
    assert!(site.shows(&server, "a.test", &first.certificate));
    assert!(site.shows(&server, "s3.test", &file.certificate));
    assert!(site.shows(&server, "file.test", &file.certificate));
}

#[test]
fn a_session_outlives_the_reload_of_its_certificate() {
    let site = Site::new();
    let files = site.issue("site", &["s3.test"]);
    let certificates = Arc::new(Certificates::load(vec![files]).unwrap());
    let server = serve(&certificates);
    let mut client = connect_to(&site.client, "s3.test");
    let established = handshake(&mut client, &server, Cut::Nowhere, &[]).unwrap();
    site.issue("site", &["s3.test"]);
    certificates.reload().unwrap();
    exchange(&mut client, &mut Served::new(established), 1_000);
}

#[test]
fn faults_name_the_file_and_what_is_wrong() {
    let site = Site::new();
    let good = site.issue("good", &["s3.test", "*.s3.test"]);
    let other = site.issue("other", &["other.test"]);
    let nameless = site.issue("nameless", &[]);
    let load =
        |files: &[CertificateFiles]| Certificates::load(files.to_vec()).unwrap_err().to_string();
    let with_names = |names: &[&str]| CertificateFiles {
        names: names.iter().map(|&name| name.into()).collect(),
        ..good.clone()
    };
    let swapped = CertificateFiles {
        certificate: good.key.clone(),
        ..good.clone()
    };
    let mismatched = CertificateFiles {
        key: other.key.clone(),
        ..good.clone()
    };
    let missing = CertificateFiles {
        key: "/nonexistent/x.key".into(),
        ..good.clone()
    };
    for (files, says) in [
        (vec![swapped], "good.key: holds no certificate"),
        (vec![mismatched], "other.key is not the key of"),
        (vec![missing], "cannot read /nonexistent/x.key"),
        (vec![with_names(&["a..b"])], "\"a..b\" is not a host name"),
        (vec![with_names(&["*"])], "\"*\" is not a host name"),
        (
            vec![with_names(&["x.test"])],
            "it is for s3.test, *.s3.test",
        ),
        (vec![with_names(&["*.test"])], "not for the name \"*.test\""),
        (vec![good.clone(), nameless], "has no host name"),
    ] {
        let error = load(&files);
        assert!(error.contains(says), "{says:?} not in {error:?}");
    }
    assert!(Certificates::load(vec![with_names(&["A.s3.TEST"])]).is_ok());
}

#[test]
fn a_key_that_others_can_read_is_refused_and_never_quoted() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new();
    let files = site.issue("site", &["s3.test"]);
    let load = || Certificates::load(vec![files.clone()]).map(|_| ());
    let set_mode = |mode| {
        std::fs::set_permissions(&files.key, PermissionsExt::from_mode(mode)).unwrap();
    };
    set_mode(0o644);
    let error = load().unwrap_err().to_string();
    assert!(
        error.contains("644") && error.contains("chmod o="),
        "{error}"
    );
    set_mode(0o640);
    load().unwrap();
    write_private(&files.key, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n");
    let error = load().unwrap_err().to_string();
    assert!(
        error.contains("site.key") && !error.contains("c2Vj"),
        "{error}"
    );
}
