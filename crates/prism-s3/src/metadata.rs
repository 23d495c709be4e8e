//! The headers that an object keeps and that its answers have.

use std::borrow::Cow;

use prism_http::{HeaderError, Headers, Limits, ResponseHead};

use crate::encoded_word;
use crate::{Code, S3Error};

/// Headers of the object itself.
const SYSTEM: [&str; 6] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
];
const USER_PREFIX: &str = "x-amz-meta-";

/// Most fields of an answer besides those of its object: ETag, Last-Modified, Accept-Ranges,
/// Content-Type, the version, tags and their number, the number of parts, a checksum and its
/// type, Content-Range, six that the query sets, the request's identifier, Server, Date,
/// Content-Length, Connection, and five of CORS.
const OTHER_FIELDS: usize = 28;
// Every answer about an object can be relayed.
const _: () = assert!(ObjectHeaders::MAX_FIELDS + OTHER_FIELDS <= Limits::ANSWER.headers);

/// The content type of an object whose writer named none.
pub const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// The headers of an object: names in lower case, sorted, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectHeaders {
    fields: Vec<(String, String)>,
}

impl ObjectHeaders {
    /// Most bytes of user metadata: names without their prefix, and values.
    pub const MAX_USER_BYTES: usize = 2 * 1024;
    /// Most bytes of the other headers, names and values.
    pub const MAX_SYSTEM_BYTES: usize = 8 * 1024;
    /// Most headers: as many as one request may have.
    pub const MAX_FIELDS: usize = Limits::DEFAULT.headers;

    /// Collects the headers to keep. Repeated user metadata is joined with commas, and its
    /// encoded words are decoded ([`encoded_word`]).
    ///
    /// # Errors
    /// `MetadataTooLarge`, or `InvalidArgument` for a value that is not UTF-8.
    pub fn from_request(headers: &Headers) -> Result<Self, S3Error> {
        let mut collected = Self::default();
        for (name, value) in headers.iter() {
            let name = name.to_ascii_lowercase();
            if let Some(value) = value_to_keep(&name, value)? {
                collected.put(name, value);
            }
        }
        collected.checked()
    }

    /// Takes the headers of an object from its store.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub fn from_stored<'a>(
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, S3Error> {
        let fields = fields.into_iter().filter(|(name, _)| is_kept(name));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let fields = fields.collect();
        Self { fields }.checked()
    }

    fn checked(mut self) -> Result<Self, S3Error> {
        let mut user = 0;
        let mut system = 0;
        for (name, value) in &self.fields {
            match name.strip_prefix(USER_PREFIX) {
                Some(short) => user += short.len() + value.len(),
                None => system += name.len() + value.len(),
            }
        }
        if user > Self::MAX_USER_BYTES
            || system > Self::MAX_SYSTEM_BYTES
            || self.fields.len() > Self::MAX_FIELDS
        {
            return Err(Code::MetadataTooLarge.into());
        }
        self.fields.sort_unstable();
        Ok(self)
    }

    /// The headers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// One header; `name` is in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Adds the headers to an answer, with a content type if there is none.
    ///
    /// # Errors
    /// Only if the answer would outgrow its bound.
    pub fn add_to(&self, answer: &mut ResponseHead) -> Result<(), HeaderError> {
        let headers = answer.headers_mut();
        if self.get("content-type").is_none() {
            headers.append("content-type", DEFAULT_CONTENT_TYPE)?;
        }
        let mut fields = self.iter();
        fields.try_for_each(|(name, value)| headers.append(name, told(name, value).as_ref()))
    }

    fn put(&mut self, name: String, value: String) {
        match self.fields.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => {
                old.push(',');
                old.push_str(&value);
            }
            None => self.fields.push((name, value)),
        }
    }
}

/// The value of a header as answers have it: text of other scripts in user metadata becomes
/// encoded words.
pub fn told<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if name.starts_with(USER_PREFIX) {
        encoded_word::encode(value)
    } else {
        Cow::Borrowed(value)
    }
}

fn is_kept(name: &str) -> bool {
    SYSTEM.contains(&name) || name.starts_with(USER_PREFIX)
}

