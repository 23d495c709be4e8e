//! The changes from one configuration to another, and when each takes effect.
//!
//! The fields are those that serde writes. [`RULES`] alone says which of them apply while a
//! process runs. A value is a number, a word or a path: the file has no secrets.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::change_shown::shown;
use crate::load::ConfigError;
use crate::model::{Config, ConfigFile};
use crate::position::FilePosition;
use crate::problem::Problem;
use crate::service::{Service, Services};
use crate::switch::HookMode;

/// The moment at which a process acts by a changed field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// At its next reload.
    Reload,
    /// After its restart.
    Restart,
    /// Never: the process does not use the field.
    Never,
}

/// A process that reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigReader<'n> {
    /// The node with this name.
    Node(&'n str),
    /// The agent of the switch.
    Switch,
}

use Effect::{Never, Reload, Restart};

/// When fields take effect: at nodes, and at the agent of the switch. `*` stands for one part of a
/// name. The first rule that fits counts; a field without a rule needs a restart of both.
const RULES: &[(&str, Effect, Effect)] = &[
    ("cluster.region", Restart, Never),
    ("cluster.replicas", Restart, Never),
    ("cluster.min_replicas", Restart, Never),
    ("service.peer_port", Restart, Never),
    ("service.replicas", Restart, Never),
    ("service.min_replicas", Restart, Never),
    ("service.admin_listen", Restart, Never),
    ("service.limits.max_object_bytes", Restart, Never),
    ("service.limits.*", Reload, Never),
    ("service.s3.anonymous", Reload, Never),
    ("service.s3.*", Restart, Never),
    ("service.hand_off", Reload, Never),
    ("service.hand_off_method", Restart, Never),
    ("service.congestion_window", Restart, Never),
    ("service.relay_up_to", Reload, Never),
    ("service.objects", Restart, Never),
    ("service.objects.*", Reload, Never),
    ("service.upstream", Reload, Never),
    ("service.upstream.*", Reload, Never),
    ("service.upstream.health.*", Reload, Never),
    ("service.upstream.redirects.*", Reload, Never),
    ("service.upstream.redirects.locations.*", Reload, Never),
    ("service.upstream.auth.*", Reload, Never),
    ("service.rule", Reload, Never),
    ("service.limit", Reload, Never),
    ("service.urls", Reload, Never),
    ("service.trusted_proxies", Reload, Never),
    ("service.accept_proxy_protocol", Reload, Never),
    ("service.cors_origins", Reload, Never),
    ("service.tls.port", Restart, Restart),
    ("service.tls.redirect_http", Reload, Never),
    ("service.tls.*", Restart, Never),
    ("switch.hosts", Never, Restart),
    ("switch.pin_dir", Never, Restart),
    ("switch.interfaces", Never, Restart),
    ("switch.mode", Never, Restart),
    ("switch.max_flows", Never, Restart),
    ("switch.idle_timeout_s", Never, Restart),
    ("node.*", Restart, Reload),
    ("node.*.address", Restart, Reload),
    ("node.*.roles", Restart, Reload),
    ("node.*.link_mbit_s", Reload, Never),
    ("node.*.*", Restart, Never),
    ("peers.*", Restart, Never),
    ("store.*", Reload, Never),
    ("limits.head_bytes", Restart, Never),
    ("limits.max_object_bytes", Restart, Never),
    ("limits.*", Reload, Never),
    ("s3.anonymous", Reload, Never),
    ("s3.*", Restart, Never),
    ("log.level", Reload, Reload),
    ("log.access", Reload, Never),
    ("log.access_format", Reload, Never),
    ("log.audit", Reload, Never),
    ("trace.sample_per_million", Reload, Never),
    ("trace.otlp", Restart, Never),
    ("admin.listen", Restart, Never),
    ("admin.names", Restart, Restart),
    ("admin.scrapers", Never, Reload),
    ("admin.socket_dir", Restart, Never),
];

const QUOTA: &str = "store.quota_bytes";

/// Fields of a node that concern every process. The others concern this node alone.
const OF_ALL: [&str; 2] = ["address", "roles"];

/// A changed field.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    path: Vec<String>,
    /// Its value in the old configuration, in TOML; `None` if it has none.
    pub old: Option<String>,
    /// Its value in the new configuration.
    pub new: Option<String>,
    shown: String,
    at_nodes: Effect,
    at_switch: Effect,
}

