//! Pebble and its DNS server, on the client's host.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use prism_lab::LabSpec;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ClientConfig;
use serde_json::json;

use super::trusting;
use crate::support::{Cluster, clients, eventually, output};

/// The name of the service.
pub const DOMAIN: &str = "s3.acme.test";
const STARTED_IN: Duration = Duration::from_secs(10);
const PORT: u16 = 14_000;
const MANAGEMENT_PORT: u16 = 15_000;
const DNS: &str = "127.0.0.1:8053";
const DNS_MANAGEMENT: &str = "127.0.0.1:8055";

/// The URL of the authority of a lab.
pub fn directory(spec: &LabSpec) -> String {
    let host = spec.address("client").unwrap();
    format!("https://{host}:{PORT}/dir")
}

/// Makes the certificate of Pebble's own server, and returns the file of its authority.
pub fn write_files(spec: &LabSpec, directory: &Path) -> PathBuf {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // With the name of the server, curl would take the server's certificate for self-signed.
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec![spec.address("client").unwrap().to_string()];
    let server = CertificateParams::new(names).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    std::fs::write(directory.join("server.key"), key.serialize_pem()).unwrap();
    std::fs::write(directory.join("server.crt"), server.pem()).unwrap();
    std::fs::write(directory.join("ca.crt"), issuer.pem()).unwrap();
    directory.join("ca.crt")
}

/// A running authority with its DNS server. Dropping it ends both.
pub struct Pebble {
    programs: [Child; 2],
    /// The certificate of its authority.
    root: Vec<u8>,
}

impl Pebble {
    /// Starts it with the files of [`write_files`]. Its certificates are valid for `validity`.
    pub fn start(cluster: &Cluster, directory: &Path, validity: Duration) -> Self {
        let config = json!({ "pebble": {
            "listenAddress": format!("0.0.0.0:{PORT}"),
            "managementListenAddress": format!("0.0.0.0:{MANAGEMENT_PORT}"),
            "certificate": directory.join("server.crt"),
            "privateKey": directory.join("server.key"),
            "httpPort": cluster.service.port(),
            "tlsPort": 443,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "certificateValidityPeriod": validity.as_secs(),
        }});
        let file = directory.join("pebble.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let start = |name: &str, words: &[&str]| {
            let program = clients().join("pebble").join(name);
            let mut command = cluster.lab.command("client", program).unwrap();
            let log = std::fs::File::create(directory.join(format!("{name}.log"))).unwrap();
            // Each order proves its names again. Pebble waits up to 2 s before it asks.
            command.envs([("PEBBLE_AUTHZREUSE", "0"), ("PEBBLE_VA_SLEEPTIME", "2")]);
            let command = command
                .args(words)
                .stdout(log.try_clone().unwrap())
                .stderr(log);
            let started = command.stdin(Stdio::null()).spawn();
            started.expect("run scripts/setup.sh tests")
        };
        let vip = cluster.service.ip().to_string();
        let closed = [
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-defaultIPv6",
            "",
        ];
        let open = [
            "-dns01",
            DNS,
            "-management",
            DNS_MANAGEMENT,
            "-defaultIPv4",
            &vip,
        ];
        let dns = start("pebble-challtestsrv", &[&closed[..], &open].concat());
        let authority = start(
            "pebble",
            &["-config", file.to_str().unwrap(), "-dnsserver", DNS],
        );
        let mut pebble = Self {
            programs: [dns, authority],
            root: Vec::new(),
        };
        let ca_file = directory.join("ca.crt");
        eventually("Pebble answers", STARTED_IN, || {
            pebble.root = root(cluster, &ca_file).unwrap_or_default();
            !pebble.root.is_empty()
        });
        pebble
    }

    /// Lets every name lead to a host.
    pub fn lead_to(&self, cluster: &Cluster, host: IpAddr) {
        let body = json!({ "ip": host }).to_string();
        let url = format!("http://{DNS_MANAGEMENT}/set-default-ipv4");
        let mut curl = cluster.lab.command("client", "curl").unwrap();
        output(curl.args(["-sSf", "-d", &body, &url]));
    }

    /// A new configuration of a client that trusts its certificates.
    pub fn trusted(&self) -> Arc<ClientConfig> {
        trusting(&self.root)
    }
}

/// The certificate of the authority, if it answers.
fn root(cluster: &Cluster, ca_file: &Path) -> Option<Vec<u8>> {
    let host = cluster.lab.address("client").unwrap();
    let url = format!("https://{host}:{MANAGEMENT_PORT}/roots/0");
    let mut curl = cluster.lab.command("client", "curl").unwrap();
    let found = curl.args(["-sSf", "--cacert"]).arg(ca_file).arg(url);
    let found = found.output().ok()?;
    found.status.success().then_some(found.stdout)
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}
