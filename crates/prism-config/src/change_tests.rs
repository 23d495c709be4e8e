//! Every field is in one class, and the documents say which.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

use std::collections::BTreeMap;

use super::*;
use crate::auth::ForwardAuth;
use crate::limit::RequestLimit;
use crate::model::{AccessLogFormat, Role};
use crate::networks::Networks;
use crate::redirects::{ObjectRoutes, Redirects};
use crate::rule::Rule;
use crate::service::ServiceLimits;
use crate::upstream::{HealthCheck, Upstream};

const FULL: &str = r#"
[cluster]
name = "demo"
min_replicas = 1
[cluster.etcd]
endpoints = ["https://10.77.0.5:2379"]
ca_file = "/etc/ca"
cert_file = "/etc/cert"
key_file = "/etc/key"
[service]
address = "10.77.0.1:80"
[service.tls]
ticket_secret_file = "/etc/tickets"
[[service.tls.certificate]]
file = "/etc/s3.crt"
key_file = "/etc/s3.key"
[switch]
control = "10.77.0.2:7300"
key_file = "/etc/switch.key"
hosts = [{ name = "sw0", address = "10.77.0.3" }]
interfaces = ["eth0"]
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
[s3]
credentials_file = "/etc/users"
[trace]
otlp = "http://127.0.0.1:4318/v1/traces"
"#;

fn full() -> ConfigFile {
    ConfigFile::from_toml(FULL).unwrap()
}

/// The same with the fields that one of several services has.
fn with_own_fields() -> ConfigFile {
    let mut config = full();
    let service = config.service.first_mut();
    service.name = "demo".into();
    service.backends = vec!["be0".into()];
    service.peer_port = Some(7401);
    service.control_key_id = Some(2);
    service.control_key_file = Some("/etc/other.key".into());
    (service.replicas, service.min_replicas) = (Some(1), Some(1));
    service.admin_listen = Some(([127, 0, 0, 1], 9470).into());
    config.s3.domains = vec!["s3.example.com".into()];
    service.s3 = Some(config.s3.clone());
    service.limits = Some(ServiceLimits {
        connections: Some(1),
        unauthenticated_per_address: Some(1),
        idle_timeout_s: Some(1),
        max_object_bytes: Some(1),
    });
    let upstream = Upstream {
        health: Some(HealthCheck::default()),
        // Defaults of these are not written.
        servers_file: Some("/etc/servers".into()),
        ambiguous_paths: true,
        replace_prefix: Some("/".into()),
        retries: 1,
        idle_timeout_s: 1,
        internal: true,
        auth: Some(ForwardAuth {
            fields: vec!["X-User".into()],
            answer_fields: vec!["Set-Cookie".into()],
            ..ForwardAuth::default()
        }),
        redirects: Some(Redirects {
            access_key: Some("A".into()),
            locations: [("http://s/".to_owned(), "store".to_owned())].into(),
            ..Redirects::default()
        }),
        ..Upstream::default()
    };
    service.objects = Some(ObjectRoutes {
        hosts: vec!["h".into()],
        paths: vec!["/p/".into()],
        methods: vec!["GET".into()],
        headers: vec!["h".into()],
        replace_prefix: Some("/".into()),
        internal: true,
    });
    service.upstream = Some(vec![upstream].into());
    service.rule = vec![Rule::default()];
    service.limit = vec![RequestLimit::default()];
    service.trusted_proxies = Networks::parse(&["10.0.0.0/8"]).unwrap();
    service.accept_proxy_protocol = true;
    config.log.access_format = AccessLogFormat::Combined;
    config.admin.names = vec!["metrics.example".into()];
    config
}

/// The paths of all fields of a configuration.
fn leaves(table: &Table, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (key, value) in table {
        path.push(key.clone());
        match value {
            Value::Table(inner) => leaves(inner, path, found),
            _ => found.push(path.clone()),
        }
        path.pop();
    }
}

