//! Builds a lab and starts its programs.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::command_lines::command_lines;
use crate::error::LabError;
use crate::files;
use crate::groups;
use crate::interrupt::go_on;
use crate::lab::Lab;
use crate::mode::{agent_of, host_of};
use crate::network::{self, Setup};
use crate::process::ProcessId;
use crate::programs;
use crate::ready;
use crate::spec::{LabSpec, Programs};
use crate::state::{HealthCondition, Lock, State, create_private_dir};
use crate::sweep;
use crate::tls;
use crate::tool::in_namespace;

impl Lab {
    /// Builds a lab and waits until it serves. It first removes the remains of an earlier lab
    /// of that name, and of labs whose process was killed.
    ///
    /// # Errors When the lab cannot be built or does not become healthy. Nothing of it is left
    /// then.
    pub fn up(mut spec: LabSpec) -> Result<Self, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        spec.check()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let etcd = spec.etcd.then_some(programs::ETCD);
        let moves = !spec.plan().movers().is_empty();
        let keepalived = moves.then_some(programs::KEEPALIVED);
        let further: Vec<_> = etcd.into_iter().chain(keepalived).collect();
        programs::check(&path, &further)?;
        let mut lab = Self::build(&spec)?;
        lab.install(&mut spec)?;
        if let Some(prepare) = spec.prepare.take() {
            prepare(&lab);
        }
        for host in lab.state.programs.keys().cloned().collect::<Vec<_>>() {
            go_on(&spec.cancel)?;
            if !spec.is_later(&host) {
                lab.spawn(&host)?;
            }
        }
        if moves {
            lab.start_moving(&spec)?;
        }
        ready::wait_all(&lab.state, spec.ready_timeout, &spec.cancel)?;
        lab.state.ready = true;
        lab.state.save()?;
        Ok(lab)
    }

    /// Builds the network, and returns the handle that removes it.
    fn build(spec: &LabSpec) -> Result<Self, LabError> {
        let plan = spec.plan();
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
                Programs::Prism(_) => HealthCondition::Serving,
                Programs::Custom(_) => HealthCondition::Running,
            },
            ready: false,
            programs: command_lines(&plan, spec),
            processes: Default::default(),
            store_dir: spec.store_dir.join(spec.name.directory_name()),
            credential: files::new_credential()?,
            region: String::new(),
            https: Vec::new(),
            plan,
        };
        // The state is written before anything exists that a sweep has to find.
        state.save()?;
        let setup = match spec.prepare {
            Some(_) => Setup::Bare,
            None => Setup::Whole,
        };
        let built = network::build(&state.plan, setup, &lock);
        drop(lock);
        let lab = Self {
            state,
            children: Vec::new(),
            owned: true,
        };
        built.map(|()| lab)
    }

    /// Writes the files.
    fn install(&mut self, spec: &mut LabSpec) -> Result<(), LabError> {
        let store_dir = self.state.store_dir.clone();
        let mut config = files::config(&self.state.plan, &store_dir);
        config.service.first_mut().relay_up_to = spec.relay_up_to;
        if spec.tls {
            config.service.first_mut().tls = Some(tls::config(&self.state.plan.name));
            tls::write(&self.state.plan)?;
        }
        if let Some(change) = spec.configure.take() {
            change(&mut config);
        }
        if spec.members.is_some() {
            files::write_joining_config(&self.state.plan.name, &config)?;
            config.nodes.retain(|node| !spec.is_later(&node.name));
        }
        self.state.region.clone_from(&config.cluster.region);
        // A certificate by ACME comes later than the lab's check.
        let is_file = |tls: &prism_config::Tls| !tls.certificates.is_empty();
        let has_files = config.service.first().tls.as_ref().is_some_and(is_file);
        let parts = config.parts();
        let https = parts.first().and_then(|part| part.tls_address());
        let https = https.filter(|_| has_files);
        self.state.https = https.iter().flat_map(|all| all.iter()).collect();
        let credential = &self.state.credential;
        let prism = match &spec.programs {
            Programs::Prism(prism) => Some(prism.as_path()),
            Programs::Custom(_) => None,
        };
        files::write(&self.state.plan, &config, credential, prism, &store_dir)?;
        files::write_keys(&self.state.plan, &config, spec.shared_key)?;
        if let Some(change) = spec.configure_nodes.take() {
            change(&mut config);
            files::write_nodes_config(&self.state.plan.name, &config)?;
        }
        self.state.save()
    }

    /// Starts keepalived on both hosts. Its health check fails before the agents run.
    fn start_moving(&mut self, spec: &LabSpec) -> Result<(), LabError> {
        let hosts: Vec<String> = self
            .state
            .plan
            .movers()
            .into_iter()
            .map(str::to_owned)
            .collect();
        for switch in hosts {
            let agent = if self.state.plan.is_host_mode() {
                agent_of(&switch)
            } else {
                switch.clone()
            };
            if self.state.programs.contains_key(&agent) {
                ready::wait_host(&self.state, &agent, spec.ready_timeout)?;
            }
            self.start_keepalived(&switch)?;
        }
        Ok(())
    }

    /// Starts the process of `host`. Does not wait for it.
    pub(crate) fn spawn(&mut self, host: &str) -> Result<(), LabError> {
        let namespace = self.namespace(host_of(host))?;
        let no_process = || LabError::NoProcess { host: host.into() };
        let line = self.state.programs.get(host).ok_or_else(no_process)?;
        let line = groups::command_line(self.name(), host, line)
            .map_err(LabError::io(format!("making the control group of {host}")))?;
        let (program, arguments) = line.split_first().ok_or_else(no_process)?;
        let path = self.log_path(host);
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(LabError::io(format!("opening {}", path.display())))?;
        let errors = log
            .try_clone()
            .map_err(LabError::io("duplicating a file descriptor"))?;
        let child = in_namespace(&namespace, program)
            .args(arguments)
            // As systemd names it: the switch keeps its last term there.
            .env(
                "STATE_DIRECTORY",
                self.name().state_dir().join("state").join(host),
            )
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
}
