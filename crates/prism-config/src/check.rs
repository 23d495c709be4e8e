//! Checks of the values, each on its own and together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::bounds::{Limits, Store};
use crate::model::{Config, Node};
use crate::problem::{Problem, Problems, is_label};
use crate::switch::{HookMode, Switch};
use crate::tls::is_host_name;

/// Longest name of a network interface (`IFNAMSIZ` less the final zero).
const MAX_INTERFACE_BYTES: usize = 15;
/// Longest path of a Unix socket (`sun_path` less the final zero).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Most domains of buckets, with each of which the host of a request is compared.
const MAX_DOMAINS: usize = 16;
/// Most nodes.
const MAX_NODES: usize = 1_024;

impl Config {
    /// The faults of the part of one service.
    pub(crate) fn problems_of_one(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        self.check_cluster(&mut found);
        self.check_service(&mut found);
        self.check_acme(&mut found);
        self.check_proxies(&mut found);
        self.check_domains(&mut found);
        self.check_upstreams(&mut found);
        self.check_rules(&mut found);
        self.check_request_limits(&mut found);
        if let Some(switch) = &self.switch {
            self.check_switch(switch, &mut found);
        }
        self.check_nodes(&mut found);
        self.check_files(&mut found);
        check_store(&self.store, &mut found);
        check_limits(&self.limits, &mut found);
        check_level(&self.log.level, &mut found);
        check_admin_names(&self.admin.names, &mut found);
        self.trace.check(&mut found);
        found.0
    }

    fn check_cluster(&self, found: &mut Problems) {
        let cluster = &self.cluster;
        found.name("cluster.name", &cluster.name);
        found.name("cluster.region", &cluster.region);
        if let Some(etcd) = &cluster.etcd {
            etcd.check(found);
        }
        // In etcd there may be nodes that this file does not know.
        let backends = match cluster.etcd {
            None => self.backends().count().max(1) as u64,
            Some(_) => MAX_NODES as u64,
        };
        found.range("cluster.replicas", cluster.replicas, 1..=backends);
        if let Some(min) = cluster.min_replicas {
            let replicas = cluster.replicas.max(1).into();
            found.range("cluster.min_replicas", min, 1..=replicas);
        }
    }

    fn check_service(&self, found: &mut Problems) {
        self.check_service_address(found);
        for url in &self.service.urls {
            let (field, fix) = ("service.urls", "write it as in \"https://s3.example.com\"");
            let fault = format!("{url:?} is not the URL of a host");
            found.check(is_origin(url) && !url.contains('*'), field, fault, fix);
        }
        for origin in &self.service.cors_origins {
            let field = "service.cors_origins";
            let fix = "write it as in \"https://admin.example.com\", with at most one *";
            let fault = format!("{origin:?} is not the origin of a web page");
            found.check(is_origin(origin) || origin == "*", field, fault, fix);
        }
        if let Some(tls) = &self.service.tls {
            found.port("service.tls.port", tls.port);
            let plain = self.service.address.iter().map(|address| address.port());
            let plain: BTreeSet<u16> = plain.collect();
            let others = plain.into_iter().map(|port| (port, "service.address"));
            for (port, other) in others.chain([(self.peers.port, "peers.port")]) {
                let fault = format!("is the port of {other}, {port}");
                let is_own = tls.port != port;
                let fix = "give HTTPS a port of its own";
                found.check(is_own || port == 0, "service.tls.port", fault, fix);
            }
            tls.check(self.service.acme.is_some(), found);
        }
    }

    fn check_acme(&self, found: &mut Problems) {
        if let Some(acme) = &self.service.acme {
            let has_etcd = self.cluster.etcd.is_some();
            let has_tls = self.service.tls.is_some();
            acme.check(has_etcd, has_tls, found);
        }
    }

    fn check_proxies(&self, found: &mut Problems) {
        let service = &self.service;
        let has_proxies = !service.accept_proxy_protocol || !service.trusted_proxies.is_empty();
        let fault = "only trusted proxies name their clients, and there is none".to_owned();
        let fix = "list the proxies' networks in service.trusted_proxies";
        found.check(has_proxies, "service.accept_proxy_protocol", fault, fix);
    }

    /// The domains of buckets.
    fn check_domains(&self, found: &mut Problems) {
        let field = "s3.domains";
        let domains = &self.s3.domains;
        let fault = format!("there are more than {MAX_DOMAINS}");
        let is_bounded = domains.len() <= MAX_DOMAINS;
        found.check(is_bounded, field, fault, "remove some");
        for domain in domains {
            let is_address = domain.parse::<IpAddr>().is_ok();
            let fault = format!("{domain:?} is an address, and no name can stand in front of it");
            let fix = "name a domain; clients of an address use path style";
            found.check(!is_address, field, fault, fix);
            for url in &self.service.urls {
                let fault =
                    format!("{url:?} names a bucket, as it is below {domain:?} of s3.domains");
                let fix = "name a host that is not below one of s3.domains";
                let host = host_of(url);
                let is_domain = domains
                    .iter()
                    .any(|other| other.eq_ignore_ascii_case(&host));
                let names_bucket = is_below(&host, domain) && !is_domain;
                found.check(!names_bucket, "service.urls", fault, fix);
            }
            let is_name = is_address || is_host_name(domain) && !domain.starts_with('*');
            let fault = format!("{domain:?} is not the name of a domain");
            let fix = "write it as in \"s3.example.com\", without \"*.\" and a port";
            found.check(is_name, field, fault, fix);
        }
    }

