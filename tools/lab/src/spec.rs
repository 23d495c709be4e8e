//! The description of a lab.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use prism_config::{ConfigFile, HostAddrs, RelayUpTo};

use crate::error::LabError;
use crate::family::Families;
use crate::lab::Lab;
use crate::mode::{Layout, Mode};
use crate::name::LabName;
use crate::plan::{Base, HostKind, HostLink, LabPlan, SwitchHost};
use crate::rate::Rate;

/// The most frontends and backends: a lab has 64 pieces of four addresses. One holds the service
/// and control addresses, and one is the client's.
pub const MAX_SERVERS: usize = 62;
/// The same with two switches: 32 pieces of eight addresses.
pub(crate) const MAX_SERVERS_OF_PAIR: usize = 30;

/// The description of a lab. Start from [`LabSpec::new`] and change fields.
pub struct LabSpec {
    /// The lab's name.
    pub name: LabName,
    /// The families of all hosts' addresses. Default: IPv4 alone.
    pub family: Families,
    /// The place of the program that steers packets. Without a switch there is a process
    /// `<host>-agent` for each node. Default: on a switch.
    pub mode: Mode,
    /// The network of host mode. Default: all hosts are on one segment.
    pub layout: Layout,
    /// The number of hosts of the switch. One is called `switch`; two are `switch0` and
    /// `switch1`, between which keepalived moves the addresses. Default: 1.
    pub switches: usize,
    /// Backends `be0`, `be1`, ...; default 3.
    pub backends: usize,
    /// Frontends `fe0`, `fe1`, ...; default 1.
    pub frontends: usize,
    /// The number of backends with which the cluster begins. [`crate::Lab::restart`] starts the
    /// others later, which then join. It needs etcd. Default: all.
    pub members: Option<usize>,
    /// Whether etcd keeps the cluster's state, on a host of its own called `etcd`. Default:
    /// false.
    pub etcd: bool,
    /// The number of members of etcd. Further ones are on hosts `etcd1`, ... Default: 1.
    pub etcd_members: usize,
    /// Speed of every server's link, each way. Default: no limit.
    pub link: Option<Rate>,
    /// Speed of the client's link, each way. Default: no limit.
    pub uplink: Option<Rate>,
    /// Whether HTTPS is served too, on port 443 of the service's address, with a certificate of
    /// the lab's own authority. Default: false.
    pub tls: bool,
    /// Whether all nodes share one switch key, as programs of release 0.2.0 need it. Default:
    /// false.
    pub shared_key: bool,
    /// The longest answer that nodes relay instead of handing the connection off. Default:
    /// auto.
    pub relay_up_to: RelayUpTo,
    /// The programs on the hosts.
    pub programs: Programs,
    /// The parent of `prism-lab-<name>`, the directory with the backends' objects. It is
    /// removed with the lab. Default: `/dev/shm`, as a disk would decide what is measured.
    pub store_dir: PathBuf,
    /// The longest time until all hosts are healthy. Default: 20 s.
    pub ready_timeout: Duration,
    /// Set it to stop [`crate::Lab::up`], which then removes its work.
    pub cancel: Arc<AtomicBool>,
    /// Changes the configuration before it is written.
    pub configure: Option<Configure>,
    /// Changes the nodes' configuration, after [`Self::configure`]. The switch does not see it.
    pub configure_nodes: Option<Configure>,
    /// Prepares the switch's and the nodes' hosts before their programs start. With it these
    /// hosts have no service address, no routes to clients and the kernel's own parameters
    /// until then, except for a strict `rp_filter`.
    pub prepare: Option<Prepare>,
}

/// Changes a configuration.
pub type Configure = Box<dyn FnOnce(&mut ConfigFile) + Send>;
/// Prepares the hosts of a lab.
pub type Prepare = Box<dyn FnOnce(&Lab) + Send>;

