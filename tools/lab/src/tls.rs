//! The files of HTTPS: an authority of the lab's own, a certificate for the service's addresses,
//! and the secret of session tickets.
//!
//! Clients trust the authority by its file. Its key is not kept.

use std::path::PathBuf;

use prism_config::{Certificate, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::error::LabError;
use crate::files::random_hex;
use crate::name::LabName;
use crate::plan::LabPlan;
use crate::state::{create_private_dir, write_private};

/// A name in the certificate, besides the service's addresses.
const HOST_NAME: &str = "s3.lab.test";
/// The validity is longer than any lab lives. Clients refuse certificates of many years.
const VALID: time::Duration = time::Duration::days(365);
/// Bytes of a ticket secret.
const TICKET_SECRET_BYTES: usize = 32;
/// The variables in which clients look for trusted authorities: the AWS tools, OpenSSL, curl,
/// Python's requests, Node.
pub(crate) const CA_VARIABLES: [&str; 5] = [
    "AWS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
];

/// The certificate of the authority of lab `name`.
pub(crate) fn ca_file(name: &LabName) -> PathBuf {
    directory(name).join("ca.crt")
}

/// The configuration that names the files of [`write`].
pub(crate) fn config(name: &LabName) -> Tls {
    let directory = directory(name);
    Tls {
        certificates: vec![Certificate {
            file: directory.join("server.crt"),
            key_file: directory.join("server.key"),
            names: Vec::new(),
        }],
        ticket_secret_file: Some(directory.join("tickets.secret")),
        ..Tls::default()
    }
}

/// Makes and writes the files. Keys are for ECDSA on P-256, which every client knows.
pub(crate) fn write(plan: &LabPlan) -> Result<(), LabError> {
    let directory = directory(&plan.name);
    create_private_dir(&directory)?;
    let issuer = CertifiedIssuer::self_signed(authority_params(), KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = server_params(plan)?.signed_by(&key, &issuer)?;
    let secret = random_hex(TICKET_SECRET_BYTES)? + "\n";
    for (name, text) in [
        ("ca.crt", issuer.pem()),
        ("server.crt", certificate.pem()),
        ("server.key", key.serialize_pem()),
        ("tickets.secret", secret),
    ] {
        write_private(&directory.join(name), text.as_bytes())?;
    }
    Ok(())
}

fn directory(name: &LabName) -> PathBuf {
    name.state_dir().join("tls")
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Prism lab authority");
    set_validity(&mut params);
    params
}

fn server_params(plan: &LabPlan) -> Result<CertificateParams, LabError> {
    let addresses = plan.service.iter().map(|address| address.to_string());
    // The second one is for buckets in the names of hosts.
    let names = addresses.chain([HOST_NAME.to_owned(), format!("*.{HOST_NAME}")]);
    let mut params = CertificateParams::new(names.collect::<Vec<_>>())?;
    params
        .distinguished_name
        .push(DnType::CommonName, HOST_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams) {
    let now = time::OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::hours(1);
    params.not_after = now + VALID;
}
