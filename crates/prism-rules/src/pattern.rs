//! Patterns of hosts and of paths. A pattern that begins with `~` is a regular expression of the
//! crate `regex`. Its time grows in proportion to the text, for every text.

use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::paths;

/// Longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1_024;
/// Most bytes of a compiled regular expression. The time for a byte of a path grows with them.
const MAX_REGEX_BYTES: usize = 16 << 10;
/// Most bytes that each thread keeps for an expression.
const MAX_CACHE_BYTES: usize = 256 << 10;

/// A fault of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is empty, too long, or has a character that no host has.
    #[error("is not a host")]
    Host,
    /// It is too long, does not begin with a slash, or has a character that no path has.
    #[error("is not the beginning of a path")]
    Path,
    /// The expression is malformed or too large; says why.
    #[error("is no regular expression: {0}")]
    Regex(String),
}

/// Hosts of requests, in upper or lower case.
#[derive(Clone, Debug)]
pub struct HostPattern(Host);

#[derive(Clone, Debug)]
enum Host {
    Is(Box<str>),
    /// `*.example.com`: names that end with `.example.com`.
    Ends(Box<str>),
    /// `www.example.*`: names that begin with `www.example.`.
    Begins(Box<str>),
    Regex(Regex),
}

impl HostPattern {
    /// Reads a pattern: a host, `*.example.com`, `www.example.*`, or `~` and a regular expression.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if let Some(expression) = text.strip_prefix('~') {
            return regex(expression, true).map(Host::Regex).map(Self);
        }
        let host = match (text.strip_prefix("*."), text.strip_suffix(".*")) {
            (Some(name), _) => (name, Host::Ends(format!(".{name}").into())),
            (_, Some(name)) => (name, Host::Begins(format!("{name}.").into())),
            (None, None) => (text, Host::Is(text.into())),
        };
        let (name, host) = host;
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"-.:[]_".contains(&b);
        let is_host = (1..=MAX_PATTERN_BYTES).contains(&name.len()) && name.bytes().all(is_part);
        is_host.then_some(Self(host)).ok_or(PatternError::Host)
    }

    /// Whether a host, without its port, fits.
    pub(crate) fn fits(&self, host: &str) -> bool {
        match &self.0 {
            Host::Is(name) => name.eq_ignore_ascii_case(host),
            Host::Ends(end) => {
                let start = host.len().checked_sub(end.len()).filter(|start| *start > 0);
                let found = start.and_then(|start| host.get(start..));
                found.is_some_and(|found| found.eq_ignore_ascii_case(end))
            }
            Host::Begins(start) => {
                let found = host.get(..start.len());
                let found = found.filter(|_| host.len() > start.len());
                found.is_some_and(|found| found.eq_ignore_ascii_case(start))
            }
            Host::Regex(regex) => regex.is_match(host.as_bytes()),
        }
    }
}

/// Paths of requests, in plain form.
#[derive(Clone, Debug)]
pub struct PathPattern(Path);

#[derive(Clone, Debug)]
enum Path {
    Begins(Box<[u8]>),
    Is(Box<[u8]>),
    Regex(Regex),
}

impl PathPattern {
    /// Reads a pattern: the beginning of a path, `=` and a whole path, or `~` and a regular
    /// expression.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if let Some(expression) = text.strip_prefix('~') {
            return regex(expression, false).map(Path::Regex).map(Self);
        }
        let whole = text.strip_prefix('=');
        let path = whole.unwrap_or(text);
        let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let is_path =
            path.len() <= MAX_PATTERN_BYTES && path.starts_with('/') && path.bytes().all(is_part);
        // A pattern may have escapes too.
        let plain = paths::plain(path, true).ok().filter(|_| is_path);
        let plain = plain.ok_or(PatternError::Path)?.into();
        Ok(Self(match whole {
            Some(_) => Path::Is(plain),
            None => Path::Begins(plain),
        }))
    }

    /// Whether a path in plain form fits.
    pub(crate) fn fits(&self, path: &[u8]) -> bool {
        match &self.0 {
            Path::Begins(start) => path.starts_with(start),
            Path::Is(whole) => path == &**whole,
            Path::Regex(regex) => regex.is_match(path),
        }
    }

    /// The beginning of paths that it stands for; `None` if it stands for others.
    pub(crate) fn beginning(&self) -> Option<&[u8]> {
        match &self.0 {
            Path::Begins(start) => Some(start),
            Path::Is(_) | Path::Regex(_) => None,
        }
    }

    /// The groups of a regular expression in a path that fits; `None` without an expression.
    pub(crate) fn groups<'p>(&self, path: &'p [u8]) -> Option<Captures<'p>> {
        match &self.0 {
            Path::Regex(regex) => regex.captures(path),
            Path::Begins(_) | Path::Is(_) => None,
        }
    }
}

