//! The users after `prism ctl cluster recover`. etcd may have keys that were deleted, former rights
//! and former secrets. The node that has noted the latest change knows them, secrets apart.

use std::io::Write;

use anyhow::bail;
use prism_cluster::NodeName;
use prism_config::Credential;
use prism_etcd::{Change, Condition};
use prism_membership::etcd::{CHANGES_AT_ONCE, Key};
use prism_membership::{ClusterRecords, UserClaim, UserRights};
use serde_json::{Value, json};

use crate::reach::Etcd;

/// The changes that make the users in etcd those that the nodes have acted by.
#[derive(Default)]
pub(crate) struct RecoveredUsers {
    /// The node that knows them.
    known_by: Option<NodeName>,
    /// Keys that etcd has and that were deleted, with the revisions of their records.
    deleted: Vec<(String, u64)>,
    /// Keys whose secrets etcd has from before they were replaced.
    outdated: Vec<(String, u64)>,
    /// Keys that get back their rights, with the revisions of their records.
    limited: Vec<(Credential, u64)>,
    /// Keys that come from the file again.
    from_file: Vec<Credential>,
    /// Keys that etcd lacks. Nobody knows their secrets.
    missing: Vec<String>,
}

impl RecoveredUsers {
    /// Compares the users in etcd with those that the node `of` knows, or the node with the latest
    /// change. `file` has users whose secrets are known.
    pub(crate) fn find(
        file: Vec<Credential>,
        known: &ClusterRecords,
        of: Option<&NodeName>,
    ) -> Self {
        let contents = known.contents();
        let claims = known.claims.iter();
        let claims = claims.filter(|(name, claim)| {
            // The others may have noted what was changed in the older copy.
            let has_seen_more = !contents.descends_from(claim.mark);
            has_seen_more && of.is_none_or(|of| of == *name)
        });
        let latest = claims.max_by_key(|(_, claim)| (claim.mark.count, claim.store != 0));
        let Some((name, _)) = latest else {
            // Users that etcd has may be later than the file, and those that it lacks deleted.
            let from_file = if known.users.is_empty() {
                file
            } else {
                Vec::new()
            };
            return Self {
                from_file,
                ..Self::default()
            };
        };
        let mut users = Self {
            known_by: Some(name.clone()),
            ..Self::default()
        };
        for (key, claim) in known.user_claims.get(name).into_iter().flatten() {
            let revision = known.user_revisions.get(key).copied().unwrap_or_default();
            match claim {
                UserClaim::Deleted => users.deleted.push((key.clone(), revision)),
                UserClaim::OtherSecret => users.outdated.push((key.clone(), revision)),
                UserClaim::OtherRights(rights) => {
                    if let Some(present) = known.users.get(key) {
                        users.limited.push((with(present, rights), revision));
                    }
                }
                UserClaim::Missing(rights) => {
                    match file.iter().find(|user| user.access_key == *key) {
                        Some(user) => users.from_file.push(with(user, rights)),
                        None => users.missing.push(key.clone()),
                    }
                }
            }
        }
        users
    }

    /// Makes the changes, unless a key has changed since.
    ///
    /// # Errors
    /// A key has changed, or etcd does not answer. Some changes may have been made.
    pub(crate) async fn put(&self, etcd: &Etcd) -> anyhow::Result<()> {
        let keys = &etcd.ledger.keys;
        let path = |user: &str| keys.path(&Key::User(user));
        let mut changes = Vec::new();
        for (user, revision) in self.deleted.iter().chain(&self.outdated) {
            let unchanged = Condition::At(path(user), *revision);
            changes.push((unchanged, Change::Delete(path(user))));
        }
        for (user, revision) in &self.limited {
            let unchanged = Condition::At(path(&user.access_key), *revision);
            changes.push((unchanged, keys.put_user(user)?));
        }
        for user in &self.from_file {
            let absent = Condition::Absent(path(&user.access_key));
            changes.push((absent, keys.put_user(user)?));
        }
        for some in changes.chunks(CHANGES_AT_ONCE) {
            let (conditions, changes): (Vec<_>, Vec<_>) = some.iter().cloned().unzip();
            let subject = format!("{} users", changes.len());
            let made = etcd.change_in_doubt("recover", &subject, &conditions, &changes);
            if !made.await? {
                bail!("a user in etcd has just changed; try again");
            }
        }
        Ok(())
    }

    /// Each list of keys with its name in JSON and its meaning.
    fn lists(&self) -> [(&'static str, Vec<&str>, &'static str); 5] {
        [
            (
                "deleted",
                self.deleted.iter().map(|(key, _)| key.as_str()).collect(),
                "keys that were deleted, and are deleted again",
            ),
            (
                "outdated",
                self.outdated.iter().map(|(key, _)| key.as_str()).collect(),
                "keys whose former secret is in etcd, and that are deleted; add them again",
            ),
            (
                "limited",
                self.limited
                    .iter()
                    .map(|(user, _)| user.access_key.as_str())
                    .collect(),
                "keys that get back the rights that they had",
            ),
            (
                "from_file",
                self.from_file
                    .iter()
                    .map(|user| user.access_key.as_str())
                    .collect(),
                "keys written to etcd from the file",
            ),
            (
                "missing",
                self.missing.iter().map(String::as_str).collect(),
                "keys that etcd has lost, and whose secrets nobody knows; add them again",
            ),
        ]
    }

    /// For JSON.
    pub(crate) fn as_json(&self) -> Value {
        let lists = self.lists().into_iter();
        let mut all: serde_json::Map<String, Value> = lists
            .map(|(name, keys, _)| (name.into(), json!(keys)))
            .collect();
        all.insert("known_by".into(), json!(self.known_by));
        all.into()
    }

    /// For people.
    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for (_, keys, meaning) in self.lists() {
            if !keys.is_empty() {
                writeln!(out, "{meaning}: {}", keys.join(", "))?;
            }
        }
        Ok(())
    }
}

fn with(user: &Credential, rights: &UserRights) -> Credential {
    Credential {
        access_key: user.access_key.clone(),
        secret_key: user.secret_key.clone(),
        admin: rights.admin,
        buckets: rights.buckets.clone(),
    }
}
