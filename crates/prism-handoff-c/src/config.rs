//! The configuration of an endpoint, as it is put together by calls.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use prism_handoff::pki::Identity;
use prism_handoff::{EndpointConfig, Peer, SwitchAddress};

use crate::status::Error;

/// The default time limit of each read and write.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// The configuration of an endpoint.
pub struct Config {
    name: String,
    identity: Identity,
    nodes: Vec<Peer>,
    services: Vec<SocketAddr>,
    switch: Option<SwitchAddress>,
    pub(crate) listen: bool,
    pub(crate) node_port: Option<u16>,
    pub(crate) io_timeout: Duration,
}

impl Config {
    pub(crate) fn new(name: &str, pki_dir: &str) -> Result<Self, Error> {
        let identity = Identity::of_node(Path::new(pki_dir), name);
        Ok(Self {
            name: name.to_owned(),
            identity: identity.map_err(|error| Error::invalid(error.to_string()))?,
            nodes: Vec::new(),
            services: Vec::new(),
            switch: None,
            listen: false,
            node_port: None,
            io_timeout: IO_TIMEOUT,
        })
    }

    pub(crate) fn add_node(&mut self, name: &str, address: &str) -> Result<(), Error> {
        let address: IpAddr = parsed(address, "an IP address")?;
        match self.nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.addresses.push(address),
            None => self.nodes.push(Peer {
                name: name.to_owned(),
                addresses: vec![address],
            }),
        }
        Ok(())
    }

    pub(crate) fn add_service(&mut self, address: &str) -> Result<(), Error> {
        self.services.push(parsed(address, "ADDRESS:PORT")?);
        Ok(())
    }

    pub(crate) fn set_switch(
        &mut self,
        address: &str,
        key_id: u32,
        key: &[u8],
    ) -> Result<(), Error> {
        let key: [u8; 16] = key
            .try_into()
            .map_err(|_| Error::invalid("the switch's key has 16 bytes"))?;
        let address = parsed(address, "ADDRESS:PORT")?;
        self.switch = Some(SwitchAddress::new(address, key_id, key));
        Ok(())
    }

    /// The configuration for `prism-handoff`.
    pub(crate) fn endpoint(&self) -> Result<EndpointConfig, Error> {
        let identity = self.identity.clone();
        let config = EndpointConfig::new(&self.name, &self.nodes, &self.services, identity);
        let mut config = config.ok_or_else(|| {
            let name = &self.name;
            Error::invalid(format!("no node is called {name}: add it with its address"))
        })?;
        config.listen = self.listen;
        config.switch = self.switch.clone();
        if let Some(port) = self.node_port {
            config.peer_port = port;
        }
        Ok(config)
    }
}

fn parsed<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Error> {
    text.parse()
        .map_err(|_| Error::invalid(format!("{text:?} is not {what}")))
}

/// The configuration of a node on loopback without a switch, and the address of its service.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) fn of_lone_node() -> (Config, SocketAddr) {
    let dir = tempfile::tempdir().unwrap();
    prism_handoff::pki::init(dir.path(), &["node".into()]).unwrap();
    let mut config = Config::new("node", dir.path().to_str().unwrap()).unwrap();
    config.add_node("node", "127.0.0.1").unwrap();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let service = free().unwrap();
    let node = free().unwrap();
    config.services.push(service);
    config.node_port = Some(node.port());
    config.listen = true;
    (config, service)
}
