//! The parameters of operations besides bucket and key.

use prism_http::{BodyFraming, Headers, RequestHead};

use super::target::CopySource;
use super::{MAX_PUT_BYTES, is_streaming};
use crate::auth::single;
use crate::conditions::Conditions;
use crate::integrity::{self, Algorithm, ChecksumType};
use crate::query::Query;
use crate::streaming::decoded_length;
use crate::tags::Tags;
use crate::{Code, ObjectHeaders, RangeSpec, S3Error};

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

/// The parameters of CopyObject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyObject {
    /// The source.
    pub source: CopySource,
    /// Conditions on the source.
    pub source_conditions: Conditions,
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
    /// Conditions on the source.
    pub source_conditions: Conditions,
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
    pub(super) fn from_head(head: &RequestHead) -> Result<Self, S3Error> {
        Ok(Self {
            headers: ObjectHeaders::from_request(head.headers())?,
            tags: Tags::from_header(head.headers())?,
            conditions: Conditions::of_write(head.headers())?,
            length: body_length(head)?,
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

    pub(super) fn parse(head: &RequestHead, query: &Query) -> Result<Self, S3Error> {
        let range = RangeSpec::from_headers(head.headers());
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
            let mut probe = Headers::new();
            probe.append(header, value).map_err(|_| {
                Code::InvalidArgument
                    .with_message(format!("{parameter} cannot be the value of a header."))
            })?;
            overrides.push((header, value.to_owned()));
        }
        Ok(Self {
            range,
            part,
            version: version_id(query)?,
            conditions: Conditions::from_headers(head.headers()),
            overrides,
        })
    }
}

impl CopyObject {
    pub(super) fn parse(headers: &Headers, source: CopySource) -> Result<Self, S3Error> {
        let replaces =
            |directive: &str| match single(headers, directive)? {
                None | Some("COPY") => Ok(false),
                Some("REPLACE") => Ok(true),
                Some(_) => Err(Code::InvalidArgument
                    .with_message(format!("{directive} must be COPY or REPLACE."))),
            };
        let replaced = match replaces("x-amz-metadata-directive")? {
            true => Some(ObjectHeaders::from_request(headers)?),
            false => None,
        };
        let tags = match replaces("x-amz-tagging-directive")? {
            true => Some(Tags::from_header(headers)?),
            false => None,
        };
        let checksum = single(headers, "x-amz-checksum-algorithm")?;
        Ok(Self {
            source,
            source_conditions: Conditions::of_copy_source(headers),
            headers: replaced,
            tags,
            checksum: checksum.map(Algorithm::from_name).transpose()?,
            conditions: Conditions::of_write(headers)?,
        })
    }
}

impl CreateUpload {
    pub(super) fn parse(headers: &Headers) -> Result<Self, S3Error> {
        let invalid = |message: &'static str| Code::InvalidRequest.with_message(message);
        let algorithm = single(headers, "x-amz-checksum-algorithm")?
            .map(Algorithm::from_name)
            .transpose()?;
        let kind = checksum_type(headers)?;
        let checksum = match (algorithm, kind) {
            (None, None) => None,
            (None, Some(_)) => {
                return Err(invalid(
                    "x-amz-checksum-type needs x-amz-checksum-algorithm.",
                ));
            }
            (Some(algorithm), kind) => {
                let kind = kind.unwrap_or(algorithm.default_type());
                if !algorithm.allows(kind) {
                    return Err(invalid(
                        "This checksum algorithm cannot be of this checksum type.",
                    ));
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
    pub(super) fn parse(head: &RequestHead, query: &Query) -> Result<Self, S3Error> {
        Ok(Self {
            upload: upload_id(query),
            number: part_number(query.get("partNumber").unwrap_or_default())?,
            length: body_length(head)?,
        })
    }
}

impl CopyPart {
    pub(super) fn parse(
        headers: &Headers,
        query: &Query,
        source: CopySource,
    ) -> Result<Self, S3Error> {
        let range = single(headers, "x-amz-copy-source-range")?;
        let range = range.map(|text| match RangeSpec::parse(text) {
            Some(RangeSpec::From {
                first,
                last: Some(last),
            }) => Ok((first, last)),
            _ => Err(Code::InvalidArgument
                .with_message("x-amz-copy-source-range must be bytes=first-last.")),
        });
        Ok(Self {
            upload: upload_id(query),
            number: part_number(query.get("partNumber").unwrap_or_default())?,
            source,
            source_conditions: Conditions::of_copy_source(headers),
            range: range.transpose()?,
        })
    }
}

impl ListParts {
    pub(super) const PARAMETERS: [&'static str; 3] =
        ["max-parts", "part-number-marker", "encoding-type"];

    pub(super) fn parse(query: &Query) -> Result<Self, S3Error> {
        Ok(Self {
            upload: upload_id(query),
            after: marker(query.get("part-number-marker"))?,
            max: crate::list::page_size(query, "max-parts")?,
            url_encoded: crate::list::is_url_encoded(query)?,
        })
    }
}

impl CompleteUpload {
    pub(super) fn parse(headers: &Headers, query: &Query) -> Result<Self, S3Error> {
        let size = single(headers, "x-amz-mp-object-size")?;
        let size = size.map(|text| {
            text.parse().map_err(|_| {
                Code::InvalidRequest.with_message("x-amz-mp-object-size must be a number of bytes.")
            })
        });
        Ok(Self {
            upload: upload_id(query),
            conditions: Conditions::of_write(headers)?,
            checksum: integrity::of_object(headers)?,
            checksum_type: checksum_type(headers)?,
            size: size.transpose()?,
        })
    }
}

impl Attributes {
    pub(super) fn parse(headers: &Headers, query: &Query) -> Result<Self, S3Error> {
        let invalid = |message| Code::InvalidArgument.with_message(message);
        let max_parts = match single(headers, "x-amz-max-parts")? {
            None => crate::ListObjects::MAX_KEYS,
            Some(text) => text
                .parse::<usize>()
                .map_err(|_| invalid("x-amz-max-parts must be a number."))?
                .min(crate::ListObjects::MAX_KEYS),
        };
        let mut attributes = Self {
            version: version_id(query)?,
            max_parts,
            after: marker(single(headers, "x-amz-part-number-marker")?)?,
            ..Self::default()
        };
        let mut any = false;
        for name in headers.list("x-amz-object-attributes") {
            any = true;
            match name {
                b"ETag" => attributes.etag = true,
                b"Checksum" => attributes.checksum = true,
                b"ObjectParts" => attributes.parts = true,
                b"StorageClass" => attributes.storage_class = true,
                b"ObjectSize" => attributes.size = true,
                _ => return Err(invalid("An attribute's name is not known.")),
            }
        }
        match any {
            true => Ok(attributes),
            false => Err(invalid("x-amz-object-attributes is missing.")),
        }
    }
}

/// The name of a version, of any form: only the backend that has it can check it.
pub(super) fn version_id(query: &Query) -> Result<Option<String>, S3Error> {
    match query.get("versionId") {
        Some("") => Err(Code::InvalidArgument.with_message("versionId must not be empty.")),
        named => Ok(named.map(str::to_owned)),
    }
}

/// The name of an upload, of any form: only the backend that has it can check it.
pub(super) fn upload_id(query: &Query) -> String {
    query.get("uploadId").unwrap_or_default().to_owned()
}

fn checksum_type(headers: &Headers) -> Result<Option<ChecksumType>, S3Error> {
    let text = single(headers, integrity::TYPE_HEADER)?;
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
    number
        .filter(|number| (1..=MAX_PARTS).contains(number))
        .ok_or_else(|| {
            Code::InvalidArgument
                .with_message("A part number must be an integer between 1 and 10000, inclusive.")
        })
}

fn marker(text: Option<&str>) -> Result<u16, S3Error> {
    match text {
        None | Some("") => Ok(0),
        Some(text) => match text.parse::<u32>() {
            Ok(number) => Ok(u16::try_from(number).unwrap_or(u16::MAX)),
            Err(_) => {
                Err(Code::InvalidArgument.with_message("A part number marker must be a number."))
            }
        },
    }
}

/// Bytes of data of a body, without framing.
fn body_length(head: &RequestHead) -> Result<Option<u64>, S3Error> {
    let length = match head.framing() {
        BodyFraming::None => return Err(Code::MissingContentLength.into()),
        BodyFraming::Length(n) => Some(n),
        BodyFraming::Chunked => None,
    };
    let length = match is_streaming(head) {
        true => Some(decoded_length(head.headers())?),
        false => length,
    };
    if length.is_some_and(|n| n > MAX_PUT_BYTES) {
        return Err(Code::EntityTooLarge.into());
    }
    Ok(length)
}
