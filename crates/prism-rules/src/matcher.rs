//! The conditions of a rule or an upstream, and the requests that fit them.

use std::borrow::Cow;
use std::cell::OnceCell;

use prism_http::RequestHead;
use regex::bytes::Captures;

use crate::paths::{self, AmbiguousPath, RequestPath};
use crate::pattern::{HostPattern, PathPattern};
use crate::template::url_text;

/// Conditions as the configuration has them. An empty list holds for every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'c> {
    /// Hosts, of which one has to fit.
    pub hosts: &'c [String],
    /// Paths, of which one has to fit.
    pub paths: &'c [String],
    /// Methods, of which the request has one.
    pub methods: &'c [String],
    /// Header fields, all of which the request has: `X-Beta` or `X-Beta: yes`.
    pub headers: &'c [String],
}

impl Conditions<'_> {
    /// Whether every request fits.
    #[must_use]
    pub fn are_none(&self) -> bool {
        let all = [self.hosts, self.paths, self.methods, self.headers];
        all.iter().all(|of| of.is_empty())
    }
}

/// Conditions that are ready for requests.
#[derive(Clone, Debug)]
pub struct Matcher {
    hosts: Vec<Option<HostPattern>>,
    paths: Vec<Option<PathPattern>>,
    methods: Vec<String>,
    headers: Vec<String>,
    takes_ambiguous_paths: bool,
}

/// A request that fits the conditions, and the pattern of its path.
#[derive(Debug)]
pub struct Fit<'m, 'p> {
    by_path: Option<FitPath<'m, 'p>>,
}

#[derive(Debug)]
struct FitPath<'m, 'p> {
    pattern: &'m PathPattern,
    plain: &'p [u8],
    written: &'p str,
    groups: OnceCell<Option<Captures<'p>>>,
}

impl Fit<'_, '_> {
    /// The beginning of paths that the pattern names, escaped as in a URL.
    #[must_use]
    pub fn beginning(&self) -> Option<String> {
        self.by_path.as_ref()?.pattern.beginning().map(url_text)
    }

    /// The path behind the beginning that the pattern names, escaped as in a URL; `None` if the
    /// conditions do not name one.
    #[must_use]
    pub fn rest(&self) -> Option<Cow<'_, str>> {
        let by_path = self.by_path.as_ref()?;
        let beginning = by_path.pattern.beginning()?;
        let written = by_path.written;
        // An escaped `%` of the path could look like the pattern's own.
        if !beginning.contains(&b'%')
            && paths::has_plain_segments(written)
            && written.as_bytes().starts_with(beginning)
        {
            return written.get(beginning.len()..).map(Cow::Borrowed);
        }
        let rest = by_path.plain.get(beginning.len()..)?;
        Some(url_text(rest).into())
    }

    /// The path with `new` in the place of the beginning that the pattern names, escaped as in a
    /// URL; `None` if the conditions do not name one.
    ///
    /// # Errors
    /// The new path can be read in two ways, or leads elsewhere: `/api../x` with `/files/` in the
    /// place of `/api`.
    pub fn replace_beginning(&self, new: &str) -> Result<Option<String>, AmbiguousPath> {
        let Some(rest) = self.rest() else {
            return Ok(None);
        };
        // `/api` leaves the slash of `/api/users` behind.
        let rest = if new.ends_with('/') {
            rest.trim_start_matches('/')
        } else {
            &rest
        };
        let path = format!("{new}{rest}");
        paths::is_settled(&path)
            .then_some(Some(path))
            .ok_or(AmbiguousPath)
    }

    /// The group of this number of the pattern's regular expression, escaped as in a URL; empty if
    /// there is none.
    #[must_use]
    pub fn group(&self, number: usize) -> String {
        let groups = self.by_path.as_ref().and_then(|by_path| {
            let made = || by_path.pattern.groups(by_path.plain);
            by_path.groups.get_or_init(made).as_ref()
        });
        let group = groups.and_then(|groups| groups.get(number));
        url_text(group.map_or(b"", |group| group.as_bytes()))
    }
}

impl Matcher {
    /// For these conditions. A pattern that is malformed fits nothing; the configuration refuses
    /// it. `takes_ambiguous_paths`: a path that can be read in two ways is no error.
    #[must_use]
    pub fn new(conditions: &Conditions<'_>, takes_ambiguous_paths: bool) -> Self {
        let hosts = conditions.hosts.iter();
        let paths = conditions.paths.iter();
        Self {
            hosts: hosts.map(|text| HostPattern::parse(text).ok()).collect(),
            paths: paths.map(|text| PathPattern::parse(text).ok()).collect(),
            methods: conditions.methods.to_vec(),
            headers: conditions.headers.to_vec(),
            takes_ambiguous_paths,
        }
    }

