//! Checks of `[service.upstream]`.

use std::net::SocketAddr;

use prism_rules::MAX_PATTERN_BYTES;

use crate::addresses::ServiceAddrs;
use crate::check_request::{
    check_conditions, check_headers, is_field_name, is_plain, is_short, is_value,
};
use crate::model::{Config, Node};
use crate::problem::Problems;
use crate::upstream::{HealthCheck, Upstream, Upstreams};

const MAX_TIMEOUT_S: u64 = 86_400;

impl Config {
    pub(crate) fn check_upstreams(&self, found: &mut Problems) {
        let Some(all) = &self.service.upstream else {
            let fault = "is there, but the service has no upstream and is the object store anyway";
            let is_needed = self.service.objects.is_none();
            found.check(is_needed, "service.objects", fault, "remove it");
            for (index, node) in self.nodes.iter().enumerate() {
                let fix = "remove it, or give the service an `upstream`";
                let field = format!("node[{index}].upstream");
                let fault = "is there, but the service is the object store";
                found.check(node.upstream.is_none(), &field, fault, fix);
            }
            return;
        };
        let service = &self.service;
        self.check_objects(all, found);
        for (field, is_absent) in [
            ("service.s3", service.s3.is_none()),
            ("service.replicas", service.replicas.is_none()),
            ("service.min_replicas", service.min_replicas.is_none()),
        ] {
            let fault = "is there beside `upstream`, which keeps no objects";
            let fix = "remove it, or add [service.objects]";
            found.check(is_absent || service.keeps_objects(), field, fault, fix);
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
            if upstream.internal {
                continue;
            }
            if let Some(taker) = taker {
                let fault = format!("gets no request, because upstream {taker} gets all");
                let fix = "put it in front, or give the other one `paths` or `hosts`";
                found.check(false, &field("address"), fault, fix);
            }
            taker = taker.or(upstream.conditions().are_none().then_some(index));
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
                && upstream.servers_file.is_none()
                && own.is_none();
            if lacks {
                let what = "the address and port of the server, as in \"127.0.0.1:9000\"";
                found.missing(&field("address"), what);
                break;
            }
        }
        self.check_server(&field("address"), upstream.address.iter(), found);
        if let Some(file) = &upstream.servers_file {
            found.path(&field("servers_file"), file, "the path of a file");
        }
        check_conditions(&upstream.conditions(), field, found);
        check_prefix(&upstream.replace_prefix, &upstream.paths, field, found);
        let fault = "is there beside `ambiguous_paths`, so nobody knows where a beginning ends";
        let is_clear = upstream.replace_prefix.is_none() || !upstream.ambiguous_paths;
        let fix = "remove one of them";
        found.check(is_clear, &field("replace_prefix"), fault, fix);
        self.check_redirects(upstream, all, field, found);
        if let Some(auth) = &upstream.auth {
            auth.check(upstream, all, field, found);
        }
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
        addresses: impl Iterator<Item = SocketAddr>,
        found: &mut Problems,
    ) {
        for address in addresses {
            if let Some((fault, fix)) = self.server_fault(address) {
                found.check(false, field, fault, fix);
            }
        }
    }

    /// The fault of an address that no server of the service can have, and its fix.
    pub fn server_fault(&self, address: SocketAddr) -> Option<(String, &'static str)> {
        if address.port() == 0 {
            return Some(("has port 0".into(), "use 1 to 65535"));
        }
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            let fault = format!("{address} cannot be the address of a server");
            let fix = "name the address at which it listens, such as 127.0.0.1:9000";
            return Some((fault, fix));
        }
        let https = self.tls_address();
        let is_itself = self.service.address.contains(address)
            || https.is_some_and(|https| https.contains(address));
        let fault = format!("{address} is the service itself");
        is_itself.then_some((fault, "name the address of the server behind it"))
    }
}

impl Upstream {
    /// The servers that the configuration names at a backend.
    pub fn configured_at<'n>(&'n self, node: &'n Node) -> &'n ServiceAddrs {
        node.upstream.as_ref().unwrap_or(&self.address)
    }

    /// Whether the backend called `name` reaches it.
    pub fn is_at(&self, name: &str) -> bool {
        self.backends.is_empty() || self.backends.iter().any(|backend| backend == name)
    }
}

/// Checks the beginning of paths that another one replaces.
pub(crate) fn check_prefix(
    prefix: &Option<String>,
    paths: &[String],
    field: &dyn Fn(&str) -> String,
    found: &mut Problems,
) {
    let Some(prefix) = prefix else {
        return;
    };
    let field = field("replace_prefix");
    let is_path = is_short(prefix) && prefix.starts_with('/') && prefix.bytes().all(is_plain);
    let fault = format!("{prefix:?} is not the beginning of a path");
    let fix = "write it as in \"/\" or \"/v2/\"";
    found.check(is_path && !prefix.contains('?'), &field, fault, fix);
    let are_beginnings = !paths.is_empty() && paths.iter().all(|path| path.starts_with('/'));
    let fault = "has no beginning of a path to replace";
    let fix = "give `paths`, with beginnings only";
    found.check(are_beginnings, &field, fault, fix);
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
        check_headers(headers, &field(leaf), found);
    }
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
