//! Names of buckets and objects. A value of these types is always valid.

use crate::{Code, S3Error};

/// A valid bucket name: 3 to 63 of `a-z`, `0-9`, `.` and `-`. It starts and ends with a letter or
/// digit, and has no `..`, no reserved prefix or suffix, and not the form of an IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketName(Box<str>);

impl BucketName {
    /// Checks a name.
    ///
    /// # Errors
    /// `InvalidBucketName`.
    pub fn parse(name: &str) -> Result<Self, S3Error> {
        if is_bucket_name(name) {
            Ok(Self(name.into()))
        } else {
            Err(Code::InvalidBucketName.into())
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_bucket_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    let edges =
        bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    if !edges || !(3..=63).contains(&bytes.len()) {
        return false;
    }
    // All other forbidden names hold a dot or a hyphen.
    bytes.iter().copied().all(plain)
        || bytes.iter().all(|&b| plain(b) || b == b'.' || b == b'-')
            && !name.contains("..")
            && name.parse::<std::net::Ipv4Addr>().is_err()
            && !["xn--", "sthree-", "amzn-s3-demo-"]
                .iter()
                .any(|p| name.starts_with(p))
            && !["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"]
                .iter()
                .any(|s| name.ends_with(s))
}

impl std::fmt::Display for BucketName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A valid object key: 1 to 1,024 bytes of UTF-8. Any character is allowed. A key is a name, and
/// never a path of this host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Box<str>);

impl ObjectKey {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a decoded key.
    ///
    /// # Errors
    /// `KeyTooLongError`, or `InvalidArgument` for an empty one.
    pub fn parse(key: &str) -> Result<Self, S3Error> {
        match key.len() {
            0 => Err(Code::InvalidArgument.with_message("the key is empty")),
            1..=Self::MAX_BYTES => Ok(Self(key.into())),
            _ => Err(Code::KeyTooLongError.into()),
        }
    }

    /// The key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_rules() {
        let longest = "a".repeat(63);
        for good in ["abc", "a.b-c", "0ab", "1.2.3.4a", longest.as_str()] {
            assert!(BucketName::parse(good).is_ok(), "{good}");
        }
        let long = "a".repeat(64);
        for bad in [
            "",
            "ab",
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            ".ab",
            "ab.",
            "a..b",
            "192.168.0.1",
            "xn--abc",
            "a/b",
            "a\u{e9}b",
            "abc-s3alias",
            long.as_str(),
            "..",
            "a b",
        ] {
            assert!(BucketName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_bounded_in_bytes() {
        assert!(ObjectKey::parse(&"k".repeat(1024)).is_ok());
        assert!(ObjectKey::parse(&"\u{e9}".repeat(512)).is_ok());
        assert_eq!(
            ObjectKey::parse(&"\u{e9}".repeat(513)).map_err(|e| e.code()),
            Err(Code::KeyTooLongError)
        );
        assert!(ObjectKey::parse("").is_err());
        assert!(ObjectKey::parse("../../etc/passwd").is_ok());
    }
}
