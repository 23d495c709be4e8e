//! Findings about the families of addresses that the cluster serves.

use std::path::Path;

use prism_config::{ConfigFile, Node};

use super::finding::{Finding, Subject, read};
use crate::faults::effect_of_missing;

const SETTINGS: &str = "/proc/sys/net/ipv6/conf";
/// The value of `accept_ra` by which an interface takes router advertisements only while it does
/// not forward.
const UNLESS_FORWARDING: &str = "1";

/// The findings for `node`, or for the switch.
pub(super) fn examine(config: &ConfigFile, node: Option<&Node>) -> Vec<Finding> {
    match (node, &config.switch) {
        (Some(node), Some(_)) => of_node(config, node),
        (None, Some(switch)) => {
            let mut services = config.service.iter();
            let has_ipv6 = services.any(|service| service.address.iter().any(|at| at.is_ipv6()));
            let interfaces = switch.interfaces.iter().filter(|_| has_ipv6);
            interfaces.filter_map(|name| advertisements(name)).collect()
        }
        (_, None) => Vec::new(),
    }
}

fn of_node(config: &ConfigFile, node: &Node) -> Vec<Finding> {
    let missing = config.families_missing_at(node).into_iter();
    let findings = missing.map(|family| {
        let effect = effect_of_missing(family, node);
        let found = format!("the service has {family} addresses and this node has none: {effect}");
        let mend = format!("add an {family} address to the node's `address`");
        Subject("families").advice(found, mend)
    });
    findings.collect()
}

/// A router takes no routes from router advertisements, unless it is told to.
fn advertisements(interface: &str) -> Option<Finding> {
    let setting = read(Path::new(SETTINGS).join(interface).join("accept_ra"))?;
    (setting == UNLESS_FORWARDING).then(|| {
        let found = format!(
            "{interface} takes no router advertisements while this host forwards IPv6: a default \
             route that came by them ends"
        );
        let mend =
            format!("give it a static route, or `sysctl -w net/ipv6/conf/{interface}/accept_ra=2`");
        Subject("router adverts").advice(found, mend)
    })
}
