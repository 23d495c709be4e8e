//! `[service.upstream.auth]`: another upstream that decides which requests a server gets.

use serde::{Deserialize, Serialize};

use crate::check_request::{is_field_name, is_own, is_short};
use crate::problem::Problems;
use crate::upstream::{Upstream, Upstreams};

/// Most header fields of either list.
const MAX_FIELDS: usize = 16;

section! {
    /// Forward authentication: a server of another upstream is asked about each request. If its
    /// answer is 2xx, the request goes on. The client gets any other answer.
    pub struct ForwardAuth;
    /// Required. The name of the upstream that is asked.
    pub upstream: String,
    /// Default `/`. The path of the question, a GET.
    pub path: String = "/".into(),
    /// Default: none. The header fields of a 2xx answer that the request gets, in the place of the
    /// client's own, such as `X-User`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Default: none. The header fields of a 2xx answer that the client gets, such as `Set-Cookie`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_fields: Vec<String>,
}

impl ForwardAuth {
    /// Checks the questions about requests for `asking`, one of `all`.
    pub(crate) fn check(
        &self,
        asking: &Upstream,
        all: &Upstreams,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        let field = |leaf: &str| field(&format!("auth.{leaf}"));
        let mut others = all.iter();
        let asked = others.find(|one| one.name.as_deref() == Some(self.upstream.as_str()));
        match asked {
            None => {
                let fault = format!("{:?} is not the name of an upstream", self.upstream);
                let fix = "give the `name` of the upstream that decides";
                found.check(false, &field("upstream"), fault, fix);
            }
            Some(asked) => {
                let fault = format!("{:?} is asked about by others itself", self.upstream);
                let fix = "name an upstream without `auth`";
                found.check(asked.auth.is_none(), &field("upstream"), fault, fix);
                let is_near = asked.backends.is_empty()
                    || !asking.backends.is_empty()
                        && asking.backends.iter().all(|one| asked.is_at(one));
                let fault = format!("{:?} is not at all backends of this one", self.upstream);
                let fix = "add them to its `backends`";
                found.check(is_near, &field("upstream"), fault, fix);
            }
        }
        let is_path = is_short(&self.path)
            && self.path.starts_with('/')
            && self.path.bytes().all(|byte| byte.is_ascii_graphic());
        let fault = format!("{:?} is not a path", self.path);
        let fix = "write it as in \"/verify\"";
        found.check(is_path, &field("path"), fault, fix);
        for (leaf, names) in [
            ("fields", &self.fields),
            ("answer_fields", &self.answer_fields),
        ] {
            let fault = format!("has more than {MAX_FIELDS} names");
            found.check(
                names.len() <= MAX_FIELDS,
                &field(leaf),
                fault,
                "remove some",
            );
            for name in names {
                let fault =
                    format!("{name:?} is not the name of a header field that may be passed");
                let fix = "write it as in \"X-User\"";
                let is_passed = is_field_name(name) && !is_own(name);
                found.check(is_passed, &field(leaf), fault, fix);
            }
        }
    }
}
