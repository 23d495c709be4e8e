//! The command lines of the programs on a lab's hosts.

use std::collections::BTreeMap;

use crate::files::{
    ETCD_PEER_PORT, ETCD_PORT, config_path, endpoint, joining_config_path, nodes_config_path,
    switch_config_path,
};
use crate::plan::{HostLink, LabPlan};
use crate::spec::{LabSpec, Programs};

/// The command line of each host that runs something.
pub(crate) fn command_lines(plan: &LabPlan, spec: &LabSpec) -> BTreeMap<String, Vec<String>> {
    let prism = match &spec.programs {
        Programs::Custom(lines) => return lines.clone(),
        Programs::Prism(prism) => prism.to_string_lossy().into_owned(),
    };
    let config = config_path(&plan.name).to_string_lossy().into_owned();
    let nodes_config = match spec.configure_nodes {
        Some(_) => nodes_config_path(&plan.name).to_string_lossy().into_owned(),
        None => config.clone(),
    };
    let line = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let switches = plan.switches.iter().map(|switch| switch.name.clone());
    let switches = switches.chain(plan.agents()).map(|switch| {
        let config = switch_config_path(&plan.name, &switch);
        let words = [&prism, "switch", "--config", &config.to_string_lossy()];
        (switch, line(&words))
    });
    let joining_config = joining_config_path(&plan.name);
    let joining_config = joining_config.to_string_lossy().into_owned();
    let nodes = plan.servers().map(|link| {
        let config = if spec.is_later(&link.host) {
            &joining_config
        } else {
            &nodes_config
        };
        let words = [
            prism.as_str(),
            "node",
            "--config",
            config,
            "--node",
            &link.host,
        ];
        (link.host.clone(), line(&words))
    });
    let etcd = plan
        .etcd()
        .map(|link| (link.host.clone(), etcd_line(plan, link)));
    switches.chain(nodes).chain(etcd).collect()
}

/// The command line of a member of the lab's etcd.
fn etcd_line(plan: &LabPlan, link: &HostLink) -> Vec<String> {
    let client = endpoint(link, ETCD_PORT);
    let peer_of = |link: &HostLink| endpoint(link, ETCD_PEER_PORT);
    let peer = peer_of(link);
    let members = plan
        .etcd()
        .map(|link| format!("{}={}", link.host, peer_of(link)));
    let members: Vec<String> = members.collect();
    let data = plan.name.state_dir().join(&link.host);
    let words = [
        "etcd",
        "--name",
        &link.host,
        "--data-dir",
        &data.to_string_lossy(),
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &members.join(","),
        "--auto-compaction-mode",
        "periodic",
        "--auto-compaction-retention",
        "10m",
        "--logger",
        "zap",
        "--log-level",
        "warn",
    ];
    words.iter().map(|word| (*word).to_owned()).collect()
}
