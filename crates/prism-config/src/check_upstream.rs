//! Checks of `[service.upstream]`.

use crate::model::{Config, Node};
use crate::problem::Problems;
use crate::upstream::{HealthCheck, Upstream, Upstreams};

/// Longest pattern of a request, in bytes.
const MAX_PATTERN_BYTES: usize = 1_024;
const MAX_TIMEOUT_S: u64 = 86_400;
/// Most header fields that a request or an answer gets.
const MAX_FIELDS: usize = 16;

impl Config {
    pub(crate) fn check_upstreams(&self, found: &mut Problems) {
        let Some(all) = &self.service.upstream else {
            for (index, node) in self.nodes.iter().enumerate() {
                let fix = "remove it, or give the service an `upstream`";
                let field = format!("node[{index}].upstream");
                let fault = "is there, but the service is the object store";
                found.check(node.upstream.is_none(), &field, fault, fix);
            }
            return;
        };
        let service = &self.service;
        for (field, is_absent) in [
            ("service.s3", service.s3.is_none()),
            ("service.replicas", service.replicas.is_none()),
            ("service.min_replicas", service.min_replicas.is_none()),
        ] {
            let fault = "is there beside `upstream`, which keeps no objects";
            found.check(is_absent, field, fault, "remove it");
        }
        let mut taker = None;
        for (index, upstream) in all.iter().enumerate() {
            let field = |leaf: &str| all.field(index, leaf);
            self.check_upstream(all, upstream, &field, found);
            if let Some(name) = &upstream.name {
                found.name(&field("name"), name);
                let mut earlier = all.iter().take(index);
                let is_new = !earlier.any(|one| one.name.as_ref() == Some(name));
                let fault = format!("{name:?} is another upstream's");
                found.check(is_new, &field("name"), fault, "give each its own");
            }
            if let Some(taker) = taker {
                let fault = format!("gets no request, because upstream {taker} gets all");
                let fix = "put it in front, or give the other one `paths` or `hosts`";
                found.check(false, &field("address"), fault, fix);
            }
            taker = taker.or(upstream.takes_all().then_some(index));
        }
    }

    fn check_upstream(
        &self,
        all: &Upstreams,
        upstream: &Upstream,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        for name in &upstream.backends {
            let is_known = self.node(name).is_some_and(Node::is_backend);
            let fault = format!("{name:?} is no backend of the service");
            let fix = "name a [[node]] of the service with the role \"backend\"";
            found.check(is_known, &field("backends"), fault, fix);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let own = node.upstream.as_ref();
            let own_field = format!("node[{index}].upstream");
            let fix = "remove it";
            let fault = "is there, but the node is no backend";
            found.check(own.is_none() || node.is_backend(), &own_field, fault, fix);
            let fault = "is there, but the service has several upstreams";
            let fix = "name the addresses in each [[service.upstream]]";
            found.check(own.is_none() || all.is_single(), &own_field, fault, fix);
            self.check_server(&own_field, own.iter().flat_map(|own| own.iter()), found);
            let lacks = node.is_backend()
                && upstream.is_at(&node.name)
                && upstream.address.is_empty()
                && own.is_none();
            if lacks {
                let what = "the address and port of the server, as in \"127.0.0.1:9000\"";
                found.missing(&field("address"), what);
                break;
            }
        }
        self.check_server(&field("address"), upstream.address.iter(), found);
        check_patterns(upstream, field, found);
        let connect_s = upstream.connect_timeout_s;
        let answer_s = upstream.answer_timeout_s;
        found.range(&field("connect_timeout_s"), connect_s, 1..=600);
        found.range(&field("answer_timeout_s"), answer_s, 1..=MAX_TIMEOUT_S);
        self.check_tunnel(upstream, field, found);
        check_fields(upstream, field, found);
        found.range(
            &field("idle_connections"),
            upstream.idle_connections,
            0..=4_096,
        );
        found.range(&field("idle_timeout_s"), upstream.idle_timeout_s, 1..=3_600);
        if let Some(health) = &upstream.health {
            check_health(health, &|leaf| field(&format!("health.{leaf}")), found);
        }
    }

    fn check_tunnel(
        &self,
        upstream: &Upstream,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        let Some(tunnel_s) = upstream.tunnel_timeout_s else {
            return;
        };
        let field = field("tunnel_timeout_s");
        found.range(&field, tunnel_s, 1..=7 * 86_400);
        if let Some(switch) = &self.switch {
            let fault = "is not shorter than the time after which the switch forgets a flow";
            let fix = "lower it, or raise switch.idle_timeout_s";
            found.check(tunnel_s < switch.idle_timeout_s, &field, fault, fix);
        }
    }

    /// Checks addresses of a server: it is not Prism itself.
    fn check_server(
        &self,
        field: &str,
        addresses: impl Iterator<Item = std::net::SocketAddr>,
        found: &mut Problems,
    ) {
        let https = self.tls_address();
        for address in addresses {
            found.port(field, address.port());
            let is_host = !address.ip().is_unspecified() && !address.ip().is_multicast();
            let fault = format!("{address} cannot be the address of a server");
            let fix = "name the address at which it listens, such as 127.0.0.1:9000";
            found.check(is_host, field, fault, fix);
            let is_itself = self.service.address.contains(address)
                || https.as_ref().is_some_and(|https| https.contains(address));
            let fault = format!("{address} is the service itself");
            let fix = "name the address of the server behind it";
            found.check(!is_itself, field, fault, fix);
        }
    }
}

