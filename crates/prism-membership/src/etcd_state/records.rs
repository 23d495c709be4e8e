//! The cluster's keys in etcd, as far as this node has heard of them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use prism_cluster::{
    Claims, Contents, Lineage, Live, NodeName, Placing, State, Status, StoreMark, Testimonies,
    Testimony,
};
use prism_config::Credential;
use prism_etcd::{Event, Fingerprint, KeyEntry, Snapshot, Update};
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::etcd::{self, Key, Keys, Living, Pause};
use crate::{Buckets, Host, UserClaim, ledger};

/// All keys of the cluster, as of one revision.
#[derive(Clone, Debug, Default)]
pub struct ClusterRecords {
    /// The revision of etcd; 0 before the first answer.
    pub revision: u64,
    /// The state, with the revision of its last change.
    pub state: Option<(State, u64)>,
    /// The placing that the administrator asked for.
    pub wish: Option<Placing>,
    /// The pause of writes that a step asks for.
    pub pause: Pause,
    /// The backends that live.
    pub living: BTreeMap<NodeName, Living>,
    /// The registered nodes.
    pub hosts: BTreeMap<String, Host>,
    /// The lineage of the contents, with the revision of its last change.
    pub lineage: Option<(Lineage, u64)>,
    /// The last marks of the backends' stores, with the revisions of their last changes.
    pub store_marks: BTreeMap<NodeName, (StoreMark, u64)>,
    /// The testimonies of stores, while the contents are in doubt.
    pub testimonies: Testimonies,
    /// The claims of nodes, while the contents are in doubt.
    pub claims: Claims,
    /// Each node's knowledge of users, while the contents are in doubt.
    pub user_claims: BTreeMap<NodeName, BTreeMap<String, UserClaim>>,
    /// The backends that have not yet compared their buckets with the registry since a recovery.
    pub doubts: BTreeMap<NodeName, u64>,
    /// The users, by access key.
    pub users: BTreeMap<String, Credential>,
    /// The revision of the last change of each user's key, also of an unreadable one.
    pub user_revisions: Arc<BTreeMap<String, u64>>,
    /// The agreed records of buckets.
    pub buckets: Arc<Buckets>,
    /// The records of the certificate that comes by ACME. A change makes another map.
    pub acme: Arc<AcmeRecords>,
}

/// Records below `acme/`, by the rest of their key.
pub type AcmeRecords = BTreeMap<String, AcmeRecord>;

/// One of these records. Some have private keys.
#[derive(Clone, PartialEq, Eq)]
pub struct AcmeRecord {
    /// The value, in JSON.
    pub value: Zeroizing<Vec<u8>>,
    /// The revision of its last change.
    pub revision: u64,
}

