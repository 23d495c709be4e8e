//! The documents of clients.

use serde::{Deserialize, Serialize};

use super::read::{elements, malformed};
use crate::checksum::Algorithm;
use crate::tags::Tags;
use crate::{Code, ObjectKey, S3Error};

/// The most keys of one DeleteObjects.
pub const MAX_DELETED_KEYS: usize = 1000;

/// The body of DeleteObjects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteRequest {
    /// Whether the answer has failures only.
    pub quiet: bool,
    /// At most [`MAX_DELETED_KEYS`] targets, in the client's order.
    pub targets: Vec<DeleteTarget>,
}

/// An object or version that DeleteObjects deletes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteTarget {
    /// The key. An invalid one fails alone.
    pub key: String,
    /// The version, as the client names it.
    pub version: Option<String>,
    /// The ETag that it must have, as for `If-Match`.
    pub etag: Option<String>,
}

/// A part as the client names it when it completes an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletedPart {
    /// Its number.
    pub number: u16,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its checksum in the form of headers, if the client names one.
    pub checksum: Option<(Algorithm, String)>,
}

/// The region of a `CreateBucketConfiguration`, or `None` if the body is empty or has none.
///
/// # Errors
/// `MalformedXML`; `NotImplemented` for tags, and for the location and type of a directory bucket.
pub fn parse_location_constraint(body: &[u8]) -> Result<Option<String>, S3Error> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut region = String::new();
    elements(body, "CreateBucketConfiguration", |path, text| {
        match path {
            ["LocationConstraint"] => text.trim().clone_into(&mut region),
            [what @ ("Tags" | "Location" | "Bucket"), ..] => {
                return Err(Code::NotImplemented
                    .with_message(format!("CreateBucket with {what} is not implemented.")));
            }
            _ => return Err(malformed()),
        }
        Ok(())
    })?;
    Ok((!region.is_empty()).then_some(region))
}

/// The keys of a `Delete`.
///
/// # Errors
/// `MalformedXML`, also for none or too many keys; `NotImplemented` for conditions
/// other than on ETags.
pub fn parse_delete(body: &[u8]) -> Result<DeleteRequest, S3Error> {
    let mut request = DeleteRequest::default();
    let mut key = None;
    let mut target = DeleteTarget::default();
    elements(body, "Delete", |path, text| {
        match path {
            ["Quiet"] => request.quiet = text.trim().eq_ignore_ascii_case("true"),
            ["Object", "Key"] => match key {
                None => key = Some(text),
                Some(_) => return Err(malformed()),
            },
            ["Object"] => {
                target.key = key.take().ok_or_else(malformed)?;
                request.targets.push(std::mem::take(&mut target));
                if request.targets.len() > MAX_DELETED_KEYS {
                    return Err(malformed());
                }
            }
            ["Object", "VersionId"] => target.version = given(&text),
            ["Object", "ETag"] => target.etag = given(&text),
            ["Object", "LastModifiedTime" | "Size"] => {
                let what = path.last().copied().unwrap_or_default();
                return Err(Code::NotImplemented
                    .with_message(format!("DeleteObjects with {what} is not implemented.")));
            }
            _ => return Err(malformed()),
        }
        Ok(())
    })?;
    if request.targets.is_empty() {
        Err(malformed())
    } else {
        Ok(request)
    }
}

/// Whether a `VersioningConfiguration` enables versions or suspends them.
///
/// # Errors
/// `MalformedXML`; `NotImplemented` for deletions that need a second factor.
pub fn parse_versioning(body: &[u8]) -> Result<bool, S3Error> {
    let mut enabled = None;
    elements(body, "VersioningConfiguration", |path, text| {
        match (path, text.trim()) {
            (["Status"], "Enabled") => enabled = Some(true),
            (["Status"], "Suspended") => enabled = Some(false),
            (["MfaDelete" | "MFADelete"], "Disabled") => {}
            (["MfaDelete" | "MFADelete"], "Enabled") => {
                return Err(Code::NotImplemented.with_message("MFA delete is not implemented."));
            }
            _ => return Err(malformed()),
        }
        Ok(())
    })?;
    enabled.ok_or_else(|| Code::MalformedXML.with_message("Status must be Enabled or Suspended."))
}

