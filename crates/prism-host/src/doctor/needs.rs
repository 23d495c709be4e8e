//! Findings about what `prism setup` sees to.

use std::path::Path;

use prism_config::{ConfigFile, Node};

use super::finding::{Finding, Subject};
use crate::needs::{self, Need, NeedOutcome};

/// `path` is the configuration's, for the remedy.
pub(super) fn examine(config: &ConfigFile, node: Option<&Node>, path: &Path) -> Vec<Finding> {
    let role = node.map_or_else(
        || "--switch".to_owned(),
        |node| format!("--node {}", node.name),
    );
    let apply = format!("prism setup --config {} {role} --apply", path.display());
    let needs = needs::needs(config, node);
    let findings = needs.iter().map(|need| finding(need, &apply));
    findings.collect()
}

fn finding(need: &Need, apply: &str) -> Finding {
    let subject = Subject(subject(need));
    match (needs::check(need), need) {
        (Ok(NeedOutcome::Met(found)), _) => subject.good(found),
        (Ok(NeedOutcome::Unmet(found)), Need::OwnAddress(address)) => subject.missing(
            found,
            format!("ip address add {address}/LENGTH dev INTERFACE"),
        ),
        (Ok(NeedOutcome::Unmet(found)), _) if need.is_necessary() => subject.missing(found, apply),
        (Ok(NeedOutcome::Unmet(found)), _) => subject.advice(found, apply),
        (Err(error), _) => subject.unknown(format!("{error:#}"), ""),
    }
}

fn subject(need: &Need) -> &'static str {
    match need {
        Need::OwnAddress(_) | Need::Service(_) => "addresses",
        Need::Sysctl { .. } | Need::ReservedPorts => "sysctl",
        Need::LooseReversePath { .. } => "rp_filter",
        Need::WayOut { .. } | Need::WayIn { .. } => "routes",
        Need::Notrack { .. } => "conntrack",
    }
}
