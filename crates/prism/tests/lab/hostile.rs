//! Messages that no honest peer sends: forged, replayed, cut and senseless ones at the control
//! address, the node port and the service port. Nothing changes, they are counted, and the
//! service goes on.

mod certificate;
mod control_port;
mod frames;
mod newcomers;
mod node_port;
mod repeated;
mod service_port;
mod syn;
mod verdicts;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use prism_lab::Family;

use crate::support::bed::{Bed, NumberedClient, Way};
use crate::support::{Cluster, Known, eventually};

/// Decides what is noise, and how it looks.
const SEED: u64 = 0x4057_11e5;
const OBJECTS: usize = 24;
/// Channels and relay streams to other nodes that may come up meanwhile and
/// stay; far fewer than the connections that must not.
const POOLED: usize = 8;

/// A lab, and a connection over `family` that lives on a backend.
fn bed_with_connection(label: &str, family: Family) -> (Bed, NumberedClient, Known) {
    let bed = Bed::up(label, &Way::Direct);
    bed.fill(OBJECTS);
    let mut client = bed.client_over(family);
    client.get_from(&bed, "be0");
    bed.assert_only(&client);
    let known = bed.flow_of(client.local()).unwrap();
    (bed, client, known)
}

impl Cluster {
    /// Certificates of the lab.
    pub fn pki(&self) -> PathBuf {
        self.lab.config_path().with_file_name("pki")
    }

    pub fn node_port(&self, host: &str) -> SocketAddr {
        (self.lab.address(host).unwrap(), 7400).into()
    }
}

impl Bed {
    /// The flows of earlier connections are gone.
    pub fn assert_only(&self, client: &NumberedClient) {
        eventually("earlier flows go", Duration::from_secs(5), || {
            self.flows().iter().all(|k| k.flow.client == client.local())
        });
    }

    pub fn descriptors(&self, host: &str) -> usize {
        let path = format!("/proc/{}/fd", self.lab.pid(host).unwrap());
        std::fs::read_dir(path).unwrap().count()
    }
}
