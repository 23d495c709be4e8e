//! Clusters whose hosts fail and are repaired: behind two switches, and behind a single one.

use std::process::Command;
use std::time::{Duration, Instant};

use prism_lab::testing::{eventually, say, turn};
use prism_lab::{Failure, Lab, LabName};
use serde_json::Value;

use crate::prism_lab;

/// The longest time of a take-over.
const TAKE_OVER: Duration = Duration::from_secs(2);
/// The longest time of a request: SYNs may be lost, and are repeated after 1 and 3 s.
const REQUEST_S: &str = "5";
const OBJECT_BYTES: usize = 300_000;

/// A lab with one object.
struct Cluster {
    name: LabName,
    lab: Lab,
}

impl Cluster {
    fn up(switches: &str) -> Self {
        let name: LabName = format!("fail{}", std::process::id()).parse().unwrap();
        let mut up = prism_lab();
        up.args(["up", "--name", name.as_str(), "--switches", switches]);
        up.args(["--family", "dual", "--backends", "2", "--relay-up-to", "0"]);
        output_of(&mut up);
        let lab = Lab::attach(&name).unwrap();
        let cluster = Self { name, lab };
        let endpoint = cluster.lab.endpoint();
        let aws = |words: &[&str]| {
            let mut aws = cluster.lab.command("client", "aws").unwrap();
            output_of(aws.args(["--endpoint-url", &endpoint]).args(words))
        };
        aws(&["s3", "mb", "s3://pair"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "p".repeat(OBJECT_BYTES)).unwrap();
        aws(&[
            "s3",
            "cp",
            &file.path().to_string_lossy(),
            "s3://pair/object",
        ]);
        cluster
    }

    /// Runs `prism-lab` with the option `--name`.
    fn run(&self, words: &[&str]) -> String {
        let (command, rest) = words.split_first().unwrap();
        output_of(
            prism_lab()
                .args([command, "--name", self.name.as_str()])
                .args(rest),
        )
    }

    /// The active switch, as the lab sees it.
    fn active(&self) -> Option<String> {
        let status: Value = serde_json::from_str(&self.run(&["status", "--json"])).unwrap();
        let hosts = status["hosts"].as_array().unwrap().iter();
        let mut active = hosts.filter(|host| host["active"] == true);
        let name = active.next()?["name"].as_str()?.to_owned();
        active.next().is_none().then_some(name)
    }

    /// Whether the agent on a switch says that its host is active.
    fn says_active(&self, switch: &str) -> bool {
        let mut curl = self.lab.command(switch, "curl").unwrap();
        let state = output_of(curl.args(["-sf", "http://localhost:9465/state"]));
        let state: Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["switch"]["host"], switch);
        state["switch"]["active"].as_bool().unwrap()
    }

    /// Fetches the object over a new connection of each family.
    fn fetch(&self) {
        let credential = self.lab.credential();
        let user = format!("{}:{}", credential.access_key, credential.secret_key);
        for endpoint in self.lab.endpoints() {
            let url = format!("{endpoint}/pair/object");
            let mut curl = self.lab.command("client", "curl").unwrap();
            curl.args([
                "--fail",
                "--silent",
                "--show-error",
                "--max-time",
                REQUEST_S,
            ]);
            curl.args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &user]);
            let body = output_of(curl.arg(&url));
            assert_eq!(body.len(), OBJECT_BYTES, "{url}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for switch in [
                "switch0",
                "switch1",
                "switch0.keepalived",
                "switch1.keepalived",
            ] {
                let log = std::fs::read_to_string(self.lab.log_path(switch));
                say(&format!("log of {switch}:\n{}", log.unwrap_or_default()));
            }
        }
        let down = prism_lab()
            .args(["down", "--name", self.name.as_str()])
            .output();
        assert!(std::thread::panicking() || down.unwrap().status.success());
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn objects_are_served_after_each_failure_of_the_active_switch() {
    let Some(_turn) = turn() else { return };
    let pair = Cluster::up("2");
    pair.fetch();
    // Each switch fails in each way.
    for how in Failure::ALL.into_iter().flat_map(|how| [how, how]) {
        let active = pair.active().unwrap();
        let other = match active.as_str() {
            "switch0" => "switch1",
            _ => "switch0",
        };
        let start = Instant::now();
        pair.run(&["fail", "--how", &how.to_string(), &active]);
        eventually("the other one is active", TAKE_OVER, || {
            pair.lab.is_active(other) && !pair.lab.is_active(&active)
        });
        say(&format!(
            "{how}: {other} is active after {:?}",
            start.elapsed()
        ));
        eventually("its agent knows it", TAKE_OVER, || pair.says_active(other));
        pair.fetch();
        pair.run(&["heal", &active]);
        eventually("the healed one stands by", TAKE_OVER, || {
            !pair.says_active(&active)
        });
        assert_eq!(pair.active().as_deref(), Some(other));
        pair.fetch();
        // Its keepalived has to know that its agent is there, to take over again.
        std::thread::sleep(TAKE_OVER);
    }
}

#[test]
fn objects_are_served_after_each_failure_of_a_single_switch_or_a_node() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up("1");
    for how in Failure::ALL {
        for host in ["switch", "fe0", "be0", "be1"] {
            cluster.run(&["fail", "--how", &how.to_string(), host]);
            cluster.run(&["heal", host]);
            cluster.fetch();
        }
    }
    let status = cluster.run(&["status", "--json"]);
    assert!(!status.contains("\"active\""), "{status}");
}
