//! A running lab: build it, work with it, take it down.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use prism_config::Credential;
use rustix::process::Signal;

use crate::capture::{Capture, CaptureOptions, command as capture_command};
use crate::error::LabError;
use crate::files;
use crate::name::LabName;
use crate::network::{self, InterfaceBytes};
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

    /// A command that runs `program` on `host`, with the lab's credentials and endpoint in its
    /// environment, and without a proxy. A lab with HTTPS gives that endpoint, and its
    /// authority.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn command(
        &self,
        host: &str,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, LabError> {
        let mut command = in_namespace(&self.namespace(host)?, program);
        let credential = &self.state.credential;
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command
                .env_remove(name)
                .env_remove(name.to_ascii_uppercase());
        }
        for name in [
            "AWS_PROFILE",
            "AWS_SESSION_TOKEN",
            "AWS_SECURITY_TOKEN",
            "AWS_CA_BUNDLE",
        ] {
            command.env_remove(name);
        }
        let https = self.https_endpoint();
        if let Some(file) = self.ca_file() {
            for name in tls::CA_VARIABLES {
                command.env(name, &file);
            }
        }
        command
            .env("AWS_ACCESS_KEY_ID", &credential.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &credential.secret_key)
            .env("AWS_ENDPOINT_URL", https.unwrap_or_else(|| self.endpoint()))
            .env("AWS_DEFAULT_REGION", &self.state.region)
            .env("AWS_EC2_METADATA_DISABLED", "true");
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
        Capture::start(&namespace, file, filter, &on_host(host, options))
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
            &on_host(host, options),
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

    /// The lab's name.
    #[must_use]
    pub fn name(&self) -> &LabName {
        &self.state.plan.name
    }

    /// The hosts' names: `switch`, `client`, `fe0`, ..., `be0`, ...
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.state.plan.hosts()
    }

    /// The address and port that clients connect to.
    #[must_use]
    pub fn service(&self) -> SocketAddrV4 {
        self.state.plan.service
    }

    /// The URL of the service.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.state.plan.service)
    }

    /// The address and port of HTTPS, if it is served with the lab's certificate.
    #[must_use]
    pub fn https_service(&self) -> Option<SocketAddrV4> {
        self.state.https
    }

    /// The URL of HTTPS, if it is served.
    #[must_use]
    pub fn https_endpoint(&self) -> Option<String> {
        let address = self.state.https?;
        Some(match address.port() {
            443 => format!("https://{}", address.ip()),
            _ => format!("https://{address}"),
        })
    }

    /// The certificate (PEM) of the authority of HTTPS, if it is served.
    #[must_use]
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.state.https.map(|_| tls::ca_file(self.name()))
    }

    /// The lab's only user.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.state.credential
    }

    /// The own address of `host`. That of the switch is its control address.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<Ipv4Addr> {
        self.state.plan.address(host)
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
    fn known_process(&self, host: &str) -> Result<ProcessId, LabError> {
        self.process(host)
            .ok_or_else(|| LabError::NoProcess { host: host.into() })
    }

    /// Ends a process, which may also end by itself meanwhile.
    fn end(&mut self, process: ProcessId, signal: Signal) {
        process.signal(signal);
        if !process.wait_gone(Instant::now() + STOP_TIMEOUT) {
            process.signal(Signal::KILL);
            process.wait_gone(Instant::now() + STOP_TIMEOUT);
        }
        self.reap();
    }

    /// Reads the written state, as another handle may have started the process again.
    fn process(&self, host: &str) -> Option<ProcessId> {
        let written = State::load(self.name());
        let processes = written
            .as_ref()
            .map_or(&self.state.processes, |state| &state.processes);
        processes
            .get(host)
            .copied()
            .filter(|process| process.is_alive())
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
    fn reap(&mut self) {
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

fn on_host(host: &str, options: &CaptureOptions) -> CaptureOptions {
    let mut options = options.clone();
    if host == "switch" && options.interface.is_none() {
        options.interface = Some("any".into());
    }
    options
}
