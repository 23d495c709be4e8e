//! The path of a request as rules see it, in the form in which nginx compares locations: escapes
//! are decoded, slashes merged, and dot segments resolved (RFC 3986, section 6.2.2). The server
//! gets the path as the client wrote it. Pure.

use std::borrow::Cow;
use std::cell::OnceCell;

use prism_http::RequestHead;

/// A path that two readers may understand differently. A rule about paths could be passed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousPath;

/// The path of a request. Its plain form is made when it is first needed, for all rules.
#[derive(Debug)]
pub struct RequestPath<'h> {
    written: &'h str,
    plain: OnceCell<Result<Cow<'h, [u8]>, AmbiguousPath>>,
    /// The same, where it may be ambiguous.
    kept: OnceCell<Result<Cow<'h, [u8]>, AmbiguousPath>>,
}

impl<'h> RequestPath<'h> {
    /// The path of this head.
    #[must_use]
    pub fn of(head: &'h RequestHead) -> Self {
        Self {
            written: head.path(),
            plain: OnceCell::new(),
            kept: OnceCell::new(),
        }
    }

    /// The path as the client wrote it.
    pub(crate) fn written(&self) -> &'h str {
        self.written
    }

    /// The plain form, as by [`plain`].
    pub(crate) fn plain(&self, keeps: bool) -> Result<&[u8], AmbiguousPath> {
        let made = if keeps { &self.kept } else { &self.plain };
        let made = made.get_or_init(|| plain(self.written, keeps));
        made.as_deref().map_err(|error| *error)
    }
}

/// The plain form of a path. `keeps`: the signs that make a path ambiguous stay as they are, which
/// the server has to understand in the same way.
///
/// # Errors
/// The path has an escaped slash, a backslash, a NUL, a dot segment with a parameter (`..;`), a
/// malformed escape, or leads above the root.
pub(crate) fn plain(path: &str, keeps: bool) -> Result<Cow<'_, [u8]>, AmbiguousPath> {
    let is_plain = !path.contains(['%', '\\']) && !path.contains("//") && !path.contains("/.");
    if is_plain {
        return Ok(path.as_bytes().into());
    }
    let decoded = decode(path.as_bytes(), keeps)?;
    let mut plain: Vec<&[u8]> = Vec::new();
    let mut segments = decoded.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"" | b"." if !is_last => {}
            b"." => plain.push(b""),
            b".." => {
                plain.pop().ok_or(AmbiguousPath)?;
                if is_last {
                    plain.push(b"");
                }
            }
            [b'.', b';', ..] | [b'.', b'.', b';', ..] if !keeps => return Err(AmbiguousPath),
            segment => plain.push(segment),
        }
    }
    let mut bytes = Vec::with_capacity(decoded.len());
    for segment in plain {
        bytes.push(b'/');
        bytes.extend_from_slice(segment);
    }
    Ok(bytes.into())
}

/// Whether the plain form of a path has the segments as they are written, but for escapes.
pub(crate) fn has_plain_segments(path: &str) -> bool {
    let is_hidden_dot = |at: &str| at.starts_with("/%2e") || at.starts_with("/%2E");
    let mut ends = path.match_indices('/').filter_map(|(at, _)| path.get(at..));
    !path.contains("//") && !path.contains("/.") && !ends.any(is_hidden_dot)
}

/// Whether a path can be read in one way only, and is in plain form but for escapes.
#[must_use]
pub fn is_settled(path: &str) -> bool {
    let decoded = decode(path.as_bytes(), false);
    plain(path, false).is_ok_and(|plain| decoded.is_ok_and(|decoded| *plain == *decoded))
}

/// Decodes the escapes of a path. An escaped slash that is kept stays escaped, because it is no
/// border of segments.
fn decode(mut path: &[u8], keeps: bool) -> Result<Vec<u8>, AmbiguousPath> {
    let mut decoded = Vec::with_capacity(path.len());
    while let Some((&first, rest)) = path.split_first() {
        path = rest;
        let byte = match (first, rest) {
            (b'%', [high, low, behind @ ..]) => {
                path = behind;
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).map_err(|_| AmbiguousPath)?;
                let byte = u8::from_str_radix(digits, 16);
                // It would also take a sign.
                let byte = byte.ok().filter(|_| high.is_ascii_hexdigit());
                byte.ok_or(AmbiguousPath)?
            }
            (b'%', _) => return Err(AmbiguousPath),
            (byte, _) => byte,
        };
        match byte {
            b'/' if first == b'%' && keeps => decoded.extend_from_slice(b"%2F"),
            b'/' if first == b'%' => return Err(AmbiguousPath),
            b'\\' | 0 if !keeps => return Err(AmbiguousPath),
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &str, keeps: bool) -> Result<String, AmbiguousPath> {
        plain(path, keeps).map(|plain| String::from_utf8_lossy(&plain).into_owned())
    }

    #[test]
    fn one_resource_has_one_path() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/%61dmin", "/admin"),
            ("/%41%2e", "/A."),
            ("//a///b/", "/a/b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/../../c/", "/c/"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a//../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/.hidden/..x", "/.hidden/..x"),
            ("/a;v=1/b;c", "/a;v=1/b;c"),
            ("/%25", "/%"),
            ("/%2561", "/%61"),
            ("/a%20b", "/a b"),
        ] {
            assert_eq!(seen(path, false).as_deref(), Ok(expected), "{path}");
            assert_eq!(seen(path, true).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn a_settled_path_has_nothing_to_resolve() {
        for (path, expected) in [
            ("/", true),
            ("/a/b/", true),
            ("/.well-known/..x/a%20b", true),
            ("/files/../private", false),
            ("/files/%2e%2e/private", false),
            ("/files/..;/x", false),
            ("/a//b", false),
            ("/a/.", false),
            ("/a%2fb", false),
        ] {
            assert_eq!(is_settled(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_that_may_be_read_in_two_ways_is_none_unless_it_is_allowed() {
        for (path, kept) in [
            ("/a%2fb", Some("/a%2Fb")),
            ("/a%2F..%2Fb", Some("/a%2F..%2Fb")),
            ("/a%5cb", Some("/a\\b")),
            ("/a\\..\\b", Some("/a\\..\\b")),
            ("/a%00", Some("/a\0")),
            ("/a/..;/b", Some("/a/..;/b")),
            ("/a/.;x/b", Some("/a/.;x/b")),
            ("/..", None),
            ("/a/../../b", None),
            ("/%", None),
            ("/%4", None),
            ("/%zz", None),
            ("/%+1", None),
        ] {
            assert_eq!(seen(path, false), Err(AmbiguousPath), "{path}");
            assert_eq!(seen(path, true).ok().as_deref(), kept, "{path}");
        }
    }
}
