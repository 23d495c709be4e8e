//! The finding about the key that signs commands to the switch.

use prism_config::{ConfigFile, ControlSecret, Node};

use super::finding::{Finding, Subject};

const SUBJECT: Subject = Subject("switch key");
/// The remedy for a key that all nodes share.
const REMEDY: &str = "give each node a key of its own: `prism ctl switch rotate-key`; see \
                      docs/operating.md";

/// Files that cannot be read are faults of the configuration.
pub(super) fn examine(config: &ConfigFile, node: Option<&Node>) -> Vec<Finding> {
    let name = node.map(|node| node.name.as_str());
    let parts = match name {
        Some(name) => config.parts_at(name),
        None => config.parts(),
    };
    let switches = parts.into_iter().filter_map(|part| part.switch);
    let findings = switches.filter_map(|switch| {
        let is_shared = match name {
            Some(name) => !switch.load_node_key(name).ok()?.is_own,
            None => {
                let secrets = switch.load_secrets().ok()?;
                secrets
                    .iter()
                    .any(|secret| matches!(secret, ControlSecret::Shared(_)))
            }
        };
        Some(if is_shared {
            SUBJECT.advice(
                "all nodes share one: each can change the connections of all others",
                REMEDY,
            )
        } else {
            SUBJECT.good("each node has its own")
        })
    });
    findings.collect()
}
