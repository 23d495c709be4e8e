//! Files and rights that a node or a switch lacks on this machine, by the configuration.

use anyhow::Result;
use prism_config::{Config, ConfigFile, Node, Peers, Trace};
use prism_pki::Identity;
use prism_sys::process::with_causes;

/// The effect of a family of the service that `node` has no address of.
pub(crate) fn effect_of_missing(family: &str, node: &Node) -> String {
    if node.is_backend() {
        format!("requests of {family} clients are relayed to it")
    } else {
        format!("{family} clients do not reach it")
    }
}

/// The things that the node or switch `name` lacks on this machine, for all its services.
pub(crate) fn faults_of_host(config: &ConfigFile, name: &str) -> Result<Vec<String>> {
    let parts = match config.node_or_switch(name)? {
        Some(_) => config.parts_at(name),
        None => config.parts(),
    };
    let mut all: Vec<String> = Vec::new();
    for part in parts {
        for fault in node_faults(&part, name)? {
            if !all.contains(&fault) {
                all.push(fault);
            }
        }
    }
    Ok(all)
}

/// The files that `name` lacks on this machine for the service of `config`, each with its fix.
///
/// # Errors
/// There is no such node.
pub fn node_faults(config: &Config, name: &str) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let node = config.node_or_switch(name)?;
    let key_fault = config.switch.as_ref().and_then(|switch| match node {
        Some(_) => switch.load_node_key(name).err(),
        None => switch.load_secrets().err(),
    });
    faults.extend(key_fault.map(|error| format!("switch.key_file: {error}")));
    let Some(node) = node else { return Ok(faults) };
    faults.extend(trace_fault(&config.trace));
    let named = !config.s3.credentials_file.as_os_str().is_empty();
    if let Some(error) = named.then(|| config.s3.load_credentials().err()).flatten() {
        faults.push(format!("s3.credentials_file: {error}"));
    }
    if config.cluster.etcd.is_some()
        && let Err(error) = prism_membership::etcd::client(config)
    {
        faults.push(with_causes(error.as_ref()));
    }
    if !config.peers.ca_file.as_os_str().is_empty() {
        faults.extend(identity_faults(&config.peers, name));
    }
    let keeps_objects = node.is_backend() && config.service.keeps_objects();
    if keeps_objects && node.store.exists() && !node.store.is_dir() {
        let store = node.store.display();
        faults.push(format!(
            "store: {store} is not a directory; name a directory, or remove the file"
        ));
    }
    Ok(faults)
}

/// The fault of a configuration that wants spans to be sent by a program that cannot.
pub fn trace_fault(trace: &Trace) -> Option<String> {
    trace_fault_of(trace, cfg!(feature = "otlp"))
}

fn trace_fault_of(trace: &Trace, can_send: bool) -> Option<String> {
    (trace.is_sent() && !can_send).then(|| {
        "trace.otlp: this program was built without OTLP; build it with `--features otlp`, or \
         remove the section [trace]"
            .into()
    })
}

/// The faults of the files by which other nodes know `name`.
fn identity_faults(peers: &Peers, name: &str) -> Vec<String> {
    let certificate = peers.cert_file(name);
    let key = peers.key_file(name);
    let files = [
        ("peers.ca_file", &peers.ca_file),
        ("peers.cert_dir", &certificate),
        ("peers.cert_dir", &key),
    ];
    let absent = files.into_iter().filter_map(|(field, path)| {
        let error = std::fs::File::open(path).err()?;
        let path = path.display();
        let fix = "make it with `prism pki`";
        Some(format!("{field}: cannot read {path}: {error}; {fix}"))
    });
    let absent: Vec<_> = absent.collect();
    if !absent.is_empty() {
        return absent;
    }
    let error = Identity::load(&peers.ca_file, &certificate, &key).err();
    error
        .map(|error| format!("peers: {error}"))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_send_spans_says_how_to_get_one() {
        let mut trace = Trace::default();
        assert_eq!(trace_fault_of(&trace, false), None);
        trace.otlp = "http://127.0.0.1:4318/v1/traces".into();
        assert_eq!(trace_fault_of(&trace, true), None);
        let said = trace_fault_of(&trace, false).unwrap_or_default();
        assert!(
            said.starts_with("trace.otlp: ") && said.contains("--features otlp"),
            "{said}"
        );
    }
}
