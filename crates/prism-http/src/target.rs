//! Request targets (RFC 9112 section 3.2).

use crate::headers::Class;
use crate::{HeadError, Method};

/// A request target, split. Nothing is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    raw: Box<str>,
    path_start: usize,
    query_start: Option<usize>,
}

impl Target {
    /// Accepts origin form, absolute form with `http` or `https`, and `*` for OPTIONS. Refuses
    /// fragments, userinfo and bytes other than printable ASCII.
    pub(crate) fn parse(raw: &str, method: &Method) -> Result<Self, HeadError> {
        // A check of all bytes is faster than one that stops at the first bad one.
        let is_sound = |sound, b: u8| sound & b.is_ascii_graphic() & (b != b'#');
        if !raw.bytes().fold(true, is_sound) {
            return Err(HeadError::Target);
        }
        let path_start = match raw {
            "*" if *method == Method::OPTIONS => 0,
            _ if raw.starts_with('/') => 0,
            _ => absolute_path_start(raw)?,
        };
        let query_start = raw
            .get(path_start..)
            .and_then(|rest| rest.find('?'))
            .map(|at| path_start + at + 1);
        Ok(Self {
            raw: raw.into(),
            path_start,
            query_start,
        })
    }

    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    pub(crate) fn path(&self) -> &str {
        let end = self.query_start.map_or(self.raw.len(), |q| q - 1);
        match self.raw.get(self.path_start..end) {
            None | Some("") => "/",
            Some(path) => path,
        }
    }

    pub(crate) fn query(&self) -> Option<&str> {
        self.query_start.and_then(|q| self.raw.get(q..))
    }

    /// The port that the scheme of the absolute form stands for, as in `:80`.
    pub(crate) fn default_port(&self) -> &'static [u8] {
        let scheme = self.raw.split(':').next().unwrap_or_default();
        if scheme.eq_ignore_ascii_case("https") {
            b":443"
        } else {
            b":80"
        }
    }

    /// `host[:port]` of the absolute form.
    pub(crate) fn authority(&self) -> Option<&str> {
        if self.path_start == 0 {
            return None;
        }
        let before_path = self.raw.get(..self.path_start)?;
        before_path
            .split_once("://")
            .map(|(_, authority)| authority)
    }
}

fn absolute_path_start(raw: &str) -> Result<usize, HeadError> {
    let (scheme, rest) = raw.split_once("://").ok_or(HeadError::Target)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(HeadError::Target);
    }
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    if authority.is_empty() || !is_authority(authority.as_bytes()) {
        return Err(HeadError::Target);
    }
    Ok(raw.len() - rest.len() + authority.len())
}

/// Whether this could be `host[:port]`: no userinfo, no path, no white space.
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    static AUTHORITY: Class = Class::new(b"-._~%!$&'()*+,;=:[]");
    bytes.iter().all(|&byte| AUTHORITY.has(byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn splits_what_is_allowed() {
        let rows = [
            ("/", "/", None, None),
            ("/b/k%2F?", "/b/k%2F", Some(""), None),
            ("/b?a=1?b", "/b", Some("a=1?b"), None),
            ("//evil/k", "//evil/k", None, None),
            ("http://h", "/", None, Some("h")),
            ("HTTP://h:80/p?q", "/p", Some("q"), Some("h:80")),
            ("http://h?q=http://x/", "/", Some("q=http://x/"), Some("h")),
            ("https://[::1]:9/p", "/p", None, Some("[::1]:9")),
        ];
        for (raw, path, query, authority) in rows {
            let t = Target::parse(raw, &Method::GET).unwrap();
            assert_eq!(
                (t.path(), t.query(), t.authority()),
                (path, query, authority),
                "{raw}"
            );
            assert_eq!(t.raw(), raw);
        }
        assert!(Target::parse("*", &Method::OPTIONS).is_ok());
    }

    #[test]
    fn refuses_the_rest() {
        for raw in [
            "",
            "*",
            "b/k",
            "h:80",
            "ftp://h/",
            "http:///p",
            "http://u@h/",
            "/a#b",
            "/\u{e9}",
            "http://h\\x/",
            "/\"\x7f",
        ] {
            assert_eq!(
                Target::parse(raw, &Method::GET),
                Err(HeadError::Target),
                "{raw}"
            );
        }
    }
}
