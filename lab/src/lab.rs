//! A running lab: building it, working with it, taking it down.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prism_config::Credential;
use rustix::process::Signal;
use serde::Serialize;

use crate::capture::{Capture, CaptureOptions, command as capture_command};
use crate::error::LabError;
use crate::files;
use crate::name::LabName;
use crate::network::{self, InterfaceBytes};
use crate::plan::Plan;
use crate::process::ProcessId;
use crate::ready::{self, Health};
use crate::spec::{LabSpec, Programs, go_on};
use crate::state::{Lock, State, create_private_dir};
use crate::sweep;
use crate::tool::{in_namespace, run};

/// How long a process may take to end after SIGTERM, and to end after SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a restarted process may take to become healthy.
const RESTART_TIMEOUT: Duration = Duration::from_secs(20);

/// A lab. Dropping it takes it down, unless it was [kept](Lab::keep) or
/// [attached to](Lab::attach).
#[derive(Debug)]
pub struct Lab {
    state: State,
    /// Processes that this one started, to collect them when they end.
    children: Vec<Child>,
    /// Dropping this handle takes the lab down.
    owned: bool,
}

/// What there is to know about a lab.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// Whether it has been healthy since it was made.
    pub ready: bool,
    /// Where clients find the service.
    pub endpoint: String,
    /// The user of the lab's credentials.
    pub access_key: String,
    /// Directory of its configuration and logs.
    pub directory: PathBuf,
    /// Its hosts.
    pub hosts: Vec<HostStatus>,
}

/// What there is to know about a host.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub host: String,
    /// Its own address.
    pub address: Ipv4Addr,
    /// The number of its process, if that runs.
    pub pid: Option<u32>,
    /// Whether it runs everything that it should.
    pub running: bool,
    /// What its interface has moved; none for the switch, which has several.
    pub bytes: Option<InterfaceBytes>,
}