impl Upstream {
    /// Whether the backend called `name` reaches it.
    pub fn is_at(&self, name: &str) -> bool {
        self.backends.is_empty() || self.backends.iter().any(|backend| backend == name)
    }
}

fn check_patterns(upstream: &Upstream, field: &dyn Fn(&str) -> String, found: &mut Problems) {
    let is_short = |text: &str| (1..=MAX_PATTERN_BYTES).contains(&text.len());
    for host in &upstream.hosts {
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"-.:[]_".contains(&b);
        let is_host = is_short(name) && name.bytes().all(is_part);
        let fault = format!("{host:?} is not a host");
        let fix = "write it as in \"www.example.com\" or \"*.example.com\", without a port";
        found.check(is_host, &field("hosts"), fault, fix);
    }
    for path in &upstream.paths {
        let is_path = is_short(path) && path.starts_with('/') && path.bytes().all(is_plain);
        let fault = format!("{path:?} is not the beginning of a path");
        let fix = "write it as requests have it, as in \"/api/\"";
        found.check(is_path, &field("paths"), fault, fix);
    }
    for method in &upstream.methods {
        let is_method = is_short(method) && method.bytes().all(|b| b.is_ascii_uppercase());
        let fault = format!("{method:?} is not a method");
        let fix = "write it as in \"GET\"";
        found.check(is_method, &field("methods"), fault, fix);
    }
    for header in &upstream.headers {
        let (name, _) = header.split_once(':').unwrap_or((header, ""));
        let is_header = is_short(header) && is_field_name(name);
        let fault = format!("{header:?} is not a header field");
        let fix = "write it as in \"X-Beta\" or \"X-Beta: yes\"";
        found.check(is_header, &field("headers"), fault, fix);
    }
}

/// Checks the cookie, and the fields that requests and answers get.
fn check_fields(upstream: &Upstream, field: &dyn Fn(&str) -> String, found: &mut Problems) {
    if let Some(name) = &upstream.cookie {
        let fault = format!("{name:?} is not the name of a cookie");
        let fix = "use letters, digits, '-' and '_'";
        found.check(is_field_name(name), &field("cookie"), fault, fix);
    }
    let attributes = &upstream.cookie_attributes;
    let fault = format!("{attributes:?} are not attributes of a cookie");
    let fix = "write them as in \"Path=/; HttpOnly; Secure\"";
    found.check(
        is_value(attributes),
        &field("cookie_attributes"),
        fault,
        fix,
    );
    for (leaf, headers) in [
        ("request_headers", &upstream.request_headers),
        ("answer_headers", &upstream.answer_headers),
    ] {
        let most = format!("has more than {MAX_FIELDS} header fields");
        let fix = "remove some";
        found.check(headers.len() <= MAX_FIELDS, &field(leaf), most, fix);
        for header in headers {
            let parts = header.split_once(':');
            let is_field = parts.is_some_and(|(name, value)| {
                is_field_name(name) && is_value(value) && !value.trim().is_empty()
            });
            let fault = format!("{header:?} is not a header field with a value");
            let fix = "write it as in \"X-Env: prod\"";
            found.check(is_field, &field(leaf), fault, fix);
            let is_own = parts.is_some_and(|(name, _)| is_own(name));
            let fault = format!("{header:?} is a field that only Prism and the client set");
            found.check(!is_own, &field(leaf), fault, "remove it");
        }
    }
}

/// Whether a field belongs to a connection or a body, or says who the client is.
fn is_own(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let own = [
        "connection",
        "content-length",
        "date",
        "expect",
        "host",
        "keep-alive",
        "prism-answer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
    ];
    own.contains(&name.as_str())
}

fn is_field_name(name: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=MAX_PATTERN_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}

fn is_value(value: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_graphic() || b == b' ';
    value.len() <= MAX_PATTERN_BYTES && value.bytes().all(is_part)
}

fn check_health(health: &HealthCheck, field: &dyn Fn(&str) -> String, found: &mut Problems) {
    let is_path = health.path.starts_with('/')
        && health.path.len() <= MAX_PATTERN_BYTES
        && health.path.bytes().all(is_plain);
    let fault = format!("{:?} is not a path", health.path);
    found.check(is_path, &field("path"), fault, "write it as in \"/health\"");
    let is_host = health.host.len() <= MAX_PATTERN_BYTES && health.host.bytes().all(is_plain);
    let fault = format!("{:?} is not a host", health.host);
    found.check(
        is_host,
        &field("host"),
        fault,
        "write it as in \"example.com\"",
    );
    found.range(&field("interval_s"), health.interval_s, 1..=MAX_TIMEOUT_S);
    found.range(&field("timeout_s"), health.timeout_s, 1..=600);
    found.range(&field("fall"), health.fall, 1..=100);
    found.range(&field("rise"), health.rise, 1..=100);
}

/// Whether a byte may stand in a request target.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'#'
}