impl Change {
    fn new(path: &[String], old: Option<&Value>, new: Option<&Value>) -> Self {
        let (mut at_nodes, at_switch) = effects(path);
        // A store without a quota has not counted its small objects, and a service with upstreams
        // is another one.
        let is_first_quota = path.join(".") == QUOTA && old == Some(&Value::Integer(0));
        let is_service = path.len() == 2 && path.ends_with(&["upstream".to_owned()]);
        if is_first_quota || is_service && (old.is_none() || new.is_none()) {
            at_nodes = Restart;
        }
        Self {
            path: path.to_vec(),
            old: old.map(Value::to_string),
            new: new.map(Value::to_string),
            shown: shown(&path.join("."), old, new),
            at_nodes,
            at_switch,
        }
    }

    /// The name of the field, such as `limits.idle_timeout_s` or `node.be0.workers`.
    pub fn field(&self) -> String {
        self.path.join(".")
    }

    /// When the field takes effect at a process.
    pub fn effect_at(&self, reader: ConfigReader<'_>) -> Effect {
        match (reader, self.only_node()) {
            (ConfigReader::Switch, _) => self.at_switch,
            (ConfigReader::Node(name), Some(only)) if name != only => Never,
            (ConfigReader::Node(_), _) => self.at_nodes,
        }
    }

    /// The same in host mode, where the programs have the addresses and roles of their own host as
    /// constants.
    fn in_host_mode(mut self) -> Self {
        if let [section, _, field] = self.path.as_slice()
            && section == "node"
            && OF_ALL.contains(&field.as_str())
        {
            self.at_switch = Restart;
        }
        self
    }

    /// The node that alone uses the field, if it is such a field.
    fn only_node(&self) -> Option<&str> {
        match self.path.as_slice() {
            [section, name, field] if section == "node" && !OF_ALL.contains(&field.as_str()) => {
                Some(name)
            }
            _ => None,
        }
    }

    /// The processes at which the field takes effect in this way; empty for none.
    fn readers(&self, effect: Effect) -> String {
        let nodes = self.only_node().unwrap_or("the nodes");
        let both = [(self.at_nodes, nodes), (self.at_switch, "the switch agent")];
        let named = both.iter().filter(|(at, _)| *at == effect);
        named
            .map(|(_, name)| *name)
            .collect::<Vec<_>>()
            .join(" and ")
    }