    /// The part of a request by which it fits; `None` if it does not. `path`: that of `head`.
    ///
    /// # Errors
    /// It may fit, and there are conditions for paths; but the path can be read in two ways.
    pub fn fit<'m, 'p>(
        &'m self,
        head: &RequestHead,
        path: &'p RequestPath<'_>,
    ) -> Result<Option<Fit<'m, 'p>>, AmbiguousPath> {
        if self.fits_besides_path(head) {
            self.fit_path(path)
        } else {
            Ok(None)
        }
    }

    /// The same for the conditions of the path alone.
    ///
    /// # Errors
    /// As [`Self::fit`].
    pub fn fit_path<'m, 'p>(
        &'m self,
        path: &'p RequestPath<'_>,
    ) -> Result<Option<Fit<'m, 'p>>, AmbiguousPath> {
        if self.paths.is_empty() {
            return Ok(Some(Fit { by_path: None }));
        }
        let plain = path.plain(self.takes_ambiguous_paths)?;
        let mut patterns = self.paths.iter().flatten();
        let fitting = patterns.find(|pattern| pattern.fits(plain));
        Ok(fitting.map(|pattern| Fit {
            by_path: Some(FitPath {
                pattern,
                plain,
                written: path.written(),
                groups: OnceCell::new(),
            }),
        }))
    }

    fn fits_besides_path(&self, head: &RequestHead) -> bool {
        let host = head.host_name().unwrap_or_default();
        let mut hosts = self.hosts.iter().flatten();
        let method = head.method().as_str();
        (self.hosts.is_empty() || hosts.any(|pattern| pattern.fits(host)))
            && (self.methods.is_empty() || self.methods.iter().any(|name| name == method))
            && self.headers.iter().all(|field| has_field(field, head))
    }
}

