//! `[[service.rule]]`: requests that the configuration answers in the place of the service.

use prism_rules::{Conditions, Template};
use serde::{Deserialize, Serialize};

use crate::networks::Networks;

/// Most rules of a service.
pub const MAX_RULES: usize = 256;

section! {
    /// One rule. A request that fits it gets its answer, and no server sees it.
    pub struct Rule;
    /// Default: all. The hosts of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Default: all. The paths of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Default false. If false, a path that can be read in two ways is answered 400.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ambiguous_paths: bool,
    /// Default: all. The methods of requests for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Default: all. Header fields that requests for it have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Default: all. The networks of clients that it is for, such as `10.0.0.0/8`.
    #[serde(skip_serializing_if = "Networks::is_empty")]
    pub clients: Networks,
    /// Default: none. The networks of clients that it is not for.
    #[serde(skip_serializing_if = "Networks::is_empty")]
    pub except_clients: Networks,
    /// Default: both. Whether it is for requests over HTTPS, or for those over HTTP.
    pub https: Option<bool>,
    /// Default: none. The URL or the path that a client is sent to, such as
    /// `https://www.example.com{uri}`.
    pub redirect: Option<String>,
    /// Default: 302 for a redirect. The status of the answer.
    pub status: Option<u16>,
    /// Default: nothing. The text of an answer that is no redirect.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub answer: String,
    /// Header fields of the answer, such as `Content-Type: application/json`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_headers: Vec<String>,
}

impl Rule {
    /// The conditions for requests that it answers, besides those for clients.
    pub fn conditions(&self) -> Conditions<'_> {
        Conditions {
            hosts: &self.hosts,
            paths: &self.paths,
            methods: &self.methods,
            headers: &self.headers,
        }
    }

    /// The status of its answer.
    #[must_use]
    pub fn answer_status(&self) -> u16 {
        self.status.unwrap_or(302)
    }

    /// The URL of its redirect.
    #[must_use]
    pub fn redirect_template(&self) -> Option<Template> {
        let text = self.redirect.as_ref()?;
        Some(Template::parse(text, |_| true))
    }
}
