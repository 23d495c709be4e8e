//! The role of this host in a pair of switches, and in host mode: it is active while it has the
//! control address. Any program may move the address. The kernel is asked, so nothing has to tell
//! the agent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use prism_config::{HookMode, HostAddrs, Switch, SwitchHost};
use prism_proto::term::SwitchOfPair;
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use tokio::net::{TcpListener, TcpSocket};

/// How often the kernel is asked: a few microseconds each time.
const POLL: Duration = Duration::from_millis(50);
/// Nodes that wait for a lease at once, at most.
const BACKLOG: u32 = 1_024;
/// A port for asking. No packet is sent to it.
const ANY_PORT: u16 = 9;

/// The role of this host.
#[derive(Debug)]
pub(crate) struct Role {
    control: HostAddrs,
    /// `None` for a single switch, and for a host that is none of a pair.
    host: Option<(SwitchHost, SwitchOfPair)>,
    /// The addresses that stay at the other host of a pair.
    other: Vec<IpAddr>,
    /// Whether another host may have the control address.
    may_stand_by: bool,
    /// Not if `switch.hosts` names others: this host's terms would be those of one of them.
    may_be_active: bool,
    is_active: AtomicBool,
    /// Whether the log says that this host must not have the control address.
    is_refused: AtomicBool,
}

impl Role {
    /// The role of the host called `name`, or else of the host that has one of the addresses of
    /// `switch.hosts`.
    ///
    /// # Errors
    /// When the configuration has no such host, or none of them is here.
    pub(crate) fn of(switch: &Switch, name: Option<&str>) -> anyhow::Result<Self> {
        let is_this = |host: &SwitchHost| match name {
            Some(name) => host.name == name,
            None => host.address.iter().any(is_here),
        };
        let is_host_mode = switch.mode == HookMode::Host;
        let mut hosts = switch
            .hosts
            .iter()
            .zip([SwitchOfPair::First, SwitchOfPair::Second]);
        let host = hosts.find(|(host, _)| is_this(host));
        match (host, name) {
            (None, Some(name)) => bail!("switch.hosts has no host {name:?}"),
            (None, None) if !switch.hosts.is_empty() && !is_host_mode => bail!(
                "this host has no address of switch.hosts; add the address, or name the host \
                 with --host"
            ),
            _ => {}
        }
        let control = switch.control.hosts;
        let may_stand_by = is_host_mode || host.is_some();
        let may_be_active = switch.hosts.is_empty() || host.is_some();
        let own = host.map(|(host, _)| host);
        let others = switch.hosts.iter().filter(|other| Some(*other) != own);
        let others = others.filter(|_| own.is_some());
        Ok(Self {
            may_stand_by,
            may_be_active,
            control,
            other: others.flat_map(|other| other.address.iter()).collect(),
            host: host.map(|(host, place)| (host.clone(), place)),
            is_active: AtomicBool::new(!may_stand_by || (may_be_active && has_all(control))),
            is_refused: AtomicBool::new(false),
        })
    }

    /// Whether this host has the control address and may use it. A single switch is always active.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// This host's name in `switch.hosts`; `None` for a single switch.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_ref().map(|(host, _)| host.name.as_str())
    }

    /// The addresses that stay at this host of a pair; none of a single switch.
    pub(crate) fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.host.iter().flat_map(|(host, _)| host.address.iter())
    }

    /// The addresses that stay at the other host of a pair.
    pub(crate) fn other(&self) -> &[IpAddr] {
        &self.other
    }

    /// The terms that this host makes.
    pub(crate) fn place(&self) -> SwitchOfPair {
        self.host
            .as_ref()
            .map_or(SwitchOfPair::First, |(_, place)| *place)
    }

    /// Sets `news` whenever the role has changed. Never returns.
    pub(crate) async fn follow(&self, news: &AtomicBool) {
        if !self.may_stand_by {
            std::future::pending().await
        }
        let mut turns = tokio::time::interval(POLL);
        loop {
            turns.tick().await;
            if self.look() {
                news.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Asks the kernel. Returns whether the role has changed.
    fn look(&self) -> bool {
        if !self.may_stand_by {
            return false;
        }
        let has_control = has_all(self.control);
        if has_control && !self.may_be_active && !self.is_refused.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "this host has the control address, and switch.hosts names other hosts; it decides \
                 nothing; move the address to one of them"
            );
        }
        let is_active = has_control && self.may_be_active;
        let has_changed = self.is_active.swap(is_active, Ordering::Relaxed) != is_active;
        if has_changed {
            let role = if is_active { "active" } else { "standby" };
            tracing::info!(
                host = self.host().unwrap_or_default(),
                role,
                "the role of this switch has changed"
            );
        }
        has_changed
    }

    /// Listens on `control`, for leases. A host that may stand by does so before it has the
    /// address.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn listen(&self, control: SocketAddr) -> io::Result<TcpListener> {
        let socket = match control {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        if self.may_stand_by {
            match control {
                SocketAddr::V4(_) => set_ip_freebind(&socket, true)?,
                SocketAddr::V6(_) => set_ipv6_freebind(&socket, true)?,
            }
        }
        socket.bind(control)?;
        socket.listen(BACKLOG)
    }
}

