//! The keys of users in etcd, for the commands that read and change them.

use anyhow::{Context, bail};
use prism_config::{Config, Credential};
use prism_etcd::{Change, Condition, KeyEntry};
use prism_membership::etcd::{Key, user};

use crate::reach::{Common, Etcd};

/// Most tries of a change while other commands change the same key.
const MAX_TRIES: u32 = 5;

impl Common {
    /// Does `work` with the cluster's etcd. Without etcd the error says how to change the file of
    /// users by hand.
    pub(crate) fn in_etcd<T>(
        &self,
        access_key: &str,
        work: impl AsyncFnOnce(&Etcd) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let config = self.load_objects()?;
        if config.cluster.etcd.is_none() {
            bail!(by_hand(&config, access_key));
        }
        self.with_etcd(work)
    }
}

/// The remedy for a cluster whose users are in a file.
fn by_hand(config: &Config, access_key: &str) -> String {
    let file = config.s3.credentials_file.display();
    format!(
        "the cluster has no [cluster.etcd], so its keys are in {file}; edit this file on every \
         node, and the nodes read it within a second. The entry of a key:\n\n  \
         [[credential]]\n  access_key = \"{access_key}\"\n  secret_key = \"SECRET\"\n  \
         buckets = {{ NAME = [\"read\", \"write\", \"owner\"] }}\n\n\
         With `admin = true` in place of `buckets` the key has every right. Without both it has \
         every right too, and the nodes warn of it."
    )
}

/// The record of a key.
async fn entry(etcd: &Etcd, access_key: &str) -> anyhow::Result<KeyEntry> {
    let path = etcd.ledger.keys.path(&Key::User(access_key));
    let found = etcd.ledger.client.read(&path).await?;
    let entry = found.entries.into_iter().find(|entry| entry.key == path);
    entry.with_context(|| format!("there is no key {access_key}; `prism ctl key list` shows all"))
}

/// A key, and the revision of its last change.
///
/// # Errors
/// There is none, its record cannot be used, or etcd does not answer.
pub(crate) async fn find(etcd: &Etcd, access_key: &str) -> anyhow::Result<(Credential, u64)> {
    let entry = entry(etcd, access_key).await?;
    let key = user(access_key, &entry.value).with_context(|| {
        format!(
            "the record of {access_key} in etcd cannot be used; `prism ctl key delete` deletes it"
        )
    })?;
    Ok((key, entry.mod_revision))
}

/// All keys whose records can be used, by name.
pub(crate) async fn find_all(etcd: &Etcd) -> anyhow::Result<Vec<Credential>> {
    Ok(etcd.known().await?.users.into_values().collect())
}

/// Changes a key, and returns it. `what`: the command and the access key.
pub(crate) fn change_key(
    common: &Common,
    what: (&str, &str),
    change: impl Fn(&mut Credential) -> anyhow::Result<()>,
) -> anyhow::Result<Credential> {
    let (action, access_key) = what;
    common.in_etcd(access_key, async |etcd| {
        for _ in 0..MAX_TRIES {
            let (mut key, revision) = find(etcd, access_key).await?;
            change(&mut key)?;
            let path = etcd.ledger.keys.path(&Key::User(access_key));
            let unchanged = Condition::At(path, revision);
            let put = etcd.ledger.keys.put_user(&key)?;
            let changed = etcd
                .change(action, access_key, &[unchanged], &[put])
                .await?;
            if changed {
                return Ok(key);
            }
        }
        bail!("other commands change {access_key} at the same time; try again")
    })
}

/// Adds a key. Returns false if it exists.
pub(crate) async fn add(etcd: &Etcd, action: &str, key: &Credential) -> anyhow::Result<bool> {
    let absent = Condition::Absent(etcd.ledger.keys.path(&Key::User(&key.access_key)));
    let put = etcd.ledger.keys.put_user(key)?;
    etcd.change(action, &key.access_key, &[absent], &[put])
        .await
}

/// Deletes a key, also one whose record cannot be used. Returns false if it has changed
/// meanwhile.
pub(crate) async fn delete(etcd: &Etcd, action: &str, access_key: &str) -> anyhow::Result<bool> {
    let entry = entry(etcd, access_key).await?;
    let unchanged = Condition::At(entry.key.clone(), entry.mod_revision);
    let delete = Change::Delete(entry.key);
    etcd.change(action, access_key, &[unchanged], &[delete])
        .await
}
