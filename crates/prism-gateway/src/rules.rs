//! Requests that a rule of the configuration answers. They come before the service, at the node
//! that reads them from their client; no other node asks again.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use prism_config::{Config, Rule as Settings};
use prism_http::{RequestHead, ResponseHead, without_port};
use prism_rules::{AmbiguousPath, Fit, RequestPath, Template, Variable, fill_field};
use prism_service::{Exchange, Remote, request_id_text, send};

use crate::audience::Audience;

/// The usual type of a text.
const TEXT: &str = "text/plain; charset=utf-8";

/// The rules of a configuration.
pub(crate) struct Rules(Vec<CompiledRule>);

/// A rule that is ready for requests.
struct CompiledRule {
    audience: Audience,
    action: RuleAction,
    /// Header fields of the answer.
    fields: Vec<(String, String)>,
}

enum RuleAction {
    Redirect { status: u16, url: Template },
    Answer { status: u16, text: Rc<str> },
}

/// The answer of a rule to a request.
pub(crate) struct RuleAnswer {
    head: ResponseHead,
    text: Rc<str>,
}

impl Rules {
    pub(crate) fn of(config: &Config) -> Self {
        Self(config.service.rule.iter().map(CompiledRule::new).collect())
    }

    /// The answer of the first rule that a request fits; `None` if the service has to answer.
    ///
    /// # Errors
    /// Its path can be read in two ways, and a rule is for some paths only.
    pub(crate) fn answer(
        &self,
        head: &RequestHead,
        id: u64,
        client: &Remote,
    ) -> Result<Option<RuleAnswer>, AmbiguousPath> {
        let path = RequestPath::of(head);
        for rule in &self.0 {
            if let Some(fit) = rule.audience.fit(head, &path, client)? {
                return Ok(Some(rule.answer(head, id, client, &fit)));
            }
        }
        Ok(None)
    }
}

impl CompiledRule {
    fn new(settings: &Settings) -> Self {
        let fields = settings.answer_headers.iter();
        let fields = fields.filter_map(|field| field.split_once(':'));
        let status = settings.answer_status();
        Self {
            audience: Audience::of_rule(settings),
            action: match settings.redirect_template() {
                Some(url) => RuleAction::Redirect { status, url },
                None => RuleAction::Answer {
                    status,
                    text: settings.answer.as_str().into(),
                },
            },
            fields: fields
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    fn answer(
        &self,
        head: &RequestHead,
        id: u64,
        client: &Remote,
        fit: &Fit<'_, '_>,
    ) -> RuleAnswer {
        let value = |variable| value_of(variable, head, id, client, fit);
        let (mut answer, text) = match &self.action {
            RuleAction::Redirect { status, url } => {
                let mut answer = ResponseHead::new(*status);
                let set = answer.headers_mut().set("Location", url.fill_url(value));
                // The parts of a URL are well-formed, but a long path may be in it several times.
                if set.is_err() {
                    answer = ResponseHead::new(414);
                }
                (answer, Rc::default())
            }
            RuleAction::Answer { status, text } => {
                let mut answer = ResponseHead::new(*status);
                if !text.is_empty() {
                    let _ = answer.headers_mut().set("Content-Type", TEXT);
                }
                (answer, text.clone())
            }
        };
        let _ = answer
            .headers_mut()
            .set("X-Request-ID", request_id_text(id));
        for (name, text) in &self.fields {
            let _ = answer
                .headers_mut()
                .set(name, fill_field(text, value).as_ref());
        }
        RuleAnswer { head: answer, text }
    }
}

/// The value of a variable in the answer to a request.
fn value_of<'v>(
    variable: Variable,
    head: &'v RequestHead,
    id: u64,
    client: &Remote,
    fit: &'v Fit<'_, '_>,
) -> Cow<'v, str> {
    match variable {
        Variable::Client => client.address.ip().to_canonical().to_string().into(),
        Variable::Host => host_of(head, client),
        Variable::RequestId => request_id_text(id).into(),
        Variable::Scheme if client.is_tls => "https".into(),
        Variable::Scheme => "http".into(),
        Variable::Path => path_of(head).into(),
        Variable::Query => head.query().unwrap_or_default().into(),
        Variable::Uri => match head.query() {
            Some(query) => format!("{}?{query}", path_of(head)).into(),
            None => path_of(head).into(),
        },
        Variable::Rest => fit.rest().unwrap_or_default(),
        Variable::Group(number) => fit.group(number.into()).into(),
    }
}

