//! Texts with variables, such as `https://{host}{uri}`.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// A text with variables. A name in braces that is no variable is a part of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(Variable),
}

/// A variable of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `{client}`: the client's address.
    Client,
    /// `{host}`: the request's host, without a port.
    Host,
    /// `{request_id}`: the request's identifier.
    RequestId,
    /// `{scheme}`: `http` or `https`.
    Scheme,
    /// `{path}`: the path as the client wrote it.
    Path,
    /// `{query}`: the query, without its question mark.
    Query,
    /// `{uri}`: the path, and the query with its question mark.
    Uri,
    /// `{rest}`: the path behind the beginning that the rule names.
    Rest,
    /// `{1}` to `{9}`: a group of the rule's regular expression.
    Group(u8),
}

impl Variable {
    const NAMED: [(&str, Self); 8] = [
        ("client", Self::Client),
        ("host", Self::Host),
        ("request_id", Self::RequestId),
        ("scheme", Self::Scheme),
        ("path", Self::Path),
        ("query", Self::Query),
        ("uri", Self::Uri),
        ("rest", Self::Rest),
    ];

    fn named(name: &str) -> Option<Self> {
        if let [digit @ b'1'..=b'9'] = name.as_bytes() {
            return Some(Self::Group(digit - b'0'));
        }
        let mut named = Self::NAMED.into_iter();
        named.find_map(|(known, variable)| (known == name).then_some(variable))
    }

    /// Whether its value begins with a slash.
    fn is_rooted(self) -> bool {
        matches!(self, Self::Path | Self::Uri)
    }
}

impl Template {
    /// Reads a text with the variables that `has` knows.
    #[must_use]
    pub fn parse(text: &str, has: impl Fn(Variable) -> bool) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            plain.push_str(before);
            let named = behind.split_once('}').and_then(|(name, behind)| {
                let variable = Variable::named(name).filter(|variable| has(*variable))?;
                Some((variable, behind))
            });
            rest = match named {
                Some((variable, behind)) => {
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Variable(variable));
                    behind
                }
                None => {
                    plain.push('{');
                    behind
                }
            };
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Self(parts)
    }

    /// Whether it has the variable.
    #[must_use]
    pub fn uses(&self, variable: impl Fn(Variable) -> bool) -> bool {
        let is_it = |part: &Part| matches!(part, Part::Variable(one) if variable(*one));
        self.0.iter().any(is_it)
    }

    /// The text, with the `value` of each variable.
    pub fn fill<'v>(&self, value: impl Fn(Variable) -> Cow<'v, str>) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Variable(variable) => text.push_str(&value(*variable)),
            }
        }
        text
    }

    /// The fault of a text that is to be the URL of a redirect, and how to fix it.
    #[must_use]
    pub fn url_fault(&self) -> Option<(&'static str, &'static str)> {
        let mut texts = self.0.iter().filter_map(|part| match part {
            Part::Text(plain) => Some(plain.as_str()),
            Part::Variable(_) => None,
        });
        if texts.any(|plain| plain.contains(['{', '}'])) {
            let fix = "use {scheme}, {host}, {path}, {query}, {uri}, {rest}, {client}, \
                       {request_id}, or {1} to {9}";
            return Some(("has a variable that is not known", fix));
        }
        let is_root = |part: &Part| match part {
            Part::Text(plain) => plain.starts_with('/'),
            Part::Variable(variable) => variable.is_rooted(),
        };
        if self.0.first().is_some_and(is_root) && !self.names_host() {
            return None;
        }
        let fix = "write it as in \"https://www.example.com{uri}\" or \"/new/{rest}\"";
        if !self.names_host() {
            return Some(("is no URL, and no path", fix));
        }
        self.lets_clients_choose_host().then_some((
            "would let a client choose the host, which ends with a part of the path",
            "put a / behind the host",
        ))
    }

    /// Whether it begins with a scheme and a host, or with `//` and a host.
    fn names_host(&self) -> bool {
        let mut start = String::new();
        for part in self.0.iter().take(2) {
            match part {
                Part::Text(plain) => start.push_str(plain),
                Part::Variable(Variable::Scheme) if start.is_empty() => start.push_str("https"),
                Part::Variable(_) => break,
            }
        }
        ["https://", "http://", "//"]
            .iter()
            .any(|scheme| start.starts_with(scheme))
    }

    /// Whether a variable with a part of the request's target stands within the host.
    fn lets_clients_choose_host(&self) -> bool {
        let mut is_behind_scheme = false;
        for part in &self.0 {
            match part {
                Part::Text(plain) => {
                    let host = match plain.split_once("//") {
                        Some((_, host)) if !is_behind_scheme => host,
                        _ => plain,
                    };
                    if host.contains(['/', '?', '#']) {
                        return false;
                    }
                    is_behind_scheme = true;
                }
                Part::Variable(Variable::Scheme | Variable::Host) => {}
                Part::Variable(variable) => return !variable.is_rooted(),
            }
        }
        false
    }

    /// Fills in the URL of a redirect. A path that leads to this host cannot become one that
    /// names another host (`//host`), which browsers also read in `/\host`.
    pub fn fill_url<'v>(&self, value: impl Fn(Variable) -> Cow<'v, str>) -> String {
        let url = self.fill(value);
        if self.names_host() {
            return url;
        }
        let path = url.trim_start_matches(['/', '\\']);
        format!("/{path}")
    }
}

