//! The tags of an object.

use prism_http::Headers;

use crate::fields::single;
use crate::query::{Query, encode};
use crate::{Code, S3Error};

/// Prefix of keys that clients may not set.
const SYSTEM_PREFIX: &str = "aws:";

/// Pairs of texts, each key once, in the order of the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    pairs: Vec<(String, String)>,
}

impl Tags {
    /// The most tags of an object.
    pub const MAX: usize = 10;
    /// The longest key, in characters.
    pub const MAX_KEY_CHARS: usize = 128;
    /// The longest value, in characters.
    pub const MAX_VALUE_CHARS: usize = 256;

    /// Checks tags that a client gives.
    ///
    /// # Errors
    /// `InvalidTag` for a tag that is too long, empty, repeated or the system's, or that has a
    /// character that S3 does not allow; `BadRequest` for too many.
    pub fn new(pairs: Vec<(String, String)>) -> Result<Self, S3Error> {
        let is_systems = |key: &str| {
            let prefix = key.get(..SYSTEM_PREFIX.len());
            prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(SYSTEM_PREFIX))
        };
        if pairs.iter().any(|(key, _)| is_systems(key)) {
            return Err(Code::InvalidTag
                .with_message("A tag's key must not begin with aws:, which is the system's."));
        }
        let has_plain_texts = pairs
            .iter()
            .flat_map(|(key, value)| [key, value])
            .all(|text| text.chars().all(is_allowed));
        if !has_plain_texts {
            return Err(Code::InvalidTag
                .with_message("A tag may hold letters, digits, spaces and + - = . _ : / @ only."));
        }
        Self::checked(pairs)
    }

    /// Checks tags of a stored object, which may be the system's or older than a rule.
    fn checked(pairs: Vec<(String, String)>) -> Result<Self, S3Error> {
        let invalid = |message: &'static str| Code::InvalidTag.with_message(message);
        if pairs.len() > Self::MAX {
            return Err(Code::BadRequest.with_message("An object cannot have more than 10 tags."));
        }
        for (n, (key, value)) in pairs.iter().enumerate() {
            let key_chars = key.chars().count();
            if key_chars == 0 || key_chars > Self::MAX_KEY_CHARS {
                return Err(invalid("A tag's key must have 1 to 128 characters."));
            }
            if value.chars().count() > Self::MAX_VALUE_CHARS {
                return Err(invalid("A tag's value must have at most 256 characters."));
            }
            if key.chars().chain(value.chars()).any(char::is_control) {
                return Err(invalid("A tag holds a control character."));
            }
            if pairs.iter().skip(n + 1).any(|(other, _)| other == key) {
                return Err(invalid("A tag's key is there twice."));
            }
        }
        Ok(Self { pairs })
    }

    /// Reads `x-amz-tagging`.
    pub(crate) fn from_header(headers: &Headers) -> Result<Self, S3Error> {
        match single(headers, "x-amz-tagging")? {
            Some(text) => Self::new(Self::decode(text)?.pairs),
            None => Ok(Self::default()),
        }
    }

    /// Reads the output of [`Tags::encode`].
    ///
    /// # Errors
    /// As for [`Tags::new`], but system tags are allowed.
    pub fn decode(text: &str) -> Result<Self, S3Error> {
        let query = Query::parse(Some(text)).map_err(|_| {
            Code::InvalidArgument.with_message("x-amz-tagging must be encoded as a query is.")
        })?;
        let pairs = query.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        Self::checked(pairs.collect())
    }

    /// The tags in the form of a query: at most 5 KiB of ASCII letters, or three times as many
    /// bytes with other characters.
    pub fn encode(&self) -> String {
        let pairs: Vec<_> = self
            .iter()
            .map(|(key, value)| format!("{}={}", encode(key), encode(value)))
            .collect();
        pairs.join("&")
    }

    /// The tags.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Whether a client's tag may hold a character: a letter, digit or space of any script, or one of
/// S3's signs.
fn is_allowed(c: char) -> bool {
    let is_space = c.is_whitespace() && !c.is_control();
    c.is_alphanumeric() || is_space || "+-=._:/@".contains(c)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tags_are_read_back_and_bounded() {
        let tags = Tags::decode("a=1&b%20c=%C3%A9%26&d").unwrap();
        let pairs: Vec<_> = tags.iter().collect();
        assert_eq!(pairs, [("a", "1"), ("b c", "\u{e9}&"), ("d", "")]);
        assert_eq!(Tags::decode(&tags.encode()).unwrap(), tags);
        let long = format!("{}=", "k".repeat(129));
        let value = format!("k={}", "v".repeat(257));
        for bad in ["=x", "a=1&a=2", "a=%0a", long.as_str(), value.as_str()] {
            let code = Tags::decode(bad).unwrap_err().code();
            assert_eq!(code, Code::InvalidTag, "{bad}");
        }
        let many: Vec<_> = (0..11).map(|n| format!("{n}=")).collect();
        let code = Tags::decode(&many.join("&")).unwrap_err().code();
        assert_eq!(code, Code::BadRequest);
        let pair = |key: &str| vec![(key.to_owned(), String::new())];
        for reserved in ["aws:", "aws:x", "AWS:x"] {
            let code = Tags::new(pair(reserved)).unwrap_err().code();
            assert_eq!(code, Code::InvalidTag, "{reserved}");
            assert_eq!(Tags::decode(reserved).unwrap().len(), 1);
        }
        for allowed in ["aws", "a b\u{e9}\u{5b57}7", "+-=._:/@", "\u{a0}"] {
            assert!(Tags::new(pair(allowed)).is_ok(), "{allowed}");
        }
        for sign in "&<>\"'%?#!*()[]{}|\\^~`$,;\u{1f600}\t".chars() {
            let key = format!("a{sign}");
            let code = Tags::new(pair(&key)).unwrap_err().code();
            assert_eq!(code, Code::InvalidTag, "{key}");
            let value = vec![("a".to_owned(), key)];
            assert!(Tags::new(value).is_err(), "{sign}");
        }
        assert_eq!(
            Tags::decode("%zz").unwrap_err().code(),
            Code::InvalidArgument
        );
    }
}