impl Lab {
    /// Builds a lab and waits until it serves. Removes what an earlier lab of
    /// that name, or a process that was killed, has left behind.
    ///
    /// # Errors
    /// When the lab cannot be built or does not become healthy; nothing of it
    /// is left then.
    pub fn up(mut spec: LabSpec) -> Result<Self, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        spec.check()?;
        let mut lab = Self::build(&spec)?;
        lab.install(&mut spec)?;
        for host in lab.state.programs.keys().cloned().collect::<Vec<_>>() {
            go_on(&spec.cancel)?;
            lab.spawn(&host)?;
        }
        ready::wait_all(&lab.state, spec.ready_timeout, &spec.cancel)?;
        lab.state.ready = true;
        lab.state.save()?;
        Ok(lab)
    }

    /// A handle on the lab called `name`, which somebody else has made.
    /// Dropping it changes nothing.
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

    /// Takes down the lab called `name`, or what is left of it.
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

    /// Lets the lab live on after this process.
    ///
    /// # Errors
    /// When that cannot be written down; the lab is taken down then.
    pub fn keep(mut self) -> Result<(), LabError> {
        self.state.kept = true;
        self.state.save()?;
        self.owned = false;
        Ok(())
    }

    /// `program`, to be run on `host` with the lab's credentials and endpoint
    /// in the environment, and without any proxy.
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
        command
            .env("AWS_ACCESS_KEY_ID", &credential.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &credential.secret_key)
            .env("AWS_ENDPOINT_URL", self.endpoint())
            .env("AWS_DEFAULT_REGION", &self.state.region)
            .env("AWS_EC2_METADATA_DISABLED", "true");
        Ok(command)
    }

    /// Starts recording the packets of `host` that match `filter` (pcap
    /// syntax; empty: all).
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

    /// What the interface of `host` has moved since the lab was built.
    ///
    /// # Errors
    /// When there is no such host; the switch has several interfaces.
    pub fn interface_bytes(&self, host: &str) -> Result<InterfaceBytes, LabError> {
        if self.state.plan.link(host).is_none() {
            return Err(self.unknown_host(host));
        }
        network::interface_bytes(&self.state.plan.name, host, "eth0")
    }

    /// The number of the process of `host`, if that runs.
    #[must_use]
    pub fn pid(&self, host: &str) -> Option<u32> {
        self.process(host).map(|process| process.pid)
    }

    /// Ends the process of `host` with SIGKILL. Does not start it again.
    ///
    /// # Errors
    /// When none runs there.
    pub fn kill(&mut self, host: &str) -> Result<(), LabError> {
        self.end(host, Signal::KILL)
    }

    /// Asks the process of `host` to end, by SIGTERM, and waits; after 3 s it
    /// is killed. Does not start it again.
    ///
    /// # Errors
    /// When none runs there.
    pub fn stop(&mut self, host: &str) -> Result<(), LabError> {
        self.end(host, Signal::TERM)
    }

    /// Starts the process of `host`, after stopping the one that runs there,
    /// and waits until it is healthy.
    ///
    /// # Errors
    /// When the host runs nothing in this lab, or does not become healthy.
    pub fn restart(&mut self, host: &str) -> Result<(), LabError> {
        if self.process(host).is_some() {
            self.stop(host)?;
        }
        self.spawn(host)?;
        ready::wait_host(&self.state, host, RESTART_TIMEOUT)
    }

    /// The counters of the process of `host`.
    ///
    /// # Errors
    /// When it does not answer them.
    pub fn admin(&self, host: &str) -> Result<serde_json::Value, LabError> {
        self.namespace(host)?;
        let socket = ready::admin_socket(&self.state, host);
        ready::counters(&socket).map_err(|fault| LabError::Admin {
            host: host.into(),
            fault,
        })
    }

    /// What there is to know about the lab now.
    #[must_use]
    pub fn status(&self) -> LabStatus {
        let plan = &self.state.plan;
        LabStatus {
            name: plan.name.to_string(),
            ready: self.state.ready,
            endpoint: self.endpoint(),
            access_key: self.state.credential.access_key.clone(),
            directory: plan.name.state_dir(),
            hosts: plan.hosts().map(|host| self.host_status(host)).collect(),
        }
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

    /// Where clients find the service, as a URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.state.plan.service)
    }

    /// The lab's only user.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.state.credential
    }

    /// The own address of `host`; that of the switch is its control address.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<Ipv4Addr> {
        let plan = &self.state.plan;
        if host == "switch" {
            return Some(*plan.control.ip());
        }
        plan.link(host).map(|link| link.address)
    }

    /// The configuration that the processes read.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        files::config_path(self.name())
    }

    /// Where the output of the process of `host` is.
    #[must_use]
    pub fn log_path(&self, host: &str) -> PathBuf {
        files::log_path(self.name(), host)
    }

    /// Path of the namespace of `host`, as `nsenter --net=` takes it.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn namespace(&self, host: &str) -> Result<PathBuf, LabError> {
        if !self.hosts().any(|known| known == host) {
            return Err(self.unknown_host(host));
        }
        Ok(self.name().namespace_path(host))
    }

    /// The network, and the handle that removes it again.
    fn build(spec: &LabSpec) -> Result<Self, LabError> {
        let plan = Plan::new(spec);
        let lock = Lock::take()?;
        sweep::remove_abandoned(&lock);
        if State::load(&spec.name).is_some_and(|state| !state.is_abandoned()) {
            return Err(LabError::Exists {
                name: spec.name.to_string(),
            });
        }
        sweep::remove(&spec.name, &lock)?;
        go_on(&spec.cancel)?;
        create_private_dir(&spec.name.state_dir())?;
        let state = State {
            owner: ProcessId::own(),
            kept: false,
            health: match spec.programs {
                Programs::Prism(_) => Health::Serving,
                Programs::Custom(_) => Health::Running,
            },
            ready: false,
            programs: files::command_lines(&plan, &spec.programs),
            processes: Default::default(),
            store_dir: spec.store_dir.join(spec.name.directory_name()),
            credential: files::new_credential()?,
            region: String::new(),
            plan,
        };
        // Before anything exists that would have to be found again.
        state.save()?;
        let built = network::build(&state.plan, &lock);
        drop(lock);
        let lab = Self {
            state,
            children: Vec::new(),
            owned: true,
        };
        built.map(|()| lab)
    }

    /// The files, and what of the system the switch needs.
    fn install(&mut self, spec: &mut LabSpec) -> Result<(), LabError> {
        let store_dir = self.state.store_dir.clone();
        let mut config = files::config(&self.state.plan, &store_dir);
        if let Some(change) = spec.configure.take() {
            change(&mut config);
        }
        self.state.region.clone_from(&config.cluster.region);
        let credential = &self.state.credential;
        files::write(
            &self.state.plan,
            &config,
            credential,
            &spec.programs,
            &store_dir,
        )?;
        if self.state.health == Health::Serving {
            mount_bpffs()?;
        }
        self.state.save()
    }

    fn spawn(&mut self, host: &str) -> Result<(), LabError> {
        let namespace = self.namespace(host)?;
        let no_process = || LabError::NoProcess { host: host.into() };
        let line = self.state.programs.get(host).ok_or_else(no_process)?;
        let (program, arguments) = line.split_first().ok_or_else(no_process)?;
        let path = self.log_path(host);
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(LabError::io(format!("opening {}", path.display())))?;
        let errors = log
            .try_clone()
            .map_err(LabError::io("duplicating a file descriptor"))?;
        let child = in_namespace(&namespace, program)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(LabError::io(format!("starting {program} on {host}")))?;
        if let Some(written) = State::load(self.name()) {
            self.state.processes = written.processes;
        }
        if let Some(process) = ProcessId::of(child.id()) {
            self.state.processes.insert(host.into(), process);
        }
        self.children.push(child);
        self.state.save()
    }

    fn end(&mut self, host: &str, signal: Signal) -> Result<(), LabError> {
        let process = self
            .process(host)
            .ok_or_else(|| LabError::NoProcess { host: host.into() })?;
        process.signal(signal);
        if !process.wait_gone(Instant::now() + STOP_TIMEOUT) {
            process.signal(Signal::KILL);
            process.wait_gone(Instant::now() + STOP_TIMEOUT);
        }
        self.reap();
        Ok(())
    }

    /// As written down: another handle may have started it anew.
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

    fn host_status(&self, host: &str) -> HostStatus {
        let pid = self.pid(host);
        HostStatus {
            host: host.into(),
            address: self.address(host).unwrap_or(Ipv4Addr::UNSPECIFIED),
            pid,
            running: pid.is_some() || !self.state.programs.contains_key(host),
            bytes: self.interface_bytes(host).ok(),
        }
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

/// Where the switch pins its programs. Left mounted: it is the system's, and
/// empty again after the lab.
fn mount_bpffs() -> Result<(), LabError> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")
        .map_err(LabError::io("reading /proc/self/mounts"))?;
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf"));
    if !is_mounted {
        run(Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]))?;
    }
    Ok(())
}
