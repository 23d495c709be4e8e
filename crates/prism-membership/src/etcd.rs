//! The cluster's keys and values in etcd: keys below `<prefix>/<cluster>/`, values in JSON
//! (docs/protocol.md, section 3). Nodes and tools use them.

use anyhow::{Context, bail};
use prism_cluster::{Report, State};
use prism_config::{Config, Credential, seconds};
use prism_etcd::{Change, Condition, EtcdClient};
use prism_pki::https_client;
use serde::{Deserialize, Serialize};

use super::ledger::Ledger;

/// Changes in one call; etcd allows 128.
pub const CHANGES_AT_ONCE: usize = 100;

/// A client of the etcd in a configuration.
///
/// # Errors
/// The configuration has no etcd, or its files cannot be used.
pub fn client(config: &Config) -> anyhow::Result<EtcdClient> {
    let Some(etcd) = &config.cluster.etcd else {
        bail!(
            "{} has no [cluster.etcd], which this command needs; docs/configuration.md describes it",
            config.shown_file()
        );
    };
    let own = etcd.cert_file.as_deref().zip(etcd.key_file.as_deref());
    let tls = etcd.ca_file.as_ref().map(|ca| https_client(ca, own));
    let tls = tls.transpose().context("[cluster.etcd]")?;
    let endpoints = etcd.endpoints.clone();
    Ok(EtcdClient::new(endpoints, tls, seconds(etcd.lease_ttl_s)))
}

/// The keys of a cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

