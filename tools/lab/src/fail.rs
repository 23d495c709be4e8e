//! Failures of a lab's hosts, and their repair.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use prism_config::ConfigFile;
use rustix::process::Signal;

use crate::error::LabError;
use crate::fabric::{set_links, spread_commands};
use crate::files;
use crate::keepalived;
use crate::lab::Lab;
use crate::mode::{agent_of, host_of};
use crate::name::FABRIC;
use crate::plan::alone;
use crate::ready;
use crate::state::Lock;
use crate::tool::{batch, run};

/// The longest time of a repaired host to become healthy.
const HEAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A way to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// A node's process ends by SIGKILL. A switch loses power: its links are cut, its programs are
    /// gone, and so are its tables and the addresses that a pair moves.
    #[default]
    Kill,
    /// All links of the host are cut.
    Links,
    /// The host's process stands still (SIGSTOP). A switch forwards meanwhile.
    Stop,
}

/// The text names no failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a failure: use kill, links or stop")]
pub struct InvalidFailure(String);

impl Failure {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Kill, Self::Links, Self::Stop];
}

impl FromStr for Failure {
    type Err = InvalidFailure;

    fn from_str(text: &str) -> Result<Self, InvalidFailure> {
        let named = Self::ALL.into_iter().find(|how| how.to_string() == text);
        named.ok_or_else(|| InvalidFailure(text.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Links => "links",
            Self::Stop => "stop",
        })
    }
}

impl Lab {
    /// Has the router spread clients over these frontends alone, as a routing protocol does.
    ///
    /// # Errors
    /// When the lab has no such router, or the list is empty.
    pub fn spread_over(&self, frontends: &[&str]) -> Result<(), LabError> {
        let plan = &self.state.plan;
        let router = plan.name.namespace(FABRIC);
        let commands = spread_commands(plan, |link| frontends.contains(&link.host.as_str()));
        batch("ip", Some(&router), &commands, &Lock::take()?)
    }
}

impl Lab {
    /// Lets `host` fail. Returns as soon as it has failed.
    ///
    /// # Errors
    /// When there is no such host, or it runs no process that could fail so.
    pub fn fail(&mut self, host: &str, how: Failure) -> Result<(), LabError> {
        self.namespace(host)?;
        match how {
            Failure::Kill if self.is_switch(host) => self.cut_power(host),
            Failure::Kill => self.kill(host),
            Failure::Links => set_links(&self.state.plan, host, false),
            Failure::Stop => {
                self.known_process(host)?.signal(Signal::STOP);
                Ok(())
            }
        }
    }

    /// Repairs all failures of `host`, and waits until it is healthy. A program that is gone
    /// starts again. A switch has its programs attached before its links are repaired.
    ///
    /// # Errors
    /// When there is no such host, or it does not become healthy.
    pub fn heal(&mut self, host: &str) -> Result<(), LabError> {
        self.namespace(host)?;
        let is_switch = self.is_switch(host);
        if !is_switch {
            set_links(&self.state.plan, host, true)?;
        }
        if self.state.programs.contains_key(host) {
            match self.process(host) {
                Some(process) => drop(process.signal(Signal::CONT)),
                None => self.spawn(host)?,
            }
            ready::wait_host(&self.state, host, HEAL_TIMEOUT)?;
        }
        if is_switch {
            set_links(&self.state.plan, host, true)?;
        }
        if self.state.plan.movers().contains(&host) {
            self.start_keepalived(host)?;
        }
        Ok(())
    }

    /// The switches: one, or two of which one is active. In host mode the two frontends between
    /// which addresses move.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        let plan = &self.state.plan;
        let switches = plan.switches.iter().map(|s| s.name.as_str());
        let movers = plan.movers().into_iter();
        switches.chain(movers.filter(|_| plan.is_host_mode()))
    }

    /// Whether a switch, or in host mode a node's host, has the control addresses.
    #[must_use]
    pub fn is_active(&self, switch: &str) -> bool {
        let namespace = self.name().namespace(host_of(switch));
        let has = |control| {
            let mut ip = Command::new("ip");
            ip.args(["-n", &namespace, "-o", "address", "show", "to"]);
            run(ip.arg(alone(control))).is_ok_and(|output| !output.stdout.is_empty())
        };
        self.state.plan.control.iter().all(has)
    }

    /// The active switch; `None` while neither is, or both are.
    #[must_use]
    pub fn active_switch(&self) -> Option<&str> {
        let mut active = self.switches().filter(|switch| self.is_active(switch));
        active.next().filter(|_| active.next().is_none())
    }

    /// The directory of the pinned tables of the active switch, below that of the BPF file system.
    #[must_use]
    pub fn active_pin_dir(&self) -> Option<String> {
        if self.state.plan.is_host_mode() {
            let mut agents = self.state.plan.agents();
            let active = agents.find(|agent| self.is_active(agent))?;
            return Some(self.pin_dir(&active));
        }
        let switch = if self.state.plan.is_pair() {
            self.active_switch()
        } else {
            self.switches().next()
        };
        switch.map(|switch| self.pin_dir(switch))
    }

    /// The same of any switch, or in host mode of any node's host.
    #[must_use]
    pub fn pin_dir(&self, switch: &str) -> String {
        if self.state.plan.is_host_mode() {
            self.name().pin_dir(&agent_of(host_of(switch)))
        } else {
            self.name().pin_dir(switch)
        }
    }

    pub(crate) fn is_switch(&self, host: &str) -> bool {
        self.state.plan.switch(host).is_some()
    }

    /// The links go first, so that nothing sees the rest.
    fn cut_power(&mut self, switch: &str) -> Result<(), LabError> {
        set_links(&self.state.plan, switch, false)?;
        if let Some(process) = self.process(switch) {
            self.end(process, Signal::KILL);
        }
        self.forget_tables(switch)?;
        if self.state.plan.is_pair() {
            keepalived::kill(&self.state.plan, switch);
            self.reap();
            let namespace = self.name().namespace(switch);
            for (address, device) in self.state.plan.moved() {
                let alone = address.split('/').next().unwrap_or_default();
                let mut ip = Command::new("ip");
                ip.args(["-n", &namespace, "address", "flush", "dev", device]);
                run(ip.args(["to", alone]))?;
            }
        }
        Ok(())
    }

    /// Removes the BPF programs of a switch, and its pinned tables.
    fn forget_tables(&self, switch: &str) -> Result<(), LabError> {
        let name = self.name();
        let config = ConfigFile::load(&files::switch_config_path(name, switch));
        let config = config.map_err(|error| LabError::Config(error.to_string()))?;
        let Some(settings) = config.switch else {
            return Ok(());
        };
        let namespace = name.namespace(switch);
        for interface in &settings.interfaces {
            let mut tc = Command::new("tc");
            // It fails where the switch has attached nothing.
            let _ = run(tc.args(["-n", &namespace, "qdisc", "del", "dev", interface, "clsact"]));
            let mut ip = Command::new("ip");
            run(ip.args(["-n", &namespace, "link", "set", interface, "xdp", "off"]))?;
        }
        match std::fs::remove_dir_all(Path::new("/sys/fs/bpf").join(&settings.pin_dir)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(LabError::io("removing the pinned tables")(error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn failures_read_as_they_print() {
        for how in Failure::ALL {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        let said = "burn".parse::<Failure>().unwrap_err().to_string();
        assert!(said.contains("kill, links or stop"), "{said}");
    }
}
