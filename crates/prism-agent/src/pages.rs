//! The pages that the agent of the switch shows its administrator over HTTP: `/metrics`,
//! `/-/healthy`, `/-/ready`, and the page for a browser with its `/state`. Flows are counted by the
//! agent's walks, all else is read from the kernel's tables.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prism_config::HostAddrs;
use prism_figures::{LeasedNode, OwnedFlows, PacketTally, SwitchState, asset, with_alerts};
use prism_process::pages::{Page, Pages};
use prism_process::{Latest, Metric, Value as MetricValue, build_info, render};
use prism_switch::{Census, SwitchView};
use serde_json::{Value, json};

use crate::shared::Shared;

/// The pages of the switch.
pub(crate) fn pages(shared: Arc<Shared>) -> Arc<Pages> {
    let latest = Arc::new(Latest::default());
    Arc::new(move |path| {
        let shared = shared.clone();
        let latest = latest.clone();
        let path = path.to_owned();
        Box::pin(async move {
            match path.as_str() {
                "/state" => Some(latest.page(async { state(&shared) }).await),
                path => page(&shared, path),
            }
        })
    })
}

fn page(shared: &Shared, path: &str) -> Option<Page> {
    Some(match path {
        "/-/healthy" => Page::text(200, "healthy\n"),
        "/-/ready" => match SwitchView::open(&shared.pin_dir) {
            Ok(_) => Page::text(200, "ready\n"),
            Err(error) => Page::text(503, format!("{error}\n")),
        },
        "/metrics" => match metrics(shared) {
            Ok(metrics) => render(metrics),
            Err(error) => Page::text(500, format!("{error:#}\n")),
        },
        path => return asset(path, &[]),
    })
}

/// The state of the switch, as the page for a browser shows it.
fn state(shared: &Shared) -> Value {
    let switch = figures(shared).unwrap_or_else(|error| SwitchState {
        error: Some(format!("{error:#}")),
        ..SwitchState::default()
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    with_alerts(json!({
        "kind": "switch",
        "name": "switch",
        "version": shared.version,
        "time_ms": since.unwrap_or_default().as_millis() as u64,
        "store_urls": [],
        "nodes": [],
        "cluster": null,
        "switch": switch,
    }))
}

fn figures(shared: &Shared) -> anyhow::Result<SwitchState> {
    let view = SwitchView::open(&shared.pin_dir)?;
    let living = shared.leases.living();
    let census = shared.census.get();
    let (term, phase) = view.term()?;
    let nodes = shared.addresses();
    let leased = nodes.iter().map(|(name, address)| LeasedNode {
        name: name.clone(),
        address: address.to_string(),
        up: has_lease(&living, *address),
    });
    Ok(SwitchState {
        error: None,
        host: shared.role.host().map(str::to_owned),
        active: shared.role.is_active(),
        term: term.0,
        term_phase: phase as u8,
        nodes_awaited: shared.leases.awaited(),
        flows: census.as_ref().map(Census::entries),
        max_flows: shared.max_flows.into(),
        owners: owners(census.as_ref(), &nodes),
        packets: packets(&view)?,
        nodes: leased.collect(),
        keys: shared.keys(),
    })
}

/// The flows by their owner. A node owns flows by an address of each family.
fn owners(census: Option<&Census>, nodes: &[(String, HostAddrs)]) -> Vec<OwnedFlows> {
    let counted = census.iter().flat_map(|census| &census.of_nodes);
    let mut by_owner = BTreeMap::new();
    for (address, flows) in counted {
        let known = nodes.iter().find(|(_, node)| node.contains(*address));
        let owner = known.map_or_else(|| address.to_string(), |(name, _)| name.clone());
        *by_owner.entry(owner).or_default() += flows;
    }
    let owners = by_owner.into_iter();
    owners
        .map(|(owner, flows)| OwnedFlows { owner, flows })
        .collect()
}

/// The packets by what became of them.
fn packets(view: &SwitchView) -> anyhow::Result<Vec<PacketTally>> {
    let counters = view.counters()?.into_iter();
    let packets = counters.filter_map(|counter| {
        let (verdict, reason) = counter.name.split_once('_')?;
        let counts = matches!(verdict, "forward" | "punt" | "drop");
        (counts && counter.value > 0).then(|| PacketTally {
            verdict: verdict.to_owned(),
            reason: reason.to_owned(),
            count: counter.value,
        })
    });
    Ok(packets.collect())
}

/// Whether a node has a lease, by either of its addresses.
fn has_lease(living: &HashSet<IpAddr>, node: HostAddrs) -> bool {
    node.iter().any(|address| living.contains(&address))
}

fn metrics(shared: &Shared) -> anyhow::Result<Vec<Metric>> {
    let view = SwitchView::open(&shared.pin_dir)?;
    let (term, phase) = view.term()?;
    let gauge = |name, help, value: f64| Metric::new(name, help, MetricValue::Gauge(value));
    let mut metrics = vec![
        build_info(shared.version, "switch"),
        gauge(
            "switch_max_flows",
            "The most flows of the table.",
            shared.max_flows.into(),
        ),
        gauge("switch_term", "The number of the term.", term.0.into()),
        gauge(
            "switch_term_phase",
            "1: standby. 2: young, not all flows are known. 3: settled.",
            f64::from(phase as u8),
        ),
        gauge(
            "switch_active",
            "1 if this host has the control address. Always 1 at a single switch.",
            f64::from(u8::from(shared.role.is_active())),
        ),
        gauge(
            "switch_placement_tie",
            "1 if as many nodes place objects one way as another, so that no node is refused.",
            f64::from(u8::from(shared.leases.has_placement_tie())),
        ),
        gauge(
            "switch_terms_disbelieved",
            "1 if a node knows a later term than most nodes, which the switch ignores.",
            f64::from(u8::from(shared.leases.has_disbelieved())),
        ),
    ];
    if let Some(census) = shared.census.get() {
        metrics.push(gauge(
            "switch_flows",
            "Flows in the table, tombstones included.",
            census.entries() as f64,
        ));
    }
    let living = shared.leases.living();
    for (node, address) in shared.addresses() {
        let lives = f64::from(u8::from(has_lease(&living, address)));
        metrics.push(
            gauge(
                "switch_node_up",
                "1 if the node has a lease at the agent.",
                lives,
            )
            .with("node", node),
        );
    }
    for counter in view.counters()? {
        let (kind, reason) = counter.name.split_once('_').unwrap_or((&counter.name, ""));
        let (name, help, label) = match kind {
            "forward" | "punt" | "drop" => (
                "switch_packets",
                "Packets by what became of them, and the reason.",
                "verdict",
            ),
            "control" => (
                "switch_commands",
                "Commands of nodes by their outcome.",
                "kind",
            ),
            _ => ("switch_flow_events", "Events of flows.", "kind"),
        };
        metrics.push(
            Metric::new(name, help, MetricValue::Counter(counter.value))
                .with(label, kind)
                .with("reason", reason),
        );
    }
    Ok(metrics)
}
