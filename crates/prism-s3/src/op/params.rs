//! The parameters of operations besides bucket and key.

use std::borrow::Cow;

use prism_http::{BodyFraming, Headers, RequestHead};

use super::rows::Given;
use crate::checksum::{self, Algorithm, ChecksumType};
use crate::conditions::Conditions;
use crate::fields::single;
use crate::list::{ListObjects, is_url_encoded, page_size};
use crate::query::decode;
use crate::streaming::{decoded_length, is_streaming};
use crate::tags::Tags;
use crate::{BucketName, Code, ObjectHeaders, ObjectKey, RangeSpec, S3Error};

/// The largest object, or part of one, that one PUT can make: 5 GiB, as in S3.
pub const MAX_PUT_BYTES: u64 = 5 << 30;
/// Most parts of an upload, and the greatest number of a part.
pub const MAX_PARTS: u16 = 10_000;
/// Least bytes of every part of an object but the last: 5 MiB.
pub const MIN_PART_BYTES: u64 = 5 << 20;

/// Parameters of GET and HEAD that set a header of the answer.
const OVERRIDES: [(&str, &str); 6] = [
    ("response-cache-control", "Cache-Control"),
    ("response-content-disposition", "Content-Disposition"),
    ("response-content-encoding", "Content-Encoding"),
    ("response-content-language", "Content-Language"),
    ("response-content-type", "Content-Type"),
    ("response-expires", "Expires"),
];

/// The parameters of PutObject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutObject {
    /// The object's headers.
    pub headers: ObjectHeaders,
    /// The object's tags.
    pub tags: Tags,
    /// `If-Match` and `If-None-Match`.
    pub conditions: Conditions,
    /// Bytes of data, without framing. `None` if the transfer coding is chunked and no header
    /// tells; then the reader must limit them to [`MAX_PUT_BYTES`].
    pub length: Option<u64>,
}

/// The parameters of GetObject and HeadObject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadObject {
    /// The range, if one counts.
    pub range: Option<RangeSpec>,
    /// One part of the object instead, from 1.
    pub part: Option<u16>,
    /// One version of it, as the client names it, instead of the current one.
    pub version: Option<String>,
    /// Conditions, which come first.
    pub conditions: Conditions,
    /// Headers of the answer that the client sets: names and valid values.
    pub overrides: Vec<(&'static str, String)>,
}

/// The object that a copy is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySource {
    /// Its bucket.
    pub bucket: BucketName,
    /// Its key.
    pub key: ObjectKey,
    /// The version, as the client names it, or `None` for the current one.
    pub version: Option<String>,
    /// The conditions on it.
    pub conditions: Conditions,
}

/// The parameters of CopyObject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyObject {
    /// The source.
    pub source: CopySource,
    /// Headers in place of the source's.
    pub headers: Option<ObjectHeaders>,
    /// Tags in place of the source's.
    pub tags: Option<Tags>,
    /// The checksum to compute.
    pub checksum: Option<Algorithm>,
    /// Conditions on the object that the copy replaces.
    pub conditions: Conditions,
}

/// The parameters of CreateMultipartUpload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateUpload {
    /// The object's headers.
    pub headers: ObjectHeaders,
    /// The object's tags.
    pub tags: Tags,
    /// The checksum of the parts, and the type of the object's.
    pub checksum: Option<(Algorithm, ChecksumType)>,
}

/// The parameters of UploadPart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadPart {
    /// The upload, as the client names it.
    pub upload: String,
    /// 1 to [`MAX_PARTS`].
    pub number: u16,
    /// As [`PutObject::length`].
    pub length: Option<u64>,
}

/// The parameters of UploadPartCopy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPart {
    /// The upload, as the client names it.
    pub upload: String,
    /// 1 to [`MAX_PARTS`].
    pub number: u16,
    /// The source.
    pub source: CopySource,
    /// Offsets of the first and last byte, which must be within the source.
    pub range: Option<(u64, u64)>,
}

/// The parameters of ListParts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListParts {
    /// The upload, as the client names it.
    pub upload: String,
    /// Only parts with greater numbers.
    pub after: u16,
    /// Most parts on a page.
    pub max: usize,
    /// Whether names are percent-encoded in the answer.
    pub url_encoded: bool,
}

/// The parameters of CompleteMultipartUpload besides the list of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteUpload {
    /// The upload, as the client names it.
    pub upload: String,
    /// `If-Match` and `If-None-Match`.
    pub conditions: Conditions,
    /// The checksum that the whole object must have, in the form of the answer.
    pub checksum: Option<(Algorithm, String)>,
    /// The type of checksum that the client assumes.
    pub checksum_type: Option<ChecksumType>,
    /// The bytes that the object must have.
    pub size: Option<u64>,
}

