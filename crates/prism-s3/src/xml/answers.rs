//! Answers of one document each: copies, deletions, tags, attributes.

use ::time::OffsetDateTime;

use super::parts::PartEntry;
use super::requests::DeleteTarget;
use super::{Document, NAMESPACE, yes_or_no};
use crate::S3Error;
use crate::cors::CorsRule;
use crate::integrity::{Algorithm, ChecksumType};
use crate::tags::Tags;
use crate::time::iso_millis;

/// `CopyObjectResult` or `CopyPartResult`. The `etag` comes with its quotes.
#[must_use]
pub fn copy_result(
    is_part: bool,
    etag: &str,
    modified: OffsetDateTime,
    checksum: Option<(Algorithm, &str)>,
) -> Vec<u8> {
    let root = match is_part {
        true => "CopyPartResult",
        false => "CopyObjectResult",
    };
    let mut doc = Document::new();
    doc.open(root, Some(NAMESPACE));
    doc.text("LastModified", &iso_millis(modified));
    doc.text("ETag", etag);
    if let Some((algorithm, value)) = checksum {
        doc.text(algorithm.element(), value);
    }
    doc.close(root);
    doc.finish()
}

/// What became of one target of a DeleteObjects.
pub type DeleteResult<'a> = (&'a DeleteTarget, Result<Deleted, S3Error>);

/// What was deleted where versions are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The delete marker that was made or, if it is the version that was named,
    /// deleted.
    pub marker: Option<String>,
}

/// `DeleteResult`; with `quiet`, failures only.
#[must_use]
pub fn delete_result<'a>(
    quiet: bool,
    results: impl IntoIterator<Item = DeleteResult<'a>>,
) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("DeleteResult", Some(NAMESPACE));
    for (target, result) in results {
        let name = |doc: &mut Document| {
            doc.text("Key", &target.key);
            if let Some(version) = &target.version {
                doc.text("VersionId", version);
            }
        };
        match result {
            Ok(_) if quiet => {}
            Ok(deleted) => {
                doc.open("Deleted", None);
                name(&mut doc);
                if let Some(marker) = &deleted.marker {
                    doc.text("DeleteMarker", "true");
                    doc.text("DeleteMarkerVersionId", marker);
                }
                doc.close("Deleted");
            }
            Err(error) => {
                doc.open("Error", None);
                name(&mut doc);
                doc.text("Code", error.code().as_str());
                doc.text("Message", error.message());
                doc.close("Error");
            }
        }
    }
    doc.close("DeleteResult");
    doc.finish()
}

/// `Tagging`.
#[must_use]
pub fn tagging(tags: &Tags) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("Tagging", Some(NAMESPACE));
    doc.open("TagSet", None);
    for (key, value) in tags.iter() {
        doc.open("Tag", None);
        doc.text("Key", key);
        doc.text("Value", value);
        doc.close("Tag");
    }
    doc.close("TagSet");
    doc.close("Tagging");
    doc.finish()
}

/// `VersioningConfiguration`; with nothing for a bucket that never kept versions.
#[must_use]
pub fn versioning(enabled: Option<bool>) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("VersioningConfiguration", Some(NAMESPACE));
    match enabled {
        None => {}
        Some(true) => doc.text("Status", "Enabled"),
        Some(false) => doc.text("Status", "Suspended"),
    }
    doc.close("VersioningConfiguration");
    doc.finish()
}

/// What GetObjectAttributes answers; each is there if it was asked for and
/// exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Without quotes: only here S3 writes it so.
    pub etag: Option<String>,
    /// The object's checksum.
    pub checksum: Option<(Algorithm, String, ChecksumType)>,
    /// Its parts.
    pub parts: Option<PartsOfObject>,
    /// Its storage class, of which there is one.
    pub storage_class: bool,
    /// Bytes.
    pub size: Option<u64>,
}

/// The parts of an object that was uploaded in parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartsOfObject {
    /// How many there are.
    pub count: usize,
    /// Only parts with greater numbers were asked for.
    pub after: u16,
    /// At most so many.
    pub max: usize,
    /// Whether there are more behind `page`.
    pub truncated: bool,
    /// Those with checksums, as S3 does; times and ETags are not written.
    pub page: Vec<PartEntry>,
}

impl Attributes {
    /// `GetObjectAttributesResponse`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let mut doc = Document::new();
        doc.open("GetObjectAttributesResponse", Some(NAMESPACE));
        if let Some(etag) = &self.etag {
            doc.text("ETag", etag);
        }
        if let Some((algorithm, value, kind)) = &self.checksum {
            doc.open("Checksum", None);
            doc.text(algorithm.element(), value);
            doc.text("ChecksumType", kind.as_str());
            doc.close("Checksum");
        }
        if let Some(parts) = &self.parts {
            parts.write(&mut doc);
        }
        if self.storage_class {
            doc.text("StorageClass", "STANDARD");
        }
        if let Some(size) = self.size {
            doc.text("ObjectSize", &size.to_string());
        }
        doc.close("GetObjectAttributesResponse");
        doc.finish()
    }
}

impl PartsOfObject {
    fn write(&self, doc: &mut Document) {
        doc.open("ObjectParts", None);
        doc.text("PartsCount", &self.count.to_string());
        if !self.page.is_empty() {
            let last = self.page.last().map_or(0, |part| part.number);
            doc.text("PartNumberMarker", &self.after.to_string());
            doc.text("NextPartNumberMarker", &last.to_string());
            doc.text("MaxParts", &self.max.to_string());
            doc.text("IsTruncated", yes_or_no(self.truncated));
        }
        for part in &self.page {
            doc.open("Part", None);
            doc.text("PartNumber", &part.number.to_string());
            doc.text("Size", &part.size.to_string());
            if let Some((algorithm, value)) = &part.checksum {
                doc.text(algorithm.element(), value);
            }
            doc.close("Part");
        }
        doc.close("ObjectParts");
    }
}

/// `CORSConfiguration`.
pub(crate) fn cors_configuration(rules: &[CorsRule]) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("CORSConfiguration", Some(NAMESPACE));
    for rule in rules {
        doc.open("CORSRule", None);
        if let Some(id) = &rule.id {
            doc.text("ID", id);
        }
        for (element, texts) in [
            ("AllowedOrigin", &rule.origins),
            ("AllowedMethod", &rule.methods),
            ("AllowedHeader", &rule.headers),
            ("ExposeHeader", &rule.exposed),
        ] {
            texts.iter().for_each(|text| doc.text(element, text));
        }
        if let Some(age) = rule.max_age_s {
            doc.text("MaxAgeSeconds", &age.to_string());
        }
        doc.close("CORSRule");
    }
    doc.close("CORSConfiguration");
    doc.finish()
}