/// The programs on the hosts of a lab.
#[derive(Clone, Debug)]
pub enum Programs {
    /// `prism switch` and `prism node`, by the program at this path.
    Prism(PathBuf),
    /// These command lines, by host, and nothing on the other hosts. A host is healthy when its
    /// program runs.
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
            family: Families::default(),
            mode: Mode::default(),
            layout: Layout::default(),
            switches: 1,
            backends: 3,
            frontends: 1,
            members: None,
            etcd: false,
            etcd_members: 1,
            link: None,
            uplink: None,
            tls: false,
            shared_key: false,
            relay_up_to: RelayUpTo::default(),
            programs,
            store_dir: "/dev/shm".into(),
            ready_timeout: Duration::from_secs(20),
            cancel: Arc::default(),
            configure: None,
            configure_nodes: None,
            prepare: None,
        }
    }

    /// With `change` applied to the configuration before it is written.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut ConfigFile) + Send + 'static) -> Self {
        self.configure = Some(Box::new(change));
        self
    }

    /// With `change` applied to the nodes' configuration alone, for example to give them
    /// another address of the switch.
    #[must_use]
    pub fn configure_nodes(
        mut self,
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
    ) -> Self {
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

    /// The hosts and their addresses.
    pub(crate) fn plan(&self) -> LabPlan {
        let numbered = |prefix: &'static str, kind, count| {
            (0..count).map(move |index| (format!("{prefix}{index}"), kind, self.link))
        };
        let etcd = (0..self.etcd_hosts()).map(|index| {
            let host = match index {
                0 => "etcd".to_owned(),
                _ => format!("etcd{index}"),
            };
            (host, HostKind::Etcd, self.link)
        });
        let client = ("client".to_owned(), HostKind::Client, self.uplink);
        let hosts = std::iter::once(client)
            .chain(numbered("fe", HostKind::Frontend, self.frontends))
            .chain(numbered("be", HostKind::Backend, self.backends))
            .chain(etcd);
        let base = Base::of(self.name.as_str());
        let at = |offset| base.at(offset, self.family);
        let is_pair = self.switches == 2;
        let step = if is_pair { 8 } else { 4 };
        let switch = |name: &str, address| SwitchHost {
            name: name.into(),
            address: at(address),
        };
        let is_host_mode = self.mode == Mode::Host;
        let switches = if is_host_mode {
            Vec::new()
        } else if is_pair {
            vec![switch("switch0", 3), switch("switch1", 4)]
        } else {
            vec![switch("switch", 2)]
        };
        let has_no_gateway = is_host_mode && self.layout == Layout::Segment;
        let links = hosts.zip(1_u32..).map(|((host, kind, rate), number)| {
            let first = step * number;
            HostLink {
                host,
                kind,
                rate,
                gateway: if has_no_gateway {
                    HostAddrs::default()
                } else {
                    at(first + 1)
                },
                address: at(first + 2),
                own: if is_pair {
                    vec![at(first + 3), at(first + 4)]
                } else {
                    Vec::new()
                },
            }
        });
        LabPlan {
            name: self.name.clone(),
            family: self.family,
            mode: self.mode,
            layout: self.layout,
            service: at(1),
            control: at(2),
            switches,
            links: links.collect(),
        }
    }

    /// The future addresses of `host`. A single switch has its control addresses.
    #[must_use]
    pub fn addresses(&self, host: &str) -> Option<HostAddrs> {
        self.plan().addresses(host)
    }

    /// The first of them: the IPv4 address, if there is one.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<IpAddr> {
        self.addresses(host)?.first()
    }

    /// The number of members of etcd.
    pub(crate) fn etcd_hosts(&self) -> usize {
        if self.etcd {
            self.etcd_members.max(1)
        } else {
            0
        }
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        let others = self.frontends.saturating_add(self.etcd_hosts());
        let servers = others.saturating_add(self.backends);
        let members = self.members.unwrap_or(self.backends);
        if members == 0 || members > self.backends || (members < self.backends && !self.etcd) {
            return Err(LabError::Members);
        }
        let max = match self.switches {
            1 => MAX_SERVERS,
            2 => MAX_SERVERS_OF_PAIR,
            _ => return Err(LabError::Switches),
        };
        if self.layout != Layout::Segment && self.mode != Mode::Host {
            return Err(LabError::Routed);
        }
        if self.layout == Layout::Spread && self.frontends < 2 {
            return Err(LabError::Spread);
        }
        if self.frontends == 0 || self.backends == 0 || servers > max {
            return Err(LabError::Size { max });
        }
        Ok(())
    }
}