/// The value of a header field with its variables `{client}`, `{host}` and `{request_id}`.
pub fn fill_field<'v>(text: &'v str, value: impl Fn(Variable) -> Cow<'v, str>) -> Cow<'v, str> {
    // Most values have none, and are not copied.
    if !text.contains('{') {
        return text.into();
    }
    let is_of_field = |variable| {
        let of_fields = [Variable::Client, Variable::Host, Variable::RequestId];
        of_fields.contains(&variable)
    };
    Template::parse(text, is_of_field).fill(value).into()
}

/// Characters of a path that stay as they are in a URL (RFC 3986, section 3.3).
const IN_URL: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// A part of a plain path in the form in which a URL has it.
#[must_use]
pub(crate) fn url_text(plain: &[u8]) -> String {
    percent_encode(plain, IN_URL).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text, |_| true)
    }

    fn values(variable: Variable) -> Cow<'static, str> {
        match variable {
            Variable::Host => "h.example".into(),
            Variable::Path => "//evil.example/x".into(),
            Variable::Uri => "/a?b".into(),
            Variable::Rest => "/evil.example".into(),
            Variable::Group(number) => format!("g{number}").into(),
            Variable::Scheme => "http".into(),
            _ => "v".into(),
        }
    }

    #[test]
    fn variables_are_replaced_and_other_braces_stay() {
        for (text, expected) in [
            ("https://{host}{uri}", "https://h.example/a?b"),
            ("{scheme}://{host}/{1}{9}", "http://h.example/g1g9"),
            ("{\"group\":{host}}", "{\"group\":h.example}"),
            ("{0}{nothing}{", "{0}{nothing}{"),
            ("{client} {request_id}", "v v"),
        ] {
            assert_eq!(template(text).fill(values), expected);
        }
        let client = Template::parse("{client}{uri}", |known| known == Variable::Client);
        assert_eq!(client.fill(values), "v{uri}");
    }

    #[test]
    fn a_field_has_variables_of_its_own() {
        let text = "{\"at\":\"{host}{uri}\"} {client}";
        assert_eq!(fill_field(text, values), "{\"at\":\"h.example{uri}\"} v");
        assert_eq!(fill_field("max-age=9", values), "max-age=9");
    }

    #[test]
    fn a_redirect_within_the_host_does_not_leave_it() {
        for (text, expected) in [
            ("{path}", "/evil.example/x"),
            ("/{rest}", "/evil.example"),
            ("/new{rest}", "/new/evil.example"),
            ("https://www.example{uri}", "https://www.example/a?b"),
        ] {
            assert_eq!(template(text).url_fault(), None, "{text}");
            assert_eq!(template(text).fill_url(values), expected);
        }
        let backslash = |_| Cow::Borrowed("/\\evil.example");
        assert_eq!(template("{path}").fill_url(backslash), "/evil.example");
    }

    #[test]
    fn a_redirect_that_clients_can_turn_elsewhere_is_a_fault() {
        for text in [
            "https://www.example{rest}",
            "https://{1}.example/",
            "//{query}/",
            "{rest}",
            "www.example.com",
            "/{unknown}",
            "",
        ] {
            assert!(template(text).url_fault().is_some(), "{text}");
        }
        for text in [
            "{scheme}://{host}/x{rest}",
            "https://{host}{path}?{query}",
            "//h/{1}",
        ] {
            assert_eq!(template(text).url_fault(), None, "{text}");
        }
    }

    #[test]
    fn a_plain_path_is_escaped_again() {
        assert_eq!(
            url_text(b"a b/\r\n%?#\xff;v=1"),
            "a%20b/%0D%0A%25%3F%23%FF;v=1"
        );
    }
}