    fn check_switch(&self, switch: &Switch, found: &mut Problems) {
        let of_node = |scraper: &&IpAddr| self.nodes.iter().any(|n| n.address.contains(**scraper));
        let field = "admin.scrapers";
        let fix = "remove it: nodes reach each other";
        for scraper in self.admin.scrapers.iter().filter(of_node) {
            found.check(false, field, format!("{scraper} is a node's address"), fix);
        }
        self.check_control(switch, found);
        self.check_switch_hosts(switch, found);
        if switch.mode == HookMode::Host {
            self.check_host_mode(switch, found);
        }
        let key_file = &switch.key_file;
        found.path("switch.key_file", key_file, "the file of the control key");
        let name = &switch.pin_dir;
        let plain = is_plain_name(&switch.pin_dir);
        let fault = format!("{name:?} is not the name of a directory below /sys/fs/bpf");
        let fix = "use letters, digits, '-' and '_', without '/'";
        found.check(plain, "switch.pin_dir", fault, fix);
        check_interfaces(&switch.interfaces, found);
        found.range("switch.max_flows", switch.max_flows, 1_024..=1 << 26);
        check_tunnel(switch, found);
        let field = "switch.idle_timeout_s";
        let idle_s = switch.idle_timeout_s;
        found.range(field, idle_s, 10..=7 * 86_400);
        let silent_s = self.limits.idle_timeout_s.max(self.limits.stall_timeout_s);
        let fault = format!(
            "{idle_s} s is not longer than the {silent_s} s that a connection may be silent"
        );
        let fix = "raise it above limits.idle_timeout_s and limits.stall_timeout_s";
        found.check(idle_s > silent_s, field, fault, fix);
    }

    fn check_nodes(&self, found: &mut Problems) {
        let is_whole = self.cluster.etcd.is_none();
        for (role, is_given) in [
            ("frontend", self.frontends().next().is_some()),
            ("backend", self.backends().next().is_some()),
        ] {
            let fix = format!("give one node the role \"{role}\"");
            let fault = format!("no node is a {role}");
            found.check(is_given || !is_whole, "node", fault, &fix);
        }
        let fault = format!("there are more than {MAX_NODES}");
        let is_bounded = self.nodes.len() <= MAX_NODES;
        found.check(is_bounded, "node", fault, "split the cluster");
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let field = |leaf: &str| format!("node[{index}].{leaf}");
            self.check_node(node, &field, found);
            let fault = format!("{:?} is another node's name", node.name);
            let fix = "give each node a name of its own";
            found.check(names.insert(&node.name), &field("name"), fault, fix);
            for address in node.address.iter() {
                let fault = format!("{address} is another node's address");
                let fix = "give each node an address of its own";
                found.check(addresses.insert(address), &field("address"), fault, fix);
            }
        }
    }

    fn check_node(&self, node: &Node, field: &dyn Fn(&str) -> String, found: &mut Problems) {
        found.name(&field("name"), &node.name);
        self.check_node_address(node, field, found);
        let leaf = field("roles");
        let has_role = !node.roles.is_empty();
        let fix = "use [\"frontend\"], [\"backend\"] or both";
        found.check(has_role, &leaf, "is missing", fix);
        if node.is_backend() && self.service.keeps_objects() {
            found.path(&field("store"), &node.store, "a directory for objects");
        }
        found.range(&field("workers"), node.workers, 0..=1_024);
        found.range(&field("link_mbit_s"), node.link_mbit_s, 0..=1_600_000);
        let socket = self.admin_socket(&node.name);
        let is_short = socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES;
        let socket = socket.display();
        let fault = format!("makes {socket} longer than {MAX_SOCKET_PATH_BYTES} bytes");
        found.check(
            is_short,
            "admin.socket_dir",
            fault,
            "use a shorter directory",
        );
    }

    fn check_files(&self, found: &mut Problems) {
        found.port("peers.port", self.peers.port);
        let ca = &self.peers.ca_file;
        let certs = &self.peers.cert_dir;
        found.path("peers.ca_file", ca, "the authority's certificate");
        found.path("peers.cert_dir", certs, "the directory of certificates");
        if self.cluster.etcd.is_none() && self.service.keeps_objects() {
            let file = &self.s3.credentials_file;
            found.path("s3.credentials_file", file, "the file of access keys");
        }
        let sockets = &self.admin.socket_dir;
        found.path("admin.socket_dir", sockets, "a directory for sockets");
    }
}

