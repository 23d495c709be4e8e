//! The configured files that have secrets.
//!
//! Each must be readable by its owner only. Secrets are zeroized when they are dropped, and
//! `Debug` does not show them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use prism_s3::BucketName;
use prism_s3::access::{KeyRights, Rights};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::model::S3;
use crate::position::{FilePosition, line_at};
use crate::problem::remedy;
use crate::tls::Tls;

/// Longest secret file in bytes: 5,000 users of 200 bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most ticket secrets: the present one, and old ones during a rotation.
const MAX_TICKET_SECRETS: usize = 4;
/// Longest access key and secret key that S3 clients accept.
const MAX_KEY_CHARS: usize = 128;

/// The remedy for a file that does not exist.
const ABSENT: &str = "make it as in docs/install.md, or correct its path in the configuration";

/// The reason why a secret cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// the file cannot be read
    #[error("cannot read {}: {source}; {}", path.display(), remedy(source, ABSENT))]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// others than the owner can read the file
    #[error("{} can be read by others (mode {mode:03o}); run `chmod 600 {}`", path.display(), path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// the content has the wrong form
    #[error("{place}{fault}")]
    Form {
        /// The file, and the line where one is at fault.
        place: FilePosition,
        /// The fault; it never quotes the secret.
        fault: &'static str,
    },
}

/// A secret of `N` bytes.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct SecretBytes<const N: usize>([u8; N]);

impl<const N: usize> SecretBytes<N> {
    /// The secret's bytes.
    pub fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    pub(crate) fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    pub(crate) fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(HEXLOWER.encode(&self.0))
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut secret = Self([0; N]);
        if HEXLOWER_PERMISSIVE.decode_len(text.len()) != Ok(N) {
            return None;
        }
        let decoded = HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut secret.0);
        decoded.is_ok().then_some(secret)
    }
}

impl<const N: usize> fmt::Debug for SecretBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(..)")
    }
}

/// The key of one S3 user, and its rights.
///
/// A key without [`Self::admin`] and [`Self::buckets`] has every right.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The public part, sent with each request. A record in etcd has it in its name instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access_key: String,
    /// The secret part, which signs requests.
    pub secret_key: String,
    /// Whether the key has every right on every bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[zeroize(skip)]
    pub admin: Option<bool>,
    /// The rights on buckets, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[zeroize(skip)]
    pub buckets: Option<BTreeMap<String, Rights>>,
}

impl Credential {
    /// The rights of the key.
    pub fn rights(&self) -> KeyRights {
        match (self.admin, &self.buckets) {
            (Some(true), _) | (None, None) => KeyRights::Admin,
            (_, Some(buckets)) => KeyRights::Buckets(buckets.clone()),
            (Some(false), None) => KeyRights::NONE,
        }
    }

    /// Whether the record says nothing about rights, so that the key has all of them.
    pub const fn is_unlimited_by_omission(&self) -> bool {
        self.admin.is_none() && self.buckets.is_none()
    }

    /// Whether S3 clients can use these: 1 to 128 printable ASCII characters
    /// each.
    pub fn is_usable(&self) -> bool {
        let is_key = |key: &str| {
            (1..=MAX_KEY_CHARS).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic())
        };
        is_key(&self.access_key) && is_key(&self.secret_key)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("access_key", &self.access_key)
            .field("admin", &self.admin)
            .field("buckets", &self.buckets)
            .finish_non_exhaustive()
    }
}

/// The contents of a file of users, as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpannedFile {
    #[serde(default)]
    credential: Vec<Spanned<Credential>>,
}

/// The contents of a file of users, as it is written.
#[derive(Serialize)]
pub struct CredentialFile {
    credential: Vec<Credential>,
}

impl CredentialFile {
    /// The text of a file of these users, with their secrets.
    ///
    /// # Errors
    /// A value has no form in TOML.
    pub fn text(credential: Vec<Credential>) -> Result<Zeroizing<String>, toml::ser::Error> {
        toml::to_string(&Self { credential }).map(Zeroizing::new)
    }
}

impl Tls {
    /// Reads the ticket secrets, from which all frontends derive the keys of session tickets.
    /// The first one seals, and the others only open. The list is empty without a file.
    ///
    /// # Errors
    /// The file cannot be read, is exposed, or is not 1 to 4 lines of 64 hexadecimal digits.
    pub fn load_ticket_secrets(&self) -> Result<Vec<SecretBytes<32>>, SecretError> {
        let Some(path) = &self.ticket_secret_file else {
            return Ok(Vec::new());
        };
        let text = read_secret(path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let secrets: Option<Vec<_>> = lines.map(SecretBytes::from_hex).collect();
        let fault = "not 1 to 4 lines of 64 hexadecimal digits; \
                     `openssl rand -hex 32` makes a line";
        secrets
            .filter(|secrets| (1..=MAX_TICKET_SECRETS).contains(&secrets.len()))
            .ok_or_else(|| form(path, None, fault))
    }
}

impl S3 {
    /// Reads the users.
    ///
    /// # Errors
    /// The file cannot be read, is exposed, has no user or one user twice, or has an empty or
    /// overlong key.
    pub fn load_credentials(&self) -> Result<Vec<Credential>, SecretError> {
        let text = read_secret(&self.credentials_file)?;
        let fault = |at: Option<usize>, fault| {
            let line = at.map(|offset| line_at(&text, offset));
            form(&self.credentials_file, line, fault)
        };
        // The TOML error would quote the line, and with it the secret.
        let file: SpannedFile = toml::from_str(&text).map_err(|error| {
            fault(
                error.span().map(|span| span.start),
                "this does not fit a list of [[credential]] in TOML, each with access_key, \
                 secret_key, and admin = true or buckets = { NAME = [\"read\", \"write\", \
                 \"owner\"] }; correct the line",
            )
        })?;
        check_credentials(&file.credential).map_err(|(at, what)| fault(at, what))?;
        let credentials = file.credential.into_iter();
        Ok(credentials.map(Spanned::into_inner).collect())
    }
}

/// The first fault, and its offset.
fn check_credentials(
    credentials: &[Spanned<Credential>],
) -> Result<(), (Option<usize>, &'static str)> {
    if credentials.is_empty() {
        let fault = "there is no user; add a [[credential]] with access_key and secret_key";
        return Err((None, fault));
    }
    let mut names = BTreeSet::new();
    for entry in credentials {
        let credential = entry.get_ref();
        let mut buckets = credential.buckets.iter().flatten();
        let fault = if !credential.is_usable() {
            "access_key and secret_key have to be 1 to 128 printable ASCII characters each; \
             correct this [[credential]]"
        } else if buckets.any(|(name, _)| BucketName::parse(name).is_err()) {
            "there are rights on a bucket whose name is not valid; correct the name"
        } else if !names.insert(credential.access_key.as_str()) {
            "this access_key is there twice; remove one"
        } else {
            continue;
        };
        return Err((Some(entry.span().start), fault));
    }
    Ok(())
}

pub(crate) fn form(path: &Path, line: Option<usize>, fault: &'static str) -> SecretError {
    let place = FilePosition::new(path, line);
    SecretError::Form { place, fault }
}

pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    let read_error = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(read_error)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(form(path, None, "longer than 1 MiB; name another file"));
    }
    std::fs::read_to_string(path)
        .map(Zeroizing::new)
        .map_err(read_error)
}
