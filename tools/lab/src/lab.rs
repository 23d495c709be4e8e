//! A running lab: build it, work with it, take it down.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use prism_config::{ConfigFile, Credential, HostAddrs};
use rustix::process::Signal;

use crate::capture::{Capture, CaptureOptions, command as capture_command};
use crate::environment;
use crate::error::LabError;
use crate::family::Families;
use crate::files;
use crate::mode::Mode;
use crate::name::LabName;
use crate::network::{self, InterfaceBytes};
use crate::plan::{SERVICE_PORT, first, url};
use crate::process::ProcessId;
use crate::ready;
use crate::state::{Lock, State};
use crate::sweep;
use crate::tls;
use crate::tool::in_namespace;

/// The longest time of a process to end after SIGTERM, and again after SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest time of a restarted process to become healthy.
const RESTART_TIMEOUT: Duration = Duration::from_secs(20);

/// A lab. Dropping it takes it down, unless it was [kept](Lab::keep) or
/// [attached to](Lab::attach).
#[derive(Debug)]
pub struct Lab {
    pub(crate) state: State,
    /// Processes that this handle started, to collect them when they end.
    pub(crate) children: Vec<Child>,
    /// Dropping this handle takes the lab down.
    pub(crate) owned: bool,
}

impl Lab {
    /// A handle on the lab called `name` of another process. Dropping it changes nothing.
    ///
    /// # Errors
    /// When there is no such lab.
    pub fn attach(name: &LabName) -> Result<Self, LabError> {
        let state = State::load(name).ok_or_else(|| LabError::NotUp {
            name: name.to_string(),
        })?;
        Ok(Self {
            state,
            children: Vec::new(),
            owned: false,
        })
    }

    /// Takes down the lab called `name`, also a broken one.
    ///
    /// # Errors
    /// When something cannot be removed; the error names it.
    pub fn remove(name: &LabName) -> Result<(), LabError> {
        sweep::remove(name, &Lock::take()?)
    }

    /// Takes this lab down.
    ///
    /// # Errors
    /// When something cannot be removed; the error names it.
    pub fn down(mut self) -> Result<(), LabError> {
        self.owned = false;
        self.tear_down()
    }

    /// Keeps the lab up after this process.
    ///
    /// # Errors
    /// When the state cannot be written. The lab is taken down then.
    pub fn keep(mut self) -> Result<(), LabError> {
        self.state.kept = true;
        self.state.save()?;
        self.owned = false;
        Ok(())
    }

