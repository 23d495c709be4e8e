//! The running kernel: whether a change is in effect, and making and unmaking it, by the
//! programs `ip` and `nft` and by `/proc/sys`.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::change::{HostChange, MAIN};
use super::netfilter;
use super::render::{self, ip_arguments};

pub(super) const IP_FORWARD: &str = "net/ipv4/ip_forward";
pub(super) const IPV6_FORWARD: &str = "net/ipv6/conf/all/forwarding";
pub(super) const RESERVED_PORTS: &str = "net/ipv4/ip_local_reserved_ports";
/// The settings of each interface.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";

/// Whether `change`, of the running kernel, is in effect. A file never is.
pub(super) fn is_live(change: &HostChange) -> Result<bool> {
    Ok(match change {
        HostChange::File { .. } => false,
        HostChange::Sysctl { name, value } => sysctl(name)? == *value,
        HostChange::Address { address } => has_address(*address)?,
        HostChange::Route { to, via, table } => has_route(*to, *via, *table)?,
        HostChange::Rule { .. } => has_rule(change)?,
        HostChange::Notrack { service } => netfilter::exempts(service)?,
    })
}

/// Makes `change` in the running kernel.
pub(super) fn make(change: &HostChange) -> Result<()> {
    match change {
        HostChange::File { .. } => Ok(()),
        HostChange::Sysctl { name, value } => set_sysctl(name, value),
        HostChange::Notrack { service } => netfilter::load(&render::notrack(service)),
        _ => by_ip(change, "add"),
    }
}

/// Takes `change` out of the running kernel. A parameter stays.
pub(super) fn unmake(change: &HostChange) -> Result<()> {
    match change {
        HostChange::File { .. } | HostChange::Sysctl { .. } => Ok(()),
        HostChange::Notrack { .. } => netfilter::unload(),
        _ => by_ip(change, "del"),
    }
}

fn by_ip(change: &HostChange, verb: &str) -> Result<()> {
    let mut words = ip_arguments(change).unwrap_or_default();
    if let Some(place) = words.iter_mut().find(|word| *word == "add") {
        verb.clone_into(place);
    }
    let made = run("ip", "iproute2", &words);
    let is_way_out = matches!(change, HostChange::Route { to: None, .. });
    made.map(drop).map_err(|error| {
        if is_way_out {
            error.context(
                "no route to the switch's address; it is switch.control's unless the node's \
             `gateway` names that on the node's network",
            )
        } else {
            error
        }
    })
}

/// The value of a kernel parameter; "" if the kernel does not have it.
pub(super) fn sysctl(name: &str) -> Result<String> {
    match std::fs::read_to_string(sysctl_path(name)) {
        Ok(value) => Ok(value.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).context(format!("cannot read {name}")),
    }
}

pub(super) fn set_sysctl(name: &str, value: &str) -> Result<()> {
    // An empty list is a line without ports.
    std::fs::write(sysctl_path(name), format!("{value}\n"))
        .with_context(|| format!("cannot set {} to {value:?}", render::sysctl_name(name)))
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Names of the interfaces of this network namespace.
pub(crate) fn interfaces() -> Vec<String> {
    let entries = std::fs::read_dir(INTERFACES).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| !matches!(name.as_str(), "all" | "default"))
        .collect();
    names.sort();
    names
}

/// The parameters that a change of forwarding sets too, with their values.
pub(super) fn side_effects(forwarding: &str) -> Result<Vec<(String, String)>> {
    let names = match forwarding {
        IPV6_FORWARD => forwarding_of("ipv6").collect(),
        _ => of_ip_forward(),
    };
    let names: Vec<String> = names;
    names
        .into_iter()
        .map(|name| sysctl(&name).map(|value| (name, value)))
        .collect()
}

fn of_ip_forward() -> Vec<String> {
    let redirects = ["all".to_owned()].into_iter();
    let redirects = redirects.map(|place| format!("net/ipv4/conf/{place}/accept_redirects"));
    redirects.chain(forwarding_of("ipv4")).collect()
}