impl fmt::Debug for AcmeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcmeRecord")
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl ClusterRecords {
    /// Reads a snapshot of all keys. A state that cannot be parsed leaves that of `before`.
    pub fn read(keys: &Keys, snapshot: &Snapshot, before: &Self) -> Self {
        let mut known = Self {
            revision: snapshot.revision,
            state: before.state.clone(),
            ..Self::default()
        };
        let path = keys.path(&Key::State);
        if !snapshot.entries.iter().any(|entry| entry.key == path) {
            known.state = None;
        }
        for entry in &snapshot.entries {
            known.set(keys, &entry.key, Some(entry));
        }
        known
    }

    /// Applies changes.
    pub(super) fn apply(&mut self, keys: &Keys, update: &Update) {
        self.revision = self.revision.max(update.revision);
        for event in &update.events {
            match event {
                Event::Put(entry) => self.set(keys, &entry.key, Some(entry)),
                Event::Delete { key } => self.set(keys, key, None),
            }
        }
    }

    /// Whether all others that live act by a state in which this backend is out.
    pub(crate) fn is_without(&self, name: &str) -> bool {
        let Some((state, _)) = &self.state else {
            return false;
        };
        let status = state.status(name);
        let mut others = self
            .living
            .iter()
            .filter(|(other, _)| other.as_str() != name);
        status.is_none_or(|status| status == Status::Out)
            && others.all(|(_, other)| other.report.epoch >= state.epoch)
    }

    /// Whether no other backend has this backend's keys.
    pub(crate) fn is_only_owner(&self, name: &str) -> bool {
        self.state
            .iter()
            .any(|(state, _)| state.placing.replicas == 1 && state.placing.members.contains(name))
    }

    /// The reports of the backends that live, in the form that a step takes.
    pub fn live(&self) -> Live {
        let living = self.living.iter();
        let reports = living.map(|(name, living)| (name.clone(), living.report));
        reports.collect()
    }

    /// The epoch of the state; 0 without one.
    pub fn epoch(&self) -> u64 {
        self.state.as_ref().map_or(0, |(state, _)| state.epoch)
    }

    /// The number of changes of the contents.
    pub(super) fn lineage_count(&self) -> u64 {
        let lineage = self.lineage.as_ref();
        lineage.map_or(0, |(lineage, _)| lineage.mark().count)
    }

    /// The fingerprint of the users' keys in etcd, if it has no later ones.
    pub(super) fn users_in_etcd(&self) -> Fingerprint {
        Fingerprint {
            keys: self.user_revisions.len() as u64,
            last_change: self.user_revisions.values().copied().max().unwrap_or(0),
        }
    }

    /// Whether every backend in sync has put back what the registry of buckets has lost.
    pub fn is_registry_settled(&self) -> bool {
        let state = self.state.as_ref().map(|(state, _)| state);
        let is_in_sync = |name: &NodeName| {
            state.is_some_and(|state| state.status(name.as_str()) == Some(Status::InSync))
        };
        !self.doubts.keys().any(is_in_sync)
    }

    /// The contents, for judging whether they are an older copy.
    pub fn contents(&self) -> Contents<'_> {
        Contents {
            state: self.state.as_ref().map(|(state, _)| state),
            lineage: self.lineage.as_ref().map(|(lineage, _)| lineage),
            testimonies: &self.testimonies,
            claims: &self.claims,
        }
    }

    fn set_user_claim(&mut self, name: &str, user: &str, entry: Option<&KeyEntry>) {
        let Ok(name) = NodeName::new(name) else {
            return;
        };
        let claims = self.user_claims.entry(name.clone()).or_default();
        replace(claims, user, entry, json);
        if claims.is_empty() {
            self.user_claims.remove(&name);
        }
    }

    /// Sets the value of a key to that of `entry`; `None` removes it. An unreadable value must not
    /// leave the former one in force, except the state's.
    fn set(&mut self, keys: &Keys, path: &str, entry: Option<&KeyEntry>) {
        match keys.parse(path) {
            None => {}
            Some(Key::State) => match (entry, read(entry, state)) {
                (Some(entry), Some(state)) => self.state = Some((state, entry.mod_revision)),
                (Some(_), None) => {}
                (None, _) => self.state = None,
            },
            Some(Key::Wish) => self.wish = read(entry, json),
            Some(Key::Pause) => self.pause = read(entry, json).unwrap_or_default(),
            Some(Key::Live(name)) => replace(&mut self.living, name, entry, json),
            Some(Key::Node(name)) => replace(&mut self.hosts, name, entry, json),
            // A damaged one counts as none, so that no node acts by what it should order.
            Some(Key::Lineage) => {
                let lineage = read(entry, ledger::lineage);
                let revision = entry.map_or(0, |entry| entry.mod_revision);
                self.lineage = lineage.map(|lineage| (lineage, revision));
            }
            Some(Key::Doubt(name)) => replace(&mut self.doubts, name, entry, json),
            Some(Key::Claim(name)) => replace(&mut self.claims, name, entry, json),
            Some(Key::UserClaim(name, user)) => self.set_user_claim(name, user, entry),
            Some(Key::StoreMark(name)) => {
                let revision = entry.map_or(0, |entry| entry.mod_revision);
                replace(&mut self.store_marks, name, entry, |value| {
                    Some((json(value)?, revision))
                });
            }
            Some(Key::Testimony(name)) => replace(&mut self.testimonies, name, entry, testimony),
            Some(Key::User(name)) => {
                let revisions = Arc::make_mut(&mut self.user_revisions);
                match entry {
                    Some(entry) => revisions.insert(name.to_owned(), entry.mod_revision),
                    None => revisions.remove(name),
                };
                replace(&mut self.users, name, entry, |value| {
                    etcd::user(name, value)
                });
            }
            Some(Key::Bucket(name)) => {
                let records = &mut Arc::make_mut(&mut self.buckets).records;
                replace(records, name, entry, |value| json(value).map(Arc::new));
            }
            Some(Key::Ancestry(name)) => {
                let ancestries = &mut Arc::make_mut(&mut self.buckets).ancestries;
                replace(ancestries, name, entry, json);
            }
            Some(Key::Acme(name)) => {
                let records = Arc::make_mut(&mut self.acme);
                let revision = entry.map_or(0, |entry| entry.mod_revision);
                replace(records, name, entry, |value| {
                    let value = Zeroizing::new(value.to_vec());
                    Some(AcmeRecord { value, revision })
                });
            }
        }
    }
}

/// Replaces the value of `name` in a map by that of `entry`, or removes it.
fn replace<K: Ord + Borrow<str> + FromStr, V>(
    map: &mut BTreeMap<K, V>,
    name: &str,
    entry: Option<&KeyEntry>,
    parse: impl FnOnce(&[u8]) -> Option<V>,
) {
    match read(entry, |value| Some((name.parse().ok()?, parse(value)?))) {
        Some((name, value)) => drop(map.insert(name, value)),
        None => drop(map.remove(name)),
    }
}

