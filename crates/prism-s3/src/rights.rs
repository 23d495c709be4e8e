//! The rights of access keys.

use std::collections::BTreeMap;
use std::fmt;

use bitflags::bitflags;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::BucketName;

bitflags! {
    /// A set of a key's rights on a bucket. In files it is a list of their names.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read and list objects.
        const READ = 1;
        /// Put and delete objects, and upload them in parts.
        const WRITE = 2;
        /// Create the bucket, delete it, and change its policy, CORS rules and versioning.
        const OWNER = 4;
    }
}

impl Rights {
    /// The names in files and commands.
    fn names(self) -> impl Iterator<Item = String> {
        self.iter_names().map(|(name, _)| name.to_ascii_lowercase())
    }

    fn named<E: Error>(name: &str) -> Result<Self, E> {
        let is_lower_case = name.bytes().all(|b| b.is_ascii_lowercase());
        Self::from_name(&name.to_ascii_uppercase())
            .filter(|_| is_lower_case)
            .ok_or_else(|| E::unknown_variant(name, &["read", "write", "owner"]))
    }
}

/// Their names, separated by commas.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for Rights {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| Self::named(name)).collect()
    }
}

/// The rights of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRights {
    /// Every right on every bucket.
    Admin,
    /// Rights on buckets, by name.
    Buckets(BTreeMap<String, Rights>),
}

impl KeyRights {
    /// No right on any bucket.
    pub const NONE: Self = Self::Buckets(BTreeMap::new());

    /// The rights on a bucket.
    pub fn on(&self, bucket: &BucketName) -> Rights {
        match self {
            Self::Admin => Rights::all(),
            Self::Buckets(buckets) => buckets.get(bucket.as_str()).copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_set_is_a_list_of_names() {
        let set = Rights::OWNER | Rights::READ;
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(text, r#"["read","owner"]"#);
        assert_eq!(serde_json::from_str::<Rights>(&text).unwrap(), set);
        assert_eq!(set.to_string(), "read,owner");
        assert!(serde_json::from_str::<Rights>(r#"["all"]"#).is_err());
        assert!(serde_json::from_str::<Rights>(r#"["READ"]"#).is_err());
    }
}
