#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use super::*;

const NOW_S: u64 = 1_800_000_000;

/// The document of two frontends and two backends.
fn sound() -> Value {
    let node = |name: &str, role: &str| {
        json!({
            "name": name,
            "error": null,
            "roles": [role],
            "not_ready": null,
            "suspects": [],
            "certificates": [{ "file": "cert.pem", "expires_s": NOW_S + 60 * DAY_S }],
            "access_log_dropped_lines": 0,
            "store": {
                "used_bytes": 50,
                "quota_bytes": 100,
                "free_bytes": 1_000_000,
                "corrupt_reads": 0,
                "scrub_faults": 0,
            },
        })
    };
    let backend =
        |name: &str| json!({ "name": name, "in_reach": true, "lives": true, "status": "in-sync" });
    json!({
        "name": "fe0",
        "time_ms": NOW_S * 1_000,
        "servers": null,
        "nodes": [
            node("fe0", "frontend"),
            node("fe1", "frontend"),
            node("be0", "backend"),
            node("be1", "backend"),
        ],
        "cluster": {
            "cluster": "lab",
            "asked": "fe0",
            "epoch": 7,
            "replicas": 2,
            "min_replicas": 1,
            "phase": "settled",
            "fault": null,
            "backends": [backend("be0"), backend("be1")],
        },
        "switch": {
            "flows": 80,
            "max_flows": 100,
            "nodes": [{ "name": "fe0", "up": true }],
            "error": null,
        },
    })
}

/// The alerts after a change of the sound document.
fn after(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut document = sound();
    change(&mut document);
    let found = alerts_of_document(&document).into_iter();
    found
        .map(|alert| format!("{:?}: {}", alert.level, alert.text))
        .collect()
}

/// The one alert after a change.
fn only_after(change: impl FnOnce(&mut Value)) -> String {
    let found = after(change);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn a_sound_cluster_has_no_alert() {
    assert!(after(|_| ()).is_empty());
}

#[test]
fn each_trouble_of_a_node_has_its_alert() {
    let node = |field: &'static str, value: Value| {
        only_after(|document| document["nodes"][2][field] = value)
    };
    let silent = node("error", "no answer".into());
    assert_eq!(silent, "Critical: be0 does not answer: no answer");
    let leaving = node("not_ready", "leaving".into());
    assert_eq!(leaving, "Warning: be0 runs and may not serve: leaving");
    let dropped = node("access_log_dropped_lines", 1.into());
    assert_eq!(dropped, "Warning: be0 has dropped lines of its access log");
    let store = |field: &'static str, value: u64| {
        only_after(|document| document["nodes"][2]["store"][field] = value.into())
    };
    let full = "Critical: The store of be0 is nearly full; writes will be answered 507";
    assert_eq!(store("used_bytes", 91), full);
    assert_eq!(store("free_bytes", 2), full);
    let damaged = "Critical: be0 has found damaged blocks since it started";
    assert_eq!(store("scrub_faults", 2), damaged);
    assert_eq!(store("corrupt_reads", 1), damaged);
}

#[test]
fn a_suspect_is_named_once_with_all_nodes_that_suspect_it() {
    let found = only_after(|document| {
        document["nodes"][0]["suspects"] = json!(["be1"]);
        document["nodes"][1]["suspects"] = json!(["be1"]);
    });
    assert_eq!(
        found,
        "Warning: be1 leaves handshakes of fe0, fe1 unanswered"
    );
}

#[test]
fn a_certificate_is_named_two_weeks_before_its_end() {
    let ends_in = |left_s: i64| {
        after(|document| {
            let end = i64::try_from(NOW_S).unwrap() + left_s;
            document["nodes"][0]["certificates"][0]["expires_s"] = end.into();
        })
    };
    let day = i64::try_from(DAY_S).unwrap();
    assert!(ends_in(14 * day).is_empty());
    assert_eq!(
        ends_in(10 * day - 1),
        ["Warning: cert.pem of fe0 expires in 9 days"]
    );
    let soon = ["Warning: cert.pem of fe0 expires in less than 2 days"];
    assert_eq!(ends_in(day), soon);
    assert_eq!(ends_in(1), soon);
    assert_eq!(ends_in(0), ["Critical: cert.pem of fe0 has expired"]);
    assert_eq!(ends_in(-day), ["Critical: cert.pem of fe0 has expired"]);
}