/// The host that the client has named, without a port. A trusted proxy may have had another one.
fn host_of<'h>(head: &'h RequestHead, client: &Remote) -> Cow<'h, str> {
    let by_proxy = client.is_proxied.then(|| head.headers());
    let by_proxy = by_proxy.and_then(|headers| headers.get_str("X-Forwarded-Host"));
    let host = by_proxy.map(without_port).or_else(|| head.host_name());
    // A client of HTTP/1.0 may name none.
    match host.filter(|host| !host.is_empty()) {
        Some(host) => host.into(),
        None => url_host(client.service.ip()).into(),
    }
}

/// The path, also of a request for no path at all (`OPTIONS *`).
fn path_of(head: &RequestHead) -> &str {
    let path = head.path();
    if path.starts_with('/') { path } else { "/" }
}

/// An address as the host of a URL.
pub(crate) fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

impl RuleAnswer {
    /// Sends the answer. No body is read from a newcomer.
    pub(crate) async fn send(
        self,
        exchange: &mut impl Exchange,
        is_newcomer: bool,
    ) -> io::Result<()> {
        if is_newcomer && !exchange.is_done() {
            exchange.close_after();
        }
        if self.head.status() >= 400 {
            exchange.record_mut().error = Some("Rule");
        }
        send(exchange, self.head, self.text.as_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_config::{Networks, Service};
    use prism_http::Limits;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn rules(rule: Vec<Settings>) -> Rules {
        let service = Service {
            rule,
            ..Service::default()
        };
        Rules::of(&Config {
            service,
            ..Config::default()
        })
    }

    /// The status of the answer to a GET of `target`, and its URL or text; `None` without one.
    fn answer(rules: &Rules, target: &str, client: &str, is_tls: bool) -> Option<(u16, String)> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: h.example:81\r\n\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        let client = Remote {
            address: client.parse().unwrap(),
            service: "192.0.2.1:80".parse().unwrap(),
            is_tls,
            has_companion: false,
            is_proxied: false,
        };
        let answer = rules.answer(&parsed.unwrap().unwrap().0, 0x12ab, &client);
        let answer = answer.unwrap()?;
        let url = answer.head.headers().get_str("location");
        let shown = url.unwrap_or(&*answer.text).to_owned();
        Some((answer.head.status(), shown))
    }

    const CLIENT: &str = "198.51.100.7:9";

    #[test]
    fn the_first_rule_that_fits_answers() {
        let rules = rules(vec![
            Settings {
                paths: texts(&["/old/", "=/gone"]),
                redirect: Some("/new/{rest}?from={client}".into()),
                ..Settings::default()
            },
            Settings {
                paths: texts(&["~^/u/(\\d+)/(.*)$"]),
                redirect: Some("{scheme}://{host}/users/{1}/{2}".into()),
                status: Some(308),
                ..Settings::default()
            },
            Settings {
                https: Some(true),
                status: Some(200),
                answer: "secure".into(),
                ..Settings::default()
            },
        ]);
        for (target, is_tls, expected) in [
            ("/old/a/b", false, Some((302, "/new/a/b?from=198.51.100.7"))),
            (
                "/old//evil.example/",
                false,
                Some((302, "/new/evil.example/?from=198.51.100.7")),
            ),
            ("/gone", false, Some((302, "/new/?from=198.51.100.7"))),
            ("/gone/x", false, None),
            (
                "/u/12/a%20b?q",
                false,
                Some((308, "http://h.example/users/12/a%20b")),
            ),
            ("/u/x/", false, None),
            ("/", true, Some((200, "secure"))),
        ] {
            let expected = expected.map(|(status, shown)| (status, shown.to_owned()));
            assert_eq!(answer(&rules, target, CLIENT, is_tls), expected, "{target}");
        }
    }

    #[test]
    fn networks_of_clients_are_let_in_or_kept_out() {
        let rules = rules(vec![
            Settings {
                clients: Networks::parse(&["203.0.113.0/24"]).unwrap(),
                status: Some(403),
                ..Settings::default()
            },
            Settings {
                paths: texts(&["/admin/"]),
                except_clients: Networks::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap(),
                status: Some(404),
                ..Settings::default()
            },
        ]);
        for (target, client, expected) in [
            ("/", "203.0.113.9:1", Some(403)),
            ("/", CLIENT, None),
            ("/x/../admin/", CLIENT, Some(404)),
            ("/admin/", "10.1.2.3:1", None),
            ("/admin/", "[::ffff:10.1.2.3]:1", None),
            ("/admin/", "[fd00::1]:1", None),
            ("/admin/", "[2001:db8::1]:1", Some(404)),
        ] {
            let status = answer(&rules, target, client, false).map(|(status, _)| status);
            assert_eq!(status, expected, "{target} of {client}");
        }
    }
}
