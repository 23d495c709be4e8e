//! An object's metadata as the store has it: headers that answers repeat, tags and checksums.

use prism_s3::integrity::TYPE_HEADER;
use prism_s3::{Algorithm, ChecksumType, ObjectHeaders, Tags};
use prism_store::ObjectMeta;

/// The object's tags, as [`Tags::encode`] writes them.
pub const TAGS: &str = "x-amz-tagging";
/// The algorithm of the checksums of an upload's parts.
const ALGORITHM: &str = "x-amz-checksum-algorithm";
const USER_PREFIX: &str = "x-amz-meta-";

/// The metadata of a new object, without ETag and time.
pub fn stored_meta(
    headers: &ObjectHeaders,
    tags: &Tags,
    checksum: Option<&(&'static str, String)>,
) -> ObjectMeta {
    let mut meta = ObjectMeta::default();
    for (name, value) in headers.iter() {
        match name.strip_prefix(USER_PREFIX) {
            Some(short) => meta.user.push((short.to_owned(), value.to_owned())),
            None => meta.headers.push((name.to_owned(), value.to_owned())),
        }
    }
    if let Some((name, value)) = checksum {
        meta.headers.push(((*name).to_owned(), value.clone()));
    }
    set_tags(&mut meta, tags);
    meta
}

/// Replaces the tags.
pub fn set_tags(meta: &mut ObjectMeta, tags: &Tags) {
    meta.headers.retain(|(name, _)| name != TAGS);
    if !tags.is_empty() {
        meta.headers.push((TAGS.to_owned(), tags.encode()));
    }
}

/// The object's tags.
pub fn tags(meta: &ObjectMeta) -> Tags {
    let text = header(&meta.headers, TAGS);
    text.and_then(|text| Tags::decode(text).ok())
        .unwrap_or_default()
}

/// Sets the checksum that the parts of an upload are to have.
pub fn want_checksum(meta: &mut ObjectMeta, algorithm: Algorithm, kind: ChecksumType) {
    push_checksum(meta, ALGORITHM, algorithm.name(), kind);
}

/// The checksum that [`want_checksum`] has set.
pub fn checksum_wanted(meta: &ObjectMeta) -> Option<(Algorithm, ChecksumType)> {
    let algorithm = Algorithm::from_name(header(&meta.headers, ALGORITHM)?).ok()?;
    let kind = ChecksumType::parse(header(&meta.headers, TYPE_HEADER)?)?;
    Some((algorithm, kind))
}

/// The metadata of the object that an upload becomes.
pub fn without_checksum_wanted(mut meta: ObjectMeta) -> ObjectMeta {
    let is_of_parts = |name: &str| name == ALGORITHM || name == TYPE_HEADER;
    meta.headers.retain(|(name, _)| !is_of_parts(name));
    meta
}

/// The checksum among an object's headers. Without a type it is that of the full object, as of a
/// single PUT.
pub fn checksum(headers: &[(String, String)]) -> Option<(Algorithm, String, ChecksumType)> {
    let (algorithm, value) = part_checksum(headers)?;
    let kind = header(headers, TYPE_HEADER).and_then(ChecksumType::parse);
    Some((algorithm, value, kind.unwrap_or(ChecksumType::FullObject)))
}

/// Sets the checksum of an object made of parts.
pub fn set_checksum(meta: &mut ObjectMeta, sum: &(Algorithm, String, ChecksumType)) {
    let (algorithm, value, kind) = sum;
    push_checksum(meta, algorithm.header(), value, *kind);
}

fn push_checksum(meta: &mut ObjectMeta, name: &str, value: &str, kind: ChecksumType) {
    for (name, value) in [(name, value), (TYPE_HEADER, kind.as_str())] {
        meta.headers.push((name.to_owned(), value.to_owned()));
    }
}

/// The checksum among the headers of a part.
pub fn part_checksum(headers: &[(String, String)]) -> Option<(Algorithm, String)> {
    headers
        .iter()
        .find_map(|(name, value)| Some((Algorithm::from_header(name)?, value.clone())))
}

/// Whether answers show a stored header in another way than by repeating it.
pub fn is_hidden(name: &str) -> bool {
    name == TAGS || name.starts_with("x-amz-checksum-")
}

fn header<'m>(headers: &'m [(String, String)], name: &str) -> Option<&'m str> {
    let found = headers.iter().find(|(n, _)| n == name);
    found.map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metadata_is_read_as_it_was_set_and_wanted_checksums_end_with_the_upload() {
        let mut headers = prism_http::Headers::new();
        headers.append("Content-Type", "a/b").unwrap();
        headers.append("x-amz-meta-K", "v").unwrap();
        let headers = ObjectHeaders::from_request(&headers).unwrap();
        let given = Tags::decode("a=1").unwrap();
        let sum = ("x-amz-checksum-crc32", "AAAAAA==".to_owned());
        let mut meta = stored_meta(&headers, &given, Some(&sum));
        assert_eq!(meta.user, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(tags(&meta), given);
        let whole = (Algorithm::Crc32, sum.1, ChecksumType::FullObject);
        assert_eq!(checksum(&meta.headers), Some(whole));
        set_tags(&mut meta, &Tags::default());
        assert!(tags(&meta).is_empty());

        let mut meta = stored_meta(&headers, &given, None);
        assert_eq!(checksum(&meta.headers), None);
        assert_eq!(checksum_wanted(&meta), None);
        let wish = (Algorithm::Sha256, ChecksumType::Composite);
        want_checksum(&mut meta, wish.0, wish.1);
        assert_eq!(checksum(&meta.headers), None);
        assert_eq!(checksum_wanted(&meta), Some(wish));
        let mut meta = without_checksum_wanted(meta);
        assert_eq!((checksum_wanted(&meta), tags(&meta)), (None, given));
        let sum = (Algorithm::Sha256, "x-3".to_owned(), ChecksumType::Composite);
        set_checksum(&mut meta, &sum);
        assert_eq!(checksum(&meta.headers), Some(sum));
        let shown = meta.headers.iter().filter(|(name, _)| !is_hidden(name));
        assert_eq!(shown.count(), 1);
    }
}
