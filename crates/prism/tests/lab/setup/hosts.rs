//! Single hosts, in namespaces of their own.

use super::{Host, PRISM, assert_same};
use crate::support::turn;

pub(super) const CONFIG: &str = r#"
[cluster]
name = "example"
[service]
address = "203.0.113.10:80"
[switch]
control = "10.0.1.1:7300"
key_file = "/etc/prism/switch.key"
interfaces = ["eth0", "eth1"]
[[node]]
name = "fe0"
address = "10.0.1.11"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.0.1.21"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
[s3]
credentials_file = "/etc/prism/credentials.toml"
"#;
const SYSCTL: &str = "etc/sysctl.d/60-prism.conf";
const NOTRACK: &str = "etc/prism/notrack.nft";
const RECORD: &str = "etc/prism/setup.json";
/// The hosts' roles, with the last number of their addresses.
const ROLES: [(&str, u8); 3] = [("--switch", 1), ("--node fe0", 11), ("--node be0", 21)];

#[test]
fn without_apply_it_prints_and_changes_nothing() {
    let Some(_turn) = turn() else { return };
    for (role, number) in ROLES {
        let host = Host::new(number);
        let before = host.snapshot();
        let said = host.set_up(role);
        assert!(said.contains("==> /etc/sysctl.d/60-prism.conf\n"), "{said}");
        let json = host.set_up(&format!("{role} --json"));
        let list: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(list.as_array().unwrap().len() > 4, "{json}");
        assert_same(&before, &host.snapshot());
    }
}

#[test]
fn what_was_there_before_stays_at_remove() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(11);
    host.shell("ip address add 203.0.113.10/32 dev lo");
    host.shell("ip route add default via 10.0.1.254");
    host.shell("sysctl -w net.ipv4.ip_local_reserved_ports=30000,8080");
    host.shell("nft add table ip other");
    let before = host.snapshot();
    host.set_up("--node fe0 --apply");
    assert!(
        host.read(SYSCTL).contains("= 8080,20000-30000\n"),
        "{}",
        host.read(SYSCTL)
    );
    assert_eq!(
        host.set_up("--node fe0 --apply"),
        "this host was ready already\n"
    );
    // Clients are reached by the switch, and all else as before.
    let route = |from: &str| host.shell(&format!("ip route get 192.0.2.1 {from}"));
    for from in ["10.0.1.11", "203.0.113.10"] {
        assert!(route(&format!("from {from}")).contains("via 10.0.1.1 "));
    }
    assert!(route("").contains("via 10.0.1.254 "));
    host.set_up("--remove");
    assert_same(&before, &host.snapshot());
}

#[test]
fn a_switch_gets_its_parameters_back() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(1);
    host.shell("sysctl -w net.ipv4.conf.eth1.forwarding=1 net.ipv4.conf.all.rp_filter=1");
    let before = host.snapshot();
    host.set_up("--switch --apply");
    let values = host.shell("sysctl -n net.ipv4.ip_forward net.ipv4.conf.all.rp_filter");
    assert_eq!(values, "1\n2\n");
    assert!(
        host.shell("ip route")
            .contains("203.0.113.10 via 10.0.1.11 ")
    );
    host.set_up("--remove");
    assert_same(&before, &host.snapshot());
}

#[test]
fn a_file_of_others_is_named_and_nothing_is_changed() {
    let Some(_turn) = turn() else { return };
    for path in [SYSCTL, NOTRACK] {
        let host = Host::new(21);
        host.write(path, "# mine\n");
        let before = host.snapshot();
        let (is_well, said) = host.setup("--node be0 --apply");
        assert!(
            !is_well && said.contains(&format!("/{path} exists")),
            "{said}"
        );
        assert_same(&before, &host.snapshot());
    }
}

#[test]
fn a_file_that_was_there_with_the_same_text_is_not_ours() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(21);
    host.set_up("--node be0 --apply");
    let text = host.read(NOTRACK);
    host.set_up("--remove");
    host.write(NOTRACK, &text);
    let before = host.snapshot();
    host.set_up("--node be0 --apply");
    let changed = CONFIG.replace(":80\"", ":8080\"");
    host.write("etc/prism/prism.toml", &changed);
    let (is_well, said) = host.setup("--node be0 --apply");
    assert!(!is_well && said.contains("notrack.nft exists"), "{said}");
    host.write("etc/prism/prism.toml", CONFIG);
    host.set_up("--remove");
    assert_same(&before, &host.snapshot());
}

#[test]
fn what_others_have_changed_since_stays_at_remove() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(21);
    host.set_up("--node be0 --apply");
    host.write(NOTRACK, "# mine\n");
    host.shell("sysctl -w net.ipv4.conf.all.rp_filter=0");
    host.shell("ip rule del priority 32000");
    let said = host.set_up("--remove");
    assert!(said.contains("kept: /etc/prism/notrack.nft"), "{said}");
    assert!(said.contains("kept: net.ipv4.conf.all.rp_filter"), "{said}");
    assert_eq!(host.read(NOTRACK), "# mine\n");
    assert!(!host.path(SYSCTL).exists() && !host.path(RECORD).exists());
    assert!(!host.shell("ip rule").contains("10.0.1.21"));
    assert!(!host.shell("nft list tables").contains("prism"));
}

