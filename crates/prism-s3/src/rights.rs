//! The rights of access keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::BucketName;

/// One right of a key on a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Read and list objects.
    Read,
    /// Put and delete objects, and upload them in parts.
    Write,
    /// Create the bucket, delete it, and change its policy, CORS rules and versioning.
    Owner,
}

impl Right {
    /// All rights, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Owner];

    /// Its name in files and commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Owner => "owner",
        }
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Owner => 4,
        }
    }
}

/// A set of rights. In files it is a list of their names.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// Every right.
    pub const ALL: Self = Self::NONE
        .with(Right::Read)
        .with(Right::Write)
        .with(Right::Owner);

    /// The same set and this right.
    #[must_use]
    pub const fn with(self, right: Right) -> Self {
        Self(self.0 | right.bit())
    }

    /// The same set and all of these.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The same set without these.
    #[must_use]
    pub const fn without(self, these: Self) -> Self {
        Self(self.0 & !these.0)
    }

    /// Whether the right is in the set.
    pub const fn has(self, right: Right) -> bool {
        self.0 & right.bit() != 0
    }

    /// Whether one of these is in the set.
    pub const fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rights in the set.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.has(*right))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        rights.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Their names, separated by commas.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Right::as_str).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Rights {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::<Right>::deserialize(from).map(Self::from_iter)
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
            Self::Admin => Rights::ALL,
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
        let set = Rights::NONE.with(Right::Owner).with(Right::Read);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(text, r#"["read","owner"]"#);
        assert_eq!(serde_json::from_str::<Rights>(&text).unwrap(), set);
        assert_eq!(set.to_string(), "read,owner");
        assert!(serde_json::from_str::<Rights>(r#"["all"]"#).is_err());
        assert_eq!(set.without(Rights::ALL), Rights::NONE);
        assert!(set.has_any(Rights::ALL) && !set.has(Right::Write));
    }
}