fn regex(expression: &str, ignores_case: bool) -> Result<Regex, PatternError> {
    if expression.len() > MAX_PATTERN_BYTES {
        return Err(PatternError::Regex("it is too long".into()));
    }
    // A path is bytes, and `.` stands for any of them. Otherwise `%0A` would pass `~^/admin/.*$`.
    let built = RegexBuilder::new(expression)
        .unicode(false)
        .dot_matches_new_line(true)
        .case_insensitive(ignores_case)
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .build();
    built.map_err(|error| {
        let text = match error {
            regex::Error::CompiledTooBig(_) => "it is too large".into(),
            error => error.to_string(),
        };
        // The last line of a syntax error has the reason.
        let reason = text.lines().last().unwrap_or_default();
        PatternError::Regex(reason.trim_start_matches("error: ").to_owned())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_host_fits_a_name_a_wildcard_or_an_expression() {
        for (pattern, host, expected) in [
            ("a.example", "a.example", true),
            ("a.example", "A.Example", true),
            ("*.b.example", "x.b.example", true),
            ("*.b.example", "b.example", false),
            ("*.b.example", ".b.example", false),
            ("www.example.*", "WWW.example.org", true),
            ("www.example.*", "www.example.", false),
            ("www.example.*", "www.examples.org", false),
            ("~^api[0-9]+\\.example$", "API17.example", true),
            ("~^api[0-9]+\\.example$", "api.example", false),
        ] {
            let fits = HostPattern::parse(pattern).unwrap().fits(host);
            assert_eq!(fits, expected, "{pattern} {host}");
        }
    }

    #[test]
    fn a_path_fits_a_beginning_a_whole_path_or_an_expression() {
        for (pattern, path, expected) in [
            ("/api/", "/api/x", true),
            ("/api/", "/api", false),
            ("=/api/", "/api/", true),
            ("=/api/", "/api/x", false),
            ("=/a%20b", "/a b", true),
            ("~\\.php$", "/x.php", true),
            ("~\\.php$", "/x.php/y", false),
            ("~^/v\\d+/", "/v12/x", true),
            ("~^/admin/.*$", "/admin/users\n", true),
        ] {
            let fits = PathPattern::parse(pattern).unwrap().fits(path.as_bytes());
            assert_eq!(fits, expected, "{pattern} {path}");
        }
        let pattern = PathPattern::parse("~^/(\\w+)/(.*)$").unwrap();
        let groups = pattern.groups(b"/old/a/b").unwrap();
        let group = |number| groups.get(number).map(|group| group.as_bytes());
        assert_eq!(group(1), Some(&b"old"[..]));
        assert_eq!(group(2), Some(&b"a/b"[..]));
        assert_eq!(group(3), None);
    }

    #[test]
    fn a_fault_of_a_pattern_is_named() {
        let fault = |text: &str| PathPattern::parse(text).unwrap_err().to_string();
        assert_eq!(fault("api"), "is not the beginning of a path");
        assert_eq!(fault("=api"), "is not the beginning of a path");
        assert_eq!(fault("~(a"), "is no regular expression: unclosed group");
        let large = fault("~(a{1000}){1000}");
        assert_eq!(large, "is no regular expression: it is too large");
        assert!(fault(&format!("~{}", "a".repeat(1_025))).ends_with("it is too long"));
        assert!(HostPattern::parse("a/b").is_err() && HostPattern::parse("*.").is_err());
    }
}