/// The parameters of GetObjectAttributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by S3")]
#[allow(clippy::struct_excessive_bools, reason = "a set of S3's names")]
pub struct Attributes {
    pub version: Option<String>,
    pub etag: bool,
    pub checksum: bool,
    pub parts: bool,
    pub storage_class: bool,
    pub size: bool,
    /// Most parts to list.
    pub max_parts: usize,
    /// Only parts with greater numbers.
    pub after: u16,
}

impl PutObject {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        Ok(Self {
            headers: ObjectHeaders::from_request(headers)?,
            tags: Tags::from_header(headers)?,
            conditions: Conditions::of_write(headers)?,
            length: body_length(given.head)?,
        })
    }
}

impl ReadObject {
    pub(super) const PARAMETERS: [&'static str; 8] = [
        "partNumber",
        "versionId",
        OVERRIDES[0].0,
        OVERRIDES[1].0,
        OVERRIDES[2].0,
        OVERRIDES[3].0,
        OVERRIDES[4].0,
        OVERRIDES[5].0,
    ];

    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let query = given.query;
        let range = RangeSpec::from_headers(headers);
        let part = query.get("partNumber").map(part_number).transpose()?;
        if range.is_some() && part.is_some() {
            return Err(
                Code::InvalidRequest.with_message("Range and partNumber cannot both be given.")
            );
        }
        let mut overrides = Vec::new();
        for (parameter, header) in OVERRIDES {
            let Some(value) = query.get(parameter) else {
                continue;
            };
            // The value must be valid in a header.
            Headers::new()
                .append(header, value)
                .map_err(|_| invalid(format!("{parameter} cannot be the value of a header.")))?;
            overrides.push((header, value.to_owned()));
        }
        Ok(Self {
            range,
            part,
            version: version_id(given)?,
            conditions: Conditions::from_headers(headers),
            overrides,
        })
    }
}

impl CopySource {
    /// Reads `x-amz-copy-source`: `bucket/key` or `/bucket/key`, encoded like a path, and
    /// perhaps `?versionId=`. The conditions are in other headers.
    fn parse(value: &str, headers: &Headers) -> Result<Self, S3Error> {
        let (path, version) = match value.split_once("?versionId=") {
            Some((path, version)) => (path, Some(version)),
            None => (value, None),
        };
        let path = decode(path)?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path
            .split_once('/')
            .ok_or_else(|| invalid("x-amz-copy-source must be a bucket, a slash and a key."))?;
        let version = version.map(|version| decode(version).map(Into::into));
        Ok(Self {
            bucket: BucketName::parse(bucket)?,
            key: ObjectKey::parse(key)?,
            version: version.transpose()?,
            conditions: Conditions::of_copy_source(headers),
        })
    }
}

impl CopyObject {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let source = CopySource::parse(given.source.unwrap_or_default(), headers)?;
        let replaces = |directive: &str| match single(headers, directive)? {
            None | Some("COPY") => Ok(false),
            Some("REPLACE") => Ok(true),
            Some(_) => Err(invalid(format!("{directive} must be COPY or REPLACE."))),
        };
        let replaced = if replaces("x-amz-metadata-directive")? {
            Some(ObjectHeaders::from_request(headers)?)
        } else {
            None
        };
        let tags = if replaces("x-amz-tagging-directive")? {
            Some(Tags::from_header(headers)?)
        } else {
            None
        };
        Ok(Self {
            source,
            headers: replaced,
            tags,
            checksum: checksum_algorithm(headers)?,
            conditions: Conditions::of_write(headers)?,
        })
    }
}

impl CreateUpload {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let invalid = |message| Err(Code::InvalidRequest.with_message(message));
        let checksum = match (checksum_algorithm(headers)?, checksum_type(headers)?) {
            (None, None) => None,
            (None, Some(_)) => {
                return invalid("x-amz-checksum-type needs x-amz-checksum-algorithm.");
            }
            (Some(algorithm), kind) => {
                let kind = kind.unwrap_or(algorithm.default_type());
                if !algorithm.allows(kind) {
                    return invalid("This checksum algorithm cannot be of this checksum type.");
                }
                Some((algorithm, kind))
            }
        };
        Ok(Self {
            headers: ObjectHeaders::from_request(headers)?,
            tags: Tags::from_header(headers)?,
            checksum,
        })
    }
}

impl UploadPart {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        Ok(Self {
            upload: upload_id(given),
            number: part_number(given.query.get("partNumber").unwrap_or_default())?,
            length: body_length(given.head)?,
        })
    }
}

impl CopyPart {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let source = CopySource::parse(given.source.unwrap_or_default(), headers)?;
        let range = single(headers, "x-amz-copy-source-range")?;
        let range = range.map(|text| match RangeSpec::parse(text) {
            Some(RangeSpec::From {
                first,
                last: Some(last),
            }) => Ok((first, last)),
            _ => Err(invalid("x-amz-copy-source-range must be bytes=first-last.")),
        });
        Ok(Self {
            upload: upload_id(given),
            number: part_number(given.query.get("partNumber").unwrap_or_default())?,
            source,
            range: range.transpose()?,
        })
    }
}

