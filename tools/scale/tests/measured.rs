//! The simulation against what was measured, and its constants against their rows.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "test code"
)]

use prism_scale::{cases, costs};
use serde_json::Value;

fn results(file: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results/");
    std::fs::read_to_string(format!("{folder}{file}")).unwrap()
}

/// The median over the rows of a system and a case.
fn median(file: &str, system: &str, case: &[(&str, Value)], value: impl Fn(&Value) -> f64) -> f64 {
    let text = results(file);
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let fits = |row: &Value| {
        row["system"] == system && case.iter().all(|(name, value)| row["case"][name] == *value)
    };
    let rows: Vec<Value> = rows.filter(fits).collect();
    middle(rows.iter().map(|row| value(&row["values"])).collect())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    (values[half] + values[(values.len() - 1) / 2]) / 2.0
}

fn is_near(measured: f64, constant: f64) {
    assert!(
        (measured / constant - 1.0).abs() < 0.01,
        "the rows have {measured}, the constant is {constant}"
    );
}

fn field(values: &Value, name: &str) -> f64 {
    values[name].as_f64().unwrap()
}

fn each_us(values: &Value, name: &str) -> f64 {
    field(values, name) / field(values, "requests") * 1e6
}

fn rest_us(values: &Value) -> f64 {
    let names = ["frontend_cpu_s", "backends_cpu_s", "client_cpu_s"];
    let used: f64 = names.iter().map(|name| field(values, name)).sum();
    (2.0 * field(values, "seconds") - used) / field(values, "requests") * 1e6
}

