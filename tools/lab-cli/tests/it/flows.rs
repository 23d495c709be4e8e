//! Tests of `prism-lab bench flows` and `report`: small tables are measured, noted, not
//! measured again, and drawn. Nothing is left behind. The figures are not judged.

use std::path::Path;

use serde_json::Value;

use prism_lab::testing::turn;

fn bench(arguments: &[&str], directory: &Path) -> String {
    let output = crate::prism_lab()
        .arg("bench")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Pins of switches whose benchmark has ended.
fn left_behind() -> Vec<String> {
    let pins = std::fs::read_dir("/sys/fs/bpf")
        .into_iter()
        .flatten()
        .flatten();
    let names = pins.map(|pin| pin.file_name().to_string_lossy().into_owned());
    let is_over = |name: &String| {
        let rest = name.strip_prefix("prism-bench-flows-");
        let pid = rest.and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    names.filter(is_over).collect()
}

#[test]
fn tables_of_flows_are_measured_once_and_drawn_and_nothing_is_left() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let flows = [
        "flows",
        "--flows",
        "1,1000",
        "--rounds",
        "1",
        "--rows",
        "rows.jsonl",
    ];
    let told = bench(&[&flows[..], &["--json"]].concat(), here);
    let told: Value = serde_json::from_str(&told).unwrap();
    let rows = told["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let value = |name: &str| row["values"][name].as_f64().unwrap();
        for name in ["to_owner_ns", "to_client_ns", "rule_ns", "round_trip_us"] {
            assert!(value(name) > 0.0, "{name}: {row}");
        }
        assert!(value("rule_ns") <= value("rule_p99_ns"), "{row}");
        assert!(value("accounted_bytes") > 0.0, "{row}");
    }
    assert_eq!(left_behind(), Vec::<String>::new());

    let noted = std::fs::read(here.join("rows.jsonl")).unwrap();
    let table = bench(&flows, here);
    assert!(table.contains("to owner ns"), "{table}");
    assert_eq!(std::fs::read(here.join("rows.jsonl")).unwrap(), noted);

    bench(&["report", "rows.jsonl", "--output", "report.html"], here);
    let html = std::fs::read_to_string(here.join("report.html")).unwrap();
    assert!(html.contains("<svg"));
    assert!(html.contains("missing"), "other results are");
}
