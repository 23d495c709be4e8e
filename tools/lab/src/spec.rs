//! What a lab is to be.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prism_config::{Config, RelayUpTo};

use crate::error::LabError;
use crate::name::LabName;
use crate::plan::Plan;
use crate::rate::Rate;

/// Most frontends and backends in all: a lab's /24 has 64 pieces of four
/// addresses; one holds the service and control addresses, one is the client's.
pub const MAX_SERVERS: usize = 62;

/// What a lab is to be. Start from [`LabSpec::new`] and set what differs.
pub struct LabSpec {
    /// Tells labs apart.
    pub name: LabName,
    /// Backends `be0`, `be1`, ...; default 3.
    pub backends: usize,
    /// Frontends `fe0`, `fe1`, ...; default 1.
    pub frontends: usize,
    /// How many of the backends the cluster begins with; the others are started
    /// later, by [`crate::Lab::restart`], and join it. Takes etcd. Default: all.
    pub members: Option<usize>,
    /// Whether the cluster's state is kept in an etcd, on a host of its own called
    /// `etcd`. Default false.
    pub etcd: bool,
    /// How many members that etcd has; further ones are on hosts `etcd1`, ... Default 1.
    pub etcd_members: usize,
    /// Speed of every server's link, each way. Default: as fast as it goes.
    pub link: Option<Rate>,
    /// Speed of the client's link, each way. Default: as fast as it goes.
    pub uplink: Option<Rate>,
    /// Whether HTTPS is served too, on port 443 of the service's address, with
    /// a certificate of the lab's own authority. Default false.
    pub tls: bool,
    /// Which answers nodes relay instead of handing connections off. Default: as they
    /// find best.
    pub relay_up_to: RelayUpTo,
    /// What runs on the hosts.
    pub programs: Programs,
    /// Where backends keep their objects, in a directory
    /// `prism-lab-<name>` that is removed with the lab. Default `/dev/shm`: in
    /// memory, so that a disk does not decide what is measured.
    pub store_dir: PathBuf,
    /// How long all hosts may take to become healthy. Default 20 s.
    pub ready_timeout: Duration,
    /// Set it from elsewhere to stop [`crate::Lab::up`], which then removes
    /// what it has made.
    pub cancel: Arc<AtomicBool>,
    /// Changes the configuration before it is written.
    pub configure: Option<Configure>,
    /// Changes the configuration of the nodes, after [`Self::configure`]: they
    /// then see another one than the switch does.
    pub configure_nodes: Option<Configure>,
}

/// Changes a configuration.
pub type Configure = Box<dyn FnOnce(&mut Config) + Send>;

/// What runs on the hosts of a lab.
#[derive(Clone, Debug)]
pub enum Programs {
    /// `prism switch` and `prism node`, by the program at this path.
    Prism(PathBuf),
    /// These command lines, by host, and nothing on the other hosts. Healthy
    /// means: running.
    Custom(BTreeMap<String, Vec<String>>),
}

impl LabSpec {
    /// A lab of one frontend and three backends that run the program `prism`.
    #[must_use]
    pub fn new(name: LabName, prism: PathBuf) -> Self {
        Self::with_programs(name, Programs::Prism(prism))
    }

    /// The same with other programs.
    #[must_use]
    pub fn with_programs(name: LabName, programs: Programs) -> Self {
        Self {
            name,
            backends: 3,
            frontends: 1,
            members: None,
            etcd: false,
            etcd_members: 1,
            link: None,
            uplink: None,
            tls: false,
            relay_up_to: RelayUpTo::default(),
            programs,
            store_dir: "/dev/shm".into(),
            ready_timeout: Duration::from_secs(20),
            cancel: Arc::default(),
            configure: None,
            configure_nodes: None,
        }
    }

    /// With `change` applied to the configuration before it is written.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config) + Send + 'static) -> Self {
        self.configure = Some(Box::new(change));
        self
    }

    /// With `change` applied to what the nodes alone are told, so that they
    /// may be given another address of the switch, say.
    #[must_use]
    pub fn configure_nodes(mut self, change: impl FnOnce(&mut Config) + Send + 'static) -> Self {
        self.configure_nodes = Some(Box::new(change));
        self
    }

    /// Whether `host` is a backend that is started later.
    pub(crate) fn is_later(&self, host: &str) -> bool {
        let number = host
            .strip_prefix("be")
            .and_then(|number| number.parse().ok());
        number.is_some_and(|number: usize| number >= self.members.unwrap_or(self.backends))
    }

    /// The address that `host` will have; for the switch, its control address.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<Ipv4Addr> {
        Plan::new(self).address(host)
    }

    /// How many hosts keep the cluster's state.
    pub(crate) fn etcd_hosts(&self) -> usize {
        match self.etcd {
            true => self.etcd_members.max(1),
            false => 0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        let others = self.frontends.saturating_add(self.etcd_hosts());
        let servers = others.saturating_add(self.backends);
        let members = self.members.unwrap_or(self.backends);
        if members == 0 || members > self.backends || (members < self.backends && !self.etcd) {
            return Err(LabError::Members);
        }
        if self.frontends == 0 || self.backends == 0 || servers > MAX_SERVERS {
            return Err(LabError::Size);
        }
        Ok(())
    }
}

/// Fails once `cancel` is set.
pub(crate) fn go_on(cancel: &AtomicBool) -> Result<(), LabError> {
    if cancel.load(Ordering::Relaxed) {
        Err(LabError::Cancelled)
    } else {
        Ok(())
    }
}
