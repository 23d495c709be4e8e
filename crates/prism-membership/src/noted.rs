//! The notes of a node, made before it acts by the contents of etcd, and its claims about the
//! users if the contents turn out to be an older copy. No secret is noted.

use std::collections::BTreeMap;

use prism_cluster::{LineageMark, NodeName, StoreMark};
use prism_config::Credential;
use prism_s3::access::Rights;
use serde::{Deserialize, Serialize};

use super::etcd_state::ClusterRecords;

/// The last known marks of stores, by the names of their backends.
pub type StoreMarks = BTreeMap<NodeName, StoreMark>;

/// The notes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The last change of the lineage.
    pub mark: Option<LineageMark>,
    /// All users after that change.
    pub users: NotedUsers,
    /// The marks of all stores.
    pub marks: StoreMarks,
}

/// The noted users, by access key.
pub type NotedUsers = BTreeMap<String, NotedUser>;

/// A noted user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedUser {
    /// The user's rights.
    #[serde(flatten)]
    pub rights: UserRights,
    /// The revision of etcd at the last change of the user.
    pub changed: u64,
    /// The revision since which the user has had this secret. A copy from before it has another
    /// one.
    pub secret_since: u64,
}

/// The rights of a user, as its record has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRights {
    /// Whether the key has every right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
    /// The rights on buckets, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<BTreeMap<String, Rights>>,
}

/// A node's knowledge of a user, where etcd has something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserClaim {
    /// The key was deleted.
    Deleted,
    /// The key has another secret, which nobody has noted.
    OtherSecret,
    /// The key has other rights.
    OtherRights(UserRights),
    /// etcd lacks the key. It has these rights, and nobody has noted its secret.
    Missing(UserRights),
}

impl UserRights {
    fn of(user: &Credential) -> Self {
        Self {
            admin: user.admin,
            buckets: user.buckets.clone(),
        }
    }
}

/// The users of `known`, as they are noted. `before` has what was noted last, and `present` the
/// users by which this node acts, which tell whether a secret has changed.
pub(super) fn note(
    before: &NotedUsers,
    present: &[Credential],
    known: &ClusterRecords,
) -> NotedUsers {
    let noted = known.users.values().map(|user| {
        let name = user.access_key.clone();
        let changed = known.user_revisions.get(&name).copied().unwrap_or_default();
        let former = before.get(&name);
        let has_same_secret = former.is_some_and(|former| former.changed == changed)
            || present
                .iter()
                .any(|p| p.access_key == name && p.secret_key == user.secret_key);
        let secret_since = former.filter(|_| has_same_secret);
        let secret_since = secret_since.map_or(changed, |former| former.secret_since);
        let rights = UserRights::of(user);
        let noted = NotedUser {
            rights,
            changed,
            secret_since,
        };
        (name, noted)
    });
    noted.collect()
}

/// The claims of the noted users against those in etcd, which are an older copy.
pub(super) fn claims(noted: &NotedUsers, known: &ClusterRecords) -> BTreeMap<String, UserClaim> {
    let mut claims = BTreeMap::new();
    for (name, user) in noted {
        let rights = user.rights.clone();
        let revision = known.user_revisions.get(name);
        let claim = match (known.users.get(name), revision) {
            (Some(_), Some(revision)) if *revision == user.changed => continue,
            // From before the secret was replaced, or changed apart, with any secret.
            (Some(_), Some(revision))
                if *revision < user.secret_since || *revision > user.changed =>
            {
                UserClaim::OtherSecret
            }
            (Some(present), _) if UserRights::of(present) == rights => continue,
            (Some(_), _) => UserClaim::OtherRights(rights),
            (None, _) => UserClaim::Missing(rights),
        };
        claims.insert(name.clone(), claim);
    }
    let unknown = known.users.keys().filter(|name| !noted.contains_key(*name));
    claims.extend(unknown.map(|name| (name.clone(), UserClaim::Deleted)));
    claims
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::sync::Arc;

    use super::*;

    fn user(name: &str, secret: &str, admin: bool) -> Credential {
        Credential {
            access_key: name.into(),
            secret_key: secret.into(),
            admin: Some(admin),
            buckets: None,
        }
    }

    fn known(users: &[(Credential, u64)]) -> ClusterRecords {
        let mut known = ClusterRecords::default();
        let mut revisions = BTreeMap::new();
        for (user, revision) in users {
            revisions.insert(user.access_key.clone(), *revision);
            known.users.insert(user.access_key.clone(), user.clone());
        }
        known.user_revisions = Arc::new(revisions);
        known
    }

    #[test]
    fn an_older_copy_of_the_users_is_told_from_the_noted_ones() {
        let copy = known(&[
            (user("same", "s", true), 3),
            (user("deleted", "s", true), 4),
            (user("limited", "s", true), 5),
            (user("renewed", "s", true), 6),
        ]);
        let first = note(&NotedUsers::new(), &[], &copy);
        assert_eq!(claims(&first, &copy), BTreeMap::new());
        let acted_by: Vec<_> = copy.users.values().cloned().collect();
        let last = known(&[
            (user("same", "s", true), 3),
            (user("limited", "s", false), 9),
            (user("renewed", "t", true), 10),
            (user("new", "s", false), 11),
        ]);
        let noted = note(&first, &acted_by, &last);
        assert_eq!(claims(&noted, &last), BTreeMap::new());
        let rights = UserRights {
            admin: Some(false),
            buckets: None,
        };
        let expected = [
            ("deleted", UserClaim::Deleted),
            ("limited", UserClaim::OtherRights(rights.clone())),
            ("new", UserClaim::Missing(rights)),
            ("renewed", UserClaim::OtherSecret),
        ];
        let expected = expected.map(|(name, claim)| (name.to_owned(), claim));
        assert_eq!(claims(&noted, &copy), expected.into());
    }

    #[test]
    fn a_user_that_was_changed_apart_may_have_any_secret() {
        let last = known(&[(user("changed", "s", true), 5)]);
        let noted = note(&NotedUsers::new(), &[], &last);
        let apart = known(&[(user("changed", "s", true), 7)]);
        let claim = claims(&noted, &apart).remove("changed");
        assert_eq!(claim, Some(UserClaim::OtherSecret));
    }

    #[test]
    fn a_node_that_did_not_see_the_former_secret_takes_it_for_another_one() {
        let copy = known(&[(user("limited", "s", true), 5)]);
        let first = note(&NotedUsers::new(), &[], &copy);
        let last = known(&[(user("limited", "s", false), 9)]);
        let noted = note(&first, &[], &last);
        let claim = claims(&noted, &copy).remove("limited").unwrap();
        assert_eq!(claim, UserClaim::OtherSecret);
    }

    #[test]
    fn a_noted_user_is_read_as_it_was_written_and_has_no_secret() {
        let noted = note(
            &NotedUsers::new(),
            &[],
            &known(&[(user("a", "hidden", true), 5)]),
        );
        let text = serde_json::to_string(&noted).unwrap();
        assert!(!text.contains("hidden"), "{text}");
        assert_eq!(serde_json::from_str::<NotedUsers>(&text).unwrap(), noted);
    }
}
