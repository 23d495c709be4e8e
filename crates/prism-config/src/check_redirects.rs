//! Checks of `[service.objects]` and of `[service.upstream.redirects]`.

use crate::check_request::{check_conditions, is_field_name, is_own, is_plain, is_short};
use crate::check_upstream::check_prefix;
use crate::model::Config;
use crate::problem::Problems;
use crate::redirects::{MAX_LOCATIONS, ObjectRoutes, Redirects, STORE};
use crate::upstream::{Upstream, Upstreams};

/// Most header fields of an answer that the client of a redirect gets.
const MAX_FIELDS: usize = 32;
/// Most bytes of an access key.
const MAX_KEY_BYTES: usize = 255;

impl Config {
    /// Checks the object store beside `upstreams`.
    pub(crate) fn check_objects(&self, upstreams: &Upstreams, found: &mut Problems) {
        let Some(objects) = &self.service.objects else {
            return;
        };
        let field = |leaf: &str| format!("service.objects.{leaf}");
        check_conditions(&objects.conditions(), &field, found);
        check_prefix(&objects.replace_prefix, &objects.paths, &field, found);
        for (index, upstream) in upstreams.iter().enumerate() {
            let is_other = upstream.name.as_deref() != Some(STORE);
            let fault = format!("{STORE:?} is the name of the object store of this service");
            let fix = "give the upstream another name";
            let field = upstreams.field(index, "name");
            found.check(is_other, &field, fault, fix);
            if upstream.name.is_none() {
                found.missing(
                    &field,
                    "a name, by which the nodes of a service with objects know it",
                );
            }
        }
    }

    pub(crate) fn check_redirects(
        &self,
        upstream: &Upstream,
        upstreams: &Upstreams,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        let Some(redirects) = &upstream.redirects else {
            return;
        };
        let field = |leaf: &str| field(&format!("redirects.{leaf}"));
        check_locations(
            redirects,
            self.service.objects.as_ref(),
            upstreams,
            &field,
            found,
        );
        if let Some(key) = &redirects.access_key {
            let is_key = (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(is_plain);
            let fault = format!("{key:?} is not an access key");
            found.check(
                is_key,
                &field("access_key"),
                fault,
                "name one of the store's keys",
            );
            let fault = "is there, but the service has no object store";
            let fix = "remove it, or add [service.objects]";
            found.check(
                self.service.objects.is_some(),
                &field("access_key"),
                fault,
                fix,
            );
        }
        let most = format!("has more than {MAX_FIELDS} names");
        let is_short_list = redirects.fields.len() <= MAX_FIELDS;
        found.check(is_short_list, &field("fields"), most, "remove some");
        for name in &redirects.fields {
            let fault = format!("{name:?} is not the name of a header field that may be passed");
            let fix = "write it as in \"Content-Type\"";
            found.check(is_passed(name), &field("fields"), fault, fix);
        }
    }
}

/// Whether a field of the application may replace that of the resource: it says nothing of how long
/// the body is, or of the connection.
fn is_passed(name: &str) -> bool {
    let is_of_body = ["content-encoding", "content-range", "etag", "last-modified"];
    is_field_name(name)
        && !is_own(name)
        && !is_of_body.contains(&name.to_ascii_lowercase().as_str())
}

fn check_locations(
    redirects: &Redirects,
    objects: Option<&ObjectRoutes>,
    upstreams: &Upstreams,
    field: &dyn Fn(&str) -> String,
    found: &mut Problems,
) {
    let field = field("locations");
    let most = format!("has more than {MAX_LOCATIONS} URLs");
    let is_short_list = redirects.locations.len() <= MAX_LOCATIONS;
    found.check(is_short_list, &field, most, "remove some");
    for (prefix, to) in &redirects.locations {
        let fault = format!("{prefix:?} is not the beginning of a URL with a whole host");
        let fix = "write it as in \"http://store.internal:9000/\", with a slash behind the host";
        found.check(is_url_prefix(prefix), &field, fault, fix);
        let is_known = match to.as_str() {
            STORE => objects.is_some(),
            name => upstreams
                .iter()
                .any(|one| one.name.as_deref() == Some(name)),
        };
        let fault = format!("{to:?} is neither \"store\" nor the `name` of an upstream");
        let fix = "name the part of this service that has the resource; \"store\" needs \
                   [service.objects]";
        found.check(is_known, &field, fault, fix);
    }
}

/// Whether a text is the beginning of URLs of one host.
fn is_url_prefix(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let Some((host, path)) = rest.and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    let is_path = |byte: u8| is_plain(byte) && byte != b'?' && byte != b'\\';
    is_short(text) && !host.is_empty() && host.bytes().all(is_host) && path.bytes().all(is_path)
}
