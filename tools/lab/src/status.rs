//! The status of a running lab.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::Serialize;

use crate::lab::Lab;
use crate::network::InterfaceBytes;
use crate::plan::first;

/// The status of a lab.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// Whether it has been healthy since it was built.
    pub ready: bool,
    /// The families of its addresses: 4, 6 or dual.
    pub family: String,
    /// The URL of the service, of IPv4 where there is one.
    pub endpoint: String,
    /// The URLs of the service, one for each family.
    pub endpoints: Vec<String>,
    /// The URL of HTTPS, if it is served.
    pub https_endpoint: Option<String>,
    /// The URLs of HTTPS, one for each family.
    pub https_endpoints: Vec<String>,
    /// The certificate of the authority of HTTPS, which clients have to trust.
    pub ca_file: Option<PathBuf>,
    /// The access key of the lab's user.
    pub access_key: String,
    /// The directory of its configuration and logs.
    pub directory: PathBuf,
    /// Its hosts.
    pub hosts: Vec<HostStatus>,
}

/// The status of a host.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its own address, of IPv4 where there is one.
    pub address: IpAddr,
    /// Its own addresses, one for each family.
    pub addresses: Vec<IpAddr>,
    /// The number of its process, if it runs.
    pub pid: Option<u32>,
    /// Whether its process runs. True for a host without a process.
    pub running: bool,
    /// Whether it is the active one of two switches. None for all other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// The bytes of its interface; none for a switch, which has several.
    pub bytes: Option<InterfaceBytes>,
}

impl Lab {
    /// The status of the lab now.
    #[must_use]
    pub fn status(&self) -> LabStatus {
        let plan = &self.state.plan;
        LabStatus {
            name: plan.name.to_string(),
            ready: self.state.ready,
            family: plan.family.to_string(),
            endpoint: self.endpoint(),
            endpoints: self.endpoints().collect(),
            https_endpoint: self.https_endpoint(),
            https_endpoints: self.https_endpoints().collect(),
            ca_file: self.ca_file(),
            access_key: self.state.credential.access_key.clone(),
            directory: plan.name.state_dir(),
            hosts: plan.hosts().map(|host| self.host_status(host)).collect(),
        }
    }

    fn host_status(&self, host: &str) -> HostStatus {
        let pid = self.pid(host);
        let addresses = self.addresses(host);
        HostStatus {
            name: host.into(),
            address: addresses.map_or(Ipv4Addr::UNSPECIFIED.into(), |all| first(&all)),
            addresses: addresses.iter().flat_map(|all| all.iter()).collect(),
            pid,
            // A host without a program, or with one that starts later, lacks nothing.
            running: pid.is_some() || !self.state.processes.contains_key(host),
            active: (self.state.plan.is_pair() && self.is_switch(host))
                .then(|| self.is_active(host)),
            bytes: self.interface_bytes(host).ok(),
        }
    }
}
