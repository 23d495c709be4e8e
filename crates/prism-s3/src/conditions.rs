//! Conditional requests (RFC 9110 section 13).

use ::time::OffsetDateTime;
use prism_http::{HeaderError, Headers};

use crate::time::{http_date, parse_http_date};
use crate::{Code, S3Error};

/// The conditions of one request. A date that cannot be read counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    if_modified_since: Option<OffsetDateTime>,
    if_unmodified_since: Option<OffsetDateTime>,
    if_range: Option<String>,
}

/// The result of the conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Go on.
    Proceed,
    /// The client has the object already: 304 for GET and HEAD.
    NotModified,
    /// 412 `PreconditionFailed`.
    Failed,
}

/// ETags without quotes and weakness marks; `*` alone stands for any.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tags(Vec<String>);

impl Tags {
    fn from_headers(headers: &Headers, name: &str) -> Option<Self> {
        headers.get(name)?;
        let tags = headers.list(name);
        let tags = tags.filter_map(|tag| std::str::from_utf8(tag).ok());
        Some(Self(tags.map(|tag| unquoted(tag).to_owned()).collect()))
    }

    fn is_any(&self) -> bool {
        self.0 == ["*"]
    }

    fn text(&self) -> String {
        if self.is_any() {
            return "*".to_owned();
        }
        let quoted: Vec<_> = self.0.iter().map(|tag| quoted(tag)).collect();
        quoted.join(", ")
    }

    fn has(&self, etag: &str) -> bool {
        self.is_any() || self.0.iter().any(|tag| tag == unquoted(etag))
    }
}

impl Conditions {
    /// Reads the conditions of a request.
    pub fn from_headers(headers: &Headers) -> Self {
        // Most requests have none: one search is faster than one for each.
        if headers.with_prefix("if-").next().is_none() {
            return Self::default();
        }
        Self {
            if_range: headers.get_str("if-range").map(str::to_owned),
            ..Self::named(headers, "")
        }
    }

    /// Reads the conditions of a write, of which S3 has fewer.
    ///
    /// # Errors
    /// `NotImplemented` for an `If-None-Match` that names ETags.
    pub fn of_write(headers: &Headers) -> Result<Self, S3Error> {
        let conditions = Self::from_headers(headers);
        match &conditions.if_none_match {
            Some(tags) if !tags.is_any() => {
                Err(Code::NotImplemented.with_message("If-None-Match of a write can be * only."))
            }
            _ => Ok(conditions),
        }
    }

    /// `If-Match` with one tag, or `*`, with or without quotes.
    pub fn matching(etag: &str) -> Self {
        let tag = unquoted(etag.trim()).to_owned();
        Self {
            if_match: Some(Tags(vec![tag])),
            ..Self::default()
        }
    }

    /// Reads the conditions on the source of a copy.
    pub fn of_copy_source(headers: &Headers) -> Self {
        Self::named(headers, "x-amz-copy-source-")
    }

    fn named(headers: &Headers, prefix: &str) -> Self {
        let tags = |name: &str| Tags::from_headers(headers, &format!("{prefix}{name}"));
        let date = |name: &str| {
            let text = headers.get_str(&format!("{prefix}{name}"));
            text.and_then(parse_http_date)
        };
        Self {
            if_match: tags("if-match"),
            if_none_match: tags("if-none-match"),
            if_modified_since: date("if-modified-since"),
            if_unmodified_since: date("if-unmodified-since"),
            if_range: None,
        }
    }

    /// Writes the conditions as headers, for the node that has the object.
    ///
    /// # Errors
    /// If a header cannot hold a tag.
    pub fn write_to(&self, headers: &mut Headers) -> Result<(), HeaderError> {
        let tags = |tags: &Option<Tags>| tags.as_ref().map(Tags::text);
        for (name, value) in [
            ("If-Match", tags(&self.if_match)),
            ("If-None-Match", tags(&self.if_none_match)),
            ("If-Modified-Since", self.if_modified_since.map(http_date)),
            (
                "If-Unmodified-Since",
                self.if_unmodified_since.map(http_date),
            ),
        ] {
            if let Some(value) = value {
                headers.append(name, value)?;
            }
        }
        Ok(())
    }

    /// Whether there is no condition on the object. `If-Range` is none.
    pub fn is_empty(&self) -> bool {
        let has_tags = self.if_match.is_some() || self.if_none_match.is_some();
        !has_tags
            && self
                .if_modified_since
                .or(self.if_unmodified_since)
                .is_none()
    }

    /// Whether the conditions hold only if there is an object.
    pub fn needs_object(&self) -> bool {
        self.if_match.is_some()
    }

