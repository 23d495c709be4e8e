//! `[service.tls]` as structs, and its checks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::problem::{Problems, is_label};

/// Most certificates.
const MAX_CERTIFICATES: usize = 1_024;
/// Shortest and longest life of a ticket key in seconds. The shortest is above any difference
/// of clocks. A ticket lives for up to two, which is at most 7 days.
const ROTATION_S: std::ops::RangeInclusive<u64> = 600..=302_400;
/// Longest host name in bytes (RFC 1035).
pub(crate) const MAX_NAME_BYTES: usize = 253;

section! {
    /// `[service.tls]`
    pub struct Tls;
    /// Default 443. The port of HTTPS, on the address of `service.address`.
    pub port: u16 = 443,
    /// Required without `[service.acme]`. The certificates. Clients that name no host, or an
    /// unknown one, get the first.
    #[serde(rename = "certificate")]
    pub certificates: Vec<Certificate>,
    /// Default none: every handshake is a full one. The file with the ticket secrets, readable
    /// by its owner only: 1 to 4 lines of 64 hexadecimal digits, the same on every frontend.
    /// The first seals tickets; the others only open older ones. Sessions of TLS 1.2 are not
    /// resumed, because their tickets have no forward secrecy.
    pub ticket_secret_file: Option<PathBuf>,
    /// Default 43,200 s. The time for which one ticket key seals. A ticket is valid for at least
    /// that time and at most twice as long. A longer time exposes more sessions with the
    /// secret. The same on every frontend.
    pub ticket_rotation_s: u32 = 43_200,
    /// Default `1.2`. The lowest version of TLS; the highest is always 1.3.
    pub min_version: TlsVersion,
    /// Default all, in the client's order of preference. The cipher suites, in order of the
    /// server's preference.
    pub suites: Vec<TlsSuite>,
    /// Default false. Whether `service.address` answers every request with a
    /// redirect to HTTPS instead of serving it.
    pub redirect_http: bool,
}

section! {
    /// `[[service.tls.certificate]]`
    pub struct Certificate;
    /// Required. The certificate in PEM, followed by those that lead to its authority.
    pub file: PathBuf,
    /// Required. Its private key in PEM. Others must not be able to read it.
    pub key_file: PathBuf,
    /// Default: the names in the certificate. The host names that it is served for; `*.` at the
    /// front stands for one label.
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
#[allow(missing_docs, non_camel_case_types, reason = "the names say all")]
pub enum TlsSuite {
    #[serde(alias = "TLS13_AES_128_GCM_SHA256")]
    TLS_AES_128_GCM_SHA256,
    #[serde(alias = "TLS13_AES_256_GCM_SHA384")]
    TLS_AES_256_GCM_SHA384,
    #[serde(alias = "TLS13_CHACHA20_POLY1305_SHA256")]
    TLS_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

impl TlsSuite {
    /// IANA's name.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    fn is_of_tls13(self) -> bool {
        !self.name().contains("_WITH_")
    }
}

impl Tls {
    /// Checks everything but the port, which depends on other sections.
    /// `has_acme`: whether a certificate comes by ACME.
    pub(crate) fn check(&self, has_acme: bool, found: &mut Problems) {
        check_certificates(&self.certificates, has_acme, found);
        if let Some(file) = &self.ticket_secret_file {
            let field = "service.tls.ticket_secret_file";
            found.path(field, file, "the file of the ticket secrets");
        }
        let rotation_s = self.ticket_rotation_s;
        found.range("service.tls.ticket_rotation_s", rotation_s, ROTATION_S);
        self.check_suites(found);
    }

    fn check_suites(&self, found: &mut Problems) {
        let field = "service.tls.suites";
        for (index, suite) in self.suites.iter().enumerate() {
            let is_first = !self.suites.iter().take(index).any(|other| other == suite);
            let fault = format!("{:?} is listed twice", suite.name());
            found.check(is_first, field, fault, "remove one");
        }
        let lowest = self.min_version;
        let is_served = |suite: &TlsSuite| lowest == TlsVersion::Tls12 || suite.is_of_tls13();
        let has_served = self.suites.is_empty() || self.suites.iter().any(is_served);
        let fault = "names no suite of TLS 1.3, the lowest version served";
        let fix = "add one whose name has no _WITH_, or lower service.tls.min_version";
        found.check(has_served, field, fault, fix);
    }
}

fn check_certificates(certificates: &[Certificate], has_acme: bool, found: &mut Problems) {
    let field = "service.tls.certificate";
    if certificates.is_empty() && !has_acme {
        let what = "at least one, with `file` and `key_file`, or a section [service.acme]";
        return found.missing(field, what);
    }
    let fault = format!("there are more than {MAX_CERTIFICATES}");
    let is_bounded = certificates.len() <= MAX_CERTIFICATES;
    found.check(
        is_bounded,
        field,
        fault,
        "use certificates for several names",
    );
    for (index, certificate) in certificates.iter().enumerate() {
        let leaf = |leaf: &str| format!("{field}[{index}].{leaf}");
        let file = &certificate.file;
        let key_file = &certificate.key_file;
        found.path(&leaf("file"), file, "the file of a certificate in PEM");
        found.path(
            &leaf("key_file"),
            key_file,
            "the file of its private key in PEM",
        );
        for (at, name) in certificate.names.iter().enumerate() {
            let name_field = leaf(&format!("names[{at}]"));
            let fault = format!("{name:?} is not a host name");
            let fix = "use letters, digits, '-' and '.', as in \"s3.example.com\" or \"*.s3.example.com\"";
            found.check(is_host_name(name), &name_field, fault, fix);
        }
    }
}

/// Whether this is the name of a host, or with `*.` in front of all hosts below it.
pub(crate) fn is_host_name(name: &str) -> bool {
    let host = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= MAX_NAME_BYTES && host.split('.').all(is_label)
}
