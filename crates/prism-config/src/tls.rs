//! `[service.tls]` as structs, and its checks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::check::Found;
use crate::model::Config;

/// Most certificates.
const MAX_CERTIFICATES: usize = 1_024;
/// Shortest and longest life of a ticket key in seconds. The shortest is above any difference
/// of clocks. A ticket lives for up to two, which is at most 7 days.
const ROTATION_S: std::ops::RangeInclusive<u32> = 600..=302_400;
/// Longest host name in bytes (RFC 1035), and longest label of one.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// `[service.tls]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Default 443. The port of HTTPS, on the address of `service.address`.
    pub port: u16,
    /// Required. The certificates. Clients that name no host, or an unknown one, get the first.
    #[serde(rename = "certificate")]
    pub certificates: Vec<Certificate>,
    /// Default none: every handshake is a full one. The file with the ticket secrets, readable
    /// by its owner only: 1 to 4 lines of 64 hexadecimal digits, the same on every frontend.
    /// The first seals tickets; the others only open older ones. Sessions of TLS 1.2 are not
    /// resumed, because their tickets have no forward secrecy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_secret_file: Option<PathBuf>,
    /// Default 43,200 s. The time for which one ticket key seals. A ticket is valid for at least
    /// that time and at most twice as long. A longer time exposes more sessions with the
    /// secret. The same on every frontend.
    pub ticket_rotation_s: u32,
    /// Default `1.2`. The lowest version of TLS; the highest is always 1.3.
    pub min_version: TlsVersion,
    /// Default all, in the client's order of preference. The cipher suites, in order of the
    /// server's preference.
    pub suites: Vec<TlsSuite>,
    /// Default false. Whether `service.address` answers every request with a
    /// redirect to HTTPS instead of serving it.
    pub redirect_http: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            port: 443,
            certificates: Vec::new(),
            ticket_secret_file: None,
            ticket_rotation_s: 43_200,
            min_version: TlsVersion::default(),
            suites: Vec::new(),
            redirect_http: false,
        }
    }
}

/// `[[service.tls.certificate]]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Certificate {
    /// Required. The certificate in PEM, followed by those that lead to its authority.
    pub file: PathBuf,
    /// Required. Its private key in PEM. Others must not be able to read it.
    pub key_file: PathBuf,
    /// Default: the names in the certificate. The host names that it is served for; `*.` at the
    /// front stands for one label.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// The maker of the TLS records of large bodies on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelTls {
    /// The kernel, if it can. Files are then sent without a copy in user space.
    #[default]
    Auto,
    /// The node itself, always.
    Off,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsVersion {
    /// RFC 5246, with ECDHE and an AEAD only.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

/// A cipher suite, by IANA's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say all")]
pub enum TlsSuite {
    #[serde(rename = "TLS_AES_128_GCM_SHA256", alias = "TLS13_AES_128_GCM_SHA256")]
    Aes128,
    #[serde(rename = "TLS_AES_256_GCM_SHA384", alias = "TLS13_AES_256_GCM_SHA384")]
    Aes256,
    #[serde(
        rename = "TLS_CHACHA20_POLY1305_SHA256",
        alias = "TLS13_CHACHA20_POLY1305_SHA256"
    )]
    ChaCha20,
    #[serde(rename = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")]
    EcdsaAes128,
    #[serde(rename = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")]
    EcdsaAes256,
    #[serde(rename = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256")]
    EcdsaChaCha20,
    #[serde(rename = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")]
    RsaAes128,
    #[serde(rename = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")]
    RsaAes256,
    #[serde(rename = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256")]
    RsaChaCha20,
}

impl TlsSuite {
    /// IANA's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256 => "TLS_AES_256_GCM_SHA384",
            Self::ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::EcdsaAes128 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Self::EcdsaAes256 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Self::EcdsaChaCha20 => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            Self::RsaAes128 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Self::RsaAes256 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Self::RsaChaCha20 => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        }
    }

    fn version(self) -> TlsVersion {
        match self {
            Self::Aes128 | Self::Aes256 | Self::ChaCha20 => TlsVersion::Tls13,
            _ => TlsVersion::Tls12,
        }
    }
}

impl Config {
    pub(crate) fn check_tls(&self, found: &mut Found) {
        let Some(tls) = &self.service.tls else {
            return;
        };
        self.check_tls_port(tls, found);
        check_certificates(&tls.certificates, found);
        if let Some(file) = &tls.ticket_secret_file {
            found.path(
                "service.tls.ticket_secret_file",
                file,
                "the file of the ticket secrets",
            );
        }
        found.range(
            "service.tls.ticket_rotation_s",
            tls.ticket_rotation_s.into(),
            (*ROTATION_S.start()).into(),
            (*ROTATION_S.end()).into(),
        );
        check_suites(tls, found);
    }

    fn check_tls_port(&self, tls: &Tls, found: &mut Found) {
        let field = "service.tls.port";
        found.port(field, tls.port);
        for (port, other) in [
            (self.service.address.port(), "service.address"),
            (self.peers.port, "peers.port"),
        ] {
            found.check(tls.port != port || port == 0, field, || {
                (
                    format!("is the port of {other}, {port}"),
                    "give HTTPS a port of its own".into(),
                )
            });
        }
    }
}

fn check_certificates(certificates: &[Certificate], found: &mut Found) {
    let field = "service.tls.certificate";
    if certificates.is_empty() {
        return found.missing(field, "at least one, with `file` and `key_file`");
    }
    found.check(certificates.len() <= MAX_CERTIFICATES, field, || {
        (
            format!("there are more than {MAX_CERTIFICATES}"),
            "use certificates for several names".into(),
        )
    });
    for (index, certificate) in certificates.iter().enumerate() {
        let leaf = |leaf: &str| format!("{field}[{index}].{leaf}");
        found.path(
            &leaf("file"),
            &certificate.file,
            "the file of a certificate in PEM",
        );
        found.path(
            &leaf("key_file"),
            &certificate.key_file,
            "the file of its private key in PEM",
        );
        for (at, name) in certificate.names.iter().enumerate() {
            found.check(is_host_name(name), &leaf(&format!("names[{at}]")), || {
                (
                    format!("{name:?} is not a host name"),
                    "use letters, digits, '-' and '.', as in \"s3.example.com\" or \"*.s3.example.com\""
                        .into(),
                )
            });
        }
    }
}

fn check_suites(tls: &Tls, found: &mut Found) {
    let field = "service.tls.suites";
    for (index, suite) in tls.suites.iter().enumerate() {
        let is_first = !tls.suites.iter().take(index).any(|other| other == suite);
        found.check(is_first, field, || {
            (
                format!("{:?} is listed twice", suite.name()),
                "remove one".into(),
            )
        });
    }
    let is_served = |suite: &TlsSuite| {
        tls.min_version == TlsVersion::Tls12 || suite.version() == TlsVersion::Tls13
    };
    let has_served = tls.suites.is_empty() || tls.suites.iter().any(is_served);
    found.check(has_served, field, || {
        (
            "names no suite of TLS 1.3, the lowest version served".into(),
            "add one whose name has no _WITH_, or lower service.tls.min_version".into(),
        )
    });
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let host = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= MAX_NAME_BYTES && host.split('.').all(is_label)
}
