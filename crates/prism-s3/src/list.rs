//! The parameters and the pages of ListObjects, both versions, of ListObjectVersions and of
//! ListMultipartUploads, and the parameters of ListBuckets.

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};

use crate::query::Query;
use crate::{Code, ObjectKey, S3Error};

/// The parameters that all listings of a bucket have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Only keys that start with this; may be empty.
    pub prefix: String,
    /// Keys that are the same up to its first occurrence behind the prefix become one common
    /// prefix.
    pub delimiter: Option<String>,
    /// Entries and common prefixes on a page, 0 to 1,000.
    pub max: usize,
    /// Whether names are percent-encoded in the answer.
    pub url_encoded: bool,
}

impl Listing {
    fn parse(query: &Query, max: &str) -> Result<Self, S3Error> {
        Ok(Self {
            prefix: text(query, "prefix")?.unwrap_or_default(),
            delimiter: text(query, "delimiter")?,
            max: page_size(query, max)?,
            url_encoded: is_url_encoded(query)?,
        })
    }
}

/// The parameters of ListObjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListObjects {
    /// The parameters of every listing.
    pub listing: Listing,
    /// Whether each key comes with its owner.
    pub with_owner: bool,
    /// The parameters that differ between the versions.
    pub version: ListVersion,
}

/// The start of a page, in the terms of the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListVersion {
    /// `GET /bucket`.
    V1 {
        /// Exclusive; empty for the first page.
        marker: String,
    },
    /// `GET /bucket?list-type=2`.
    V2 {
        /// The key that the client's token stands for.
        after_token: Option<String>,
        /// Exclusive; counts only without a token.
        start_after: Option<String>,
    },
}

impl ListObjects {
    /// The most keys on a page, even if a client asks for more.
    pub const MAX_KEYS: usize = 1000;

    pub(crate) const PARAMETERS: [&'static str; 9] = [
        "list-type",
        "prefix",
        "delimiter",
        "marker",
        "start-after",
        "continuation-token",
        "max-keys",
        "encoding-type",
        "fetch-owner",
    ];

    pub(crate) fn parse(query: &Query) -> Result<Self, S3Error> {
        let version = match query.get("list-type") {
            None => ListVersion::V1 {
                marker: text(query, "marker")?.unwrap_or_default(),
            },
            Some("2") => Self::version_2(query)?,
            Some(_) => return Err(invalid("list-type must be 2")),
        };
        let is_v1 = matches!(version, ListVersion::V1 { .. });
        let asks = query.get("fetch-owner");
        Ok(Self {
            listing: Listing::parse(query, "max-keys")?,
            with_owner: is_v1 || asks.is_some_and(|asks| asks.eq_ignore_ascii_case("true")),
            version,
        })
    }

    fn version_2(query: &Query) -> Result<ListVersion, S3Error> {
        let token = query.get("continuation-token");
        Ok(ListVersion::V2 {
            after_token: token.map(from_token).transpose()?,
            start_after: text(query, "start-after")?,
        })
    }

    /// The key or common prefix behind which the page starts, or `None` for the beginning. If it
    /// ends with the delimiter, it may be a common prefix; then all keys below it are listed
    /// already.
    pub fn after(&self) -> Option<&str> {
        match &self.version {
            ListVersion::V1 { marker } => (!marker.is_empty()).then_some(marker.as_str()),
            ListVersion::V2 {
                after_token,
                start_after,
                ..
            } => after_token.as_deref().or(start_after.as_deref()),
        }
    }

    /// The continuation token for the page behind `last`.
    pub fn token(last: &str) -> String {
        BASE64URL_NOPAD.encode(last.as_bytes())
    }
}

fn from_token(token: &str) -> Result<String, S3Error> {
    BASE64URL_NOPAD
        .decode(token.as_bytes())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|key| (1..=ObjectKey::MAX_BYTES).contains(&key.len()))
        .ok_or_else(|| invalid("the continuation token is not one of ours"))
}

/// A parameter that is a key, or is compared with keys. An empty one counts as absent.
fn text(query: &Query, name: &str) -> Result<Option<String>, S3Error> {
    match query.get(name) {
        None | Some("") => Ok(None),
        Some(text) if text.len() > ObjectKey::MAX_BYTES => Err(Code::KeyTooLongError.into()),
        Some(text) => Ok(Some(text.to_owned())),
    }
}

/// The parameters of ListBuckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListBuckets {
    /// Only buckets whose names start with this.
    pub prefix: Option<String>,
    /// Only buckets of this region.
    pub region: Option<String>,
    /// The name behind which the page starts.
    pub after: Option<String>,
    /// Most buckets on the page, from 1; without it the page has all.
    pub max: Option<usize>,
}

impl ListBuckets {
    /// The most buckets that a client may ask for.
    const MAX: usize = 10_000;

    pub(crate) const PARAMETERS: [&'static str; 4] = [
        "prefix",
        "bucket-region",
        "continuation-token",
        "max-buckets",
    ];

    pub(crate) fn parse(query: &Query) -> Result<Self, S3Error> {
        let token = text(query, "continuation-token")?;
        let max = query.get("max-buckets").map(|text| {
            let max = text
                .parse()
                .ok()
                .filter(|max| (1..=Self::MAX).contains(max));
            max.ok_or_else(|| invalid("max-buckets must be a number from 1 to 10000"))
        });
        Ok(Self {
            prefix: text(query, "prefix")?,
            region: text(query, "bucket-region")?,
            after: token.as_deref().map(from_token).transpose()?,
            max: max.transpose()?,
        })
    }