#[test]
fn each_trouble_of_a_backend_has_its_alert_and_critical_ones_come_first() {
    let found = after(|document| {
        let backends = &mut document["cluster"]["backends"];
        backends[0]["status"] = "lagging".into();
        backends[1] = json!({ "name": "be1", "in_reach": false, "lives": false, "status": "out" });
    });
    let expected = [
        "Critical: be1 is out; its keys have a replica less",
        "Critical: be1 has no lease",
        "Warning: be0 is not in sync; its keys have a replica less",
    ];
    assert_eq!(found, expected);
    let away = only_after(|document| {
        document["cluster"]["backends"][0]["in_reach"] = false.into();
    });
    assert_eq!(away, "Warning: be0 is out of reach of fe0");
    let other = only_after(|document| {
        document["cluster"]["backends"][0]["has_other_store"] = true.into();
    });
    assert!(
        other.starts_with("Critical: be0 has another store"),
        "{other}"
    );
}

#[test]
fn a_combined_service_has_the_alerts_of_its_servers_and_of_its_stores() {
    let found = after(|document| {
        document["service"] = "combined".into();
        document["servers"] = json!([{
            "upstream": "/",
            "address": "127.0.0.1:9000",
            "backend": "be0",
            "state": "unhealthy",
        }]);
        document["nodes"][2]["store"]["scrub_faults"] = 1.into();
        document["cluster"]["backends"][1]["status"] = "lagging".into();
    });
    let expected = [
        "Critical: The upstream / has no healthy server",
        "Critical: be0 has found damaged blocks since it started",
        "Warning: 127.0.0.1:9000 at be0 is unhealthy (upstream /): it fails",
        "Warning: be1 is not in sync; its keys have a replica less",
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_etcd_that_fills_is_one_alert_for_all_nodes() {
    let with = |size_bytes: u64, is_full: bool| {
        move |document: &mut Value| {
            for node in document["nodes"].as_array_mut().unwrap() {
                node["etcd"] = json!({
                    "size_bytes": size_bytes,
                    "in_use_bytes": 1,
                    "quota_bytes": 1_000,
                    "is_full": is_full,
                });
            }
        }
    };
    assert!(after(with(800, false)).is_empty());
    let nearly = "Warning: The database of etcd has more than four fifths of its quota";
    assert_eq!(only_after(with(801, false)), nearly);
    let full = only_after(with(1_000, true));
    assert!(
        full.starts_with("Critical: The database of etcd is full"),
        "{full}"
    );
}

#[test]
fn the_switch_has_alerts_without_a_cluster() {
    let found = after(|document| {
        let switch = json!({
            "flows": 81,
            "max_flows": 100,
            "nodes": [{ "name": "fe0", "up": false }, { "name": "fe1", "up": true }],
        });
        *document = json!({ "name": "switch", "time_ms": 0, "nodes": [], "switch": switch });
    });
    let expected = [
        "Critical: The switch's table has room for less than a fifth of its 100 flows",
        "Critical: fe0 has no lease at the switch's agent",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_document_that_cannot_be_read_is_an_alert() {
    let found = only_after(|document| document["nodes"] = "none".into());
    assert!(found.contains("cannot be read: "), "{found}");
}

#[test]
fn the_rules_for_prometheus_have_the_same_thresholds() {
    let rules = include_str!("../../../contrib/prometheus/prism.rules.yml");
    for threshold in [
        format!("prism_store_used_bytes > {FULL_SHARE} * prism_store_quota_bytes"),
        format!("prism_store_free_bytes < {FREE_SHARE} * (prism_store_free_bytes"),
        format!("prism_switch_flows > {SWITCH_SHARE} * prism_switch_max_flows"),
        format!("prism_etcd_database_bytes > {ETCD_SHARE} * prism_etcd_database_quota_bytes"),
        format!("- time() < {CERTIFICATE_DAYS} * {DAY_S}"),
    ] {
        assert!(rules.contains(&threshold), "{threshold}");
    }
}
