//! Whether this host has what it needs, by whatever means.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use prism_config::HostAddrs;
use serde_json::Value;

use super::{Need, live, netfilter, render};

/// Addresses of documentation (RFC 5737, RFC 3849), in the place of a client's. Nothing is sent to
/// them.
const A_CLIENT: HostAddrs = HostAddrs {
    v4: Some(Ipv4Addr::new(192, 0, 2, 1)),
    v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
};

/// The state of a need on this host, in words.
pub(crate) enum NeedOutcome {
    Met(String),
    Unmet(String),
}

/// # Errors
/// A program of the system that knows is not there, or fails.
pub(crate) fn check(need: &Need) -> Result<NeedOutcome> {
    Ok(match need {
        Need::OwnAddress(address) => address_here(*address, "its own address")?,
        Need::Service(address) => {
            address_here(*address, "the service address, which every frontend has")?
        }
        Need::Sysctl { name, value } => parameter(name, value)?,
        Need::ReservedPorts => reserved_ports()?,
        Need::LooseReversePath { interfaces } => loose_reverse_path(interfaces)?,
        Need::WayOut { from, via } => way_out(from, *via)?,
        Need::WayIn { service, frontends } => way_in(*service, frontends)?,
        Need::Notrack { service } => notrack(service)?,
    })
}

fn address_here(address: IpAddr, what: &str) -> Result<NeedOutcome> {
    Ok(if live::has_address(address)? {
        NeedOutcome::Met(format!("this host has {address}"))
    } else {
        NeedOutcome::Unmet(format!("this host does not have {address}, {what}"))
    })
}

fn parameter(name: &str, wanted: &str) -> Result<NeedOutcome> {
    let value = live::sysctl(name)?;
    let name = render::sysctl_name(name);
    Ok(if value == wanted {
        NeedOutcome::Met(format!("{name} is {wanted}"))
    } else {
        NeedOutcome::Unmet(format!("{name} is {value:?}, not {wanted}"))
    })
}

fn reserved_ports() -> Result<NeedOutcome> {
    let value = live::sysctl(live::RESERVED_PORTS)?;
    let ours = render::our_ports();
    Ok(if render::has_our_ports(&value) {
        NeedOutcome::Met(format!("local ports {ours} are reserved"))
    } else {
        NeedOutcome::Unmet(format!(
            "local ports {ours} are not reserved; other programs may take them from connections \
             that move here"
        ))
    })
}

/// The value 1 (strict) drops packets whose way back is another interface. The kernel uses the
/// larger one of `all` and the interface's own value.
fn loose_reverse_path(interfaces: &[String]) -> Result<NeedOutcome> {
    let value = |name: &str| -> Result<u32> {
        let value = live::sysctl(&format!("net/ipv4/conf/{name}/rp_filter"))?;
        Ok(value.parse().unwrap_or(0))
    };
    let all = value("all")?;
    let mut strict = Vec::new();
    for name in live::interfaces() {
        let is_named = interfaces.is_empty() || interfaces.contains(&name);
        if name != "lo" && is_named && all.max(value(&name)?) == 1 {
            strict.push(name);
        }
    }
    Ok(if strict.is_empty() {
        NeedOutcome::Met("rp_filter is not strict on any interface".into())
    } else {
        NeedOutcome::Unmet(format!(
            "rp_filter is strict on {}; the kernel drops packets whose way back is another \
             interface",
            strict.join(", ")
        ))
    })
}

fn way_out(from: &[IpAddr], via: IpAddr) -> Result<NeedOutcome> {
    for from in from {
        let text = |route: Value| route.get("gateway")?.as_str().map(str::to_owned);
        let route = A_CLIENT.of(*from).map(|to| live::route_to(to, Some(*from)));
        let gateway = route.and_then(Result::ok).and_then(text);
        if gateway == Some(via.to_string()) {
            continue;
        }
        let now = gateway.unwrap_or_else(|| "nowhere".into());
        return Ok(NeedOutcome::Unmet(format!(
            "what this host sends from {from} to clients goes to {now}, not to the switch at \
             {via}"
        )));
    }
    Ok(NeedOutcome::Met(format!(
        "clients are reached by the switch at {via}"
    )))
}

fn way_in(service: IpAddr, frontends: &[IpAddr]) -> Result<NeedOutcome> {
    let route = live::route_to(service, None).ok();
    let gateway = route.and_then(|route| route.get("gateway")?.as_str()?.parse().ok());
    Ok(match gateway {
        Some(gateway) if frontends.contains(&gateway) => {
            NeedOutcome::Met(format!("{service} is reached by the frontend {gateway}"))
        }
        _ => NeedOutcome::Unmet(format!("no route leads to {service} by a frontend")),
    })
}

fn notrack(service: &[u16]) -> Result<NeedOutcome> {
    if !netfilter::has_conntrack() {
        return Ok(NeedOutcome::Met("conntrack is not loaded".into()));
    }
    Ok(if netfilter::exempts(service)? {
        NeedOutcome::Met("conntrack ignores the service".into())
    } else {
        NeedOutcome::Unmet(
            "conntrack is loaded and does not ignore the service; rules that drop \
             `ct state invalid` cut moved connections"
                .into(),
        )
    })
}
