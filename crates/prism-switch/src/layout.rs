//! Bytes of map keys and values.
//!
//! Sizes and offsets come from the object file's type information, by the generated structs.
//! The layout of the control message is compared with its Rust codec at compile time.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use prism_proto::control::{self, FlowKey, FlowState, Owner};
use prism_proto::wire::ip_bytes;

use crate::skel::types;

pub(crate) const FLOW_KEY_BYTES: usize = size_of::<types::flow_key>();
pub(crate) const FLOW_BYTES: usize = size_of::<types::flow>();
pub(crate) const ORDER_BYTES: usize = size_of::<types::order>();

/// `ORDERS_AT` of `bpf/collect.h`.
pub(crate) const ORDERS_AT: usize = 16;
/// `MAX_ORDERS` of `bpf/collect.h`.
pub(crate) const MAX_ORDERS: usize = 32;

const _: () = assert!(size_of::<types::control_message>() == control::MESSAGE_BYTES);
const _: () = assert!(offset_of!(types::control_message, mac) == control::SIGNED_BYTES);
#[allow(clippy::indexing_slicing, reason = "at compile time")]
const _: () = {
    let offsets = [
        offset_of!(types::control_message, kind),
        offset_of!(types::control_message, ops),
        offset_of!(types::control_message, status),
        offset_of!(types::control_message, key_id),
        offset_of!(types::control_message, state),
        offset_of!(types::control_message, request_id),
        offset_of!(types::control_message, time_ns),
        offset_of!(types::control_message, epoch),
        offset_of!(types::control_message, client_addr),
        offset_of!(types::control_message, vip_addr),
        offset_of!(types::control_message, owner_addr),
        offset_of!(types::control_message, via_addr),
        offset_of!(types::control_message, client_port),
        offset_of!(types::control_message, vip_port),
        offset_of!(types::control_message, owner_port),
        offset_of!(types::control_message, owner_run),
    ];
    let mut field = 0;
    while field < control::OFFSETS.len() {
        assert!(offsets[field] == control::OFFSETS[field]);
        field += 1;
    }
};

/// A key or value that is being written. Its other bytes are zero.
pub(crate) struct Block<const N: usize>([u8; N]);

impl<const N: usize> Block<N> {
    pub(crate) fn new() -> Self {
        Self([0; N])
    }

    /// Writes `bytes` at offset `at`.
    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        let slot = self.0.get_mut(at..at + bytes.len());
        debug_assert!(slot.is_some(), "layout of {N} bytes ends before {at}");
        if let Some(slot) = slot {
            slot.copy_from_slice(bytes);
        }
        self
    }

    /// Writes an address at offset `at`, IPv4 mapped.
    pub(crate) fn put_ip(self, at: usize, ip: IpAddr) -> Self {
        self.put(at, &ip_bytes(ip))
    }

    /// Writes a port at offset `at`, in network byte order.
    pub(crate) fn put_port(self, at: usize, port: u16) -> Self {
        self.put(at, &port.to_be_bytes())
    }

    /// Writes a number at offset `at`, in this host's byte order.
    pub(crate) fn put_u32(self, at: usize, number: u32) -> Self {
        self.put(at, &number.to_ne_bytes())
    }

    /// Writes a number at offset `at`, in this host's byte order.
    pub(crate) fn put_u64(self, at: usize, number: u64) -> Self {
        self.put(at, &number.to_ne_bytes())
    }

    pub(crate) fn bytes(self) -> [u8; N] {
        self.0
    }
}

/// `N` bytes at offset `at`, or zeros if `bytes` is too short.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

pub(crate) fn ip_at(bytes: &[u8], at: usize) -> IpAddr {
    Ipv6Addr::from(array_at::<16>(bytes, at)).to_canonical()
}

fn port_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, at))
}

/// Key of the flow table.
pub(crate) fn flow_key(flow: &FlowKey) -> [u8; FLOW_KEY_BYTES] {
    Block::new()
        .put_ip(offset_of!(types::flow_key, client), flow.client.ip())
        .put_ip(offset_of!(types::flow_key, vip), flow.vip.ip())
        .put_port(offset_of!(types::flow_key, client_port), flow.client.port())
        .put_port(offset_of!(types::flow_key, vip_port), flow.vip.port())
        .bytes()
}

pub(crate) fn read_flow_key(bytes: &[u8]) -> FlowKey {
    let client = ip_at(bytes, offset_of!(types::flow_key, client));
    let vip = ip_at(bytes, offset_of!(types::flow_key, vip));
    let client_port = port_at(bytes, offset_of!(types::flow_key, client_port));
    let vip_port = port_at(bytes, offset_of!(types::flow_key, vip_port));
    FlowKey {
        client: SocketAddr::new(client, client_port),
        vip: SocketAddr::new(vip, vip_port),
    }
}

pub(crate) fn read_owner(bytes: &[u8]) -> Owner {
    let addr = ip_at(bytes, offset_of!(types::flow, owner));
    let port = port_at(bytes, offset_of!(types::flow, owner_port));
    Owner {
        addr: SocketAddr::new(addr, port),
        via: ip_at(bytes, offset_of!(types::flow, via)),
    }
}

pub(crate) fn read_state(bytes: &[u8]) -> FlowState {
    let [state] = array_at::<1>(bytes, offset_of!(types::flow, state));
    match types::flow_state(state.into()) {
        types::flow_state::FLOW_FORWARD => FlowState::Forward,
        types::flow_state::FLOW_BLOCKED => FlowState::Blocked,
        _ => FlowState::Absent,
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn node_roles(frontend: bool, backend: bool) -> u32 {
    let bit = |set: bool, role: types::node_role| if set { role.0 } else { 0 };
    bit(frontend, types::node_role::ROLE_FRONTEND) | bit(backend, types::node_role::ROLE_BACKEND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_keys_round_trip() {
        for (client, vip) in [
            ("192.0.2.1:1000", "198.51.100.1:80"),
            ("[2001:db8::1]:65535", "[2001:db8::2]:1"),
        ] {
            let key = FlowKey {
                client: client.parse().unwrap_or_else(|_| unreachable!()),
                vip: vip.parse().unwrap_or_else(|_| unreachable!()),
            };
            assert_eq!(read_flow_key(&flow_key(&key)), key);
        }
    }
}
