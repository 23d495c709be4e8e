//! The bed of a comparison: two labs of the same shape. Prism is in one. nginx and HAProxy, as
//! proxies in front of servers on all backends, are in the other.
//!
//! Prism serves its own objects, or is in front of the same servers.

mod start;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use prism_config::{ConfigFile, RelayUpTo};
use prism_lab::{Lab, Mode};
use prism_netns::NetNs;
use prism_signer::Signer;
use serde_json::Value;

use crate::client::{self, Trust};
use crate::files::Files;
use crate::load::{self, Load, Recipients};
use crate::network::Network;
use crate::objects::{BUCKET, Object, Objects};
use crate::processes::{Running, cpu_of_client, cpu_of_family};
use crate::rows::Values;
use crate::servers::{ServerKind, Servers};
use crate::{blobs, http, proxies};

const REGION: &str = "us-east-1";
/// The longest time until a system answers as it should.
const START_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);
/// Objects of each backend that are compared before the first turn.
const COMPARED: usize = 8;

/// A system that serves objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Prism,
    Nginx,
    Haproxy,
    /// The servers themselves.
    Direct,
}

/// The description of a bed.
#[derive(Clone)]
pub(crate) struct BedSpec<'b> {
    pub(crate) systems: &'b [System],
    /// The program of `--prism`.
    pub(crate) program: Option<&'b Path>,
    /// The servers behind all systems. Without them Prism serves its own objects, and nginx is
    /// behind the proxies.
    pub(crate) servers: Option<Servers<'b>>,
    pub(crate) mode: Mode,
    /// Whether Prism also serves objects, beside the servers.
    pub(crate) has_objects: bool,
    /// The number of Prism's backends that have each object.
    pub(crate) replicas: u16,
    /// The answers that Prism relays instead of handing connections off.
    pub(crate) relay_up_to: RelayUpTo,
    /// Changes the rest of Prism's configuration.
    pub(crate) configure: Arc<dyn Fn(&mut ConfigFile) + Send + Sync>,
}

/// A lab with its servers, removed when dropped.
struct Side {
    /// Ended before the lab.
    servers: Vec<Running>,
    clients: NetNs,
    lab: Lab,
}

/// Both labs, removed when dropped.
pub(crate) struct Bed<'b> {
    prism: Side,
    others: Option<Side>,
    trust: Option<Trust>,
    servers: Servers<'b>,
    /// Prism serves its own objects.
    has_store: bool,
    systems: &'b [System],
    network: &'b Network,
    files: Files,
}

impl System {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Prism => "prism",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Direct => "direct",
        }
    }

    /// The host of the frontend, if there is one.
    const fn frontend(self) -> Option<&'static str> {
        match self {
            Self::Prism | Self::Nginx => Some("fe0"),
            Self::Haproxy => Some("fe1"),
            Self::Direct => None,
        }
    }
}

impl<'b> BedSpec<'b> {
    /// Each object on one backend, and all else as Prism has it by default.
    pub(crate) fn new(systems: &'b [System]) -> Self {
        Self {
            systems,
            program: None,
            servers: None,
            mode: Mode::Switch,
            has_objects: false,
            replicas: 1,
            relay_up_to: RelayUpTo::default(),
            configure: Arc::new(|_| ()),
        }
    }
}

impl<'b> Bed<'b> {
    /// Builds it, with a bucket that everybody may read. `cancel` is set when the command is
    /// to end.
    pub(crate) fn up(
        network: &'b Network,
        spec: &BedSpec<'b>,
        cancel: Arc<AtomicBool>,
    ) -> Result<Self> {
        start::up(network, spec, cancel)
    }

    /// The authority that clients trust over HTTPS.
    pub(crate) fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    fn side(&self, system: System) -> Result<&Side> {
        match system {
            System::Prism => Ok(&self.prism),
            _ => self.others.as_ref().context("no lab of others"),
        }
    }

    /// The network namespace of the clients of `system`.
    pub(crate) fn clients(&self, system: System) -> Result<&NetNs> {
        Ok(&self.side(system)?.clients)
    }