#[test]
fn a_changed_configuration_changes_only_what_differs() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(11);
    let before = host.snapshot();
    host.set_up("--node fe0 --apply");
    let changed = CONFIG.replace(":80\"", ":8080\"");
    let changed = changed.replace("[\"frontend\"]", "[\"backend\"]");
    let changed = changed.replacen(
        "[\"backend\"]\n[[",
        "[\"backend\"]\ngateway = \"10.0.1.2\"\n[[",
        1,
    );
    let changed = changed.replacen(
        "10.0.1.21\"\nroles = [\"backend\"]",
        "10.0.1.21\"\nroles = [\"frontend\"]",
        1,
    );
    host.write("etc/prism/prism.toml", &changed);
    let said = host.set_up("--node fe0 --apply");
    assert!(
        said.contains("undone: ip address add 203.0.113.10/32 dev lo"),
        "{said}"
    );
    assert!(!said.contains("sysctl"), "{said}");
    assert!(!host.shell("ip address").contains("203.0.113.10"));
    let rules = host.shell("nft list table inet prism");
    assert!(
        rules.contains("8080 notrack") && !rules.contains("dport 80 "),
        "{rules}"
    );
    assert!(host.read(NOTRACK).contains("prism_service = { 8080 }"));
    let route = host.shell("ip route get 192.0.2.1 from 10.0.1.11");
    assert!(route.contains("via 10.0.1.2 "), "{route}");
    host.write("etc/prism/prism.toml", CONFIG);
    host.set_up("--remove");
    assert_same(&before, &host.snapshot());
}

#[test]
fn after_a_boot_the_record_alone_sets_the_host_up_again() {
    let Some(_turn) = turn() else { return };
    for (role, number) in ROLES {
        let mut host = Host::new(number);
        let nothing = host.set_up("--restore");
        assert!(nothing.contains("nothing was applied"), "{nothing}");
        host.set_up(&format!("{role} --apply"));
        let applied = host.snapshot();
        host.boot(number);
        host.write("etc/prism/prism.toml", "");
        host.set_up("--restore");
        host.write("etc/prism/prism.toml", CONFIG);
        assert_eq!(host.set_up("--restore"), "this host was ready already\n");
        assert_same(&applied, &host.snapshot());
        host.set_up("--remove");
        assert!(!host.path(RECORD).exists());
        assert!(!host.shell("ip rule").contains("10.0.1."));
    }
}

#[test]
fn a_failure_in_the_middle_can_be_removed() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(21);
    let before = host.snapshot();
    let elsewhere = CONFIG.replace("10.0.1.1:", "10.9.9.9:");
    host.write("etc/prism/prism.toml", &elsewhere);
    let (is_well, said) = host.setup("--node be0 --apply");
    assert!(!is_well && said.contains("`gateway`"), "{said}");
    assert!(host.path(RECORD).exists());
    host.set_up("--remove");
    host.write("etc/prism/prism.toml", CONFIG);
    assert_same(&before, &host.snapshot());
}

#[test]
fn links_of_systemd_networkd_get_additions_to_their_files() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(11);
    let index = host.shell("ip -o link show dev eth0");
    let index = index.split(':').next().unwrap();
    let file = "NETWORK_FILE=/run/systemd/network/10-netplan-eth0.network\n";
    host.write(&format!("run/systemd/netif/links/{index}"), file);
    let before = host.snapshot();
    host.set_up("--node fe0 --apply");
    let text = host.read("etc/systemd/network/10-netplan-eth0.network.d/60-prism.conf");
    assert!(
        text.contains("[Route]\nGateway=10.0.1.1\nTable=7300\n"),
        "{text}"
    );
    assert!(
        text.contains("From=203.0.113.10/32\nTable=7300\n"),
        "{text}"
    );
    host.set_up("--remove");
    assert_same(&before, &host.snapshot());
}

#[test]
fn only_root_can_apply() {
    let Some(_turn) = turn() else { return };
    let host = Host::new(11);
    // Others may not enter the directory of the build.
    let prism = std::path::Path::new("/tmp").join(format!("prism-setup-{}", std::process::id()));
    std::fs::copy(PRISM, &prism).unwrap();
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--clear-groups"])
        .arg(&prism);
    command.args(["setup", "--config", "x", "--node", "fe0", "--apply"]);
    let (is_well, said) = host.run(command);
    std::fs::remove_file(&prism).unwrap();
    assert!(
        !is_well && said.contains("only root can change this host"),
        "{said}"
    );
}
