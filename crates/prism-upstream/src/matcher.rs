//! Which requests an upstream gets. Pure.

use prism_config::{HashOf, Upstream};
use prism_http::RequestHead;

use crate::paths::{self, AmbiguousPath};

/// Whether `upstream` gets the request.
///
/// # Errors
/// It may, and it is for some paths only; but the path can be read in two ways.
pub(crate) fn fits(upstream: &Upstream, head: &RequestHead) -> Result<bool, AmbiguousPath> {
    let any = |patterns: &[String], fits: &dyn Fn(&str) -> bool| {
        patterns.is_empty() || patterns.iter().any(|pattern| fits(pattern))
    };
    let host = head.host_name().unwrap_or_default();
    let method = head.method().as_str();
    let others_fit = any(&upstream.hosts, &|pattern| is_host(pattern, host))
        && any(&upstream.methods, &|name| name == method)
        && upstream.headers.iter().all(|field| has_field(field, head));
    if !others_fit || upstream.paths.is_empty() {
        return Ok(others_fit);
    }
    let path = paths::plain(head.path(), upstream.ambiguous_paths)?;
    // A rule may have escapes too.
    let begins =
        |start: &str| paths::plain(start, true).is_ok_and(|start| path.starts_with(&start));
    Ok(any(&upstream.paths, &begins))
}

/// Whether both get the same requests.
pub(crate) fn is_same(one: &Upstream, other: &Upstream) -> bool {
    one.hosts == other.hosts
        && one.paths == other.paths
        && one.methods == other.methods
        && one.headers == other.headers
}

/// `*.example.com` stands for all names below `example.com`.
fn is_host(pattern: &str, host: &str) -> bool {
    let Some(domain) = pattern.strip_prefix('*') else {
        return pattern.eq_ignore_ascii_case(host);
    };
    let start = host.len().checked_sub(domain.len());
    let end = start.filter(|start| *start > 0);
    let end = end.and_then(|start| host.get(start..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(domain))
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

/// The part of a request that is hashed; empty if the request has none.
pub(crate) fn key(of: &HashOf, head: &RequestHead) -> String {
    match of {
        HashOf::Path => head.path().to_owned(),
        HashOf::Header(name) => {
            let value = head.headers().get(name).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        }
        HashOf::Query(name) => {
            let mut pairs = head.query().unwrap_or_default().split('&');
            let value = pairs.find_map(|pair| match pair.split_once('=') {
                Some((key, value)) if key == name => Some(value),
                _ => None,
            });
            value.unwrap_or_default().to_owned()
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

    #[test]
    fn every_kind_of_pattern_has_to_fit() {
        let upstream = Upstream {
            hosts: texts(&["a.example", "*.b.example"]),
            paths: texts(&["/api/", "/v2"]),
            methods: texts(&["GET", "POST"]),
            headers: texts(&["X-Beta: yes", "X-Any"]),
            ..Upstream::default()
        };
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
            assert_eq!(fits(&upstream, &head), Ok(expected), "{start} {host}");
        }
        let without = head("GET /v2", "X-Beta: yes\r\nHost: a.example\r\n");
        assert_eq!(fits(&upstream, &without), Ok(false));
        let other = head("GET /v2", "X-Any: 1\r\nX-Beta: no\r\nHost: a.example\r\n");
        assert_eq!(fits(&upstream, &other), Ok(false));
        assert_eq!(fits(&Upstream::default(), &other), Ok(true));
    }

    #[test]
    fn a_rule_about_paths_cannot_be_passed_by() {
        let upstream = |ambiguous_paths, paths: &[&str]| Upstream {
            paths: texts(paths),
            ambiguous_paths,
            ..Upstream::default()
        };
        let strict = upstream(false, &["/admin/"]);
        let allows = upstream(true, &["/admin/", "/a%20b"]);
        let all = upstream(false, &[]);
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
    fn a_key_is_a_part_of_the_request() {
        let head = head(
            "GET /p?a=1&user=bob&user=eve",
            "Host: h\r\nX-User: alice\r\n",
        );
        for (of, expected) in [
            (HashOf::Path, "/p"),
            (HashOf::Query("user".into()), "bob"),
            (HashOf::Query("use".into()), ""),
            (HashOf::Header("x-user".into()), "alice"),
            (HashOf::Header("x-other".into()), ""),
        ] {
            assert_eq!(key(&of, &head), expected);
        }
    }
}
