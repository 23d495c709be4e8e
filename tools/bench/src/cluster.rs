//! The clusters of a comparison. Prism has one lab. nginx and HAProxy, as proxies in front of
//! nginx backends, share another of the same shape.

mod start;

pub(crate) use start::{line, name, only_one_suite};

use std::fs;
use std::iter::Sum;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use prism_lab::Lab;
use prism_lab::delay::Delay;
use prism_netns::NetNs;
use prism_signer::Signer;
use serde_json::Value;

use super::client::{self, Trust};
use super::files::Files;
use super::load::{self, Load, Places};
use super::network::Network;
use super::objects::{Object, Objects};
use super::observed::OpenPage;
use super::plan::Kind;
use super::processes::{cpu_of_client, cpu_of_family, memory_of_family};
use super::rows::Values;
use super::{http, proxies};

const REGION: &str = "us-east-1";
/// Longest time until Prism hands connections off.
const MOVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Objects of each backend that are compared before the first turn.
const COMPARED: usize = 8;

/// A system that serves objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum System {
    Prism,
    Nginx,
    Haproxy,
    /// The backends themselves, which are nginx.
    #[value(skip)]
    Direct,
}

/// Both labs, removed when dropped.
pub(crate) struct Cluster {
    prism: Lab,
    others: Option<Lab>,
    /// Namespaces of the clients.
    prism_clients: NetNs,
    others_clients: Option<NetNs>,
    trust: Option<Trust>,
    files: Files,
    systems: Vec<System>,
    tls: bool,
    backends: usize,
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
    pub(crate) const fn frontend(self) -> Option<&'static str> {
        match self {
            Self::Prism | Self::Nginx => Some("fe0"),
            Self::Haproxy => Some("fe1"),
            Self::Direct => None,
        }
    }
}

impl Cluster {
    /// Builds it, with a bucket that everybody may read. `cancel` is set when the command is
    /// to end.
    pub(crate) fn up(network: &Network, kind: &Kind<'_>, cancel: Arc<AtomicBool>) -> Result<Self> {
        start::up(network, kind, cancel)
    }

    /// Opens a page that shows Prism's nodes.
    pub(crate) fn open_page(&self) -> Result<OpenPage> {
        OpenPage::open(self.prism.command("fe0", "curl")?)
    }

    /// The lab of Prism.
    pub(crate) fn prism(&self) -> &Lab {
        &self.prism
    }

    /// The authority that clients trust over HTTPS.
    pub(crate) fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    fn lab(&self, system: System) -> Result<&Lab> {
        match system {
            System::Prism => Ok(&self.prism),
            _ => self.others.as_ref().context("no lab of others"),
        }
    }

    /// The network namespace of the clients of `system`.
    pub(crate) fn clients(&self, system: System) -> Result<&NetNs> {
        match system {
            System::Prism => Ok(&self.prism_clients),
            _ => self.others_clients.as_ref().context("no lab of others"),
        }
    }

    /// Delays every packet between clients and servers until the result is dropped.
    pub(crate) fn far_away(&self, delay: Duration) -> Result<Vec<Delay>> {
        let others = self.others.as_ref().zip(self.others_clients.as_ref());
        let labs = [Some((&self.prism, &self.prism_clients)), others];
        let started = labs.into_iter().flatten().map(|(lab, clients)| {
            let client = lab
                .addresses("client")
                .context("a client without address")?;
            let hosts = lab.hosts().filter(|host| *host != "client");
            let servers = hosts.filter_map(|host| lab.address(host));
            let servers: Vec<_> = servers.chain([lab.service().ip()]).collect();
            Ok(clients.run(|| Delay::start(&client, &servers, delay))??)
        });
        started.collect()
    }