impl ListParts {
    pub(super) const PARAMETERS: [&'static str; 3] =
        ["max-parts", "part-number-marker", "encoding-type"];

    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let query = given.query;
        Ok(Self {
            upload: upload_id(given),
            after: marker(query.get("part-number-marker"))?,
            max: page_size(query, "max-parts")?,
            url_encoded: is_url_encoded(query)?,
        })
    }
}

impl CompleteUpload {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let size = single(headers, "x-amz-mp-object-size")?;
        let size = size.map(|text| {
            text.parse().map_err(|_| {
                Code::InvalidRequest.with_message("x-amz-mp-object-size must be a number of bytes.")
            })
        });
        Ok(Self {
            upload: upload_id(given),
            conditions: Conditions::of_write(headers)?,
            checksum: checksum::of_object(headers)?,
            checksum_type: checksum_type(headers)?,
            size: size.transpose()?,
        })
    }
}

impl Attributes {
    pub(super) fn parse(given: &Given<'_>) -> Result<Self, S3Error> {
        let headers = given.head.headers();
        let max_parts = match single(headers, "x-amz-max-parts")? {
            None => ListObjects::MAX_KEYS,
            Some(text) => text
                .parse::<usize>()
                .map_err(|_| invalid("x-amz-max-parts must be a number."))?
                .min(ListObjects::MAX_KEYS),
        };
        let mut attributes = Self {
            version: version_id(given)?,
            max_parts,
            after: marker(single(headers, "x-amz-part-number-marker")?)?,
            ..Self::default()
        };
        let mut names = headers.list("x-amz-object-attributes").peekable();
        if names.peek().is_none() {
            return Err(invalid("x-amz-object-attributes is missing."));
        }
        for name in names {
            match name {
                b"ETag" => attributes.etag = true,
                b"Checksum" => attributes.checksum = true,
                b"ObjectParts" => attributes.parts = true,
                b"StorageClass" => attributes.storage_class = true,
                b"ObjectSize" => attributes.size = true,
                _ => return Err(invalid("An attribute's name is not known.")),
            }
        }
        Ok(attributes)
    }
}

fn invalid(message: impl Into<Cow<'static, str>>) -> S3Error {
    Code::InvalidArgument.with_message(message)
}

/// The name of a version, of any form: only the backend that has it can check it.
pub(super) fn version_id(given: &Given<'_>) -> Result<Option<String>, S3Error> {
    match given.query.get("versionId") {
        Some("") => Err(invalid("versionId must not be empty.")),
        named => Ok(named.map(str::to_owned)),
    }
}

/// The name of an upload, of any form: only the backend that has it can check it.
pub(super) fn upload_id(given: &Given<'_>) -> String {
    given.query.get("uploadId").unwrap_or_default().to_owned()
}

fn checksum_algorithm(headers: &Headers) -> Result<Option<Algorithm>, S3Error> {
    let name = single(headers, "x-amz-checksum-algorithm")?;
    name.map(Algorithm::from_name).transpose()
}

fn checksum_type(headers: &Headers) -> Result<Option<ChecksumType>, S3Error> {
    let text = single(headers, checksum::TYPE_HEADER)?;
    text.map(|text| {
        ChecksumType::parse(text).ok_or_else(|| {
            Code::InvalidRequest
                .with_message("x-amz-checksum-type must be COMPOSITE or FULL_OBJECT.")
        })
    })
    .transpose()
}

fn part_number(text: &str) -> Result<u16, S3Error> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=MAX_PARTS).contains(number));
    number
        .ok_or_else(|| invalid("A part number must be an integer between 1 and 10000, inclusive."))
}

fn marker(text: Option<&str>) -> Result<u16, S3Error> {
    let number = match text {
        None | Some("") => Ok(0),
        Some(text) => text.parse::<u32>(),
    };
    match number {
        Ok(number) => Ok(u16::try_from(number).unwrap_or(u16::MAX)),
        Err(_) => Err(invalid("A part number marker must be a number.")),
    }
}

/// Bytes of data of a body, without framing.
fn body_length(head: &RequestHead) -> Result<Option<u64>, S3Error> {
    let length = match head.framing() {
        BodyFraming::None => return Err(Code::MissingContentLength.into()),
        _ if is_streaming(head.headers()) => Some(decoded_length(head.headers())?),
        BodyFraming::Length(n) => Some(n),
        BodyFraming::Chunked => None,
    };
    if length.is_some_and(|bytes| bytes > MAX_PUT_BYTES) {
        Err(Code::EntityTooLarge.into())
    } else {
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sources_of_copies() {
        let parse = |value: &str| CopySource::parse(value, &Headers::new());
        let named = |value: &str| {
            let source = parse(value).unwrap();
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
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
