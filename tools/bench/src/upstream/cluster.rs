//! Two labs of the same shape with the same servers at each backend: Prism is in front of them
//! in one, and nginx and HAProxy in the other.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prism_config::{Certificate, Config, Upstream};
use prism_lab::{Lab, LabSpec, Mode, Programs};
use prism_netns::NetNs;

use super::servers::{Server, Setup};
use crate::client::{self, Trust};
use crate::cluster::{System, compare, line, name, only_one_suite, spent};
use crate::files::Files;
use crate::load::{self, Load, Places};
use crate::network::Network;
use crate::objects::Objects;
use crate::processes::{Running, cpu_of_client, cpu_of_family};
use crate::proxies;
use crate::rows::Values;

/// In the order of their turns.
pub(super) const SYSTEMS: [System; 4] = [
    System::Prism,
    System::Nginx,
    System::Haproxy,
    System::Direct,
];

/// The longest time until a system answers for all servers.
const START_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);

/// The parts that the labs are built from.
pub(super) struct Asked<'a> {
    pub(super) network: &'a Network,
    pub(super) mode: Mode,
    pub(super) server: Server,
    pub(super) prism: Option<&'a Path>,
    pub(super) versitygw: Option<&'a Path>,
    pub(super) cancel: Arc<AtomicBool>,
}

/// A lab with its servers, removed when dropped.
struct Side {
    /// By backend; ended before the lab.
    servers: Vec<Vec<Running>>,
    clients: NetNs,
    lab: Lab,
}

/// Both labs.
pub(super) struct Cluster<'a> {
    asked: &'a Asked<'a>,
    prism: Side,
    others: Side,
    trust: Option<Trust>,
    files: Files,
}

impl<'a> Cluster<'a> {
    /// Builds them, and makes the bucket.
    pub(super) fn up(asked: &'a Asked<'a>) -> Result<Self> {
        let files = Files::new()?;
        let (prism, certificate) = asked.prism_lab()?;
        let pem = match asked.network.tls {
            true => {
                let [chain, key] = [&certificate.file, &certificate.key_file].map(fs::read);
                Some(files.write("server.pem", &[chain?, key?].concat())?)
            }
            false => None,
        };
        let trust = match (prism.ca_file(), prism.https_service()) {
            (Some(file), Some(service)) => Some(Trust::new(&file, service.ip())?),
            _ => None,
        };
        let others = asked.other_lab(&files, pem.as_deref())?;
        let setup = asked.setup(&files, pem.as_deref());
        setup.prepare()?;
        let cluster = Self {
            asked,
            prism: asked.side(prism, &setup)?,
            others: asked.side(others, &setup)?,
            trust,
            files,
        };
        let address = cluster.plain_server()?;
        let setup = asked.setup(&cluster.files, None);
        let made = cluster.others.clients.run(|| setup.make_bucket(address))?;
        made.context("making the bucket")?;
        Ok(cluster)
    }

    fn side(&self, system: System) -> &Side {
        match system {
            System::Prism => &self.prism,
            _ => &self.others,
        }
    }

    /// The address of the first server, without TLS.
    fn plain_server(&self) -> Result<SocketAddr> {
        let address = self.others.lab.address("be0").context("no address")?;
        Ok(SocketAddr::new(address, proxies::port(false)))
    }

    /// The address for clients; `backend` counts for direct ones alone.
    fn address(&self, system: System, backend: usize) -> Result<SocketAddr> {
        let side = self.side(system);
        let own = format!("be{backend}");
        if system == System::Prism {
            return Ok(side.lab.https_service().unwrap_or(side.lab.service()));
        }
        let host = system.frontend().unwrap_or(&own);
        let address = side.lab.address(host).context("a host without address")?;
        Ok(SocketAddr::new(
            address,
            proxies::port(self.asked.network.tls),
        ))
    }

    /// Stores `objects`, and compares what every system answers.
    pub(super) fn store(&self, objects: &Objects) -> Result<()> {
        let (address, setup) = (self.plain_server()?, self.asked.setup(&self.files, None));
        let stored = self.others.clients.run(|| setup.store(address, objects))?;
        stored?;
        for system in SYSTEMS {
            for backend in 0..self.asked.network.backends {
                let address = self.address(system, backend)?;
                let compared = self
                    .side(system)
                    .clients
                    .run(|| self.compare(address, objects, backend))?;
                compared.with_context(|| format!("what {} serves", system.name()))?;
            }
        }
        Ok(())
    }

