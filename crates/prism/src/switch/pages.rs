//! The pages that the agent of the switch shows its administrator over HTTP: `/metrics`,
//! `/-/healthy` and `/-/ready`. The figures are those of the kernel's tables, so they go on while
//! no agent runs.

use std::net::IpAddr;
use std::sync::Arc;

use prism_switch::{Leases, SwitchView};

use crate::observe::{Metric, Page, Pages, Value, build_info, render};

/// The switch that the pages are about.
pub(super) struct Subject {
    pub(super) pin_dir: String,
    pub(super) max_flows: u32,
    pub(super) leases: Arc<Leases>,
    /// The names and addresses of the nodes.
    pub(super) nodes: Arc<dyn Fn() -> Vec<(String, IpAddr)> + Send + Sync>,
}

/// The pages of a switch.
pub(super) fn pages(subject: Subject) -> Arc<Pages> {
    Arc::new(move |path| {
        Some(match path {
            "/-/healthy" => Page::text(200, "healthy\n"),
            "/-/ready" => match SwitchView::open(&subject.pin_dir) {
                Ok(_) => Page::text(200, "ready\n"),
                Err(error) => Page::text(503, format!("{error}\n")),
            },
            "/metrics" => match metrics(&subject) {
                Ok(metrics) => render(|_| {}, metrics),
                Err(error) => Page::text(500, format!("{error:#}\n")),
            },
            _ => return None,
        })
    })
}

fn metrics(subject: &Subject) -> anyhow::Result<Vec<Metric>> {
    let view = SwitchView::open(&subject.pin_dir)?;
    let gauge = |name, help, value: f64| Metric::new(name, help, Value::Gauge(value));
    let flows = view.count_flows()? as f64;
    let mut metrics = vec![
        build_info("switch"),
        gauge(
            "switch_flows",
            "Flows in the table, tombstones included.",
            flows,
        ),
        gauge(
            "switch_max_flows",
            "The most flows of the table.",
            subject.max_flows.into(),
        ),
    ];
    let living = subject.leases.living();
    for (node, address) in (subject.nodes)() {
        let lives = f64::from(u8::from(living.contains(&address)));
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
            Metric::new(name, help, Value::Counter(counter.value))
                .with(label, kind)
                .with("reason", reason),
        );
    }
    Ok(metrics)
}
