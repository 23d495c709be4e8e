//! Building the labs and starting their programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prism_config::{Certificate, Config, TlsSuite, TlsVersion};
use prism_lab::{Lab, LabName, LabSpec, Programs};

use super::{Cluster, REGION, System};
use crate::client::{self, Trust};
use crate::files::Files;
use crate::network::Network;
use crate::objects::BUCKET;
use crate::plan::Kind;
use crate::proxies;

const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::bench/*"]}]}"#;
/// Longest time until each node knows all others.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// The parts of a cluster that both labs are built from.
struct Setup<'s> {
    network: &'s Network,
    kind: &'s Kind<'s>,
    cancel: Arc<AtomicBool>,
}

pub(super) fn up(network: &Network, kind: &Kind<'_>, cancel: Arc<AtomicBool>) -> Result<Cluster> {
    let setup = &Setup {
        network,
        kind,
        cancel,
    };
    let files = Files::new()?;
    let (prism, certificate) = prism_lab(setup)?;
    let others = match setup
        .kind
        .systems
        .iter()
        .any(|system| *system != System::Prism)
    {
        true => Some(other_lab(setup, &files, &certificate)?),
        false => None,
    };
    let trust = match (prism.ca_file(), prism.https_service()) {
        (Some(file), Some(service)) => Some(Trust::new(&file, service.ip())?),
        _ => None,
    };
    let cluster = Cluster {
        prism_clients: client::network(&prism)?,
        others_clients: others.as_ref().map(client::network).transpose()?,
        prism,
        others,
        trust,
        files,
        systems: setup.kind.systems.to_vec(),
        tls: setup.network.tls,
        backends: setup.network.backends,
    };
    let deadline = Instant::now() + START_TIMEOUT;
    let bucket = format!("/{BUCKET}");
    while let Err(error) = cluster.call_prism("PUT", &bucket, b"") {
        if Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
    cluster.call_prism("PUT", &format!("{bucket}?policy"), POLICY.as_bytes())?;
    Ok(cluster)
}

/// TLS 1.3 with AES-128-GCM, if there is TLS.
pub(crate) fn only_one_suite(config: &mut Config) {
    if let Some(tls) = &mut config.service.tls {
        tls.min_version = TlsVersion::Tls13;
        tls.suites = vec![TlsSuite::TLS_AES_128_GCM_SHA256];
    }
}

/// The name of a lab, as in `bench-prism-4711-0`.
pub(crate) fn name(what: &str) -> Result<LabName> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    Ok(format!("bench-{what}-{process}-{number}").parse()?)
}

/// The lab of Prism, and its certificate; an empty one over HTTP.
fn prism_lab(setup: &Setup<'_>) -> Result<(Lab, Certificate)> {
    let prism = prism_lab::prism_program(setup.kind.program)?;
    let (replicas, configure) = (setup.kind.replicas, setup.kind.configure);
    let spec = LabSpec::new(name("prism")?, prism);
    let mut spec = setup.network.shape(spec)?.configure(move |config| {
        config.log.level = "warn".into();
        config.cluster.region = REGION.into();
        config.cluster.replicas = replicas;
        only_one_suite(config);
        configure(config);
    });
    spec.tls = setup.network.tls;
    spec.relay_up_to = setup.kind.relay_up_to;
    spec.cancel = Arc::clone(&setup.cancel);
    let lab = Lab::up(spec)?;
    let config = Config::load(&lab.config_path())?;
    let certificate = config
        .service
        .tls
        .as_ref()
        .and_then(|tls| tls.certificates.first().cloned());
    Ok((lab, certificate.unwrap_or_default()))
}

/// The lab of the other systems: nginx on each backend and on `fe0`, HAProxy on `fe1`.
fn other_lab(setup: &Setup<'_>, files: &Files, certificate: &Certificate) -> Result<Lab> {
    let empty = Programs::Custom(BTreeMap::new());
    let spec = LabSpec::with_programs(name("other")?, empty);
    let mut spec = setup.network.shape(spec)?;
    spec.frontends = 2;
    spec.cancel = Arc::clone(&setup.cancel);
    let address = |host: &str| {
        let address = spec.address(host);
        address.with_context(|| format!("{host} has no address"))
    };
    let names: Vec<String> = (0..spec.backends).map(|n| format!("be{n}")).collect();
    let addresses = names.iter().map(|name| address(name));
    let backends = addresses.collect::<Result<Vec<_>>>()?;
    let tls = match setup.network.tls {
        true => {
            let pair = [&certificate.file, &certificate.key_file].map(fs::read);
            let [chain, key] = pair;
            Some(files.write("server.pem", &[chain?, key?].concat())?)
        }
        false => None,
    };
    let mut programs = BTreeMap::new();
    let mut nginx = |host: &str, text: String| -> Result<()> {
        let config = files.write(&format!("{host}.conf"), text.as_bytes())?;
        let prefix = files.path(&format!("{host}-nginx"));
        fs::create_dir(&prefix)?;
        programs.insert(host.to_owned(), line(&["nginx", "-p"], &[&prefix, &config]));
        Ok(())
    };
    for (n, name) in names.iter().enumerate() {
        let root = files.root(n);
        fs::create_dir_all(root.join(BUCKET))?;
        let backend = proxies::nginx_backend(address(name)?, &root, tls.as_deref());
        nginx(name, backend)?;
    }
    let proxy = proxies::nginx_proxy(address("fe0")?, &backends, tls.as_deref());
    nginx("fe0", proxy)?;
    if setup.kind.systems.contains(&System::Haproxy) {
        let text = proxies::haproxy(address("fe1")?, &backends, tls.as_deref());
        let config = files.write("fe1.conf", text.as_bytes())?;
        programs.insert("fe1".into(), line(&["haproxy", "-db", "-f"], &[&config]));
    }
    spec.programs = Programs::Custom(programs);
    Lab::up(spec).context("starting nginx and haproxy (scripts/setup.sh bench installs them)")
}

/// A command line. The second path, if there is one, is nginx's configuration.
pub(crate) fn line(words: &[&str], paths: &[&PathBuf]) -> Vec<String> {
    let mut line: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for (n, path) in paths.iter().enumerate() {
        if n > 0 {
            line.push("-c".into());
        }
        line.push(path.display().to_string());
    }
    line
}
