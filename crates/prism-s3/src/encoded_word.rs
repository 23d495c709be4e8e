//! Encoded words (RFC 2047): any text in headers that hold printable ASCII only. S3 accepts and
//! returns user metadata in this form.

use std::borrow::Cow;

use data_encoding::{BASE64, BASE64_NOPAD, HEXUPPER_PERMISSIVE};

/// The start of an encoded word.
const BEGIN: &str = "=?";
/// Bytes of text in one word. In base64 and with its frame the word has 72 bytes; 75 are
/// allowed.
const MAX_WORD_BYTES: usize = 45;

/// The header value for `text`: the text itself if it is printable ASCII, otherwise encoded
/// words of UTF-8.
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_printable = text.bytes().all(|b| matches!(b, b' '..=b'~'));
    if is_printable && text.trim() == text {
        return Cow::Borrowed(text);
    }
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.len().min(MAX_WORD_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (word, behind) = rest.split_at(end);
        words.push(format!("=?UTF-8?B?{}?=", BASE64.encode(word.as_bytes())));
        rest = behind;
    }
    Cow::Owned(words.join(" "))
}

/// The text of a header value. The value stays as it is if a word is malformed or of another
/// charset, or if the text would hold a word again.
pub fn decode(value: &str) -> Cow<'_, str> {
    if !value.contains(BEGIN) {
        return Cow::Borrowed(value);
    }
    let is_text = |text: &String| !text.contains(BEGIN) && !text.chars().any(char::is_control);
    let text = decode_words(value).filter(is_text);
    text.map_or(Cow::Borrowed(value), Cow::Owned)
}

fn decode_words(value: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = value;
    let mut is_behind_word = false;
    while let Some((before, word)) = rest.split_once(BEGIN) {
        // White space between two words is not part of the text.
        if !is_behind_word || !before.trim().is_empty() {
            bytes.extend_from_slice(before.as_bytes());
        }
        let (charset, word) = word.split_once('?')?;
        let (encoding, word) = word.split_once('?')?;
        let (text, behind) = word.split_once("?=")?;
        let text = match encoding {
            "B" | "b" => {
                let bare = text.trim_end_matches('=');
                BASE64_NOPAD.decode(bare.as_bytes()).ok()?
            }
            "Q" | "q" => decode_quoted(text)?,
            _ => return None,
        };
        // The language of RFC 2231 is ignored.
        match charset.split('*').next()?.to_ascii_lowercase().as_str() {
            "utf-8" | "us-ascii" => bytes.extend_from_slice(&text),
            "iso-8859-1" => {
                let text: String = text.into_iter().map(char::from).collect();
                bytes.extend_from_slice(text.as_bytes());
            }
            _ => return None,
        }
        rest = behind;
        is_behind_word = true;
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

fn decode_quoted(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            b'_' => bytes.push(b' '),
            b'=' => {
                let (digits, behind) = rest.split_first_chunk::<2>()?;
                bytes.extend(HEXUPPER_PERMISSIVE.decode(digits).ok()?);
                rest = behind;
            }
            other => bytes.push(*other),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_s3s_documentation_are_read_and_written() {
        let text = "ÄMÄZÕÑ S3";
        assert_eq!(encode(text), "=?UTF-8?B?w4RNw4Raw5XDkSBTMw==?=");
        for value in [
            "=?UTF-8?Q?=C3=84M=C3=84Z=C3=95=C3=91_S3?=",
            "=?utf-8?b?w4RNw4Raw5XDkSBTMw==?=",
            "=?UTF-8?B?w4RN?= \t =?UTF-8?q?=c3=84Z=C3=95=C3=91?= S3",
            "=?ISO-8859-1?Q?=C4M=C4Z=D5=D1?= S3",
        ] {
            assert_eq!(decode(value), text, "{value}");
        }
        assert_eq!(decode("plain =?x"), "plain =?x");
        assert_eq!(encode("plain =?x"), "plain =?x");
    }

    #[test]
    fn what_is_no_word_stays_as_it_is() {
        for value in [
            "=?",
            "=?UTF-8?B?w4RN",
            "=?UTF-8?X?abc?=",
            "=?KOI8-R?Q?=C1?=",
            "=?UTF-8?B?!?=",
            "=?UTF-8?Q?=F?=",
            "=?UTF-8?Q?=FF?=",
            // A line end, and a text that would be a word again.
            "=?UTF-8?B?Cg==?=",
            "=?UTF-8?Q?=3D?UTF-8?Q?a?=?=",
        ] {
            assert_eq!(decode(value), value);
        }
    }

    #[test]
    fn every_text_comes_back_in_words_of_75_characters() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let chars = ['a', ' ', '=', '?', 'é', '漢', '\u{1f600}', '_'];
            let text: String = (0..random.usize(..200))
                .map(|_| random.choice(chars).unwrap_or('a'))
                .collect();
            let value = encode(&text);
            assert!(value.bytes().all(|b| matches!(b, b' '..=b'~')), "{value}");
            if value != text {
                assert!(value.split(' ').all(|word| word.len() <= 75), "{value}");
            }
            if !text.contains(BEGIN) {
                assert_eq!(decode(&value), text);
            }
        }
    }
}