    /// Whether the listing has a bucket of this name, on this page or a later one.
    pub fn shows(&self, name: &str) -> bool {
        self.after.as_deref().is_none_or(|after| name > after)
            && self
                .prefix
                .as_deref()
                .is_none_or(|prefix| name.starts_with(prefix))
    }
}

/// Entries on a page: 0 to 1,000, and 1,000 by default.
pub(crate) fn page_size(query: &Query, name: &str) -> Result<usize, S3Error> {
    let Some(text) = query.get(name).filter(|text| !text.is_empty()) else {
        return Ok(ListObjects::MAX_KEYS);
    };
    let size = text.parse::<i32>().ok().filter(|_| !text.starts_with('+'));
    let size = size.and_then(|size| usize::try_from(size).ok());
    size.map(|size| size.min(ListObjects::MAX_KEYS))
        .ok_or_else(|| {
            Code::InvalidArgument
                .with_message(format!("{name} must be a number from 0 to 2147483647"))
        })
}

/// Whether the client wants names percent-encoded.
pub(crate) fn is_url_encoded(query: &Query) -> Result<bool, S3Error> {
    match query.get("encoding-type") {
        None | Some("") => Ok(false),
        Some("url") => Ok(true),
        Some(_) => Err(invalid("encoding-type must be url")),
    }
}

/// The common prefix that stands for this key in a listing, if one does.
pub fn common_prefix<'k>(prefix: &str, delimiter: Option<&str>, key: &'k str) -> Option<&'k str> {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.strip_prefix(prefix)?;
    let end = prefix.len() + rest.find(delimiter)? + delimiter.len();
    key.get(..end)
}

/// The parameters of ListObjectVersions and ListMultipartUploads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListMarked {
    /// The parameters of every listing.
    pub listing: Listing,
    /// Only behind the versions or uploads of this key; empty for the beginning.
    pub key_marker: String,
    /// With a key marker: behind this version or upload of that key; else it is empty.
    pub id_marker: String,
}

impl ListMarked {
    pub(crate) const OF_UPLOADS: [&'static str; 6] = [
        "prefix",
        "delimiter",
        "key-marker",
        "upload-id-marker",
        "max-uploads",
        "encoding-type",
    ];
    pub(crate) const OF_VERSIONS: [&'static str; 6] = [
        "prefix",
        "delimiter",
        "key-marker",
        "version-id-marker",
        "max-keys",
        "encoding-type",
    ];

    pub(crate) fn uploads(query: &Query) -> Result<Self, S3Error> {
        let key_marker = text(query, "key-marker")?.unwrap_or_default();
        let id_marker = if key_marker.is_empty() {
            None
        } else {
            text(query, "upload-id-marker")?
        };
        Ok(Self {
            listing: Listing::parse(query, "max-uploads")?,
            key_marker,
            id_marker: id_marker.unwrap_or_default(),
        })
    }

    pub(crate) fn versions(query: &Query) -> Result<Self, S3Error> {
        let key_marker = text(query, "key-marker")?.unwrap_or_default();
        let id_marker = text(query, "version-id-marker")?.unwrap_or_default();
        if key_marker.is_empty() && !id_marker.is_empty() {
            return Err(invalid("version-id-marker needs key-marker"));
        }
        Ok(Self {
            listing: Listing::parse(query, "max-keys")?,
            key_marker,
            id_marker,
        })
    }

    /// The key, and the version or upload of it, behind which the page starts, or `None` for the
    /// beginning.
    pub fn after(&self) -> Option<(String, String)> {
        let is_given = !self.key_marker.is_empty();
        is_given.then(|| (self.key_marker.clone(), self.id_marker.clone()))
    }
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A key.
    Key {
        /// Bytes of the object.
        len: u64,
        /// Its ETag, without quotes.
        etag: String,
        /// When it was made, in milliseconds since the Unix epoch.
        created_ms: u64,
        /// Algorithm and type of its checksum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<(String, String)>,
    },
    /// All keys that begin with the name.
    Prefix,
    /// An upload.
    Upload {
        /// Its name.
        id: String,
        /// When it was begun, in milliseconds since the Unix epoch.
        created_ms: u64,
        /// Algorithm and type of its parts' checksums.
        checksum: Option<(String, String)>,
    },
    /// A version, or a delete marker.
    Version {
        /// Its name.
        id: String,
        /// Whether a GET without a version reads it.
        is_latest: bool,
        /// When it was made, in milliseconds since the Unix epoch.
        created_ms: u64,
        /// ETag and length; `None` for a delete marker.
        object: Option<(String, u64)>,
        /// Algorithm and type of its checksum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<(String, String)>,
    },
}

/// A line of a listing with its name: a key, or a common prefix.
pub type Line = (String, Item);

/// The place of a line in the order of a listing: by name, then by id. Ids of uploads grow with
/// time. All versions of one key come from one node, in their order.
pub fn place((name, item): &Line) -> (&str, &str) {
    match item {
        Item::Upload { id, .. } | Item::Version { id, .. } => (name.as_str(), id.as_str()),
        Item::Key { .. } | Item::Prefix => (name.as_str(), ""),
    }
}

/// The lines of a page, in order.
#[derive(Debug)]
pub struct Page {
    /// The lines.
    pub lines: Vec<Line>,
    /// Whether further lines follow.
    pub is_truncated: bool,
}

impl Page {
    /// The place behind which the next page begins, if there is one.
    pub(crate) fn next(&self) -> Option<(&str, &str)> {
        let last = self.lines.last().filter(|_| self.is_truncated);
        last.map(place)
    }
}

fn invalid(message: &'static str) -> S3Error {
    Code::InvalidArgument.with_message(message)
}