    /// When the field takes effect, at which processes.
    pub fn effect(&self) -> String {
        let reload = self.readers(Reload);
        let restart = self.readers(Restart);
        let reload = (!reload.is_empty()).then(|| format!("reload of {reload}"));
        let restart = (!restart.is_empty()).then(|| format!("restart of {restart}"));
        reload
            .into_iter()
            .chain(restart)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// When the field at `path` takes effect at nodes, and at the agent of the switch.
fn effects(path: &[String]) -> (Effect, Effect) {
    // One of several services has the rules of `service`.
    let names = path.iter().map(|part| {
        if part.starts_with(ONE_OF_SERVICES) {
            "service"
        } else {
            part
        }
    });
    let fits = |pattern: &str| {
        let mut parts = pattern.split('.');
        let fit = names
            .clone()
            .all(|part| parts.next().is_some_and(|p| p == "*" || p == part));
        fit && parts.next().is_none()
    };
    let rule = RULES.iter().find(|(pattern, ..)| fits(pattern));
    rule.map_or((Restart, Restart), |(_, nodes, switch)| (*nodes, *switch))
}

/// The content of `service` in a configuration: the service of a part, or all services of a file.
pub trait ServiceTable: Clone + Default + Serialize + DeserializeOwned {
    /// All faults of a configuration.
    fn problems(config: &Config<Self>) -> Vec<Problem>;
}

impl ServiceTable for Service {
    fn problems(config: &Config) -> Vec<Problem> {
        config.problems_of_one()
    }
}

impl ServiceTable for Services {
    fn problems(config: &ConfigFile) -> Vec<Problem> {
        config.problems()
    }
}

impl<S: ServiceTable> Config<S> {
    /// The changes that make this configuration the configuration `new`, by name.
    pub fn changes_to(&self, new: &Self) -> Vec<Change> {
        let mut found = Vec::new();
        let mut path = Vec::new();
        compare(&tree(self), &tree(new), &mut path, &mut found);
        let switch = self.switch.as_ref();
        if switch.is_some_and(|switch| switch.mode == HookMode::Host) {
            found.into_iter().map(Change::in_host_mode).collect()
        } else {
            found
        }
    }

    /// This configuration with `changes`, which lead to `new`.
    ///
    /// # Errors
    /// The fields do not fit together without the other changes.
    pub fn with_changes(&self, changes: &[Change], new: &Self) -> Result<Self, ConfigError> {
        if changes.is_empty() {
            return Ok(self.clone());
        }
        let mut tree_of_both = tree(self);
        let source = tree(new);
        for Change { path, .. } in changes {
            put(&mut tree_of_both, path, find(&source, path));
        }
        let order = self.nodes.iter().chain(&new.nodes).map(|node| &node.name);
        let both = from_tree(tree_of_both, order);
        let mut both: Self = both.map_err(|error| ConfigError::Syntax {
            place: FilePosition::default(),
            fault: error.message().to_owned(),
        })?;
        both.whole.clone_from(&self.whole);
        match S::problems(&both) {
            problems if problems.is_empty() => Ok(both),
            problems => Err(ConfigError::Invalid(problems)),
        }
    }
}

/// The beginning of the key of one of several services in a tree; the name follows.
const ONE_OF_SERVICES: &str = "service[";

/// A configuration as a tree, with the nodes and several services by name.
fn tree(config: &Config<impl ServiceTable>) -> Table {
    // A configuration is always a table: its tests write it to text.
    let mut tree = Table::try_from(config).unwrap_or_default();
    if let Some(Value::Array(nodes)) = tree.remove("node") {
        let named = nodes.into_iter().filter_map(|node| {
            let name = node.get("name")?.as_str()?.to_owned();
            Some((name, node))
        });
        tree.insert("node".into(), Value::Table(named.collect()));
    }
    if let Some(Value::Array(services)) = tree.get("service").cloned() {
        tree.remove("service");
        for service in services {
            let name = service.get("name").and_then(Value::as_str);
            let key = format!("{ONE_OF_SERVICES}{}]", name.unwrap_or_default());
            tree.insert(key, service);
        }
    }
    tree
}

/// The configuration of a tree. Its nodes have the order of these names.
fn from_tree<'n, S: ServiceTable>(
    mut tree: Table,
    order: impl Iterator<Item = &'n String>,
) -> Result<Config<S>, toml::de::Error> {
    if let Some(Value::Table(mut nodes)) = tree.remove("node") {
        let nodes = order.filter_map(|name| nodes.remove(name)).collect();
        tree.insert("node".into(), Value::Array(nodes));
    }
    let is_service = |key: &str| key.starts_with(ONE_OF_SERVICES);
    let (services, mut tree): (Table, Table) =
        tree.into_iter().partition(|(key, _)| is_service(key));
    if !services.is_empty() {
        let services = services.into_iter().map(|(_, service)| service);
        tree.insert("service".into(), Value::Array(services.collect()));
    }
    Config::deserialize(tree)
}

/// Adds the changes between two tables at `path`.
fn compare(old: &Table, new: &Table, path: &mut Vec<String>, found: &mut Vec<Change>) {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    for key in old.keys().chain(added) {
        path.push(key.clone());
        match (old.get(key), new.get(key)) {
            (Some(Value::Table(old)), Some(Value::Table(new))) => compare(old, new, path, found),
            (old, new) if old != new => found.push(Change::new(path, old, new)),
            _ => {}
        }
        path.pop();
    }
}

fn find<'t>(tree: &'t Table, path: &[String]) -> Option<&'t Value> {
    let (last, parents) = path.split_last()?;
    let parent = parents
        .iter()
        .try_fold(tree, |table, key| table.get(key)?.as_table());
    parent?.get(last)
}

/// Gives the field at `path` this value, or none.
fn put(tree: &mut Table, path: &[String], value: Option<&Value>) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let parent = parents
        .iter()
        .try_fold(tree, |table, key| table.get_mut(key)?.as_table_mut());
    match (parent, value) {
        (Some(parent), Some(value)) => drop(parent.insert(last.clone(), value.clone())),
        (Some(parent), None) => drop(parent.remove(last)),
        (None, _) => {}
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
