//! The table of nftables that exempts the service from conntrack.

use std::io::{Seek, Write};

use anyhow::{Context, Result};
use prism_handoff::switch::LOCAL_PORTS;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use super::live::{run, run_with};

const PACKAGE: &str = "nftables";
const TABLE: [&str; 3] = ["table", "inet", "prism"];

/// Whether the kernel has conntrack.
pub(super) fn has_conntrack() -> bool {
    std::path::Path::new("/proc/sys/net/netfilter/nf_conntrack_count").exists()
}

/// Whether there is the table.
pub(super) fn has_table() -> Result<bool> {
    let tables = list(&["tables"])?;
    let is_ours = |entry: &Value| {
        let field = |name| entry.pointer(name).and_then(Value::as_str);
        field("/table/family") == Some("inet") && field("/table/name") == Some("prism")
    };
    Ok(entries(&tables).any(is_ours))
}

/// Whether the table has every rule for these ports of the service.
pub(super) fn exempts(service: &[u16]) -> Result<bool> {
    if !has_table()? {
        return Ok(false);
    }
    let table = list(&TABLE)?;
    let rules: Vec<Rule> = entries(&table).filter_map(Rule::of).collect();
    let backend = (LOCAL_PORTS.start, LOCAL_PORTS.end - 1);
    let ports = service.iter().map(|port| (*port, *port));
    let ports: Vec<(u16, u16)> = ports.chain([backend]).collect();
    let places = [
        ("prerouting", "dport"),
        ("prerouting", "sport"),
        ("output", "sport"),
    ];
    Ok(places.iter().all(|(chain, field)| {
        let here = rules
            .iter()
            .filter(|rule| rule.chain == *chain && rule.field == *field);
        let here: Vec<(u16, u16)> = here.flat_map(|rule| rule.ports.clone()).collect();
        let covers =
            |(first, last): &(u16, u16)| here.iter().any(|(from, to)| from <= first && last <= to);
        ports.iter().all(covers)
    }))
}

fn list(words: &[&str]) -> Result<Value> {
    let answer = nft(&[&["-j", "list"], words].concat())?;
    serde_json::from_str(&answer).context("`nft` has no JSON")
}

fn entries(answer: &Value) -> impl Iterator<Item = &Value> {
    let entries = answer.get("nftables").and_then(Value::as_array);
    entries.into_iter().flatten()
}

/// A rule that exempts packets with these ports.
struct Rule {
    chain: String,
    field: String,
    /// First and last ones.
    ports: Vec<(u16, u16)>,
}

impl Rule {
    /// The rule of an entry of nft's answer; `None` for entries of other kinds.
    fn of(entry: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let rule = entry.get("rule")?;
        let [condition, verdict] = rule.get("expr")?.as_array()?.as_slice() else {
            return None;
        };
        verdict.get("notrack")?;
        let condition = condition.get("match")?;
        let is_equal = condition.get("op")?.as_str()? == "==";
        let is_tcp = condition.pointer("/left/payload/protocol")?.as_str()? == "tcp";
        if !is_equal || !is_tcp {
            return None;
        }
        Some(Self {
            chain: text(rule.get("chain")?)?,
            field: text(condition.pointer("/left/payload/field")?)?,
            ports: ports(condition.get("right")?),
        })
    }
}

/// A port, a range, or a set of them.
fn ports(value: &Value) -> Vec<(u16, u16)> {
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
    if let Some(port) = number(value) {
        return vec![(port, port)];
    }
    if let Some([first, last]) = value
        .get("range")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
    {
        return number(first).zip(number(last)).into_iter().collect();
    }
    let set = value.get("set").and_then(Value::as_array);
    set.into_iter().flatten().flat_map(ports).collect()
}

/// Loads a file of rules.
pub(super) fn load(text: &str) -> Result<()> {
    let doing = "cannot hand the rules to `nft`";
    let file = memfd_create("notrack.nft", MemfdFlags::CLOEXEC).context(doing)?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes()).context(doing)?;
    file.rewind().context(doing)?;
    let words = ["-f", "-"].map(str::to_owned);
    run_with("nft", PACKAGE, &words, Some(file)).map(drop)
}

/// Removes the table.
pub(super) fn unload() -> Result<()> {
    nft(&[&["delete"][..], &TABLE].concat()).map(drop)
}

fn nft(words: &[&str]) -> Result<String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    run("nft", PACKAGE, &words)
}
