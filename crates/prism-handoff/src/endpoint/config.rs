//! What an endpoint needs to know.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prism_proto::export::Method;

use crate::client_tls::TlsService;
use crate::control::SwitchAddress;
use crate::newcomers::NewcomerLimits;
use crate::peers::Peer;
use crate::pki::Identity;

/// What an endpoint needs to know.
#[derive(Clone)]
pub struct EndpointConfig {
    /// This node's name.
    pub name: String,
    /// This node's address.
    pub address: IpAddr,
    /// Where clients connect.
    pub service: SocketAddr,
    /// This node accepts clients: it has the service address.
    pub listen: bool,
    /// Port of every node for other nodes.
    pub peer_port: u16,
    /// All other nodes.
    pub peers: Vec<Peer>,
    /// This node's certificate. `None` for a node that has no others and never
    /// will: it does not bind the node port.
    pub identity: Option<Identity>,
    /// The switch; without one nothing is ever handed off.
    pub switch: Option<SwitchAddress>,
    /// Digest of what decides which nodes own which objects, for the switch's agent to
    /// compare; [`prism_proto::lease::NO_DIGEST`] where nothing is to be compared.
    pub placement: u64,
    /// How a connection's packets are stopped while it is handed off. Where the
    /// host cannot freeze sockets, the switch blocks them.
    pub method: Method,
    /// Connections that arrive go on with the congestion window of their source, where
    /// the host allows that.
    pub carry_window: bool,
    /// The service over TLS, where there is one.
    pub tls: Option<TlsService>,
    /// Most client connections of the process.
    pub max_connections: u64,
    /// Bounds of those on which no request was let in yet.
    pub newcomers: NewcomerLimits,
    /// Looks at a connection that comes back to this node, before it is restored.
    pub transit: Option<Transit>,
}

impl EndpointConfig {
    /// A node called `name` among `nodes`, with the service at `service`: it
    /// accepts no clients and knows no switch until told so, and uses the usual
    /// port and limits. `None` where the name is not among the nodes.
    pub fn new(
        name: &str,
        nodes: &[Peer],
        service: SocketAddr,
        identity: Identity,
    ) -> Option<Self> {
        let (own, others): (Vec<&Peer>, Vec<&Peer>) = nodes.iter().partition(|n| n.name == name);
        Some(Self {
            name: name.to_owned(),
            address: own.first()?.address,
            service,
            listen: false,
            peer_port: 7400,
            peers: others.into_iter().cloned().collect(),
            identity: Some(identity),
            switch: None,
            placement: prism_proto::lease::NO_DIGEST,
            method: Method::Freeze,
            carry_window: true,
            tls: None,
            max_connections: 100_000,
            newcomers: NewcomerLimits::default(),
            transit: None,
        })
    }
}

/// Given the context and the unread bytes of a connection that comes back to the
/// node that accepted it, names the node that it is to be passed on to; `None` where
/// this node is to take it.
pub type Transit = Arc<dyn Fn(&[u8], &[u8]) -> Option<String> + Send + Sync>;
