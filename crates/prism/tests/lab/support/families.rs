//! The addresses of a cluster by family, and the family of each connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use prism_config::ConfigFile;
use prism_lab::Family;

use super::Cluster;

impl Cluster {
    /// The service of the next connection: the families take turns.
    pub fn next_service(&self) -> SocketAddr {
        self.nth_service(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn nth_service(&self, n: usize) -> SocketAddr {
        let services: Vec<_> = self.lab.services().collect();
        services[n % services.len()]
    }

    /// The service of HTTPS of the next connection.
    pub fn next_https_service(&self) -> SocketAddr {
        let n = self.connections.fetch_add(1, Ordering::Relaxed);
        let services: Vec<_> = self.lab.https_services().collect();
        services[n % services.len()]
    }

    /// The URL of the service for clients of `family`.
    pub fn endpoint_over(&self, family: Family, https: bool) -> String {
        let endpoints: Vec<_> = match https {
            true => self.lab.https_endpoints().collect(),
            false => self.lab.endpoints().collect(),
        };
        let is_v6 = |endpoint: &String| endpoint.contains("//[");
        let mut endpoints = endpoints.into_iter();
        let found = endpoints.find(|endpoint| is_v6(endpoint) == (family == Family::V6));
        found.unwrap()
    }

    /// The service of `family`.
    pub fn service_of(&self, family: Family) -> SocketAddr {
        of_family(self.lab.services(), family)
    }

    /// The service of HTTPS of `family`.
    pub fn https_service_of(&self, family: Family) -> SocketAddr {
        of_family(self.lab.https_services(), family)
    }

    /// The address of `host` that has the family of `other`.
    pub fn address_like(&self, host: &str, other: IpAddr) -> IpAddr {
        self.lab.addresses(host).unwrap().of(other).unwrap()
    }

    /// The control address of `family` of the switch.
    pub fn control(&self, family: Family) -> SocketAddr {
        let config = ConfigFile::load(&self.lab.config_path()).unwrap();
        of_family(config.switch.unwrap().control.iter(), family)
    }

    /// The addresses of the service.
    pub fn vips(&self) -> Vec<IpAddr> {
        self.lab.services().map(|service| service.ip()).collect()
    }
}

fn of_family(mut all: impl Iterator<Item = SocketAddr>, family: Family) -> SocketAddr {
    all.find(|address| Family::of(address.ip()) == family)
        .unwrap()
}
