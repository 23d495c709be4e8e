//! The file `switch.key_file`. On the switch it has secrets, from which each node's key follows. On
//! a node it has that node's key. The older form has one key that the switch and all nodes share.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

use crate::secrets::{SecretBytes, SecretError, form, read_secret};
use crate::switch::Switch;

/// Most secrets: the present one, and the one before it while it is replaced.
pub const MAX_SECRETS: usize = 2;
/// The purposes of a node's key and of its number.
const KEY_LABEL: &[u8] = b"prism-switch-node-key";
const ID_LABEL: &[u8] = b"prism-switch-node-key-id";

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSecret {
    /// The secret of all nodes' keys, which the switch alone knows.
    Secret(SecretBytes<32>),
    /// A key that the switch and all nodes share.
    Shared(SecretBytes<16>),
}

/// The key that a node signs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKey {
    /// Its number in messages.
    pub key_id: u32,
    /// The key.
    pub key: SecretBytes<16>,
    /// Only this node and the switch have it.
    pub is_own: bool,
}

impl ControlSecret {
    /// A new secret. `None` if the kernel gives no random numbers.
    pub fn random() -> Option<Self> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).ok()?;
        Some(Self::Secret(SecretBytes::new(bytes)))
    }

    /// The key of the node `name`. A shared key has the number `shared_id`.
    pub fn key_of(&self, name: &str, shared_id: u32) -> NodeKey {
        match self {
            Self::Shared(key) => NodeKey {
                key_id: shared_id,
                key: key.clone(),
                is_own: false,
            },
            Self::Secret(secret) => {
                // No key has the number 0.
                let key_id = u32::from_be_bytes(derived(secret, ID_LABEL, name)).max(1);
                let key = SecretBytes::new(derived(secret, KEY_LABEL, name));
                NodeKey {
                    key_id,
                    key,
                    is_own: true,
                }
            }
        }
    }

    /// A number that tells it from others, for messages.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Secret(secret) => {
                let digest: [u8; 4] = derived(secret, b"prism-switch-secret", "");
                HEXLOWER.encode(&digest)
            }
            Self::Shared(_) => "shared".into(),
        }
    }

    fn line(&self) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Secret(secret) => format!("secret {}\n", &*secret.to_hex()),
            Self::Shared(key) => format!("{}\n", &*key.to_hex()),
        })
    }

    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("secret", hex)) => SecretBytes::from_hex(hex.trim()).map(Self::Secret),
            Some(_) => None,
            None => SecretBytes::from_hex(line).map(Self::Shared),
        }
    }
}

/// HMAC-SHA256 of the label, a zero byte and the name, cut.
fn derived<const N: usize>(secret: &SecretBytes<32>, label: &[u8], name: &str) -> [u8; N] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.bytes());
    let tag = hmac::sign(&key, &[label, &[0], name.as_bytes()].concat());
    let mut bytes = [0; N];
    bytes
        .iter_mut()
        .zip(tag.as_ref())
        .for_each(|(to, from)| *to = *from);
    bytes
}

impl NodeKey {
    /// The text of the file of the node `name`.
    pub fn file(&self, name: &str) -> Zeroizing<String> {
        let id = self.key_id;
        let key = self.key.to_hex();
        Zeroizing::new(format!("node {name} {id:08x} {}\n", &*key))
    }

    fn parse(line: &str, name: &str) -> Result<Self, &'static str> {
        let fault = "not a line `node NAME ID KEY` of `prism ctl switch node-key`";
        let words: Vec<&str> = line.split(' ').collect();
        let ["node", of, id, key] = words[..] else {
            return Err(fault);
        };
        if of != name {
            return Err("this is the key of another node; install this node's own file");
        }
        let key_id = u32::from_str_radix(id, 16).map_err(|_| fault)?;
        let key = SecretBytes::from_hex(key).ok_or(fault)?;
        let is_own = true;
        Ok(Self {
            key_id,
            key,
            is_own,
        })
    }
}

impl Switch {
    /// The file with the key of the node `name`: `key_file` with the name behind it if there is
    /// such a file, otherwise `key_file` itself.
    pub fn node_key_file(&self, name: &str) -> PathBuf {
        let own = with_name(&self.key_file, name);
        if own.exists() {
            own
        } else {
            self.key_file.clone()
        }
    }

    /// Reads the key by which the node `name` signs its commands.
    ///
    /// # Errors
    /// The file cannot be read, is exposed, or has the key of another node or none.
    pub fn load_node_key(&self, name: &str) -> Result<NodeKey, SecretError> {
        let path = self.node_key_file(name);
        let text = read_secret(&path)?;
        if text.starts_with("node ") {
            let line = text.trim_end();
            return NodeKey::parse(line, name).map_err(|fault| form(&path, None, fault));
        }
        let all = secrets(&text).map_err(|fault| form(&path, None, fault))?;
        let key = all.first().map(|secret| secret.key_of(name, self.key_id));
        key.ok_or_else(|| form(&path, None, FAULT))
    }