    /// A system needs a moment until it knows of servers that have just begun.
    fn compare(&self, address: SocketAddr, objects: &Objects, backend: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match compare(address, self.trust.as_ref(), objects, backend) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                compared => return compared,
            }
        }
    }

    /// Lets `wrk` send `load` to `system` for `seconds`.
    pub(super) fn load(&self, system: System, load: &Load<'_>, seconds: u64) -> Result<Values> {
        let mut places = Places::default();
        if system == System::Direct {
            let hosts = (0..load.backends).map(|n| Ok(self.address(system, n)?.ip()));
            let hosts = hosts.collect::<Result<Vec<_>>>()?;
            places.owners = Some((hosts, proxies::port(self.asked.network.tls)));
        }
        let script = self.files.path("load.lua");
        fs::write(&script, load.script(&places))?;
        let mut wrk = self.side(system).lab.command("client", "wrk")?;
        load.arguments(&mut wrk, &script, seconds);
        let scheme = self.asked.network.scheme();
        wrk.arg(format!("{scheme}://{}/", self.address(system, 0)?));
        let (before, of_link) = (self.cpu(system)?, self.frontend_bytes(system)?);
        let said = load::run(wrk)?;
        let (after, of_link) = (self.cpu(system)?, self.frontend_bytes(system)? - of_link);
        let [frontend, backends, servers, client] = spent(before, after);
        let mut values = load.values(&said, [frontend, backends + servers, client]);
        let of = |name: &str| values.get(name).copied().unwrap_or_default();
        let (requests, read_bytes) = (of("requests"), of("read_bytes"));
        let more = [
            ("servers_cpu_s", servers.as_secs_f64()),
            ("frontend_cpu_us", frontend.as_secs_f64() * 1e6 / requests),
            ("frontend_link", of_link / read_bytes),
        ];
        values.extend(more.map(|(name, value)| (name.to_owned(), value)));
        Ok(values)
    }

    /// CPU time so far of the frontend, Prism's backends, all servers and the client.
    fn cpu(&self, system: System) -> Result<[Duration; 4]> {
        let side = self.side(system);
        let of = |host: &str| {
            let pid = side.lab.pid(host);
            cpu_of_family(pid.with_context(|| format!("{host} does not run"))?)
        };
        let frontend = system.frontend().map_or(Ok(Duration::ZERO), of)?;
        let backends = match system {
            System::Prism => (0..side.servers.len()).map(|n| of(&format!("be{n}"))).sum(),
            _ => Ok(Duration::ZERO),
        };
        let servers = side.servers.iter().flatten();
        let servers: Result<Duration> = servers.map(|server| cpu_of_family(server.id())).sum();
        Ok([frontend, backends?, servers?, cpu_of_client()?])
    }

    /// Bytes on the link of the frontend so far, both ways.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    fn frontend_bytes(&self, system: System) -> Result<f64> {
        let Some(frontend) = system.frontend() else {
            return Ok(0.0);
        };
        let bytes = self.side(system).lab.interface_bytes(frontend)?;
        Ok((bytes.rx + bytes.tx) as f64)
    }
}

impl Asked<'_> {
    fn setup<'s>(&'s self, files: &'s Files, pem: Option<&'s Path>) -> Setup<'s> {
        Setup {
            server: self.server,
            files,
            versitygw: self.versitygw,
            pem,
        }
    }

    fn side(&self, lab: Lab, setup: &Setup<'_>) -> Result<Side> {
        let hosts = (0..self.network.backends).map(|n| format!("be{n}"));
        let servers = hosts.map(|host| setup.start(&lab, &host));
        Ok(Side {
            servers: servers.collect::<Result<_>>()?,
            clients: client::network(&lab)?,
            lab,
        })
    }

    /// The lab of Prism, and its certificate; an empty one over HTTP.
    fn prism_lab(&self) -> Result<(Lab, Certificate)> {
        let spec = LabSpec::new(name("prism")?, prism_lab::prism_program(self.prism)?);
        let mut spec = self.network.shape(spec)?.configure(|config| {
            config.log.level = "warn".into();
            only_one_suite(config);
            let port = proxies::port(false);
            config.service.upstream = Some(
                vec![Upstream {
                    address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into(),
                    ..Upstream::default()
                }]
                .into(),
            );
        });
        spec.tls = self.network.tls;
        spec.mode = self.mode;
        spec.cancel = Arc::clone(&self.cancel);
        let lab = Lab::up(spec)?;
        let config = Config::load(&lab.config_path())?;
        let tls = config.service.tls.as_ref();
        let certificate = tls.and_then(|tls| tls.certificates.first().cloned());
        Ok((lab, certificate.unwrap_or_default()))
    }

    /// The lab of the proxies: nginx on `fe0`, HAProxy on `fe1`.
    fn other_lab(&self, files: &Files, pem: Option<&Path>) -> Result<Lab> {
        let empty = Programs::Custom(BTreeMap::new());
        let mut spec = self
            .network
            .shape(LabSpec::with_programs(name("other")?, empty))?;
        spec.frontends = 2;
        spec.mode = self.mode;
        spec.cancel = Arc::clone(&self.cancel);
        let address = |host: &str| -> Result<IpAddr> {
            let address = spec.address(host);
            address.with_context(|| format!("{host} has no address"))
        };
        let servers = (0..spec.backends).map(|n| {
            let address = address(&format!("be{n}"))?;
            Ok(SocketAddr::new(address, proxies::port(false)))
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let prefix = files.path("proxy");
        fs::create_dir(&prefix)?;
        let text = proxies::nginx_balancer(address("fe0")?, &servers, pem);
        let nginx = files.write("nginx.conf", text.as_bytes())?;
        let text = proxies::haproxy_balancer(address("fe1")?, &servers, pem);
        let haproxy = files.write("haproxy.cfg", text.as_bytes())?;
        let programs = [
            ("fe0".to_owned(), line(&["nginx", "-p"], &[&prefix, &nginx])),
            (
                "fe1".to_owned(),
                line(&["haproxy", "-db", "-f"], &[&haproxy]),
            ),
        ];
        spec.programs = Programs::Custom(programs.into());
        Lab::up(spec).context("starting nginx and haproxy (scripts/setup.sh bench installs them)")
    }
}