fn check_interfaces(interfaces: &[String], found: &mut Problems) {
    let field = "switch.interfaces";
    let fix = "name the interfaces that service traffic crosses";
    found.check(!interfaces.is_empty(), field, "is missing", fix);
    let mut seen = BTreeSet::new();
    for name in interfaces {
        let is_name = !["", ".", ".."].contains(&name.as_str())
            && name.len() <= MAX_INTERFACE_BYTES
            && !name.contains(|c: char| c == '/' || c.is_whitespace());
        let fault = format!("{name:?} cannot be the name of an interface");
        let fix = format!("use the name from `ip link`, at most {MAX_INTERFACE_BYTES} bytes");
        found.check(is_name, field, fault, &fix);
        let fault = format!("{name:?} is listed twice");
        found.check(seen.insert(name), field, fault, "remove one");
    }
}

fn check_tunnel(switch: &Switch, found: &mut Problems) {
    let field = "switch.tunnel_mtu_bytes";
    let mtu_bytes = switch.tunnel_mtu_bytes;
    if mtu_bytes == 0 {
        return;
    }
    found.range(field, mtu_bytes, 1_280..=65_535);
    let is_host_mode = switch.mode == HookMode::Host;
    let fix = "remove it, or set switch.mode = \"host\"";
    found.check(is_host_mode, field, "is for host mode", fix);
}

fn check_store(store: &Store, found: &mut Problems) {
    const YEAR_S: u64 = 366 * 86_400;
    found.range("store.scrub_interval_s", store.scrub_interval_s, 0..=YEAR_S);
    // A slower scrub would hardly ever end.
    let rate = store.scrub_bytes_per_s;
    found.range("store.scrub_bytes_per_s", rate, 64 << 10..=1 << 40);
    // At a lower rate other nodes would take the connection for a dead one.
    if store.refill_bytes_per_s != 0 {
        let rate = store.refill_bytes_per_s;
        found.range("store.refill_bytes_per_s", rate, 1 << 20..=1 << 40);
    }
    found.range("store.recheck_s", store.recheck_s, 0..=86_400);
    let days = store.expire_uploads_days;
    found.range("store.expire_uploads_days", days, 0..=3_660);
}

fn check_limits(limits: &Limits, found: &mut Problems) {
    const MAX_TIMEOUT_S: u64 = 86_400;
    found.range("limits.head_bytes", limits.head_bytes, 1_024..=1 << 20);
    let all = limits.connections;
    let newcomers = limits.unauthenticated_per_address;
    found.range("limits.connections", all, 1..=10_000_000);
    let field = "limits.unauthenticated_per_address";
    found.range(field, newcomers, 1..=10_000_000);
    let unknown = limits.unknown_per_address();
    found.range("limits.unknown_per_address", unknown, 1..=10_000_000);
    for (field, timeout_s) in [
        (
            "unauthenticated_timeout_s",
            limits.unauthenticated_timeout_s,
        ),
        ("idle_timeout_s", limits.idle_timeout_s),
        ("head_timeout_s", limits.head_timeout_s),
        ("stall_timeout_s", limits.stall_timeout_s),
    ] {
        found.range(&format!("limits.{field}"), timeout_s, 1..=MAX_TIMEOUT_S);
    }
    found.range(
        "limits.max_object_bytes",
        limits.max_object_bytes,
        1..=5 << 30,
    );
    let drain_s = limits.drain_timeout_s;
    found.range("limits.drain_timeout_s", drain_s, 0..=MAX_TIMEOUT_S);
}

fn check_admin_names(names: &[String], found: &mut Problems) {
    for name in names {
        let fault = format!("{name:?} is not the name of a host");
        let fix = "write it as in \"be0.example.com\", without a port";
        let is_name = name.split('.').all(is_label);
        found.check(is_name, "admin.names", fault, fix);
    }
}

/// Checks levels separated by commas, each for all modules or for one.
fn check_level(level: &str, found: &mut Problems) {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    for part in level.split(',') {
        let (module, level) = part.split_once('=').unwrap_or(("all", part));
        let is_known = LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
        let is_module = !module.is_empty() && !module.contains(char::is_whitespace);
        let fault = format!("{part:?} is not a level");
        let fix = "use error, warn, info, debug, trace or off, or MODULE=LEVEL, with commas \
                   between several";
        found.check(is_known && is_module, "log.level", fault, fix);
    }
}

fn is_plain_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_allowed)
}

/// The host and port of a URL without a path.
fn authority(url: &str) -> Option<&str> {
    url.strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))
}

/// The host of a URL without a path, in lower case; empty if it has none.
fn host_of(url: &str) -> String {
    let authority = authority(url).unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    };
    host.to_ascii_lowercase()
}

/// Whether a host, in lower case, is below a domain.
fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(&domain.to_ascii_lowercase())
        .is_some_and(|front| front.ends_with('.'))
}

/// Whether a text is a scheme and a host, with a port or without, as browsers send an origin (RFC
/// 6454, section 6.2). A `*` may stand for a part.
fn is_origin(text: &str) -> bool {
    let host = authority(text);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-:*[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_part))
        && text.matches('*').count() <= 1
}