fn has_field(field: &str, head: &RequestHead) -> bool {
    match field.split_once(':') {
        None => head.headers().get(field).is_some(),
        Some((name, value)) => {
            let mut values = head.headers().get_all(name);
            values.any(|found| found == value.trim().as_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    fn head(start: &str, fields: &str) -> RequestHead {
        let text = format!("{start} HTTP/1.1\r\n{fields}\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        parsed.unwrap().unwrap().0
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn fits(matcher: &Matcher, head: &RequestHead) -> Result<bool, AmbiguousPath> {
        let path = RequestPath::of(head);
        matcher.fit(head, &path).map(|fit| fit.is_some())
    }

    #[test]
    fn every_kind_of_pattern_has_to_fit() {
        let conditions = Conditions {
            hosts: &texts(&["a.example", "*.b.example"]),
            paths: &texts(&["/api/", "/v2"]),
            methods: &texts(&["GET", "POST"]),
            headers: &texts(&["X-Beta: yes", "X-Any"]),
        };
        let matcher = Matcher::new(&conditions, false);
        let fields = "X-Any: 1\r\nX-Beta: yes\r\nHost: ";
        for (start, host, expected) in [
            ("GET /api/x", "a.example", true),
            ("POST /v2?q", "A.Example:8080", true),
            ("GET /v2", "x.b.example", true),
            ("GET /v2", "b.example", false),
            ("GET /v2", ".b.example", false),
            ("GET /v2", "ab.example", false),
            ("GET /api", "a.example", false),
            ("PUT /v2", "a.example", false),
            ("GET http://x.b.example/v2", "x.b.example", true),
            ("GET http://x.b.example/v2", "X.b.example:80", true),
            ("GET /v2", "a.example.", true),
            ("GET /v2", "x.b.example.:8080", true),
            ("GET /v2", "a.example..", false),
        ] {
            let head = head(start, &format!("{fields}{host}\r\n"));
            assert_eq!(fits(&matcher, &head), Ok(expected), "{start} {host}");
        }
        let without = head("GET /v2", "X-Beta: yes\r\nHost: a.example\r\n");
        assert_eq!(fits(&matcher, &without), Ok(false));
        let other = head("GET /v2", "X-Any: 1\r\nX-Beta: no\r\nHost: a.example\r\n");
        assert_eq!(fits(&matcher, &other), Ok(false));
        let all = Matcher::new(&Conditions::default(), false);
        assert_eq!(fits(&all, &other), Ok(true));
    }

    #[test]
    fn a_rule_about_paths_cannot_be_passed_by() {
        let matcher = |takes_ambiguous_paths, paths: &[&str]| {
            let conditions = Conditions {
                paths: &texts(paths),
                ..Conditions::default()
            };
            Matcher::new(&conditions, takes_ambiguous_paths)
        };
        let strict = matcher(false, &["/admin/"]);
        let allows = matcher(true, &["/admin/", "/a%20b"]);
        let all = matcher(false, &[]);
        for (path, by_strict, by_allows) in [
            ("/x/../admin/", Ok(true), true),
            ("//admin/x", Ok(true), true),
            ("/%61dmin/", Ok(true), true),
            ("/admin/..", Ok(false), false),
            ("/Admin/", Ok(false), false),
            ("/admin%2fx", Err(AmbiguousPath), false),
            ("/admin/a%2fx", Err(AmbiguousPath), true),
            ("/x/..;/admin/", Err(AmbiguousPath), false),
            ("/a%20b", Ok(false), true),
            ("/a%20bc", Ok(false), true),
        ] {
            let head = head(&format!("GET {path}"), "Host: h\r\n");
            assert_eq!(fits(&strict, &head), by_strict, "{path}");
            assert_eq!(fits(&allows, &head), Ok(by_allows), "{path}");
            assert_eq!(fits(&all, &head), Ok(true), "{path}");
        }
    }

    #[test]
    fn a_fit_has_the_rest_of_the_path_and_groups() {
        let paths = texts(&["/old/", "~^/v(\\d)/(.*)"]);
        let conditions = Conditions {
            paths: &paths,
            ..Conditions::default()
        };
        let matcher = Matcher::new(&conditions, false);
        for (path, expected) in [
            ("/old/a/b", "a/b"),
            ("/old/a%2Cb", "a%2Cb"),
            ("/x/../old/%61,%20b", "a,%20b"),
            ("/old/a/%2E%2E/b", "b"),
            ("/%6fld/%25", "%25"),
        ] {
            let old = head(&format!("GET {path}?c"), "Host: h\r\n");
            let path = RequestPath::of(&old);
            let fit = matcher.fit(&old, &path).unwrap().unwrap();
            assert_eq!(fit.rest().as_deref(), Some(expected), "{expected}");
            assert_eq!(fit.group(1), "");
        }
        let version = head("GET /v2/a%20b", "Host: h\r\n");
        let path = RequestPath::of(&version);
        let fit = matcher.fit(&version, &path).unwrap().unwrap();
        assert_eq!([fit.group(1), fit.group(2)], ["2", "a%20b"]);
        assert_eq!(fit.rest(), None);
        let malformed = Conditions {
            paths: &texts(&["~("]),
            ..Conditions::default()
        };
        assert_eq!(fits(&Matcher::new(&malformed, false), &version), Ok(false));
    }

    #[test]
    fn a_beginning_is_replaced_and_no_path_leads_out() {
        for (pattern, new, path, expected) in [
            ("/api/", "/", "/api/users", Ok(Some("/users"))),
            ("/api", "/", "/api", Ok(Some("/"))),
            ("/api", "/", "/api/a%20b", Ok(Some("/a%20b"))),
            ("/api/", "/v2/", "/x/..//api/%61,b", Ok(Some("/v2/a,b"))),
            ("/api", "/v2", "/apis", Ok(Some("/v2s"))),
            ("/50%25", "/", "/50%25off", Ok(Some("/off"))),
            ("/api/", "/", "/api/.well-known", Ok(Some("/.well-known"))),
            ("=/api", "/", "/api", Ok(None)),
            ("/api", "/files/", "/api../private", Err(AmbiguousPath)),
            ("/api", "/files/", "/api%2e%2e/private", Err(AmbiguousPath)),
            ("/api", "/files/", "/api..;/private", Err(AmbiguousPath)),
            ("/api", "/", "/api../private", Err(AmbiguousPath)),
        ] {
            let conditions = Conditions {
                paths: &texts(&[pattern]),
                ..Conditions::default()
            };
            let matcher = Matcher::new(&conditions, false);
            let head = head(&format!("GET {path}"), "Host: h\r\n");
            let seen = RequestPath::of(&head);
            let fit = matcher.fit_path(&seen).unwrap().unwrap();
            let replaced = fit.replace_beginning(new);
            let expected = expected.map(|path| path.map(str::to_owned));
            assert_eq!(replaced, expected, "{path} of {pattern}");
        }
    }
}