    /// Checks the conditions of GET or HEAD against an object that exists. `etag` may have
    /// quotes.
    pub fn for_read(&self, etag: &str, modified: OffsetDateTime) -> Outcome {
        let unmodified_since = |t| whole_seconds(modified) <= t;
        let may = match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) => tags.has(etag),
            (None, Some(since)) => unmodified_since(since),
            (None, None) => true,
        };
        let has_already = match (&self.if_none_match, self.if_modified_since) {
            (Some(tags), _) => tags.has(etag),
            (None, Some(since)) => unmodified_since(since),
            (None, None) => false,
        };
        if !may {
            Outcome::Failed
        } else if has_already {
            Outcome::NotModified
        } else {
            Outcome::Proceed
        }
    }

    /// Checks the conditions of a write against the ETag of the key's object, or `None`. The
    /// caller must do this atomically with the write. `If-Match` fails for a key without object.
    pub fn for_write(&self, current: Option<&str>) -> Outcome {
        let matches = |tags: &Tags| current.is_some_and(|etag| tags.has(etag));
        let may = self.if_match.as_ref().is_none_or(matches)
            && !self.if_none_match.as_ref().is_some_and(matches);
        if may {
            Outcome::Proceed
        } else {
            Outcome::Failed
        }
    }

    /// Whether `Range` counts: if there is no `If-Range`, or if it names this object exactly.
    /// Otherwise the answer has the whole object.
    pub fn range_applies(&self, etag: &str, modified: OffsetDateTime) -> bool {
        match self.if_range.as_deref() {
            None => true,
            Some(weak) if weak.starts_with("W/") => false,
            Some(tag) if tag.starts_with('"') => unquoted(tag) == unquoted(etag),
            Some(date) => parse_http_date(date) == Some(whole_seconds(modified)),
        }
    }
}

/// The time without fractions of a second, which HTTP dates lack.
fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time.replace_nanosecond(0).unwrap_or(time)
}

/// An ETag as headers and documents have it.
pub fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

fn unquoted(tag: &str) -> &str {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    tag.strip_prefix('"')
        .and_then(|t| t.strip_suffix('"'))
        .unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BEFORE: &str = "Thu, 23 May 2013 00:00:00 GMT";
    const SAME: &str = "Fri, 24 May 2013 00:00:00 GMT";
    const AFTER: &str = "Sat, 25 May 2013 00:00:00 GMT";

    fn conditions(fields: &[(&str, &str)]) -> Conditions {
        let mut headers = Headers::new();
        fields
            .iter()
            .for_each(|(n, v)| headers.append(n, v).unwrap());
        Conditions::from_headers(&headers)
    }

    /// Half a second after `SAME`: fractions must not count.
    fn modified() -> OffsetDateTime {
        parse_http_date(SAME).unwrap() + ::time::Duration::milliseconds(500)
    }

    #[test]
    fn reads() {
        use Outcome::*;
        let rows: &[(&[(&str, &str)], Outcome)] = &[
            (&[], Proceed),
            (&[("If-Match", "\"e\"")], Proceed),
            (&[("If-Match", "e")], Proceed),
            (&[("If-Match", "*")], Proceed),
            (&[("If-Match", "\"x\", \"e\"")], Proceed),
            (&[("If-Match", "\"x\"")], Failed),
            (&[("If-Match", "")], Failed),
            (&[("If-None-Match", "\"e\"")], NotModified),
            (&[("If-None-Match", "W/\"e\"")], NotModified),
            (&[("If-None-Match", "*")], NotModified),
            (&[("If-None-Match", "\"x\"")], Proceed),
            (&[("If-Modified-Since", BEFORE)], Proceed),
            (&[("If-Modified-Since", SAME)], NotModified),
            (&[("If-Modified-Since", AFTER)], NotModified),
            (&[("If-Modified-Since", "junk")], Proceed),
            (&[("If-Unmodified-Since", BEFORE)], Failed),
            (&[("If-Unmodified-Since", SAME)], Proceed),
            (
                &[("If-Match", "\"e\""), ("If-Unmodified-Since", BEFORE)],
                Proceed,
            ),
            (
                &[("If-None-Match", "\"x\""), ("If-Modified-Since", AFTER)],
                Proceed,
            ),
            (&[("If-Match", "\"x\""), ("If-None-Match", "\"e\"")], Failed),
        ];
        for (fields, expected) in rows {
            assert_eq!(
                conditions(fields).for_read("\"e\"", modified()),
                *expected,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn writes() {
        let create = conditions(&[("If-None-Match", "*")]);
        assert_eq!(create.for_write(None), Outcome::Proceed);
        assert_eq!(create.for_write(Some("e")), Outcome::Failed);
        let replace = conditions(&[("If-Match", "\"e\"")]);
        assert_eq!(replace.for_write(Some("e")), Outcome::Proceed);
        assert_eq!(replace.for_write(Some("f")), Outcome::Failed);
        assert_eq!(replace.for_write(None), Outcome::Failed);
        assert!(conditions(&[]).is_empty() && !create.is_empty());
    }

    #[test]
    fn those_on_a_source_are_written_as_a_request_has_them() {
        let source = [
            ("x-amz-copy-source-if-match", "\"a\", b"),
            ("x-amz-copy-source-if-none-match", "*"),
            ("x-amz-copy-source-if-modified-since", SAME),
            ("x-amz-copy-source-if-unmodified-since", AFTER),
        ];
        let mut headers = Headers::new();
        for (name, value) in source {
            headers.append(name, value).unwrap();
        }
        assert!(Conditions::from_headers(&headers).is_empty());
        let conditions = Conditions::of_copy_source(&headers);
        let mut written = Headers::new();
        conditions.write_to(&mut written).unwrap();
        assert_eq!(written.len(), 4);
        assert_eq!(Conditions::from_headers(&written), conditions);
    }

    #[test]
    fn if_range_needs_an_exact_match() {
        let rows = [
            ("\"e\"", true),
            ("\"x\"", false),
            ("W/\"e\"", false),
            (SAME, true),
            (BEFORE, false),
            (AFTER, false),
            ("junk", false),
        ];
        for (value, expected) in rows {
            let got = conditions(&[("If-Range", value)]).range_applies("e", modified());
            assert_eq!(got, expected, "{value}");
        }
    }
}