fn all_leaves() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    leaves(&tree(&with_own_fields()), &mut Vec::new(), &mut found);
    found
}

/// Another value of the same field, whether it makes sense or not.
fn other(value: &Value) -> Value {
    match value {
        Value::Integer(number) => Value::Integer(number + 1),
        Value::Boolean(is) => Value::Boolean(!is),
        Value::Array(_) => Value::Array(vec!["other".into()]),
        other => Value::String(format!("{other}x")),
    }
}

#[test]
fn each_changed_field_is_reported_alone_and_in_one_class() {
    let old = tree(&with_own_fields());
    let leaves = all_leaves();
    assert!(leaves.len() > 60, "{}", leaves.len());
    for path in leaves {
        let mut new = old.clone();
        let changed = other(find(&old, &path).unwrap());
        put(&mut new, &path, Some(&changed));
        let mut found = Vec::new();
        compare(&old, &new, &mut Vec::new(), &mut found);
        let [change] = found.as_slice() else {
            panic!("{path:?}: {found:?}");
        };
        assert_eq!(change.field(), path.join("."));
        assert_eq!(change.new.as_deref(), Some(changed.to_string().as_str()));
        assert!(
            !change.effect().is_empty(),
            "{change} has no effect anywhere"
        );
    }
}

#[test]
fn each_rule_is_for_a_field_that_exists_and_is_reached() {
    let mut reached: BTreeMap<&str, usize> = BTreeMap::new();
    // A node comes or goes, and several upstreams are one value.
    let whole = [
        ["node", "be0"],
        ["service", "upstream"],
        ["service", "objects"],
    ];
    let whole = whole.map(|path| path.map(str::to_owned).to_vec());
    for path in all_leaves().into_iter().chain(whole) {
        let fits = |pattern: &str| {
            let parts: Vec<_> = pattern.split('.').collect();
            let pairs = || parts.iter().zip(&path);
            parts.len() == path.len() && pairs().all(|(p, part)| *p == "*" || p == part)
        };
        if let Some((pattern, ..)) = RULES.iter().find(|(pattern, ..)| fits(pattern)) {
            *reached.entry(pattern).or_default() += 1;
        }
    }
    for (pattern, ..) in RULES {
        assert!(reached.contains_key(pattern), "{pattern} fits no field");
    }
}

#[test]
fn a_section_a_node_and_an_optional_field_come_and_go() {
    let (with, mut without) = (full(), full());
    without.cluster.etcd = None;
    without.cluster.min_replicas = None;
    without.nodes.pop();
    let fields =
        |changes: Vec<Change>| -> Vec<String> { changes.iter().map(Change::field).collect() };
    let expected = ["cluster.etcd", "cluster.min_replicas", "node.be0"];
    assert_eq!(fields(with.changes_to(&without)), expected);
    let added = without.changes_to(&with);
    assert_eq!(
        added.iter().map(|c| c.old.as_deref()).collect::<Vec<_>>(),
        [None; 3]
    );
    assert_eq!(added[1].to_string(), "cluster.min_replicas: none -> 1");
    assert_eq!(without.with_changes(&added, &with).unwrap(), with);
}