    /// Sends a command to the admin sockets of all of Prism's nodes. Gives their answers.
    pub(crate) fn ask_nodes(&self, command: &str) -> Result<Vec<Value>> {
        let backends = (0..self.network.backends).map(|n| format!("be{n}"));
        let nodes = backends.chain(["fe0".to_owned()]);
        nodes
            .map(|node| Ok(self.prism.lab.ask(&node, command)?))
            .collect()
    }

    /// Hand-offs of one of Prism's nodes so far.
    pub(crate) fn moves_of(&self, host: &str) -> Result<u64> {
        let counters = self.prism.lab.admin(host)?;
        let moved = counters.pointer("/handoff/exports_moved");
        moved.and_then(Value::as_u64).context("no such counter")
    }

    /// The address for requests for `backend`'s objects.
    pub(crate) fn address(&self, system: System, backend: usize) -> Result<SocketAddr> {
        let lab = &self.side(system)?.lab;
        if system == System::Prism {
            return Ok(lab.https_service().unwrap_or(lab.service()));
        }
        let owner = format!("be{backend}");
        let host = system.frontend().unwrap_or(&owner);
        let address = lab.address(host).context("a host without address")?;
        Ok(SocketAddr::new(address, proxies::port(self.network.tls)))
    }

    /// The head of a signed request.
    pub(crate) fn signed(
        &self,
        address: SocketAddr,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> Result<Vec<u8>> {
        let credential = self.prism.lab.credential();
        let key = &credential.access_key;
        let secret = &credential.secret_key;
        let signer = Signer::new(key.as_str(), secret.as_str(), REGION);
        http::signed(&signer, address, method, target, body)
    }

    fn call_prism(&self, method: &str, target: &str, body: &[u8]) -> Result<()> {
        let address = self.prism.lab.service();
        let head = self.signed(address, method, target, body)?;
        let called = self.prism.clients.run(|| http::call(address, &head, body));
        called?.with_context(|| format!("{method} {target}"))?;
        Ok(())
    }

    /// The first server of the proxies, without TLS.
    fn plain_server(&self) -> Result<(&NetNs, SocketAddr)> {
        let others = self.side(System::Direct)?;
        let address = others.lab.address("be0").context("no address")?;
        let address = SocketAddr::new(address, proxies::port(false));
        Ok((&others.clients, address))
    }

    /// Stores `objects` for all systems, and compares what they answer.
    pub(crate) fn store(&self, objects: &Objects) -> Result<()> {
        if self.has_store {
            self.in_threads(objects, &|object| {
                let files = self.files_in_store(object);
                let mut files = files.iter();
                files.try_for_each(|(target, body)| self.call_prism("PUT", target, body))
            })?;
        }
        if self.others.is_some() {
            let (clients, address) = self.plain_server()?;
            clients.run(|| self.servers.store(&self.files, address, objects))??;
        }
        self.check(objects)
    }

    /// Removes `objects` from all systems.
    pub(crate) fn remove(&self, objects: &Objects) -> Result<()> {
        if self.has_store {
            self.in_threads(objects, &|object| {
                let files = self.files_in_store(object);
                let mut files = files.iter();
                files.try_for_each(|(target, _)| self.call_prism("DELETE", target, b""))
            })?;
        }
        match self.others {
            Some(_) => self.servers.remove(&self.files, objects),
            None => Ok(()),
        }
    }

    /// The targets in Prism's store that `object` needs, with their bodies.
    fn files_in_store<'o>(&self, object: Object<'o>) -> Vec<(String, &'o [u8])> {
        if self.servers.server != ServerKind::Registry {
            return vec![(object.target(), object.body)];
        }
        let stored = blobs::stored(object.key, object.body).into_iter();
        let named = stored.map(|(path, body)| (format!("/{BUCKET}/{path}"), body));
        named.collect()
    }