/// Cases of 4 KiB and 64 KiB over HTTP.
fn http(bytes: u64) -> [(&'static str, Value); 2] {
    [("scheme", "http".into()), ("bytes", bytes.into())]
}

#[test]
fn costs_of_requests_are_those_of_their_rows() {
    let file = "2026-11-22-crossover.jsonl";
    let relayed = |bytes, value: fn(&Value) -> f64| median(file, "relay", &http(bytes), value);
    for n in 0..2 {
        let (bytes, us) = costs::RELAY_FRONTEND.points[n];
        is_near(relayed(bytes, |v| each_us(v, "frontend_cpu_s")), us);
        let (bytes, us) = costs::RELAY_BACKEND.points[n];
        is_near(relayed(bytes, |v| each_us(v, "backends_cpu_s")), us);
        let (bytes, us) = costs::CLIENT.points[n];
        is_near(relayed(bytes, |v| each_us(v, "client_cpu_s")), us);
    }
    is_near(relayed(4_096, rest_us), costs::RELAY_REST_US);
    let moving = |value: fn(&Value) -> f64| median(file, "hand-off", &http(4_096), value);
    is_near(moving(|v| field(v, "cpu_us")), costs::MOVING_REQUEST_US);
    is_near(moving(rest_us), costs::MOVING_REST_US);
}

#[test]
fn costs_of_answers_are_those_of_their_rows() {
    let requests = ["GET 4 KiB, anonymous", "GET 1 MiB, anonymous"];
    for (request, (_, us)) in requests.into_iter().zip(costs::SERVE.points) {
        let case = [("request", request.into())];
        let cpu_us = |v: &Value| field(v, "cpu_us");
        is_near(median("2026-11-22-store.jsonl", "prism", &case, cpu_us), us);
    }
    let head = |system| {
        let file = "2026-11-23-sweep-unshaped.jsonl";
        let answer = |v: &Value| field(v, "read_bytes") / field(v, "requests");
        median(file, system, &http(64), answer) - 64.0
    };
    is_near(head("prism"), costs::PRISM_HEAD_BYTES as f64);
    is_near(head("nginx"), costs::NGINX_HEAD_BYTES as f64);
    let kept = |connections: u64, state: &str, value: fn(&Value) -> f64| {
        let case = [
            ("scheme", "http".into()),
            ("connections", connections.into()),
            ("state", state.into()),
        ];
        median("2026-11-22-connections.jsonl", "prism", &case, value)
    };
    is_near(
        kept(1_000, "silent", |v| field(v, "open_us")),
        costs::OPEN_US,
    );
    let bytes = |v: &Value| field(v, "backends_bytes") + field(v, "kernel_bytes");
    is_near(kept(8_000, "served", bytes), costs::CONNECTION_BYTES);
}

#[test]
fn costs_of_the_switch_are_those_of_their_rows() {
    let of = |flows: u64, value: fn(&Value) -> f64| {
        let case = [("flows", flows.into())];
        median("2026-11-22-flows.jsonl", "switch", &case, value)
    };
    for table in costs::TABLES {
        is_near(
            of(table.flows, |v| field(v, "to_client_ns")),
            table.to_client_ns,
        );
        is_near(
            of(table.flows, |v| field(v, "to_owner_ns")),
            table.to_owner_ns,
        );
        is_near(of(table.flows, |v| field(v, "rule_ns")), table.rule_ns);
    }
    is_near(of(1, |v| field(v, "round_trip_us")), costs::ROUND_TRIP_US);
    let switch = |case: &[(&str, Value)], value: &str| {
        median("2026-11-22-switch.jsonl", "prism", case, |v| {
            field(v, value)
        })
    };
    let packet = [
        ("direction", "owner to client".into()),
        ("frame_bytes", 1514.into()),
    ];
    is_near(switch(&packet, "ns_median"), costs::REPEATED_PACKET_NS);
    let path = [
        ("direction", "to the client".into()),
        ("path", "switch".into()),
    ];
    is_near(switch(&path, "gbit_median"), costs::SWITCH_GBIT_S);
}

#[test]
fn steps_of_hand_offs_are_those_of_their_rows() {
    let own = [
        "block",
        "save tcp",
        "encode",
        "hand-off to frontend",
        "frontend decides",
        "hand-off to backend",
        "restore tcp",
        "go live",
    ];
    for steps in costs::STEPS {
        // The median of two runs is their mean.
        let p50_us = |step: &str| {
            let case = [
                ("scheme", steps.scheme.into()),
                ("mode", steps.mode.into()),
                ("step", step.into()),
            ];
            median("2026-11-22-handoff.jsonl", "prism", &case, |v| {
                field(v, "p50_us")
            })
        };
        let is_relayed = |step: &&str| step.contains("frontend");
        let own = own
            .iter()
            .filter(|step| steps.mode == "return" || !is_relayed(step));
        is_near(own.map(|step| p50_us(step)).sum(), steps.sum_us);
        let cases = cases::all();
        let mut its = cases.iter().filter(|case| case.name == steps.case_name());
        is_near(p50_us("total"), its.next().unwrap().measured);
    }
}

#[test]
fn measured_values_are_those_of_their_rows() {
    let cases = cases::all();
    // The steps of hand-offs are added up in a test of their own.
    let cases = cases.iter().filter(|case| !case.source.keys.is_empty());
    for case in cases {
        let keys = case.source.keys.iter();
        let mut keys: Vec<_> = keys.map(|(name, value)| (*name, (*value).into())).collect();
        if case.source.system != "switch" {
            keys.push(("scheme", "http".into()));
        }
        let value = |values: &Value| field(values, case.source.value);
        is_near(
            median(case.source.rows, case.source.system, &keys, value),
            case.measured,
        );
    }
}

#[test]
fn the_simulation_reproduces_what_was_measured() {
    let cases = cases::all();
    assert!(cases.len() > 40);
    let wrong: Vec<_> = cases.iter().filter(|case| !case.holds()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_document_quotes_the_command() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design/scale.md");
    let document = std::fs::read_to_string(path).unwrap();
    let report = prism_scale::report();
    assert_eq!(report, prism_scale::report(), "two runs differ");
    for line in report.lines().filter(|line| !line.is_empty()) {
        assert!(
            document.contains(line),
            "docs/design/scale.md lacks: {line}"
        );
    }
}