    /// A command that runs `program` on `host`, with the lab's credentials and endpoints in its
    /// environment, and without a proxy. A lab with HTTPS gives those endpoints, and its
    /// authority.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let mut command = in_namespace(&self.namespace(host)?, program);
        environment::set(self, &mut command);
        Ok(command)
    }

    /// Starts recording the packets of `host` that match `filter` (pcap syntax; empty: all).
    ///
    /// # Errors
    /// When there is no such host, or tcpdump refuses.
    pub fn capture(&self, host: &str, file: &Path, filter: &str) -> Result<Capture, LabError> {
        self.capture_with(host, file, filter, &CaptureOptions::default())
    }

    /// The same with `options`.
    ///
    /// # Errors
    /// When there is no such host, or tcpdump refuses.
    pub fn capture_with(
        &self,
        host: &str,
        file: &Path,
        filter: &str,
        options: &CaptureOptions,
    ) -> Result<Capture, LabError> {
        let namespace = self.namespace(host)?;
        Capture::start(&namespace, file, filter, &self.on_host(host, options))
    }

    /// The command that records packets of `host` until it is interrupted.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn capture_command(
        &self,
        host: &str,
        file: &Path,
        filter: &str,
        options: &CaptureOptions,
    ) -> Result<Command, LabError> {
        Ok(capture_command(
            &self.namespace(host)?,
            file,
            filter,
            &self.on_host(host, options),
        ))
    }

    /// The bytes that the interface of `host` has moved since the lab was built.
    ///
    /// # Errors
    /// When there is no such host, and for the switch, which has several interfaces.
    pub fn interface_bytes(&self, host: &str) -> Result<InterfaceBytes, LabError> {
        if self.state.plan.link(host).is_none() {
            return Err(self.unknown_host(host));
        }
        network::interface_bytes(&self.state.plan.name, host, "eth0")
    }

    /// The number of the process of `host`, if it runs.
    #[must_use]
    pub fn pid(&self, host: &str) -> Option<u32> {
        self.process(host).map(|process| process.pid)
    }

    /// Ends the process of `host` with SIGKILL. Does not start it again.
    ///
    /// # Errors
    /// When none runs there.
    pub fn kill(&mut self, host: &str) -> Result<(), LabError> {
        let process = self.known_process(host)?;
        self.end(process, Signal::KILL);
        Ok(())
    }

    /// Ends the process of `host` with SIGTERM, or with SIGKILL after 15 s. Does not start it
    /// again.
    ///
    /// # Errors
    /// When none runs there.
    pub fn stop(&mut self, host: &str) -> Result<(), LabError> {
        let process = self.known_process(host)?;
        self.end(process, Signal::TERM);
        Ok(())
    }

    /// Starts the process of `host`, and waits until it is healthy. A running process is
    /// stopped first.
    ///
    /// # Errors
    /// When the host runs nothing in this lab, or does not become healthy.
    pub fn restart(&mut self, host: &str) -> Result<(), LabError> {
        if let Some(process) = self.process(host) {
            self.end(process, Signal::TERM);
        }
        self.spawn(host)?;
        ready::wait_host(&self.state, host, RESTART_TIMEOUT)
    }

    /// The counters of the process of `host`.
    ///
    /// # Errors
    /// When it does not answer them.
    pub fn admin(&self, host: &str) -> Result<serde_json::Value, LabError> {
        self.ask(host, "counters")
    }

    /// The answer of the process of `host` to `command` on its admin socket.
    ///
    /// # Errors
    /// When it does not answer in JSON within two seconds.
    pub fn ask(&self, host: &str, command: &str) -> Result<serde_json::Value, LabError> {
        self.namespace(host)?;
        let socket = ready::admin_socket(&self.state, host);
        ready::ask(&socket, command).map_err(|fault| LabError::Admin {
            host: host.into(),
            fault,
        })
    }

    /// Changes the configuration of the nodes, and lets them read it.
    ///
    /// # Errors
    /// When it has a fault, or a node does not take it.
    pub fn reload(&self, change: impl FnOnce(&mut ConfigFile)) -> Result<(), LabError> {
        let path = files::config_path(self.name());
        let config = ConfigFile::load(&path);
        let mut config = config.map_err(|error| LabError::Config(error.to_string()))?;
        change(&mut config);
        files::write_config(&self.state.plan, &config)?;
        for link in self.state.plan.servers() {
            let told = self.ask(&link.host, "reload")?;
            let faults = told.get("faults").and_then(|faults| faults.as_array());
            if faults.is_none_or(|faults| !faults.is_empty()) {
                return Err(LabError::Admin {
                    host: link.host.clone(),
                    fault: told.to_string(),
                });
            }
        }
        Ok(())
    }

    /// The lab's name.
    #[must_use]
    pub fn name(&self) -> &LabName {
        &self.state.plan.name
    }

    /// The hosts' names: `switch` (or `switch0`, `switch1`), `client`, `fe0`, ..., `be0`, ...
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.state.plan.hosts()
    }

    /// The families of the hosts' addresses.
    #[must_use]
    pub fn family(&self) -> Families {
        self.state.plan.family
    }

    /// The addresses and port that clients connect to, one of each family.
    pub fn services(&self) -> impl Iterator<Item = SocketAddr> {
        self.state.plan.services()
    }

    /// The first of them: the IPv4 one, if there is one.
    #[must_use]
    pub fn service(&self) -> SocketAddr {
        (first(&self.state.plan.service), SERVICE_PORT).into()
    }

    /// The URLs of the service, one of each family.
    pub fn endpoints(&self) -> impl Iterator<Item = String> {
        self.services().map(|service| url("http", service))
    }

    /// The first of them.
    #[must_use]
    pub fn endpoint(&self) -> String {
        url("http", self.service())
    }

    /// The addresses and port of HTTPS, if it is served with the lab's certificate.
    pub fn https_services(&self) -> impl Iterator<Item = SocketAddr> {
        self.state.https.iter().copied()
    }

    /// The first of them.
    #[must_use]
    pub fn https_service(&self) -> Option<SocketAddr> {
        self.https_services().next()
    }

    /// The URLs of HTTPS, one of each family, if it is served.
    pub fn https_endpoints(&self) -> impl Iterator<Item = String> {
        self.https_services().map(|service| url("https", service))
    }

    /// The first of them.
    #[must_use]
    pub fn https_endpoint(&self) -> Option<String> {
        self.https_endpoints().next()
    }

    /// The certificate (PEM) of the authority of HTTPS, if it is served.
    #[must_use]
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.https_service().map(|_| tls::ca_file(self.name()))
    }

    /// The region that signatures name.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.state.region
    }

    /// The lab's only user.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.state.credential
    }

    /// The own addresses of `host`. A single switch has its control addresses.
    #[must_use]
    pub fn addresses(&self, host: &str) -> Option<HostAddrs> {
        self.state.plan.addresses(host)
    }

    /// The first of them: the IPv4 address, if there is one.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<IpAddr> {
        self.addresses(host)?.first()
    }

    /// The place of the programs that steer.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.state.plan.is_host_mode() {
            Mode::Host
        } else {
            Mode::Switch
        }
    }

    /// The path of the configuration that the processes read.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        files::config_path(self.name())
    }

    /// The path of the output of the process of `host`.
    #[must_use]
    pub fn log_path(&self, host: &str) -> PathBuf {
        files::log_path(self.name(), host)
    }

    /// The path of the namespace of `host`, as `nsenter --net=` takes it.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn namespace(&self, host: &str) -> Result<PathBuf, LabError> {
        if !self.hosts().any(|known| known == host) {
            return Err(self.unknown_host(host));
        }
        Ok(self.name().namespace_path(host))
    }

    /// The process of `host`, which has to run.
    pub(crate) fn known_process(&self, host: &str) -> Result<ProcessId, LabError> {
        self.process(host)
            .ok_or_else(|| LabError::NoProcess { host: host.into() })
    }

    /// Ends a process, which may also end by itself meanwhile.
    pub(crate) fn end(&mut self, process: ProcessId, signal: Signal) {
        process.signal(signal);
        if !process.wait_gone(Instant::now() + STOP_TIMEOUT) {
            process.signal(Signal::KILL);
            process.wait_gone(Instant::now() + STOP_TIMEOUT);
        }
        self.reap();
    }

    /// Reads the written state, as another handle may have started the process again.
    pub(crate) fn process(&self, host: &str) -> Option<ProcessId> {
        let written = State::load(self.name());
        let processes = written
            .as_ref()
            .map_or(&self.state.processes, |state| &state.processes);
        processes
            .get(host)
            .copied()
            .filter(|process| process.is_alive())
    }

    fn on_host(&self, host: &str, options: &CaptureOptions) -> CaptureOptions {
        let mut options = options.clone();
        if self.is_switch(host) && options.interface.is_none() {
            options.interface = Some("any".into());
        }
        options
    }

    fn unknown_host(&self, host: &str) -> LabError {
        let hosts = self.hosts().collect::<Vec<_>>().join(", ");
        LabError::UnknownHost {
            host: host.into(),
            hosts,
        }
    }

    fn tear_down(&mut self) -> Result<(), LabError> {
        let removed = Self::remove(self.name());
        self.reap();
        removed
    }

    /// Collects the processes that have ended.
    pub(crate) fn reap(&mut self) {
        self.children
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = self.tear_down()
        {
            tracing::error!(%error, "the lab is not removed in full");
        }
    }
}