    /// Has a thread for the objects of each backend.
    fn in_threads(
        &self,
        objects: &Objects,
        act: &(dyn Fn(Object<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let threads = (0..self.network.backends)
                .map(|backend| scope.spawn(move || objects.of(backend).try_for_each(act)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| {
                let result = thread.join();
                result.map_err(|_| anyhow::anyhow!("storing panicked"))?
            })
        })
    }

    /// Fetches some objects of each backend from all systems and compares their bytes.
    pub(crate) fn check(&self, objects: &Objects) -> Result<()> {
        for &system in self.systems {
            for backend in 0..self.network.backends {
                let address = self.address(system, backend)?;
                let checked = self
                    .clients(system)?
                    .run(|| self.until_right(address, objects, backend))?;
                checked.with_context(|| format!("what {} serves", system.name()))?;
            }
        }
        Ok(())
    }

    /// A system needs a moment until it knows of servers that have just begun.
    fn until_right(&self, address: SocketAddr, objects: &Objects, backend: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match compare(address, self.trust(), objects, backend) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                compared => return compared,
            }
        }
    }

    /// Runs `wrk` against `system` for `seconds`.
    pub(crate) fn load(&self, system: System, load: &Load<'_>, seconds: u64) -> Result<Values> {
        let mut recipients = Recipients::default();
        if system == System::Direct {
            let hosts = (0..self.network.backends).map(|n| Ok(self.address(system, n)?.ip()));
            let hosts = hosts.collect::<Result<Vec<_>>>()?;
            recipients.owners = Some((hosts, proxies::port(self.network.tls)));
        }
        let pool = self.files.path("pool");
        if load.writes_percent > 0 {
            fs::write(&pool, load.objects.pool())?;
            let address = self.address(system, 0)?;
            let heads = load.objects.all().map(|object| {
                let target = object.target();
                let head = self.signed(address, "PUT", &target, object.body)?;
                Ok((object.key, head))
            });
            recipients.writes = Some((heads.collect::<Result<_>>()?, &pool));
        }
        let script = self.files.path("load.lua");
        fs::write(&script, load.script(&recipients))?;
        let mut wrk = self.side(system)?.lab.command("client", "wrk")?;
        load.arguments(&mut wrk, &script, seconds);
        let scheme = self.network.scheme();
        wrk.arg(format!("{scheme}://{}/", self.address(system, 0)?));
        let before = self.cpu(system)?;
        let link_before = self.frontend_bytes(system)?;
        let output = load::run(wrk)?;
        let cpu = spent(before, self.cpu(system)?);
        let link_bytes = self.frontend_bytes(system)? - link_before;
        Ok(load.values(&output, cpu, link_bytes))
    }

    /// CPU time so far of the frontend, all backends with their servers, and the client.
    pub(crate) fn cpu(&self, system: System) -> Result<[Duration; 3]> {
        let side = self.side(system)?;
        let of = |host: &str| {
            let pid = side.lab.pid(host);
            cpu_of_family(pid.with_context(|| format!("{host} does not run"))?)
        };
        let frontend = system.frontend().map_or(Ok(Duration::ZERO), of)?;
        let nodes: Duration = match system {
            System::Prism => (0..self.network.backends)
                .map(|n| of(&format!("be{n}")))
                .sum::<Result<_>>()?,
            _ => Duration::ZERO,
        };
        let servers = side.servers.iter().map(|server| cpu_of_family(server.id()));
        let servers = servers.sum::<Result<Duration>>()?;
        Ok([frontend, nodes + servers, cpu_of_client()?])
    }

    /// Bytes on the link of the frontend so far, both ways.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    fn frontend_bytes(&self, system: System) -> Result<f64> {
        let Some(frontend) = system.frontend() else {
            return Ok(0.0);
        };
        let bytes = self.side(system)?.lab.interface_bytes(frontend)?;
        Ok((bytes.rx + bytes.tx) as f64)
    }
}

/// Fetches some objects of a backend from `address` and compares their bytes.
fn compare(
    address: SocketAddr,
    trust: Option<&Trust>,
    objects: &Objects,
    backend: usize,
) -> Result<()> {
    for object in objects.of(backend).take(COMPARED) {
        let mut stream = client::connect(address, trust)?;
        let target = object.target();
        stream.write_all(&http::anonymous(address, &target))?;
        let answer = http::answer(&mut *stream);
        let answer = answer.with_context(|| format!("GET {target}"))?;
        ensure!(answer == object.body, "{target} has other bytes");
    }
    Ok(())
}

/// CPU time between two moments.
pub(crate) fn spent<const N: usize>(before: [Duration; N], after: [Duration; N]) -> [Duration; N] {
    let mut before = before.into_iter();
    after.map(|after| after.saturating_sub(before.next().unwrap_or_default()))
}
