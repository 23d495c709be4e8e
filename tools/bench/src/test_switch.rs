//! A switch under test: its configuration, its commands, and packets that no interface saw.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prism_netns::NetNs;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{Answer, ControlKey, FlowKey, Ops, Owner, Request, RunId, Status};
use prism_switch::{Link, NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig};

use crate::family::on_link;
use crate::frames::{udp, udp_payload_at};

pub(crate) const KEY_ID: u32 = 1;

pub(crate) fn key() -> ControlKey {
    ControlKey::new(*b"not a secret key")
}

/// A loaded switch; removed when dropped.
pub(crate) struct TestSwitch {
    pub(crate) switch: Switch,
    pub(crate) config: SwitchConfig,
}

impl Drop for TestSwitch {
    fn drop(&mut self) {
        if let Err(e) = Switch::unload(&self.config.pin_dir) {
            tracing::warn!("{e}");
        }
    }
}

impl TestSwitch {
    pub(crate) fn load(config: SwitchConfig) -> Result<Self> {
        let switch = Switch::load(&config)?;
        Ok(Self { switch, config })
    }

    /// Runs a command in the program: its answer, and the time of the program.
    pub(crate) fn command(&self, request: &Request) -> Result<(Answer, Duration)> {
        let sender = self.config.nodes.first().context("no node")?.addr;
        let from = SocketAddr::new(sender, 1);
        let control = { &self.config.control }.iter();
        let control = { control }.find(|addr| addr.is_ipv4() == sender.is_ipv4());
        let control = *control.context("no control address of the node's family")?;
        let datagram = udp(from, control, &request.encode(&key()));
        let run = prism_packets::run_packet(&self.switch, Hook::Tc, &datagram, 1)?;
        let payload = run
            .packet
            .get(udp_payload_at(from)..)
            .context("no answer")?;
        Ok((Answer::decode(payload, KEY_ID, &key())?, run.time))
    }

    /// Runs the program `runs` times on a frame, each time on what the last run left. Gives the
    /// mean time.
    pub(crate) fn time(&self, frame: &[u8], runs: u32, expected: Verdict) -> Result<Duration> {
        let run = prism_packets::run_packet(&self.switch, Hook::Tc, frame, runs)?;
        ensure!(
            run.verdict == expected,
            "the program answered {:?}",
            run.verdict
        );
        Ok(run.time)
    }
}

/// A service without frontends.
pub(crate) fn service(address: SocketAddr) -> ServiceConfig {
    ServiceConfig {
        addr: address,
        tenant: 1,
        frontends: Vec::new(),
    }
}

/// A node whose next hop is known.
pub(crate) fn node(address: IpAddr, roles: Roles) -> NodeConfig {
    NodeConfig {
        addr: address,
        tenant: 1,
        roles,
        link: Some(Link {
            ifindex: 1,
            node_mac: [2, 0, 0, 0, 0, 1],
            own_mac: [2, 0, 0, 0, 0, 2],
            mtu_bytes: 1500,
        }),
    }
}

/// The senders of commands: one.
pub(crate) fn senders() -> Vec<SenderConfig> {
    vec![SenderConfig {
        key_id: KEY_ID,
        key: key(),
        tenant: 1,
        node: Vec::new(),
    }]
}

/// A command that gives a flow to `owner`.
pub(crate) fn own(client: SocketAddr, vip: SocketAddr, owner: SocketAddr, time_ns: u64) -> Request {
    Request {
        key_id: KEY_ID,
        request_id: 1,
        time_ns,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: time_ns,
        flow: FlowKey { client, vip },
        owner: Owner {
            addr: owner,
            via: owner.ip(),
        },
        run: RunId::NONE,
    }
}

/// # Errors
/// When the switch refused the command.
pub(crate) fn is_ok(answer: &Answer) -> Result<()> {
    ensure!(answer.status == Status::Ok, "{answer:?}");
    Ok(())
}

/// Runs shell commands in a network.
pub(crate) fn sh(network: &NetNs, commands: &str) -> Result<()> {
    let out = network.run(|| Command::new("sh").args(["-ec", commands]).output())??;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{commands}: {stderr}");
    Ok(())
}

/// A host whose `e0` has `address` and is joined to a new interface `link` of `middle`.
pub(crate) fn host(middle: &NetNs, link: &str, address: IpAddr) -> Result<NetNs> {
    let host = NetNs::anonymous()?;
    let fd = host.as_fd().as_raw_fd();
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    sh(
        middle,
        &format!("ip link add {link} type veth peer name e0 netns {path}; ip link set {link} up"),
    )?;
    let address = on_link(address);
    sh(
        &host,
        &format!("ip link set lo up; ip link set e0 up; ip addr add {address} dev e0"),
    )?;
    Ok(host)
}
