//! What there is to know about a running lab.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Serialize;

use crate::lab::Lab;
use crate::network::InterfaceBytes;

/// What there is to know about a lab.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// Whether it has been healthy since it was made.
    pub ready: bool,
    /// Where clients find the service.
    pub endpoint: String,
    /// Where they find it over HTTPS, if that is served.
    pub https_endpoint: Option<String>,
    /// The certificate of the authority that they have to trust then.
    pub ca_file: Option<PathBuf>,
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
    pub name: String,
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
    /// What there is to know about the lab now.
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
            // Who runs nothing, or is started later, lacks nothing.
            running: pid.is_some() || !self.state.processes.contains_key(host),
            bytes: self.interface_bytes(host).ok(),
        }
    }
}
