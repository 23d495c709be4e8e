//! Older copies that are put back beside all the rest: of etcd, of one store, and of both at once.
//! An administrator follows the remedies that the faults name.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use prism_config::ConfigFile;
use prism_signer::Signer;
use serde_json::{Value, json};

use super::{LEASE_S, STEP};
use crate::refill::seen_by;
use crate::support::client::Request;
use crate::support::{Cluster, eventually};

/// The part that is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Etcd,
    /// A copy of a store that was stopped.
    Store,
    /// A copy of a store that ran.
    RunningStore,
    Both,
}

impl Component {
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Store, Self::RunningStore, Self::Both];

    fn has_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::Both)
    }

    fn has_store(self) -> bool {
        self != Self::Etcd
    }
}

/// Copies of components at one moment.
pub struct Copies {
    component: Component,
    backend: String,
    /// A key that is deleted after the copy of etcd.
    key: String,
    made: Instant,
}

impl Copies {
    /// Copies a component while clients write. `number` is that of the round.
    pub fn make(cluster: &mut Cluster, component: Component, backend: &str, number: usize) -> Self {
        let copies = Self {
            component,
            backend: backend.to_owned(),
            key: format!("REVOKED{number}"),
            made: Instant::now(),
        };
        if component.has_etcd() {
            let new = ["key", "new", &copies.key, "--secret-stdin", "--admin"];
            surely(cluster, &new, &format!("{}\n", copies.secret()));
            cluster.lab.kill("etcd").unwrap();
            copy(&etcd_of(cluster), &etcd_of(cluster).with_extension("copy"));
            cluster.lab.restart("etcd").unwrap();
            surely(cluster, &["key", "delete", &copies.key], "");
        }
        if component.has_store() {
            let is_stopped = component == Component::Store;
            if is_stopped {
                cluster.lab.stop(backend).unwrap();
            }
            let store = store_of(cluster, backend);
            copy(&store, &store.with_extension("copy"));
            if is_stopped {
                cluster.lab.restart(backend).unwrap();
            }
        }
        Self {
            made: Instant::now(),
            ..copies
        }
    }

    fn secret(&self) -> String {
        format!("{}-has-this-secret", self.key)
    }

    /// Waits until what was committed since the copies is known outside of the store.
    pub fn wait_for_reports(&self) {
        let reported = Duration::from_secs(3 * u64::from(LEASE_S) + 1);
        std::thread::sleep(reported.saturating_sub(self.made.elapsed()));
    }

    /// Puts the copies in the place of the present ones.
    pub fn put_back(&self, cluster: &mut Cluster) {
        let (etcd, store) = (etcd_of(cluster), store_of(cluster, &self.backend));
        if self.component.has_store() {
            cluster.lab.kill(&self.backend).unwrap();
            replace(&store);
        }
        if self.component.has_etcd() {
            cluster.lab.kill("etcd").unwrap();
            replace(&etcd);
            cluster.lab.restart("etcd").unwrap();
        }
        if self.component.has_store() && cluster.lab.restart(&self.backend).is_err() {
            // A copy of a running store may be torn. It says so, and does not start.
            let log = std::fs::read_to_string(cluster.lab.log_path(&self.backend)).unwrap();
            assert!(log.contains("is damaged"), "{log}");
            std::fs::remove_dir_all(&store).unwrap();
            cluster.lab.restart(&self.backend).unwrap();
        }
    }

    /// Follows the remedies until all serve again. Nobody is let in by a deleted key meanwhile,
    /// nor after that.
    pub fn mend(&self, cluster: &Cluster) {
        if self.component.has_etcd() {
            eventually("the older etcd is noticed and recovered", STEP, || {
                self.status_of_revoked(cluster);
                has_fault(cluster) && self.recover(cluster)
            });
        }
        let begun = Instant::now();
        while self.status_of_revoked(cluster) != 403 || !is_well(cluster) {
            let component = self.component;
            assert!(
                begun.elapsed() < STEP,
                "{component:?}: {:#}",
                seen_by(cluster, "fe0")
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Does what `recover` advises. It is refused as long as a store has not been heard. Returns
    /// whether it is done.
    fn recover(&self, cluster: &Cluster) -> bool {
        let recover = ["cluster", "recover", "--json"];
        let recovered = run(cluster, &recover, "");
        let said: Value = serde_json::from_slice(&recovered.stdout).unwrap_or_default();
        if recovered.status.success() {
            assert_eq!(said["writes_may_be_lost"], false, "{said:#}");
            return true;
        }
        // The other replicas of its keys are in sync, which the stores alone cannot prove.
        let lost = json!({ self.backend.as_str(): "other-store" });
        let without = ["--without", self.backend.as_str()];
        self.component == Component::Both
            && said["unproven"] == lost
            && run(cluster, &[&recover[..], &without].concat(), "")
                .status
                .success()
    }

    /// The answer to the key that was deleted, which is never let in.
    fn status_of_revoked(&self, cluster: &Cluster) -> u16 {
        if !self.component.has_etcd() {
            return 403;
        }
        let signer = Signer::new(&self.key, self.secret(), "us-east-1");
        let list = Request::new("GET", "/").encode_by(&signer, cluster.service);
        let answer = cluster.connect().try_call(&list);
        let status = answer.map_or(503, |answer| answer.status());
        assert!(
            [403, 503].contains(&status),
            "{} is let in: {status}",
            self.key
        );
        status
    }
}

fn etcd_of(cluster: &Cluster) -> PathBuf {
    cluster.lab.config_path().with_file_name("etcd")
}

fn store_of(cluster: &Cluster, backend: &str) -> PathBuf {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    config.node(backend).unwrap().store.clone()
}

/// Files of a running store may go while they are copied.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let mut copying = Command::new("cp");
    copying.arg("-a").arg(from).arg(to).stderr(Stdio::null());
    copying.status().unwrap();
    assert!(to.exists());
}

fn replace(data: &Path) {
    std::fs::remove_dir_all(data).unwrap();
    std::fs::rename(data.with_extension("copy"), data).unwrap();
}

fn has_fault(cluster: &Cluster) -> bool {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let mut nodes = config.nodes.iter();
    nodes.any(|node| !seen_by(cluster, &node.name)["fault"].is_null())
}

/// Whether every backend of the state is in sync with its own store, and no node sees a fault.
pub fn is_well(cluster: &Cluster) -> bool {
    let seen = seen_by(cluster, "fe0");
    let backends = seen["backends"].as_array().unwrap();
    let is_good = |b: &Value| b["status"] == "in-sync" && b["has_other_store"] == false;
    backends.iter().all(is_good) && !has_fault(cluster)
}

fn surely(cluster: &Cluster, arguments: &[&str], input: &str) {
    eventually(&format!("ctl {arguments:?}"), STEP, || {
        run(cluster, arguments, input).status.success()
    });
}

fn run(cluster: &Cluster, arguments: &[&str], input: &str) -> Output {
    use std::io::Write;
    let program = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command("fe0", program).unwrap();
    command.arg("ctl").args(arguments).arg("--config");
    command.arg(cluster.lab.config_path()).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}
