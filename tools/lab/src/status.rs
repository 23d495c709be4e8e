//! The status of a running lab.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Serialize;

use crate::lab::Lab;
use crate::network::InterfaceBytes;

/// The status of a lab.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// Whether it has been healthy since it was built.
    pub ready: bool,
    /// The URL of the service.
    pub endpoint: String,
    /// The URL of HTTPS, if it is served.
    pub https_endpoint: Option<String>,
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
    /// Its own address.
    pub address: Ipv4Addr,
    /// The number of its process, if it runs.
    pub pid: Option<u32>,
    /// Whether its process runs. True for a host without a process.
    pub running: bool,
    /// The bytes of its interface; none for the switch, which has several.
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
            endpoint: self.endpoint(),
            https_endpoint: self.https_endpoint(),
            ca_file: self.ca_file(),
            access_key: self.state.credential.access_key.clone(),
            directory: plan.name.state_dir(),
            hosts: plan.hosts().map(|host| self.host_status(host)).collect(),
        }
    }

    fn host_status(&self, host: &str) -> HostStatus {
        let pid = self.pid(host);
        HostStatus {
            name: host.into(),
            address: self.address(host).unwrap_or(Ipv4Addr::UNSPECIFIED),
            pid,
            // A host without a program, or with one that starts later, lacks nothing.
            running: pid.is_some() || !self.state.processes.contains_key(host),
            bytes: self.interface_bytes(host).ok(),
        }
    }
}