/// The value to keep, or `None` if this is no header of the object.
fn value_to_keep(name: &str, value: &[u8]) -> Result<Option<String>, S3Error> {
    if !is_kept(name) {
        return Ok(None);
    }
    let value = std::str::from_utf8(value).map_err(|_| {
        Code::InvalidArgument.with_message(format!("The header {name} is not UTF-8."))
    })?;
    if name == "content-encoding" {
        return Ok(without_transport_coding(value));
    }
    if name.starts_with(USER_PREFIX) {
        Ok(Some(encoded_word::decode(value).into_owned()))
    } else {
        Ok(Some(value.to_owned()))
    }
}

/// Removes `aws-chunked`, which is about the transfer of the body, not about the object.
fn without_transport_coding(value: &str) -> Option<String> {
    let rest: Vec<_> = value
        .split(',')
        .map(str::trim)
        .filter(|c| !c.is_empty() && *c != "aws-chunked")
        .collect();
    (!rest.is_empty()).then(|| rest.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut h = Headers::new();
        fields.iter().for_each(|(n, v)| h.append(n, v).unwrap());
        h
    }

    #[test]
    fn only_the_objects_own_headers_are_kept() {
        let object = ObjectHeaders::from_request(&headers(&[
            ("Host", "h"),
            ("X-Amz-Meta-B", "1"),
            ("Content-Type", "text/plain"),
            ("x-amz-meta-b", "2"),
            ("Content-Encoding", "aws-chunked, gzip"),
            ("Authorization", "secret"),
            ("Content-Length", "3"),
        ]))
        .unwrap();
        let fields: Vec<_> = object.iter().collect();
        assert_eq!(
            fields,
            [
                ("content-encoding", "gzip"),
                ("content-type", "text/plain"),
                ("x-amz-meta-b", "1,2")
            ]
        );
        assert_eq!(ObjectHeaders::from_stored(object.iter()).unwrap(), object);
    }

    #[test]
    fn user_metadata_is_bounded_at_two_kib() {
        let of =
            |n: usize| ObjectHeaders::from_request(&headers(&[("x-amz-meta-k", &"v".repeat(n))]));
        assert!(of(2047).is_ok());
        assert_eq!(of(2048).unwrap_err().code(), Code::MetadataTooLarge);
        let mut h = Headers::new();
        h.append("x-amz-meta-k", b"\xff").unwrap();
        assert_eq!(
            ObjectHeaders::from_request(&h).unwrap_err().code(),
            Code::InvalidArgument
        );
    }

    #[test]
    fn no_more_fields_are_kept_than_an_answer_can_tell() {
        let of = |n: usize| {
            let mut h = Headers::new();
            for n in 0..n {
                h.append(&format!("x-amz-meta-{n}"), "v").unwrap();
            }
            ObjectHeaders::from_request(&h)
        };
        assert!(of(ObjectHeaders::MAX_FIELDS).is_ok());
        let code = of(ObjectHeaders::MAX_FIELDS + 1).unwrap_err().code();
        assert_eq!(code, Code::MetadataTooLarge);
    }

    #[test]
    fn user_metadata_in_other_scripts_is_text_and_told_in_encoded_words() {
        let word = "=?UTF-8?B?w4RN?=";
        let text = ["\u{c4}M", word, "=?UTF-8?Q?=C3=84M?="];
        for value in text {
            let object = ObjectHeaders::from_request(&headers(&[
                ("x-amz-meta-k", value),
                ("Content-Disposition", value),
            ]));
            let object = object.unwrap();
            assert_eq!(object.get("x-amz-meta-k"), Some("\u{c4}M"));
            assert_eq!(object.get("content-disposition"), Some(value));
            let mut answer = ResponseHead::new(200);
            object.add_to(&mut answer).unwrap();
            let told = answer.headers().get_str("x-amz-meta-k");
            assert_eq!(told, Some(word));
            assert_eq!(ObjectHeaders::from_stored(object.iter()).unwrap(), object);
        }
    }

    #[test]
    fn an_answer_always_has_a_content_type() {
        let mut answer = ResponseHead::new(200);
        ObjectHeaders::default().add_to(&mut answer).unwrap();
        assert_eq!(
            answer.headers().get_str("Content-Type"),
            Some(DEFAULT_CONTENT_TYPE)
        );
    }
}