#[test]
fn upstreams_change_at_a_reload_and_come_or_go_at_a_restart() {
    let (one, mut none, mut several) = (with_own_fields(), with_own_fields(), with_own_fields());
    none.service.first_mut().upstream = None;
    several.service.first_mut().upstream =
        Some(vec![Upstream::default(), Upstream::default()].into());
    for (old, new, expected) in [
        (&one, &several, Reload),
        (&several, &one, Reload),
        (&one, &none, Restart),
        (&none, &several, Restart),
    ] {
        let changes = old.changes_to(new);
        let effects = changes
            .iter()
            .map(|change| change.effect_at(ConfigReader::Node("fe0")));
        assert_eq!(effects.collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn of_a_list_a_change_names_what_came_and_went() {
    let config = |upstream: &str| {
        let (before, after) = FULL.split_once("[service.tls]").unwrap();
        let (_, after) = after.split_once("[switch]").unwrap();
        let (_, nodes) = after.split_once("[[node]]").unwrap();
        let nodes = nodes.replace("[s3]\ncredentials_file = \"/etc/users\"\n", "");
        let (start, _) = before.split_once("min_replicas").unwrap();
        let service = "[service]\naddress = \"10.77.0.1:80\"\n";
        let text = format!("{start}{service}{upstream}\n[[node]]{nodes}");
        Config::from_toml(&text).unwrap()
    };
    let table = |rules: &str, address: &str| {
        format!("[[service.upstream]]\n{rules}\naddress = {address}\n")
    };
    let (api, rest) = ("paths = [\"/api/\"]", "");
    let one = table(rest, "\"127.0.0.1:1\"");
    let two = table(api, "\"127.0.0.1:9\"") + &one;
    for (old, new, expected) in [
        (
            "upstream = \"127.0.0.1:1\"".to_owned(),
            "upstream = [\"127.0.0.1:1\", \"127.0.0.1:2\"]".to_owned(),
            "service.upstream.address: added \"127.0.0.1:2\"",
        ),
        (
            "upstream = [\"127.0.0.1:1\", \"127.0.0.1:2\"]".to_owned(),
            "upstream = [\"127.0.0.1:2\", \"127.0.0.1:3\"]".to_owned(),
            "service.upstream.address: added \"127.0.0.1:3\"; \
             service.upstream.address: removed \"127.0.0.1:1\"",
        ),
        (
            "upstream = [\"127.0.0.1:1\", \"127.0.0.1:2\"]".to_owned(),
            "upstream = [\"127.0.0.1:2\", \"127.0.0.1:1\"]".to_owned(),
            "service.upstream.address: in another order: \"127.0.0.1:2\", \"127.0.0.1:1\"",
        ),
        (
            "upstream = \"127.0.0.1:1\"".to_owned(),
            "upstream = \"127.0.0.1:2\"".to_owned(),
            "service.upstream.address: \"127.0.0.1:1\" -> \"127.0.0.1:2\"",
        ),
        (
            two.clone(),
            table(api, "\"127.0.0.1:9\"") + &table(rest, "[\"127.0.0.1:1\", \"127.0.0.1:2\"]"),
            "service.upstream[1].address: added \"127.0.0.1:2\"",
        ),
        (
            two.clone(),
            table(
                "paths = [\"/api/\", \"/v2/\"]\nanswer_timeout_s = 7",
                "\"127.0.0.1:9\"",
            ) + &one,
            "service.upstream[0].answer_timeout_s: 60 -> 7; \
             service.upstream[0].paths: added \"/v2/\"",
        ),
        (
            one.clone(),
            two.clone(),
            "service.upstream: added { address = \"127.0.0.1:9\", paths = [\"/api/\"] }",
        ),
    ] {
        let (old, new) = (config(&old), config(&new));
        let changes = old.changes_to(&new);
        let [change] = changes.as_slice() else {
            panic!("{changes:?}");
        };
        assert_eq!(change.to_string(), expected);
        assert_eq!(change.effect(), "reload of the nodes");
        assert_eq!(old.with_changes(&changes, &new).unwrap(), new);
    }
}

#[test]
fn a_nodes_own_field_concerns_no_other_process() {
    let (old, mut new) = (full(), full());
    new.nodes[1].workers = 3;
    new.nodes[1].link_mbit_s = 100;
    new.log.level = "debug".into();
    let changes = old.changes_to(&new);
    let effects = |reader| -> Vec<Effect> {
        changes
            .iter()
            .map(|change| change.effect_at(reader))
            .collect()
    };
    assert_eq!(
        effects(ConfigReader::Node("be0")),
        [Reload, Reload, Restart]
    );
    assert_eq!(effects(ConfigReader::Node("fe0")), [Reload, Never, Never]);
    assert_eq!(effects(ConfigReader::Switch), [Reload, Never, Never]);
    assert_eq!(changes[2].effect(), "restart of be0");
    assert_eq!(
        changes[0].effect(),
        "reload of the nodes and the switch agent"
    );
}

#[test]
fn in_host_mode_a_nodes_address_and_roles_need_a_restart_of_the_agents() {
    for (mode, expected, shown) in [
        (
            HookMode::Tc,
            Reload,
            "reload of the switch agent, restart of the nodes",
        ),
        (
            HookMode::Host,
            Restart,
            "restart of the nodes and the switch agent",
        ),
    ] {
        let mut old = full();
        old.switch.as_mut().unwrap().mode = mode;
        let mut new = old.clone();
        new.nodes[1].address = [10, 77, 0, 12].into();
        new.nodes[1].roles.push(Role::Frontend);
        let changes = old.changes_to(&new);
        assert_eq!(changes.len(), 2);
        for change in changes {
            assert_eq!(change.effect_at(ConfigReader::Switch), expected, "{change}");
            assert_eq!(change.effect(), shown);
        }
    }
}

#[test]
fn only_the_named_changes_apply_and_only_if_they_fit_the_rest() {
    let (old, mut new) = (full(), full());
    new.limits.idle_timeout_s = 5_000;
    new.switch.as_mut().unwrap().idle_timeout_s = 6_000;
    new.log.level = "debug".into();
    let changes = old.changes_to(&new);
    let now: Vec<Change> = changes
        .into_iter()
        .filter(|change| change.effect_at(ConfigReader::Node("fe0")) == Reload)
        .collect();
    // The switch would forget connections that may be silent for longer.
    let refused = old.with_changes(&now, &new).unwrap_err().to_string();
    assert!(
        refused.contains("switch.idle_timeout_s: 3600 s is not longer"),
        "{refused}"
    );
    new.limits.idle_timeout_s = 70;
    let applied = old.with_changes(&now, &new).unwrap();
    assert_eq!(applied.limits.idle_timeout_s, 70);
    assert_eq!(applied.log.level, "debug");
    assert_eq!(applied.switch.unwrap().idle_timeout_s, 3_600);
}

/// The fields in the tables of docs/configuration.md, each with whether its row has the mark.
fn documented() -> BTreeMap<String, bool> {
    let text = include_str!("../../../docs/configuration.md");
    let (mut section, mut is_table, mut found) = (None, false, BTreeMap::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.split('`').nth(1).unwrap_or_default();
            section = name
                .strip_prefix('[')
                .map(|name| name.trim_matches(['[', ']']).to_owned());
        }
        is_table = line.starts_with("| field |") || is_table && line.starts_with('|');
        let row = line.strip_prefix("| `").filter(|_| is_table);
        let (Some(section), Some(row)) = (&section, row) else {
            continue;
        };
        let cell = row.split(" | ").next().unwrap_or_default();
        for field in cell.split('`').step_by(2).filter(|field| !field.is_empty()) {
            let name = format!("{section}.{field}");
            found.entry(name).or_insert(cell.contains('↻'));
        }
    }
    found
}

#[test]
fn the_documents_mark_the_fields_that_apply_at_run_time() {
    let documented = documented();
    for path in all_leaves() {
        let (nodes, switch) = effects(&path);
        let applies = nodes == Reload || switch == Reload && nodes == Never;
        let name = match path.as_slice() {
            [section, _, field] if section == "node" => format!("node.{field}"),
            // One of the values of a table.
            [table @ .., _] if path.iter().any(|part| part == "locations") => table.join("."),
            path => path.join("."),
        };
        assert_eq!(documented.get(&name), Some(&applies), "{name}");
    }
}