/// The trimmed text of an element, or `None` if it is empty.
fn given(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The parts of a `CompleteMultipartUpload`.
///
/// # Errors
/// `MalformedXML`, also for none or more than [`crate::op::MAX_PARTS`];
/// `InvalidPartOrder` if numbers do not ascend.
pub fn parse_complete(body: &[u8]) -> Result<Vec<CompletedPart>, S3Error> {
    let mut parts: Vec<CompletedPart> = Vec::new();
    let mut part = CompletedPart::default();
    elements(body, "CompleteMultipartUpload", |path, text| {
        let text = text.trim();
        match path {
            ["Part", "PartNumber"] => part.number = text.parse().map_err(|_| malformed())?,
            ["Part", "ETag"] => {
                let bare = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
                bare.unwrap_or(text).clone_into(&mut part.etag);
            }
            ["Part", element] => {
                let name = element.strip_prefix("Checksum").ok_or_else(malformed)?;
                let named = Algorithm::from_name(name).map_err(|_| malformed())?;
                if part.checksum.replace((named, text.to_owned())).is_some() {
                    return Err(malformed());
                }
            }
            ["Part"] => {
                let part = std::mem::take(&mut part);
                if part.number == 0 || part.etag.is_empty() {
                    return Err(malformed());
                }
                if parts.last().is_some_and(|last| last.number >= part.number) {
                    return Err(Code::InvalidPartOrder.into());
                }
                parts.push(part);
            }
            _ => return Err(malformed()),
        }
        Ok(())
    })?;
    match parts.last() {
        Some(last) if last.number <= crate::op::MAX_PARTS => Ok(parts),
        Some(_) => Err(Code::InvalidPart.into()),
        None => Err(malformed()),
    }
}

/// The tags of a `Tagging`.
///
/// # Errors
/// `MalformedXML`, or as for [`Tags::new`].
pub fn parse_tagging(body: &[u8]) -> Result<Tags, S3Error> {
    let mut pairs = Vec::new();
    let mut key = None;
    let mut value = None;
    elements(body, "Tagging", |path, text| {
        match path {
            ["TagSet", "Tag", "Key"] => key = Some(text),
            ["TagSet", "Tag", "Value"] => value = Some(text),
            ["TagSet", "Tag"] => match (key.take(), value.take()) {
                (Some(key), Some(value)) if pairs.len() <= Tags::MAX => pairs.push((key, value)),
                (Some(_), Some(_)) => {}
                _ => return Err(malformed()),
            },
            ["TagSet"] => {}
            _ => return Err(malformed()),
        }
        Ok(())
    })?;
    Tags::new(pairs)
}

impl DeleteRequest {
    /// The targets with their keys, or with the errors of invalid keys.
    pub fn parsed(&self) -> impl Iterator<Item = (&DeleteTarget, Result<ObjectKey, S3Error>)> {
        let targets = self.targets.iter();
        targets.map(|target| (target, ObjectKey::parse(&target.key)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn keys_to_delete() {
        let body = "<Delete xmlns=\"n\"><Object><Key>a &amp;\n</Key></Object><Quiet>true</Quiet>\
                    <Object><Key>b</Key><VersionId>null</VersionId></Object>\
                    <Object><ETag>&quot;e&quot;</ETag><Key>c</Key><VersionId/></Object></Delete>";
        let request = parse_delete(body.as_bytes()).unwrap();
        assert!(request.quiet);
        let target = |key: &str, version: Option<&str>, etag: Option<&str>| DeleteTarget {
            key: key.to_owned(),
            version: version.map(str::to_owned),
            etag: etag.map(str::to_owned),
        };
        let wanted = [
            target("a &\n", None, None),
            target("b", Some("null"), None),
            target("c", None, Some("\"e\"")),
        ];
        assert_eq!(request.targets, wanted);
        let of = |inner: &str| parse_delete(format!("<Delete>{inner}</Delete>").as_bytes());
        let code = |inner: &str| of(inner).unwrap_err().code();
        let one = "<Object><Key>k</Key></Object>";
        assert!(of(&one.repeat(MAX_DELETED_KEYS)).is_ok());
        assert_eq!(code(&one.repeat(MAX_DELETED_KEYS + 1)), Code::MalformedXML);
        for bad in [
            "",
            "<Object></Object>",
            "<Object><Key>a</Key><Key>b</Key></Object>",
            "<X/>",
        ] {
            assert_eq!(code(bad), Code::MalformedXML, "{bad}");
        }
        let size = "<Object><Key>k</Key><Size>3</Size></Object>";
        assert_eq!(code(size), Code::NotImplemented);
        let request = of("<Object><Key></Key></Object>").unwrap();
        assert!(request.parsed().next().unwrap().1.is_err());
    }

    #[test]
    fn versions_are_enabled_or_suspended_and_need_no_second_factor() {
        let of = |inner: &str| {
            let body = format!("<VersioningConfiguration>{inner}</VersioningConfiguration>");
            parse_versioning(body.as_bytes()).map_err(|error| error.code())
        };
        assert_eq!(of("<Status>Enabled</Status>"), Ok(true));
        assert_eq!(
            of("<Status>Suspended</Status><MfaDelete>Disabled</MfaDelete>"),
            Ok(false)
        );
        let mfa = of("<Status>Enabled</Status><MfaDelete>Enabled</MfaDelete>");
        assert_eq!(mfa, Err(Code::NotImplemented));
        for bad in ["", "<Status/>", "<Status>On</Status>", "<X/>"] {
            assert_eq!(of(bad), Err(Code::MalformedXML), "{bad}");
        }
    }

    #[test]
    fn parts_to_complete() {
        let part = |n: u32, rest: &str| format!("<Part><PartNumber>{n}</PartNumber>{rest}</Part>");
        let of = |inner: &str| {
            let body = format!("<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>");
            parse_complete(body.as_bytes())
        };
        let etag = "<ETag>&quot;e&quot;</ETag>";
        let sum = "<ChecksumCRC32>AAAAAA==</ChecksumCRC32>";
        let parts =
            of(&[part(1, etag), part(9, &format!("<ETag>f</ETag>{sum}"))].concat()).unwrap();
        assert_eq!(parts[0].etag, "e");
        let checksum = Some((Algorithm::Crc32, "AAAAAA==".to_owned()));
        assert_eq!((parts[1].number, &parts[1].checksum), (9, &checksum));
        let code = |inner: String| of(&inner).unwrap_err().code();
        assert_eq!(
            code([part(2, etag), part(1, etag)].concat()),
            Code::InvalidPartOrder
        );
        assert_eq!(
            code([part(1, etag), part(1, etag)].concat()),
            Code::InvalidPartOrder
        );
        assert_eq!(code(part(10_001, etag)), Code::InvalidPart);
        for bad in [
            String::new(),
            part(0, etag),
            part(1, ""),
            part(70_000, etag),
        ] {
            assert_eq!(code(bad.clone()), Code::MalformedXML, "{bad}");
        }
        assert_eq!(code(part(1, &format!("{etag}<X/>"))), Code::MalformedXML);
    }

    #[test]
    fn tags_to_set() {
        let tag = |k: &str, v: &str| format!("<Tag><Key>{k}</Key><Value>{v}</Value></Tag>");
        let of = |inner: &str| {
            let body = format!("<Tagging><TagSet>{inner}</TagSet></Tagging>");
            parse_tagging(body.as_bytes())
        };
        let tags = of(&[tag("a", "1"), tag("b", "")].concat()).unwrap();
        assert_eq!(tags.encode(), "a=1&b=");
        assert!(of("").unwrap().is_empty());
        let many: String = (0..500).map(|n| tag(&n.to_string(), "")).collect();
        assert_eq!(of(&many).unwrap_err().code(), Code::BadRequest);
        assert_eq!(
            of("<Tag><Key>a</Key></Tag>").unwrap_err().code(),
            Code::MalformedXML
        );
    }
}