/// The subject of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// The cluster's agreed state.
    State,
    /// The placement that the administrator asked for.
    Wish,
    /// The pause of writes that the next step asks for.
    Pause,
    /// A living backend and its report.
    Live(&'a str),
    /// A node's addresses and roles.
    Node(&'a str),
    /// The changes of state, wish, users and buckets so far.
    Lineage,
    /// The last mark of a backend's store: how far it had come.
    StoreMark(&'a str),
    /// The testimony of a backend's store, while the contents are in doubt.
    Testimony(&'a str),
    /// The last change that a node has noted, while the contents are in doubt.
    Claim(&'a str),
    /// A node's knowledge of a user, while the contents are in doubt: the node's name and the
    /// access key.
    UserClaim(&'a str, &'a str),
    /// A backend that has not yet compared its buckets with the registry since a recovery.
    Doubt(&'a str),
    /// A user's credential.
    User(&'a str),
    /// The agreed record of a bucket.
    Bucket(&'a str),
    /// The proof that earlier lives of that bucket have ended.
    Ancestry(&'a str),
    /// A record of the certificate that comes by ACME, whose meaning `prism-acme` knows.
    Acme(&'a str),
}

/// A living backend's report of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// The run of its process, which tells two processes of one name apart.
    pub run: u64,
    /// Its progress.
    pub report: Report,
}

/// A request to pause writes until the cluster has left an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// A random number that tells pauses of one epoch apart; 0 for no pause.
    pub number: u64,
    /// The epoch that is about to end.
    pub epoch: u64,
}

impl Keys {
    /// The keys of this configuration's cluster.
    ///
    /// # Errors
    /// The configuration has no etcd.
    pub fn of(config: &Config) -> anyhow::Result<Self> {
        let prefix = config.etcd_prefix();
        let prefix = prefix.context("the configuration has no [cluster.etcd]")?;
        Ok(Self { prefix })
    }

    /// All keys of the cluster begin with this.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key's full name in etcd.
    pub fn path(&self, key: &Key<'_>) -> String {
        let prefix = &self.prefix;
        match key {
            Key::State => format!("{prefix}state"),
            Key::Wish => format!("{prefix}wish"),
            Key::Pause => format!("{prefix}pause"),
            Key::Live(name) => format!("{prefix}live/{name}"),
            Key::Node(name) => format!("{prefix}nodes/{name}"),
            Key::Lineage => format!("{prefix}lineage"),
            Key::StoreMark(name) => format!("{prefix}marks/{name}"),
            Key::Testimony(name) => format!("{prefix}stores/{name}"),
            Key::Claim(name) => format!("{prefix}claims/{name}"),
            Key::Doubt(name) => format!("{prefix}doubts/{name}"),
            Key::UserClaim(name, user) => format!("{prefix}claims/{name}/{user}"),
            Key::User(name) => format!("{prefix}credentials/{name}"),
            // The final slash keeps a read of this key from matching longer names.
            Key::Bucket(name) => format!("{prefix}buckets/{name}/"),
            // A read of the record also reads this key, at the same revision.
            Key::Ancestry(name) => format!("{prefix}buckets/{name}/ancestry"),
            Key::Acme(name) => format!("{prefix}acme/{name}"),
        }
    }

    /// The subject of a path; `None` if this version does not know it.
    pub fn parse<'a>(&self, path: &'a str) -> Option<Key<'a>> {
        match path.strip_prefix(&self.prefix)? {
            "state" => Some(Key::State),
            "wish" => Some(Key::Wish),
            "pause" => Some(Key::Pause),
            "lineage" => Some(Key::Lineage),
            rest => match rest.split_once('/')? {
                ("live", name) => Some(Key::Live(name)),
                ("nodes", name) => Some(Key::Node(name)),
                ("doubts", name) => Some(Key::Doubt(name)),
                ("marks", name) => Some(Key::StoreMark(name)),
                ("stores", name) => Some(Key::Testimony(name)),
                ("claims", rest) => Some(match rest.split_once('/') {
                    Some((name, user)) => Key::UserClaim(name, user),
                    None => Key::Claim(rest),
                }),
                ("credentials", name) => Some(Key::User(name)),
                ("buckets", rest) => match rest.split_once('/')? {
                    (name, "") => Some(Key::Bucket(name)),
                    (name, "ancestry") => Some(Key::Ancestry(name)),
                    _ => None,
                },
                ("acme", name) => Some(Key::Acme(name)),
                _ => None,
            },
        }
    }

    /// Adds or replaces a user.
    pub fn put_user(&self, user: &Credential) -> anyhow::Result<Change> {
        // The key's name has it.
        let mut value = user.clone();
        value.access_key.clear();
        self.put(&Key::User(&user.access_key), &value)
    }

    /// The prefix of all keys of users.
    pub fn users(&self) -> String {
        format!("{}credentials/", self.prefix)
    }

    /// The prefix of all keys of buckets.
    pub fn buckets(&self) -> String {
        format!("{}buckets/", self.prefix)
    }

    /// Replaces the value of a key.
    pub fn put(&self, key: &Key<'_>, value: &impl Serialize) -> anyhow::Result<Change> {
        Ok(Change::put(self.path(key), serde_json::to_vec(value)?))
    }
}

/// Reads a user's value; `None` if clients cannot use it. A field that this version does not know
/// may take a right away, so a value with one is not used.
pub fn user(access_key: &str, value: &[u8]) -> Option<Credential> {
    let mut user: Credential = serde_json::from_slice(value).ok()?;
    access_key.clone_into(&mut user.access_key);
    user.is_usable().then_some(user)
}

/// Makes the state of a new cluster, with the users of the file, unless another backend
/// has made it. Every step can be repeated.
pub(crate) async fn found(ledger: &Ledger, config: &Config, first: &State) -> anyhow::Result<()> {
    let keys = &ledger.keys;
    let users = users_of_file(config)?;
    for some in users.chunks(CHANGES_AT_ONCE) {
        let changes = some.iter().map(|user| keys.put_user(user));
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        ledger.change(&[], &changes).await?;
    }
    let absent = Condition::Absent(keys.path(&Key::State));
    let made = ledger
        .change(&[absent], &[keys.put(&Key::State, first)?])
        .await?;
    if made {
        tracing::info!(epoch = first.epoch, "founded the cluster in etcd");
    }
    Ok(())
}

/// The users of the file, with which a cluster begins.
///
/// # Errors
/// The file cannot be used.
pub fn users_of_file(config: &Config) -> anyhow::Result<Vec<Credential>> {
    if config.s3.credentials_file.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    config.s3.load_credentials().context("s3.credentials_file")
}

#[cfg(test)]
mod tests {
    use prism_s3::access::{KeyRights, Rights};

    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let keys = Keys {
            prefix: "/prism/demo/".into(),
        };
        for key in [
            Key::State,
            Key::Wish,
            Key::Pause,
            Key::Live("be0"),
            Key::Node("fe0"),
            Key::Lineage,
            Key::StoreMark("be1"),
            Key::Testimony("be1"),
            Key::Claim("fe0"),
            Key::UserClaim("be1", "AK/with/slashes"),
            Key::Doubt("be1"),
            Key::User("AK/with/slashes"),
            Key::Bucket("photos"),
            Key::Ancestry("photos"),
        ] {
            assert_eq!(keys.parse(&keys.path(&key)), Some(key));
        }
        for other in [
            "/prism/demo/",
            "/prism/demo/states",
            "/prism/demo/x/y",
            "/prism/demos/state",
        ] {
            assert_eq!(keys.parse(other), None, "{other}");
        }
    }

    fn good_rights(value: &[u8]) -> Option<KeyRights> {
        user("AK", value).map(|user| user.rights())
    }

    #[test]
    fn a_user_is_one_with_keys_that_clients_can_use() {
        let good = user("AK", br#"{"secret_key":"sk"}"#);
        assert!(good.is_some_and(|user| user.secret_key == "sk" && user.access_key == "AK"));
        assert!(good_rights(br#"{"secret_key":"s"}"#) == Some(KeyRights::Admin));
        assert!(good_rights(br#"{"secret_key":"s","admin":true}"#) == Some(KeyRights::Admin));
        let none = good_rights(br#"{"secret_key":"s","admin":false}"#);
        assert_eq!(none, Some(KeyRights::NONE));
        let some = user(
            "AK",
            br#"{"secret_key":"s","admin":false,"buckets":{"b":["read"]}}"#,
        );
        let read = Rights::READ;
        assert!(some.is_some_and(
            |user| user.rights() == KeyRights::Buckets([("b".to_owned(), read)].into())
        ));
        for unknown in [
            &br#"{"secret_key":"s","bucket":{"b":["read"]}}"#[..],
            br#"{"secret_key":"s","buckets":{"b":["all"]}}"#,
            br#"{"secret_key":"s","admin":"no"}"#,
        ] {
            assert_eq!(user("AK", unknown), None);
        }
        assert_eq!(user("AK", br#"{"secret_key":""}"#), None);
        assert_eq!(user("AK", b"sk"), None);
    }
}
