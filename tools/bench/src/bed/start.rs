//! Building the labs and starting their programs.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use prism_config::{ConfigFile, TlsSuite, TlsVersion, Upstream};
use prism_lab::{Lab, LabName, LabSpec, Programs};

use super::{Bed, BedSpec, PAUSE, REGION, START_TIMEOUT, Side, System};
use crate::client::{self, Trust};
use crate::files::Files;
use crate::network::Network;
use crate::objects::{BUCKET, POLICY};
use crate::proxies;
use crate::servers::{ServerKind, Servers};

pub(super) fn up<'b>(
    network: &'b Network,
    spec: &BedSpec<'b>,
    cancel: Arc<AtomicBool>,
) -> Result<Bed<'b>> {
    let files = Files::new()?;
    let prism = prism_lab(network, spec, Arc::clone(&cancel))?;
    let pem = if network.tls {
        Some(pem(&prism, &files)?)
    } else {
        None
    };
    let trust = match (prism.ca_file(), prism.https_service()) {
        (Some(file), Some(service)) => Some(Trust::new(&file, service.ip())?),
        _ => None,
    };
    let mut servers = spec
        .servers
        .clone()
        .unwrap_or(Servers::of(ServerKind::Nginx));
    servers.pem = pem.clone();
    let has_store = spec.servers.is_none() || spec.has_objects;
    let has_others = spec.systems.iter().any(|system| *system != System::Prism);
    if has_others {
        servers.prepare(&files)?;
    }
    let others = has_others.then(|| {
        let lab = other_lab(network, spec, cancel, &files, pem)?;
        side(lab, Some(&servers), &files, network)
    });
    let behind_prism = Servers {
        are_followed: spec.has_objects,
        ..servers.clone()
    };
    let behind_prism = spec.servers.is_some().then_some(&behind_prism);
    let bed = Bed {
        prism: side(prism, behind_prism, &files, network)?,
        others: others.transpose()?,
        trust,
        servers,
        has_store,
        systems: spec.systems,
        network,
        files,
    };
    if has_store {
        make_bucket(&bed)?
    } else {
        let (clients, address) = bed.plain_server()?;
        let made = clients.run(|| bed.servers.make_bucket(address))?;
        made.context("making the bucket")?;
    }
    Ok(bed)
}

fn side(lab: Lab, servers: Option<&Servers<'_>>, files: &Files, network: &Network) -> Result<Side> {
    let mut running = Vec::new();
    for n in 0..network.backends {
        if let Some(servers) = servers {
            running.extend(servers.start(files, &lab, &format!("be{n}"))?);
        }
    }
    Ok(Side {
        servers: running,
        clients: client::network(&lab)?,
        lab,
    })
}

fn make_bucket(bed: &Bed<'_>) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    let bucket = format!("/{BUCKET}");
    while let Err(error) = bed.call_prism("PUT", &bucket, b"") {
        if Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
    bed.call_prism("PUT", &format!("{bucket}?policy"), POLICY.as_bytes())
}

/// The name of a lab, as in `bench-prism-4711-0`.
fn name(what: &str) -> Result<LabName> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Ok(format!("bench-{what}-{process}-{number}").parse()?)
}

fn prism_lab(network: &Network, spec: &BedSpec<'_>, cancel: Arc<AtomicBool>) -> Result<Lab> {
    let program = prism_lab::prism_program(spec.program)?;
    let is_proxy = spec.servers.is_some();
    let has_store = !is_proxy || spec.has_objects;
    let replicas = spec.replicas;
    let configure = Arc::clone(&spec.configure);
    let lab = LabSpec::new(name("prism")?, program);
    let mut lab = network.shape(lab)?.configure(move |config| {
        config.log.level = "warn".into();
        if let Some(tls) = &mut config.service.first_mut().tls {
            tls.min_version = TlsVersion::Tls13;
            tls.suites = vec![TlsSuite::TLS_AES_128_GCM_SHA256];
        }
        if is_proxy {
            let server = Upstream {
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, proxies::port(false))).into(),
                ..Upstream::default()
            };
            config.service.first_mut().upstream = Some(vec![server].into());
        }
        if has_store {
            config.cluster.region = REGION.into();
            config.cluster.replicas = replicas;
        }
        configure(config);
    });
    lab.tls = network.tls;
    lab.mode = spec.mode;
    lab.relay_up_to = spec.relay_up_to;
    lab.cancel = cancel;
    Ok(Lab::up(lab)?)
}

/// The file with Prism's certificate and its key.
fn pem(prism: &Lab, files: &Files) -> Result<PathBuf> {
    let config = ConfigFile::load(&prism.config_path())?;
    let tls = config
        .service
        .first()
        .tls
        .as_ref()
        .context("a lab without TLS")?;
    let certificate = tls.certificates.first().context("no certificate")?;
    let [chain, key] = [&certificate.file, &certificate.key_file].map(fs::read);
    files.write("server.pem", &[chain?, key?].concat())
}

/// The lab of the proxies: nginx on `fe0`, HAProxy on `fe1`.
fn other_lab(
    network: &Network,
    spec: &BedSpec<'_>,
    cancel: Arc<AtomicBool>,
    files: &Files,
    pem: Option<PathBuf>,
) -> Result<Lab> {
    let empty = Programs::Custom(BTreeMap::new());
    let mut lab = network.shape(LabSpec::with_programs(name("other")?, empty))?;
    lab.frontends = 2;
    lab.mode = spec.mode;
    lab.cancel = cancel;
    let address = |host: &str| {
        let address = lab.address(host);
        address.with_context(|| format!("{host} has no address"))
    };
    let servers = (0..lab.backends).map(|n| {
        let address = address(&format!("be{n}"))?;
        Ok(SocketAddr::new(address, proxies::port(false)))
    });
    let servers = servers.collect::<Result<Vec<_>>>()?;
    // A proxy knows the owner of an object by its key, and needs none if all servers have all.
    let routing = match spec.servers {
        None => proxies::Routing::ByOwner,
        Some(_) => proxies::Routing::InTurn,
    };
    let mut programs = BTreeMap::new();
    let prefix = files.path("proxy");
    fs::create_dir(&prefix)?;
    let text = proxies::nginx_proxy(address("fe0")?, &servers, routing, pem.as_deref());
    let config = files.write("nginx.conf", text.as_bytes())?;
    let nginx = ["nginx".into(), "-p".into(), prefix, "-c".into(), config];
    programs.insert("fe0".to_owned(), line(nginx));
    if spec.systems.contains(&System::Haproxy) {
        let text = proxies::haproxy(address("fe1")?, &servers, routing, pem.as_deref());
        let config = files.write("haproxy.cfg", text.as_bytes())?;
        let haproxy = ["haproxy".into(), "-db".into(), "-f".into(), config];
        programs.insert("fe1".to_owned(), line(haproxy));
    }
    lab.programs = Programs::Custom(programs);
    Lab::up(lab).context("starting nginx and haproxy (scripts/setup.sh bench installs them)")
}

fn line<const N: usize>(words: [PathBuf; N]) -> Vec<String> {
    words.map(|word| word.display().to_string()).into()
}