/// The value of an entry. An unreadable one is logged.
fn read<T>(entry: Option<&KeyEntry>, parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let entry = entry?;
    let value = parse(&entry.value);
    if value.is_none() {
        tracing::error!(path = entry.key, "cannot parse a value in etcd");
    }
    value
}

fn json<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

fn state(value: &[u8]) -> Option<State> {
    json(value).filter(|state: &State| state.check().is_ok())
}

fn testimony(value: &[u8]) -> Option<Testimony> {
    let is_valid = |own: &Testimony| own.state.as_ref().is_none_or(|s| s.check().is_ok());
    json(value).filter(is_valid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    fn keys() -> Keys {
        let text = "[cluster]\nname = \"demo\"\n[cluster.etcd]\nendpoints = [\"http://a\"]\n\
            [service]\naddress = \"10.0.0.1:80\"\n[peers]\nca_file = \"a\"\ncert_dir = \"b\"";
        let file = prism_config::ConfigFile::from_toml(text).unwrap();
        Keys::of(&file.part("demo").unwrap()).unwrap()
    }

    fn put(known: &mut ClusterRecords, key: &str, value: &str, mod_revision: u64) {
        let entry = entry(key, value, mod_revision);
        known.set(&keys(), &entry.key, Some(&entry));
    }

    fn entry(key: &str, value: &str, mod_revision: u64) -> KeyEntry {
        KeyEntry {
            key: format!("/prism/demo/{key}"),
            value: value.into(),
            mod_revision,
        }
    }

    #[test]
    fn what_is_told_is_known_and_what_is_gone_is_not() {
        let keys = keys();
        let state = State::new(Placing::new(["a".parse().unwrap()], 1).unwrap());
        let text = serde_json::to_string(&state).unwrap();
        let snapshot = Snapshot {
            revision: 7,
            entries: vec![
                entry("state", &text, 5),
                entry(
                    "live/a",
                    r#"{"run":3,"report":{"store":4,"epoch":1,"caught_up":0}}"#,
                    6,
                ),
                entry("credentials/AK", r#"{"secret_key":"s"}"#, 2),
                entry(
                    "nodes/a",
                    r#"{"address":"10.0.0.7","roles":["backend"]}"#,
                    3,
                ),
                entry("from/another/version", "?", 3),
            ],
        };
        let mut known = ClusterRecords::read(&keys, &snapshot, &ClusterRecords::default());
        assert_eq!(known.state, Some((state.clone(), 5)));
        assert_eq!(known.live().len(), 1);
        assert_eq!((known.users.len(), known.hosts.len()), (1, 1));
        let gone = |key: &str| Event::Delete {
            key: format!("/prism/demo/{key}"),
        };
        let update = Update {
            revision: 9,
            events: vec![gone("live/a"), gone("credentials/AK"), gone("nodes/b")],
        };
        known.apply(&keys, &update);
        assert_eq!((known.revision, known.live().len()), (9, 0));
        assert!(known.users.is_empty() && known.hosts.len() == 1);
        // A new snapshot forgets keys that are gone.
        let empty = Snapshot {
            revision: 12,
            entries: Vec::new(),
        };
        let known = ClusterRecords::read(&keys, &empty, &known);
        assert!(known.state.is_none() && known.hosts.is_empty());
    }

    #[test]
    fn each_change_of_the_users_changes_their_fingerprint() {
        let mut known = ClusterRecords::default();
        let mut seen = vec![known.users_in_etcd()];
        let good = r#"{"secret_key":"s"}"#;
        for (key, value, revision) in [("A", good, 3), ("B", "?", 4), ("A", good, 5)] {
            put(&mut known, &format!("credentials/{key}"), value, revision);
            seen.push(known.users_in_etcd());
        }
        for key in ["A", "B"] {
            known.set(&keys(), &format!("/prism/demo/credentials/{key}"), None);
            seen.push(known.users_in_etcd());
        }
        let pairs: Vec<_> = seen.iter().map(|f| (f.keys, f.last_change)).collect();
        assert_eq!(pairs, [(0, 0), (1, 3), (2, 4), (2, 5), (1, 4), (0, 0)]);
    }

    #[test]
    fn what_makes_no_sense_leaves_the_state_and_ends_a_user() {
        let state = State::new(Placing::new(["a".parse().unwrap()], 1).unwrap());
        let text = serde_json::to_string(&state).unwrap();
        let mut known = ClusterRecords::default();
        put(&mut known, "state", &text, 5);
        put(&mut known, "credentials/AK", r#"{"secret_key":"s"}"#, 6);
        for text in [r#"{"epoch":9}"#, "", &text.replace("\"a\":", "\"b\":")] {
            put(&mut known, "state", text, 7);
            assert_eq!(known.state, Some((state.clone(), 5)), "{text}");
        }
        put(&mut known, "credentials/AK", "{}", 8);
        assert!(known.users.is_empty());
    }
}
