//! Paths that take only smaller packets than the links: `prism doctor` probes them.

use crate::support::{Cluster, turn};

/// What `prism doctor` says about the paths from `fe0`.
fn doctor(cluster: &Cluster) -> String {
    let config = cluster.lab.config_path();
    let line = format!("doctor --config {} --node fe0", config.display());
    let prism = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command("fe0", prism).unwrap();
    let output = command.args(line.split(' ')).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("path MTU"))
        .collect();
    assert!(!lines.is_empty(), "{said}");
    lines.join("\n")
}

fn set_mtu(cluster: &Cluster, host: &str, interface: &str, mtu_bytes: u32) {
    let line = format!("link set dev {interface} mtu {mtu_bytes}");
    let mut ip = cluster.lab.command(host, "ip").unwrap();
    assert!(
        ip.args(line.split(' ')).status().unwrap().success(),
        "{line}"
    );
}

#[test]
fn doctor_tells_a_path_that_names_its_limit_from_one_that_drops_silently() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    assert!(doctor(&cluster).starts_with("ok"), "{}", doctor(&cluster));
    assert!(doctor(&cluster).contains("packets of 1500 bytes arrive whole"));

    // The switch says that packets to be0 are too large.
    set_mtu(&cluster, "switch", "be0", 1400);
    let said = doctor(&cluster);
    assert!(said.contains("1400 to 1500 bytes arrive whole"), "{said}");
    assert!(!said.contains("vanish"), "{said}");
    set_mtu(&cluster, "switch", "be0", 1500);

    // be1 itself takes less than its link brings.
    set_mtu(&cluster, "be1", "eth0", 1400);
    let said = doctor(&cluster);
    for vip in cluster.vips() {
        let address = cluster.address_like("be1", vip);
        let bad = format!("packets of 1500 bytes to be1 ({address}) vanish");
        assert!(said.contains(&bad), "{said}");
    }
    assert!(said.contains("MISSING"), "{said}");
}