    /// The hosts of Prism's nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> {
        let backends = (0..self.backends).map(|n| format!("be{n}"));
        backends.chain(["fe0".to_owned()])
    }

    /// Hand-offs of all of Prism's nodes so far.
    pub(crate) fn moves(&self) -> Result<u64> {
        self.nodes().map(|host| self.moves_of(&host)).sum()
    }

    /// Hand-offs of one of Prism's nodes so far.
    pub(crate) fn moves_of(&self, host: &str) -> Result<u64> {
        let counters = self.prism.admin(host)?;
        let moved = counters.pointer("/handoff/exports_moved");
        moved.and_then(Value::as_u64).context("no such counter")
    }

    /// The address for requests for `backend`'s objects.
    pub(crate) fn address(&self, system: System, backend: usize) -> Result<SocketAddr> {
        if system == System::Prism {
            let https = self.prism.https_service();
            return Ok(https.unwrap_or(self.prism.service()));
        }
        let owner = format!("be{backend}");
        let host = system.frontend().unwrap_or(&owner);
        let address = self.lab(system)?.address(host);
        let address = address.context("a host without address")?;
        Ok(SocketAddr::new(address, proxies::port(self.tls)))
    }

    /// The head of a signed request.
    pub(crate) fn signed(
        &self,
        address: SocketAddr,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> Result<Vec<u8>> {
        let credential = self.prism.credential();
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        let signer = Signer::new(key.as_str(), secret.as_str(), REGION);
        http::signed(&signer, address, method, target, body)
    }

    fn call_prism(&self, method: &str, target: &str, body: &[u8]) -> Result<()> {
        let address = self.prism.service();
        let head = self.signed(address, method, target, body)?;
        self.prism_clients
            .run(|| http::call(address, &head, body))?
            .with_context(|| format!("{method} {target}"))?;
        Ok(())
    }

    /// Stores `objects` for all systems, with a thread for each backend.
    pub(crate) fn store(&self, objects: &Objects) -> Result<()> {
        self.for_all(objects, &|object| {
            let target = object.target();
            self.call_prism("PUT", &target, object.body)?;
            if self.others.is_some() {
                let file = self.files.of(object.backend, object.key);
                fs::write(file, object.body)?;
            }
            Ok(())
        })
    }

    /// Removes `objects` from all systems.
    pub(crate) fn remove(&self, objects: &Objects) -> Result<()> {
        self.for_all(objects, &|object| {
            self.call_prism("DELETE", &object.target(), b"")?;
            let file = self.files.of(object.backend, object.key);
            match fs::remove_file(file) {
                Err(error) if self.others.is_some() => Err(error.into()),
                _ => Ok(()),
            }
        })
    }

    fn for_all(
        &self,
        objects: &Objects,
        act: &(dyn Fn(Object<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let threads = (0..self.backends)
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
        for &system in &self.systems {
            for backend in 0..self.backends {
                let address = self.address(system, backend)?;
                let checked = self
                    .clients(system)?
                    .run(|| compare(address, self.trust(), objects, backend))?;
                checked.with_context(|| format!("what {} serves", system.name()))?;
            }
        }
        Ok(())
    }

    /// Waits until Prism hands connections off. Nodes relay until the switch has answered
    /// them.
    pub(crate) fn until_moving(&self, objects: &Objects) -> Result<()> {
        let deadline = Instant::now() + MOVE_TIMEOUT;
        loop {
            if self.moves_of("fe0")? > 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "no connection was handed off; see the nodes' logs (`prism-lab status`)"
            );
            self.check(objects)?;
        }
    }

    /// Runs `wrk` against `system` for `seconds`.
    pub(crate) fn load(&self, system: System, load: &Load<'_>, seconds: u64) -> Result<Values> {
        let mut places = Places::default();
        if system == System::Direct {
            let hosts = (0..load.backends).map(|n| Ok(self.address(system, n)?.ip()));
            let hosts = hosts.collect::<Result<Vec<_>>>()?;
            places.owners = Some((hosts, proxies::port(self.tls)));
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
            places.writes = Some((heads.collect::<Result<_>>()?, &pool));
        }
        let script = self.files.path("load.lua");
        fs::write(&script, load.script(&places))?;
        let mut wrk = self.lab(system)?.command("client", "wrk")?;
        load.arguments(&mut wrk, &script, seconds);
        let scheme = if self.tls { "https" } else { "http" };
        wrk.arg(format!("{scheme}://{}/", self.address(system, 0)?));
        let before = self.cpu(system)?;
        let said = load::run(wrk)?;
        Ok(load.values(&said, spent(before, self.cpu(system)?)))
    }

    /// CPU time so far of the frontend, all backends, and the client.
    pub(crate) fn cpu(&self, system: System) -> Result<[Duration; 3]> {
        let [frontend, backends] = self.sums(system, Duration::ZERO, cpu_of_family)?;
        Ok([frontend, backends, cpu_of_client()?])
    }

    /// Memory of the frontend and of all backends, in bytes.
    pub(crate) fn memory(&self, system: System) -> Result<[u64; 2]> {
        self.sums(system, 0, memory_of_family)
    }

    /// Sums over the processes of the frontend and of all backends.
    fn sums<T: Sum>(
        &self,
        system: System,
        nothing: T,
        of_process: fn(u32) -> Result<T>,
    ) -> Result<[T; 2]> {
        let lab = self.lab(system)?;
        let of = |host: &str| {
            let pid = lab.pid(host);
            of_process(pid.with_context(|| format!("{host} does not run"))?)
        };
        let frontend = system.frontend().map_or(Ok(nothing), of)?;
        let backends = (0..self.backends).map(|n| of(&format!("be{n}")));
        Ok([frontend, backends.sum::<Result<_>>()?])
    }
}

/// Fetches some objects of a backend from `address` and compares their bytes.
pub(crate) fn compare(
    address: SocketAddr,
    trust: Option<&Trust>,
    objects: &Objects,
    backend: usize,
) -> Result<()> {
    for object in objects.of(backend).take(COMPARED) {
        let mut stream = client::connect_to_started(address, trust)?.stream;
        let target = object.target();
        let get = http::anonymous(address, &target);
        stream.write_all(&get)?;
        let answer = http::answer(&mut *stream);
        let answer = answer.with_context(|| format!("GET {target}"))?;
        ensure!(answer.body == object.body, "{target} has other bytes");
    }
    Ok(())
}

/// CPU time between two moments.
pub(crate) fn spent<const N: usize>(before: [Duration; N], after: [Duration; N]) -> [Duration; N] {
    let mut before = before.into_iter();
    after.map(|after| after.saturating_sub(before.next().unwrap_or_default()))
}
