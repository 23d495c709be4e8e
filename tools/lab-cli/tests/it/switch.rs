//! Tests of `prism-lab bench switch` and of the script that draws rows. Nothing is left behind.
//! The figures are not judged.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use prism_lab::testing::turn;

/// Pins of switches whose benchmark has ended.
fn left_behind() -> Vec<String> {
    let pins = std::fs::read_dir("/sys/fs/bpf")
        .into_iter()
        .flatten()
        .flatten();
    let names = pins.map(|pin| pin.file_name().to_string_lossy().into_owned());
    let is_over = |name: &String| {
        let rest = name.strip_prefix("prism-bench-");
        let pid = rest.and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| {
            let is_number = pid.parse::<u32>().is_ok();
            is_number && !Path::new("/proc").join(pid).exists()
        })
    };
    names.filter(is_over).collect()
}

#[test]
fn packets_of_both_families_are_measured_and_drawn_and_nothing_is_left() {
    let Some(_turn) = turn() else { return };
    let arguments = "bench switch --family dual --rounds 1 --no-throughput --json";
    let output = crate::prism_lab()
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    // Three sizes in each direction, and a frame that is not for the switch, of each family.
    assert_eq!(rows.len(), 14);
    for row in rows {
        let value = |name: &str| row["values"][name].as_f64().unwrap();
        assert!(value("ns_min") > 0.0, "{row}");
        assert!(value("ns_min") <= value("ns_median"), "{row}");
        let is_compared = row["values"].get("over_ipv4_median").is_some();
        assert_eq!(is_compared, row["case"]["family"] == "IPv6", "{row}");
    }
    assert_eq!(left_behind(), Vec::<String>::new());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switch.json");
    std::fs::write(&path, &output.stdout).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bench_report.py");
    let plots = directory.path().join("plots");
    let mut draw = Command::new(script);
    let drawn = draw.arg("--plots").arg(&plots).arg(&path).output().unwrap();
    let errors = String::from_utf8_lossy(&drawn.stderr);
    assert!(drawn.status.success(), "{errors}");
    let picture = std::fs::read(plots.join("switch.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
}
