//! Unmodified clients of Redis: `redis-cli`, and go-redis in a program of `scripts/clients`.

use std::path::PathBuf;
use std::process::Command;

use prism_nodes::is_root;

use crate::cluster::{Cluster, LARGE_BYTES, PLAN};

fn redis_cli(cluster: &Cluster, commands: &str) -> String {
    let service = PLAN.service();
    let mut shell = Command::new("sh");
    let script = format!(
        "redis-cli -h {} -p {} <<'END'\n{commands}\nEND",
        service.ip(),
        service.port()
    );
    cluster.run(shell.args(["-ec", &script]))
}

#[test]
fn redis_cli_reads_its_writes_wherever_its_connection_is() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("cli");
    let value = "v".repeat(LARGE_BYTES);
    let said = redis_cli(
        &cluster,
        &format!(
            "PING\nSET small one\nGET small\nSET large {value}\nGET large\nINFO\n\
             SET small two\nGET small\nDEL small large nothing\nGET large\nFLUSHALL"
        ),
    );
    let lines: Vec<_> = said.lines().map(str::trim_end).collect();
    assert_eq!(lines[..5], ["PONG", "OK", "one", "OK", &value]);
    // The small write is relayed, and the connection stays at the replica.
    assert!(!lines.contains(&"node:primary"), "{lines:?}");
    let rest = lines.iter().skip_while(|line| !line.starts_with("moved:"));
    let rest: Vec<_> = rest.skip(1).filter(|line| !line.is_empty()).collect();
    assert_eq!(rest[..3], [&"OK", &"two", &"2"]);
    assert!(said.contains("ERR unknown command"));
}

#[test]
fn go_redis_reads_its_writes() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("go");
    let clients = std::env::var_os("PRISM_TEST_CLIENTS").map(PathBuf::from);
    let clients = clients.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME");
        PathBuf::from(home).join(".cache/prism-test-clients")
    });
    let mut go = Command::new(clients.join("redis"));
    let said = cluster.run(go.args([&PLAN.service().to_string(), "32", "200"]));
    assert_eq!(said, "32 clients have read what they wrote\n");
    let mut client = cluster.client();
    let moved: u64 = client.info("moved").unwrap().parse().unwrap();
    // Every connection that reads large values has moved.
    assert!(moved >= 32, "{moved}");
}
