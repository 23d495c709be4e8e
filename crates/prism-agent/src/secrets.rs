//! The secrets of the nodes' keys, one list for each service. The agent reads their files again
//! when they change.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_config::{ConfigFile, ControlSecret};
use prism_figures::{SecretInUse, ServiceKeys};
use prism_membership::Directory;
use prism_switch::Leases;

use crate::shared::Shared;

/// The interval of looks at the files.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The secrets of each service, the newest first.
pub(crate) type Secrets = Vec<Vec<ControlSecret>>;

/// Reads the secrets of all services.
pub(crate) fn read(config: &ConfigFile) -> Result<Secrets, prism_config::SecretError> {
    let parts = config.parts().into_iter();
    let switches = parts.filter_map(|part| part.switch);
    switches.map(|switch| switch.load_secrets()).collect()
}

/// Makes the agent pause when a file has changed. Never returns.
pub(crate) async fn follow(shared: &Shared) {
    let mut last = read(&shared.running.now()).ok();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = read(&shared.running.now()).ok();
        if now.is_some() && now != last {
            last = now;
            shared.pauses.pause.store(true, Ordering::Relaxed);
        }
    }
}

/// The secrets in use, each by a number that tells it from others, with the nodes that have a lease
/// by a key of it.
pub(crate) fn shown(
    config: &ConfigFile,
    secrets: &Secrets,
    directories: &[Directory],
    leases: &Leases,
) -> Vec<ServiceKeys> {
    let in_use = leases.keys_in_use();
    let services = config.parts().into_iter().zip(secrets).zip(directories);
    let services = services.map(|((part, secrets), directory)| {
        let shared_id = part.switch.as_ref().map_or(0, |switch| switch.key_id);
        let secrets = secrets.iter().map(|secret| {
            let nodes = directory.iter().filter(|(name, host)| {
                let key_id = secret.key_of(name, shared_id).key_id;
                let mut addresses = host.address.iter();
                addresses.any(|address| in_use.contains(&(address, key_id)))
            });
            SecretInUse {
                id: secret.fingerprint(),
                nodes: nodes.map(|(name, _)| name.to_owned()).collect(),
            }
        });
        ServiceKeys {
            service: part.service.name.clone(),
            secrets: secrets.collect(),
        }
    });
    services.collect()
}