/// Whether this host has all of these addresses.
fn has_all(addresses: HostAddrs) -> bool {
    addresses.iter().all(is_here)
}

/// Whether this host has `address`. The kernel reaches an own address from the same address.
/// Binding to it would prove nothing where `ip_nonlocal_bind` is set.
pub(crate) fn is_here(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, ANY_PORT))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    /// A switch with this control address, and hosts with these addresses.
    fn switch(control: &str, hosts: &[&str]) -> Switch {
        let hosts = hosts.iter().zip(["sw0", "sw1"]);
        let host = |(address, name): (&&str, &str)| SwitchHost {
            name: name.into(),
            address: address.parse::<IpAddr>().unwrap().into(),
        };
        Switch {
            control: control.parse::<SocketAddr>().unwrap().into(),
            hosts: hosts.map(host).collect(),
            ..Switch::default()
        }
    }

    #[test]
    fn a_single_switch_is_always_active_and_makes_odd_terms() {
        let role = Role::of(&switch("203.0.113.77:7300", &[]), None).unwrap();
        assert!(role.is_active() && role.host().is_none());
        assert_eq!(role.place(), SwitchOfPair::First);
    }

    #[test]
    fn a_host_knows_itself_by_its_address_or_its_name() {
        for (here, control) in [("127.0.0.1", "127.0.0.1:7300"), ("::1", "[::1]:7300")] {
            let pair = switch(control, &["203.0.113.5", here]);
            let role = Role::of(&pair, None).unwrap();
            assert_eq!(
                (role.host(), role.place()),
                (Some("sw1"), SwitchOfPair::Second)
            );
            assert!(role.is_active());
            let role = Role::of(&pair, Some("sw0")).unwrap();
            assert_eq!(
                (role.host(), role.place()),
                (Some("sw0"), SwitchOfPair::First)
            );
            let fault = Role::of(&pair, Some("sw2")).unwrap_err().to_string();
            assert!(fault.contains("sw2"), "{fault}");
        }
        let elsewhere = switch("127.0.0.1:7300", &["203.0.113.5", "2001:db8::77"]);
        let fault = Role::of(&elsewhere, None).unwrap_err().to_string();
        assert!(fault.contains("--host"), "{fault}");
    }

    #[test]
    fn in_host_mode_a_host_is_active_while_it_has_the_control_address() {
        let (here, elsewhere) = ("127.0.0.1:7300", "203.0.113.77:7300");
        let others: &[&str] = &["203.0.113.5", "203.0.113.6"];
        for (control, hosts, is_active) in [
            (here, &[][..], true),
            (elsewhere, &[], false),
            (here, &["127.0.0.1", "203.0.113.6"], true),
            (here, others, false),
            (elsewhere, others, false),
        ] {
            let switch = Switch {
                mode: HookMode::Host,
                ..switch(control, hosts)
            };
            let role = Role::of(&switch, None).unwrap();
            assert_eq!(role.is_active(), is_active, "{control} {hosts:?}");
            assert!(!role.look(), "{control} {hosts:?}");
            assert_eq!(role.is_active(), is_active, "{control} {hosts:?}");
        }
    }

    #[tokio::test]
    async fn a_standby_listens_before_it_has_the_address() {
        for control in ["203.0.113.77:0", "[2001:db8::77]:0"] {
            let role = Role::of(&switch(control, &["127.0.0.1"]), None).unwrap();
            assert!(!role.is_active());
            role.listen(control.parse().unwrap()).unwrap();
            let single = Role::of(&switch(control, &[]), None).unwrap();
            assert!(single.listen(control.parse().unwrap()).is_err());
        }
    }
}
