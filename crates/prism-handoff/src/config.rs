//! The configuration of an endpoint, of the other nodes, and of TLS with clients.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prism_proto::control::Owner;
use prism_proto::export::Method;
use prism_proto::fence::Fence;
use prism_sys::tcp::ktls::Offered;
use prism_tls::accept::ServerConfig;

use crate::client_limits::ClientLimits;
use crate::signing::SwitchAddress;
use prism_pki::Identity;

/// The configuration of an endpoint.
#[derive(Clone)]
pub struct EndpointConfig {
    /// This node's name.
    pub name: String,
    /// This node's addresses, at most one of each family. A connection is owned by the address of
    /// its client's family; without one it does not move here.
    pub addresses: Vec<IpAddr>,
    /// The addresses that clients connect to.
    pub services: Vec<SocketAddr>,
    /// Whether this node accepts clients; it then has the service addresses. Default no.
    pub listen: bool,
    /// The node port of all nodes. Default 7400.
    pub peer_port: u16,
    /// All other nodes.
    pub peers: Vec<Peer>,
    /// This node's certificate. `None` for a single node, which does not bind the node port.
    pub identity: Option<Identity>,
    /// The switch. Without one no connection moves. Default none.
    pub switch: Option<SwitchAddress>,
    /// The digest of the node's placement, which the switch's agent compares;
    /// [`prism_proto::lease::NO_DIGEST`] for no comparison, the default.
    pub placement: u64,
    /// The fence of flows: the switch, or in host mode each host itself. In host mode every node
    /// has the service addresses, and owns connections by them. Default [`Fence::Switch`].
    pub fence: Fence,
    /// Host mode: the longest IP packet between nodes, in bytes, if packets to owners go in a
    /// tunnel. Clients are then told to send segments that fit. Default 0: no tunnel.
    pub tunnel_mtu_bytes: u32,
    /// How a connection's packets are stopped during a hand-off. The switch blocks them if the host
    /// cannot freeze sockets. Default [`Method::Freeze`].
    pub method: Method,
    /// Whether imported connections keep the congestion window of their source, if the host allows
    /// that. Default yes.
    pub carry_window: bool,
    /// The service over TLS. Default none.
    pub tls: Option<TlsService>,
    /// Bounds on client connections.
    pub clients: Arc<ClientLimits>,
    /// Decides about connections that come back to this node, before they are restored. Default
    /// none.
    pub transit: Option<Transit>,
}

impl EndpointConfig {
    /// The configuration of the node `name` among `nodes`, with defaults for all other fields.
    /// `None` if the name is not among the nodes.
    pub fn new(
        name: &str,
        nodes: &[Peer],
        services: &[SocketAddr],
        identity: Identity,
    ) -> Option<Self> {
        let (own, others): (Vec<&Peer>, Vec<&Peer>) = nodes.iter().partition(|n| n.name == name);
        Some(Self {
            addresses: own.first()?.addresses.clone(),
            peers: others.into_iter().cloned().collect(),
            identity: Some(identity),
            listen: false,
            ..Self::alone(name, services)
        })
    }

    /// The configuration of a single node, which accepts clients. Their connections stay.
    #[must_use]
    pub fn alone(name: &str, services: &[SocketAddr]) -> Self {
        Self {
            name: name.to_owned(),
            addresses: Vec::new(),
            services: services.to_vec(),
            listen: true,
            peer_port: 7400,
            peers: Vec::new(),
            identity: None,
            switch: None,
            placement: prism_proto::lease::NO_DIGEST,
            fence: Fence::Switch,
            tunnel_mtu_bytes: 0,
            method: Method::Freeze,
            carry_window: true,
            tls: None,
            clients: Arc::default(),
            transit: None,
        }
    }
}

impl EndpointConfig {
    /// Whether clients connect to `address`.
    pub(crate) fn is_service(&self, address: SocketAddr) -> bool {
        let tls = self.tls.as_ref();
        self.services.contains(&address) || tls.is_some_and(|tls| tls.addresses.contains(&address))
    }

    /// Whether the sockets of imported connections have the service's own address.
    pub(crate) fn has_service_address(&self) -> bool {
        self.listen || self.fence == Fence::Host
    }

    /// This node's address of the family of `peer`.
    pub(crate) fn address_for(&self, peer: IpAddr) -> Option<IpAddr> {
        of_family(&self.addresses, peer)
    }

    /// The owner record of a socket that is bound to `local`.
    pub(crate) fn owner(&self, local: SocketAddr) -> Owner {
        Owner {
            addr: local,
            via: self.address_for(local.ip()).unwrap_or(local.ip()),
        }
    }
}

/// The longest segment that reaches an owner in a tunnel of packets of `mtu_bytes` bytes, without
/// its TCP header. 0: there is no tunnel.
pub(crate) fn longest_segment_bytes(mtu_bytes: u32, service: SocketAddr) -> Option<u32> {
    const TCP_BYTES: u32 = 20;
    let ip_bytes = if service.is_ipv4() { 20 } else { 40 };
    // The packet's own IP header, and the one in front.
    mtu_bytes.checked_sub(2 * ip_bytes + TCP_BYTES)
}

/// The address of `addresses` that is of the family of `peer`.
pub(crate) fn of_family(addresses: &[IpAddr], peer: IpAddr) -> Option<IpAddr> {
    let mut all = addresses.iter().copied();
    all.find(|address| address.is_ipv4() == peer.is_ipv4())
}

/// The address by which a node with the addresses `own` reaches another: that of the first family
/// that both have, in the order of `own`.
pub(crate) fn towards(own: &[IpAddr], other: &[IpAddr]) -> Option<IpAddr> {
    own.iter().find_map(|address| of_family(other, *address))
}

/// Names the node that a returning connection is passed on to, from its context and its unread
/// bytes. `None` restores it here.
pub type Transit = Arc<dyn Fn(&[u8], &[u8]) -> Option<String> + Send + Sync>;

/// A node of the cluster, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, which its certificate carries.
    pub name: String,
    /// The addresses of its node port, at most one of each family.
    pub addresses: Vec<IpAddr>,
}

/// The service over TLS.
#[derive(Clone, Debug)]
pub struct TlsService {
    /// The addresses that clients connect to: those of the service with another port.
    pub addresses: Vec<SocketAddr>,
    /// Certificates, tickets, versions and suites. A node that accepts no clients needs none.
    pub server: Option<ServerConfig>,
    /// The versions and ciphers for which the kernel encrypts large bodies, as [`Offered::probe`]
    /// finds them; `None` leaves all to user space. Only a node with a switch uses it.
    pub kernel: Option<Offered>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nodes_talk_in_the_first_family_that_both_have() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6) = (ip("10.0.0.1"), ip("fd00::1"));
        for (own, other, address) in [
            (vec![v4], vec![v4, v6], Some(v4)),
            (vec![v6], vec![v4, v6], Some(v6)),
            (vec![v4, v6], vec![v6], Some(v6)),
            (vec![v4, v6], vec![v6, v4], Some(v4)),
            (vec![v4], vec![v6], None),
            (vec![], vec![v4], None),
        ] {
            assert_eq!(towards(&own, &other), address, "{own:?} {other:?}");
        }
    }
}
