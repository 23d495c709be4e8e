//! Clients that stay with one server, by a cookie that names it. Pure.
//!
//! The cookie is the only record of a session, so the nodes share no state. It holds the name of a
//! backend, or a hash: a client learns no address.

use std::net::SocketAddr;

use prism_config::{HashOf, Upstream};
use prism_http::{Headers, RequestHead};
use prism_rules::fill_field;

use crate::choice;
use crate::forwarded::of_request;

/// The parts of a request by which its server is chosen.
#[derive(Default)]
pub(crate) struct Affinity {
    /// The part that is hashed; empty if none is.
    pub(crate) key: String,
    /// The name of a server in the cookie.
    pub(crate) server: Option<Box<str>>,
}

impl Affinity {
    /// Whether the cookie names this server.
    pub(crate) fn is_to(&self, server: &str) -> bool {
        self.server.as_deref() == Some(server)
    }

    /// Gives an answer of `server` to `request` the fields of `settings`, and the cookie if the
    /// client has another one or none.
    pub(crate) fn complete(
        &self,
        settings: &Upstream,
        server: &str,
        request: &RequestHead,
        answer: &mut Headers,
    ) {
        // No error: the configuration has been checked, and an answer is far below the bound.
        let own = settings.answer_headers.iter();
        for (name, value) in own.filter_map(|field| field.split_once(':')) {
            let value = fill_field(value, |variable| of_request(request, variable).into());
            let _ = answer.set(name, value.as_ref());
        }
        let Some(name) = settings.cookie.as_ref().filter(|_| !self.is_to(server)) else {
            return;
        };
        let attributes = &settings.cookie_attributes;
        let separator = if attributes.is_empty() { "" } else { "; " };
        let cookie = format!("{name}={server}{separator}{attributes}");
        let _ = answer.append("Set-Cookie", cookie);
        // A shared cache must not give one client's cookie to others.
        let is_private = ["private", "no-store"].map(|word| answer.list_has("cache-control", word));
        if is_private == [false, false] {
            let _ = answer.append("Cache-Control", "private");
        }
    }
}

/// The name in cookies of the server at `address`, as the backend called `backend` reaches it. The
/// only server of a backend has the backend's name, as in the configuration of another proxy. Else
/// a loopback address is another server at each backend, and any other address is the same server.
pub(crate) fn server_name(backend: &str, address: SocketAddr, is_only: bool) -> String {
    if is_only {
        return backend.to_owned();
    }
    let host = if address.ip().is_loopback() {
        backend
    } else {
        ""
    };
    format!("{:016x}", choice::score(host, &address.to_string()))
}

/// The server that the cookie called `name` names.
pub(crate) fn in_cookie(head: &RequestHead, name: &str) -> Option<Box<str>> {
    let fields = head.headers().get_all("cookie");
    let texts = fields.filter_map(|field| std::str::from_utf8(field).ok());
    let mut pairs = texts.flat_map(|text| text.split(';'));
    let server = pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))?;
    Some(server.into())
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

    fn found(fields: &str) -> Option<Box<str>> {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        in_cookie(&parsed.unwrap().unwrap().0, "SRV")
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        for (fields, expected) in [
            ("Cookie: SRV=a\r\n", Some("a")),
            ("Cookie: x=SRV=b; SRV=a;y\r\n", Some("a")),
            ("Cookie: x=1\r\nCookie: y=2;SRV=a\r\n", Some("a")),
            ("Cookie: SRV=a; SRV=b\r\n", Some("a")),
            ("Cookie: XSRV=a; SRV2=b; srv=c\r\n", None),
            ("Cookie: SRV\r\n", None),
            ("", None),
        ] {
            assert_eq!(found(fields).as_deref(), expected, "{fields}");
        }
    }

    #[test]
    fn a_server_has_one_name_at_all_nodes() {
        let name = |backend, address: &str| server_name(backend, address.parse().unwrap(), false);
        assert_ne!(name("be0", "127.0.0.1:9"), name("be1", "127.0.0.1:9"));
        assert_ne!(name("be0", "[::1]:9"), name("be0", "127.0.0.1:9"));
        assert_eq!(name("be0", "10.0.0.1:9"), name("be1", "10.0.0.1:9"));
        // Cookies outlive an upgrade.
        assert_eq!(name("be0", "127.0.0.1:9"), "18383c7e57e85dbb");
        assert_eq!(
            server_name("be0", "127.0.0.1:9".parse().unwrap(), true),
            "be0"
        );
    }

    #[test]
    fn an_answer_gets_the_cookie_unless_the_client_has_it() {
        let settings = Upstream {
            cookie: Some("SRV".into()),
            answer_headers: vec![
                "X-Frame-Options: DENY".into(),
                "Request: {request_id} of {host}".into(),
            ],
            ..Upstream::default()
        };
        let answer = |server: Option<&str>, cached: &str| {
            let affinity = Affinity {
                key: String::new(),
                server: server.map(Into::into),
            };
            let mut headers = Headers::new();
            headers.append("x-frame-options", "SAMEORIGIN").unwrap();
            headers.append("Cache-Control", cached).unwrap();
            let text = "GET / HTTP/1.1\r\nHost: inner\r\nX-Forwarded-Host: h:8\r\nX-Request-ID: 12\r\n\r\n";
            let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
            let (request, _) = parsed.unwrap().unwrap();
            affinity.complete(&settings, "one", &request, &mut headers);
            let mut out = Vec::new();
            headers.write_to(&mut out);
            String::from_utf8(out).unwrap()
        };
        let own = "Cache-Control: max-age=9\r\nX-Frame-Options: DENY\r\nRequest: 12 of h\r\n";
        assert_eq!(answer(Some("one"), "max-age=9"), own);
        let cookie = "Set-Cookie: SRV=one; Path=/; HttpOnly\r\n";
        let private = "Cache-Control: private\r\n";
        for server in [None, Some("two")] {
            assert_eq!(
                answer(server, "max-age=9"),
                format!("{own}{cookie}{private}")
            );
        }
        assert!(answer(None, "no-store").ends_with(cookie));
    }

    #[test]
    fn a_key_is_a_part_of_the_request() {
        let text = "GET /p?a=1&user=bob&user=eve HTTP/1.1\r\nHost: h\r\nX-User: alice\r\n\r\n";
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        let (head, _) = parsed.unwrap().unwrap();
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
