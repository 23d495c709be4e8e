//! Map keys and values: the generated structs, which have the object file's layout. Addresses are
//! IPv4 mapped, ports in network byte order.
//!
//! The layout of the control message is compared with its Rust codec at compile time.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use prism_proto::control::{self, FlowKey, FlowState, Ops, Owner, Status};
use prism_proto::wire::ip_bytes;
use zerocopy::{FromBytes, transmute};

use crate::skel::types;

/// `ORDERS_AT` of `bpf/collect.h`.
pub(crate) const ORDERS_AT: usize = 16;
/// `MAX_ORDERS` of `bpf/collect.h`.
pub(crate) const MAX_ORDERS: usize = 32;

const _: () = assert!(size_of::<types::control_message>() == control::MESSAGE_BYTES);
const _: () = assert!(offset_of!(types::control_message, mac) == control::SIGNED_BYTES);
const _: () = assert!(offset_of!(types::control_message, term) == control::TERM_AT);
const _: () = {
    use types::{control_op, control_status};
    assert!(control_op::OP_RELEASE.0 == Ops::RELEASE.0 as u32);
    assert!(control_op::OP_ANNOUNCE.0 == Ops::ANNOUNCE.0 as u32);
    assert!(control_op::OP_PASS.0 == Ops::PASS.0 as u32);
    assert!(control_status::STATUS_AHEAD.0 == Status::Ahead as u32);
    assert!(control_status::STATUS_YOUNG.0 == Status::Young as u32);
    assert!(control_status::STATUS_OLD_TERM.0 == Status::OldTerm as u32);
};
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

/// A key or value of a map. It is zero if `bytes` is too short.
pub(crate) fn from_bytes<T: FromBytes + Default>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).map_or_else(|_| T::default(), |(value, _)| value)
}

/// Key of the flow table.
pub(crate) fn flow_key(flow: &FlowKey) -> types::flow_key {
    types::flow_key {
        client: ip_addr(flow.client.ip()),
        vip: ip_addr(flow.vip.ip()),
        client_port: flow.client.port().to_be(),
        vip_port: flow.vip.port().to_be(),
    }
}

/// The flow with this key.
pub(crate) fn flow_of(key: types::flow_key) -> FlowKey {
    FlowKey {
        client: SocketAddr::new(address(key.client), u16::from_be(key.client_port)),
        vip: SocketAddr::new(address(key.vip), u16::from_be(key.vip_port)),
    }
}

/// The owner of a flow.
pub(crate) fn owner_of(flow: &types::flow) -> Owner {
    Owner {
        addr: SocketAddr::new(address(flow.owner), u16::from_be(flow.owner_port)),
        via: address(flow.via),
    }
}

/// The state of a flow.
pub(crate) fn state_of(flow: &types::flow) -> FlowState {
    match types::flow_state(flow.state.into()) {
        types::flow_state::FLOW_FORWARD => FlowState::Forward,
        types::flow_state::FLOW_BLOCKED => FlowState::Blocked,
        _ => FlowState::Absent,
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// An address as the programs have it, IPv4 mapped.
pub(crate) fn ip_addr(ip: IpAddr) -> types::ip_addr {
    transmute!(ip_bytes(ip))
}

/// The address that the programs have as `ip`.
pub(crate) fn address(ip: types::ip_addr) -> IpAddr {
    let bytes: [u8; 16] = transmute!(ip);
    Ipv6Addr::from(bytes).to_canonical()
}

pub(crate) fn node_roles(frontend: bool, backend: bool, is_here: bool) -> u32 {
    let bit = |set: bool, role: types::node_role| if set { role.0 } else { 0 };
    bit(frontend, types::node_role::ROLE_FRONTEND)
        | bit(backend, types::node_role::ROLE_BACKEND)
        | bit(is_here, types::node_role::ROLE_HERE)
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
            assert_eq!(flow_of(flow_key(&key)), key);
        }
    }
}