fn forwarding_of(family: &str) -> impl Iterator<Item = String> {
    let places = ["all", "default"].map(str::to_owned);
    let places = places.into_iter().chain(interfaces());
    places.map(move |place| format!("net/{family}/conf/{place}/forwarding"))
}

/// Whether any interface has `address`.
pub(super) fn has_address(address: IpAddr) -> Result<bool> {
    let links = ip(address, &["address", "show"])?;
    let of_links = links.iter().filter_map(|link| link.get("addr_info"));
    let mut addresses = of_links.filter_map(Value::as_array).flatten();
    Ok(addresses.any(|found| is(found, "local", &address.to_string())))
}

fn has_route(to: Option<IpAddr>, via: IpAddr, table: u32) -> Result<bool> {
    let to = to.map_or_else(|| "default".to_owned(), |to| to.to_string());
    let of = via;
    let via = via.to_string();
    let table = table.to_string();
    // A table without routes does not exist, and asking for it alone would be an error.
    let routes = ip(of, &["route", "show", "table", "all"])?;
    Ok(routes.iter().any(|route| {
        let in_main = route.get("table").is_none() && table == MAIN.to_string();
        is(route, "dst", &to)
            && is(route, "gateway", &via)
            && (in_main || is(route, "table", &table))
    }))
}

fn has_rule(change: &HostChange) -> Result<bool> {
    let HostChange::Rule {
        priority,
        from,
        table,
        no_default,
    } = change
    else {
        return Ok(false);
    };
    let rules = ip(*from, &["rule", "show"])?;
    Ok(rules.iter().any(|rule| {
        let number = |field| rule.get(field).and_then(Value::as_u64);
        number("priority") == Some(u64::from(*priority))
            && is(rule, "src", &from.to_string())
            && is(rule, "table", &table.to_string())
            && no_default.then_some(0) == number("suppress_prefixlen")
    }))
}

/// The way to `to` of a packet that this host sends from `from`.
pub(super) fn route_to(to: IpAddr, from: Option<IpAddr>) -> Result<Value> {
    let of = to;
    let to = to.to_string();
    let from = from.map(|from| from.to_string());
    let mut words = vec!["route", "get", &to];
    words.extend(from.iter().flat_map(|from| ["from", from]));
    let routes = ip(of, &words)?;
    routes.into_iter().next().context("`ip` named no route")
}

pub(super) fn link_index(device: &str) -> Option<u64> {
    let any = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    let links = ip(any, &["link", "show", "dev", device]).ok()?;
    links.first()?.get("ifindex")?.as_u64()
}

fn is(object: &Value, field: &str, value: &str) -> bool {
    object.get(field).and_then(Value::as_str) == Some(value)
}

/// What `ip` answers about the family of `of`, with numbers in the place of the names of tables.
fn ip(of: IpAddr, words: &[&str]) -> Result<Vec<Value>> {
    let family = if of.is_ipv4() { "-4" } else { "-6" };
    let all = [family, "-j", "-N"];
    let all = all.iter().chain(words);
    let all: Vec<String> = all.map(|word| (*word).to_owned()).collect();
    let answer = run("ip", "iproute2", &all)?;
    if answer.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&answer).with_context(|| format!("`ip {}` has no JSON", words.join(" ")))
}

/// Runs a program of the system to its end. Returns its standard output.
pub(super) fn run(program: &str, package: &str, words: &[String]) -> Result<String> {
    run_with(program, package, words, None)
}

/// The same with a file for its standard input.
pub(super) fn run_with(
    program: &str,
    package: &str,
    words: &[String],
    input: Option<std::fs::File>,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C");
    command.stdin(input.map_or_else(Stdio::null, Stdio::from));
    let output = command
        .output()
        .with_context(|| format!("cannot run `{program}`; install {package}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).collect();
        bail!("`{program} {}` failed: {}", words.join(" "), said.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