    /// Reads the secrets from which the keys of all nodes follow. The first one is the newest.
    ///
    /// # Errors
    /// The file cannot be read, is exposed, or has another form.
    pub fn load_secrets(&self) -> Result<Vec<ControlSecret>, SecretError> {
        let text = read_secret(&self.key_file)?;
        secrets(&text).map_err(|fault| form(&self.key_file, None, fault))
    }

    /// Replaces the secrets. The old file stays if the new one cannot be written.
    ///
    /// # Errors
    /// The kernel's.
    pub fn store_secrets(&self, secrets: &[ControlSecret]) -> std::io::Result<()> {
        let lines = secrets.iter().map(|secret| secret.line());
        let text = lines.fold(Zeroizing::new(String::new()), |mut text, line| {
            text.push_str(&line);
            text
        });
        write_private(&self.key_file, &text)
    }
}

const FAULT: &str = "not 1 or 2 lines, each `secret` and 64 hexadecimal digits, or the 32 of a key \
                     that all nodes share; `prism ctl switch rotate-key` makes a secret";

fn secrets(text: &str) -> Result<Vec<ControlSecret>, &'static str> {
    if text.starts_with("node ") {
        return Err("this is the key of one node; the switch needs the secret");
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let all: Option<Vec<_>> = lines.map(ControlSecret::parse).collect();
    let all = all.filter(|all| (1..=MAX_SECRETS).contains(&all.len()));
    all.ok_or(FAULT)
}

/// `path` with a dot and the name of a node behind it.
pub fn with_name(path: &Path, name: &str) -> PathBuf {
    let mut own = path.as_os_str().to_owned();
    own.push(".");
    own.push(name);
    own.into()
}

/// Writes a file that only its owner can read, in one step: readers see the old one or the new one,
/// also after the host has failed.
///
/// # Errors
/// The kernel's.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let new = with_name(path, "~new");
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.set_permissions(PermissionsExt::from_mode(0o600))?;
    if let Ok(old) = std::fs::metadata(path) {
        use std::os::unix::fs::MetadataExt;
        std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => {
            std::fs::File::open(directory)?.sync_all()
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secret(byte: u8) -> ControlSecret {
        ControlSecret::Secret(SecretBytes::new([byte; 32]))
    }

    fn at(dir: &tempfile::TempDir) -> Switch {
        Switch {
            key_file: dir.path().join("switch.key"),
            ..Switch::default()
        }
    }

    #[test]
    fn a_node_has_the_key_that_the_switch_derives() {
        let dir = tempfile::tempdir().unwrap();
        let switch = at(&dir);
        switch.store_secrets(&[secret(1), secret(2)]).unwrap();
        assert_eq!(switch.load_secrets().unwrap(), [secret(1), secret(2)]);
        let own = secret(1).key_of("be0", 7);
        assert!(
            own.is_own && own != secret(1).key_of("be1", 7) && own != secret(2).key_of("be0", 7)
        );
        // A node on the switch's own host.
        assert_eq!(switch.load_node_key("be0").unwrap(), own);
        let other = secret(2).key_of("be0", 7);
        let file = with_name(&switch.key_file, "be0");
        write_private(&file, &other.file("be0")).unwrap();
        assert_eq!(switch.load_node_key("be0").unwrap(), other);
        write_private(&file, &other.file("be1")).unwrap();
        let fault = switch.load_node_key("be0").unwrap_err().to_string();
        assert!(fault.contains("another node"), "{fault}");
    }

    #[test]
    fn the_old_form_is_one_key_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let switch = at(&dir);
        write_private(&switch.key_file, "00112233445566778899aabbccddeeff\n").unwrap();
        let key = switch.load_node_key("be0").unwrap();
        assert_eq!((key.key_id, key.is_own), (1, false));
        assert_eq!(key, switch.load_node_key("be1").unwrap());
        let shared = switch.load_secrets().unwrap();
        let both: Vec<_> = std::iter::once(secret(3)).chain(shared).collect();
        switch.store_secrets(&both).unwrap();
        assert_eq!(switch.load_secrets().unwrap(), both);
    }

    #[test]
    fn other_forms_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let switch = at(&dir);
        let key = "00112233445566778899aabbccddeeff";
        for text in [
            String::new(),
            "secret 00".into(),
            format!("{key}0"),
            format!("{key}\n{key}\n{key}"),
            format!("node be0 1 {key}"),
            format!("public {key}{key}"),
        ] {
            write_private(&switch.key_file, &text).unwrap();
            assert!(switch.load_secrets().is_err(), "{text:?}");
        }
    }
}
