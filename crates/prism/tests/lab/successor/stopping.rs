//! A backend whose successor does not open the store: the signal to stop, and a reload since its
//! start.

use std::fs;
use std::time::{Duration, Instant};

use prism_config::ConfigFile;

use super::{ENDED_IN, fake, up};
use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, turn};

/// The longest time until a process ends that waits with its store closed. It opens the store again
/// and moves its connections first. A lab kills a process after 15 s.
const STOPPED_IN: Duration = Duration::from_secs(10);

/// A client whose connection waits at `host`.
fn waiting_at(cluster: &Cluster, host: &str) -> (Client, Object) {
    let object = Object::new(cluster.key_on(host, "waits"), 20_000);
    cluster.put_all(std::slice::from_ref(&object));
    let mut client = cluster.connect();
    client.get(cluster, &object);
    (client, object)
}

fn admin(cluster: &Cluster, host: &str) -> std::path::PathBuf {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    config.parts()[0].admin_socket(host)
}

#[test]
fn a_backend_that_waits_with_its_store_closed_stops_in_order() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(2);
    let (mut client, _) = waiting_at(&cluster, "be0");
    let elsewhere = Object::new(cluster.key_on("be1", "elsewhere"), 20_000);
    cluster.put_all(std::slice::from_ref(&elsewhere));
    let watch = Watch::events(&cluster, "successor-stops");
    // It was told to start, and stays silent.
    let successor = fake::take_over_until(fake::Step::Go, &admin(&cluster, "be0"));
    let begun = Instant::now();
    cluster.lab.stop("be0").unwrap();
    let took = begun.elapsed();
    assert!(took < STOPPED_IN, "{took:?}");
    // The connection has moved meanwhile.
    client.get(&cluster, &elsewhere);
    drop((client, successor));
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn a_backend_keeps_its_present_configuration_when_its_successor_fails() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    let (mut client, object) = waiting_at(&cluster, "be0");
    let path = cluster.lab.config_path();
    let mut config = ConfigFile::load(&path).unwrap();
    config.limits.connections -= 1;
    fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    let changes = || {
        let told = cluster.lab.ask("be0", "reload").unwrap();
        assert_eq!(told["faults"].as_array().unwrap().len(), 0, "{told}");
        told["now"].as_array().unwrap().len()
    };
    assert_eq!(changes(), 1);
    drop(fake::take_over_until(
        fake::Step::Go,
        &admin(&cluster, "be0"),
    ));
    eventually("it serves again", ENDED_IN, || {
        cluster.lab.admin("be0").is_ok()
    });
    client.get(&cluster, &object);
    assert_eq!(changes(), 0, "the reload was forgotten");
}
