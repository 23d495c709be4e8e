//! The bucket in a host name, and the source of a copy.

use crate::query::decode;
use crate::{BucketName, Code, ObjectKey, S3Error};

/// The object that a copy is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySource {
    /// Its bucket.
    pub bucket: BucketName,
    /// Its key.
    pub key: ObjectKey,
    /// The version, as the client names it, or `None` for the current one.
    pub version: Option<String>,
}

impl CopySource {
    /// Reads `x-amz-copy-source`: `bucket/key` or `/bucket/key`, encoded like a path, and
    /// perhaps `?versionId=`.
    pub(super) fn parse(value: &str) -> Result<Self, S3Error> {
        let (path, version) = match value.split_once("?versionId=") {
            Some((path, version)) => (path, Some(version)),
            None => (value, None),
        };
        let path = decode(path)?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path.split_once('/').ok_or_else(|| {
            Code::InvalidArgument
                .with_message("x-amz-copy-source must be a bucket, a slash and a key.")
        })?;
        Ok(Self {
            bucket: BucketName::parse(bucket)?,
            key: ObjectKey::parse(key)?,
            version: version
                .map(|version| decode(version).map(Into::into))
                .transpose()?,
        })
    }
}

/// The bucket that the host names, if it is below the domain.
pub(super) fn virtual_bucket<'a>(
    host: Option<&'a str>,
    base_domain: Option<&str>,
) -> Option<&'a str> {
    let (host, base_domain) = (host?, base_domain?);
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let split = name.len().checked_sub(base_domain.len())?;
    let (bucket, domain) = name.split_at_checked(split)?;
    let below = domain.eq_ignore_ascii_case(base_domain);
    bucket
        .strip_suffix('.')
        .filter(|bucket| below && !bucket.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sources_of_copies() {
        let named = |value: &str| {
            let source = CopySource::parse(value).unwrap();
            let version = source.version.as_deref().unwrap_or("-");
            format!("{}|{}|{version}", source.bucket, source.key)
        };
        assert_eq!(named("bkt/a/b"), "bkt|a/b|-");
        assert_eq!(named("/bkt/a%2Fb%20c%3F+"), "bkt|a/b c?+|-");
        assert_eq!(named("bkt/k?versionId=null"), "bkt|k|null");
        assert_eq!(
            named("bkt/a%3FversionId=1?versionId=3%2F"),
            "bkt|a?versionId=1|3/"
        );
        for bad in [
            "",
            "bkt",
            "/bkt",
            "bkt/",
            "B/k",
            "bkt/%zz",
            "arn:aws:s3:::bkt",
        ] {
            assert!(CopySource::parse(bad).is_err(), "{bad}");
        }
    }
}
