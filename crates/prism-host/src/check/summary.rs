//! What `prism check` prints of a good file.

use prism_cluster::MinReplicas;
use prism_config::{Config, ConfigFile, ObjectRoutes, Switch, Tls, TlsVersion, Upstream};

/// The summary of a configuration, a line for each part.
pub(super) fn of(config: &ConfigFile) -> String {
    let name = &config.cluster.name;
    let region = &config.cluster.region;
    let mut lines = vec![format!("cluster  {name} ({region})")];
    lines.extend(config.parts().iter().flat_map(service_lines));
    lines.push(match &config.switch {
        None => "switch   none: frontends relay every answer".to_owned(),
        Some(switch) => format!(
            "switch   {}{}, {} on {}, up to {} flows",
            switch.control,
            pair(switch),
            lower(&switch.mode),
            switch.interfaces.join(" "),
            switch.max_flows
        ),
    });
    lines.extend(config.nodes.iter().map(|node| {
        let roles: Vec<String> = node.roles.iter().map(lower).collect();
        let name = &node.name;
        let address = node.address;
        let roles = roles.join(", ");
        match node.is_backend() {
            true if config.has_upstream(node) => {
                let own = node.upstream.as_ref();
                let own = own.map(|own| format!(", server {own}"));
                format!(
                    "node     {name} {address} ({roles}{})",
                    own.unwrap_or_default()
                )
            }
            true => format!(
                "node     {name} {address} ({roles}, store {})",
                node.store.display()
            ),
            false => format!("node     {name} {address} ({roles})"),
        }
    }));
    lines.join("\n") + "\n"
}

/// The hosts of a pair, as the summary has them.
fn pair(switch: &Switch) -> String {
    let hosts = switch.hosts.iter();
    let hosts = hosts.map(|host| format!("{} {}", host.name, host.address));
    match hosts.collect::<Vec<_>>() {
        none if none.is_empty() => String::new(),
        hosts => format!(" at one of {}", hosts.join("; ")),
    }
}

/// The lines of the service of `part`.
fn service_lines(part: &Config) -> Vec<String> {
    let service = &part.service;
    let address = &service.address;
    let hand_off = lower(&service.hand_off);
    let name = if part.is_of_several() {
        format!("{}, ", service.name)
    } else {
        String::new()
    };
    let mut lines = vec![format!("service  {name}{address}, hand-off {hand_off}")];
    if let Some(tls) = &service.tls {
        lines.extend(tls_lines(part, tls));
    }
    if let Some(upstreams) = &service.upstream {
        let all = upstreams.iter().enumerate();
        lines.extend(all.map(|(index, upstream)| upstream_line(index, upstream)));
    }
    if let Some(objects) = &service.objects {
        lines.push(objects_line(objects));
    }
    if service.keeps_objects() {
        let replicas = part.cluster.replicas;
        let min = MinReplicas(part.cluster.min_replicas).of(replicas);
        lines.push(format!(
            "replicas {replicas} of each object, {min} in sync for a write"
        ));
    }
    lines
}

/// The listener of TLS, and a line for each certificate.
fn tls_lines(part: &Config, tls: &Tls) -> Vec<String> {
    let mut listener = String::from("tls      ");
    listener += &part.tls_address().unwrap_or_default().to_string();
    listener += match tls.min_version {
        TlsVersion::Tls12 => ", TLS 1.2 and 1.3",
        TlsVersion::Tls13 => ", TLS 1.3",
    };
    if let Some(tickets) = &tls.ticket_secret_file {
        listener += &format!(", ticket secrets in {}", tickets.display());
    }
    if tls.redirect_http {
        listener += &format!(", {} redirects to it", part.service.address);
    }
    let files = tls.certificates.iter().map(|certificate| {
        let names = match certificate.names.as_slice() {
            [] => "the names in it".to_owned(),
            names => names.join(" "),
        };
        let file = certificate.file.display();
        let key = certificate.key_file.display();
        format!("tls      certificate {file} (key {key}) for {names}")
    });
    let acme = part.service.acme.iter().map(|acme| {
        let directory = &acme.directory;
        let domains = acme.domains.join(" ");
        format!("tls      certificate by ACME from {directory} for {domains}")
    });
    std::iter::once(listener).chain(files).chain(acme).collect()
}

/// The requests that the object store beside upstreams gets.
fn objects_line(objects: &ObjectRoutes) -> String {
    let conditions = objects.conditions();
    let gets = match (objects.internal, conditions.are_none()) {
        (true, _) => "internal redirects alone".to_owned(),
        (false, true) => "what no upstream gets".to_owned(),
        (false, false) => {
            let rules = [conditions.hosts, conditions.paths, conditions.methods];
            let named: Vec<String> = rules.concat();
            let headers = conditions.headers.iter().map(|one| format!("field {one}"));
            let all: Vec<String> = named.into_iter().chain(headers).collect();
            format!("requests for {}", all.join(" "))
        }
    };
    format!("objects  for {gets}")
}

/// The servers of an upstream, and the requests that it gets.
fn upstream_line(index: usize, upstream: &Upstream) -> String {
    let file = upstream.servers_file.as_ref();
    let file = file.map(|file| format!("those of {}", file.display()));
    let servers = match (upstream.address.is_empty(), file) {
        (true, None) => "at the addresses of the nodes".to_owned(),
        (true, Some(file)) => file,
        (false, None) => upstream.address.to_string(),
        (false, Some(file)) => format!("{}, {file}", upstream.address),
    };
    let rules = [
        ("hosts", &upstream.hosts),
        ("paths from", &upstream.paths),
        ("methods", &upstream.methods),
    ];
    let rules = rules.into_iter().filter(|(_, all)| !all.is_empty());
    let mut rules: Vec<String> = rules
        .map(|(what, all)| format!("{what} {}", all.join(" or ")))
        .collect();
    if !upstream.headers.is_empty() {
        rules.push(format!("fields {}", upstream.headers.join(" and ")));
    }
    let requests = match (rules.is_empty(), index) {
        (false, _) => rules.join(", "),
        (true, 0) => "all requests".to_owned(),
        (true, _) => "all other requests".to_owned(),
    };
    let backends = if upstream.backends.is_empty() {
        String::new()
    } else {
        format!(" at {}", upstream.backends.join(" "))
    };
    format!("upstream {servers}{backends}: {requests}")
}

/// An enum's variant as the configuration file spells it.
fn lower(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_has_tls_and_the_rules_of_each_upstream() {
        let text = r#"
[cluster]
name = "shop"
[service]
address = ["203.0.113.10:80", "[2001:db8::10]:80"]
[service.tls]
min_version = "1.3"
redirect_http = true
ticket_secret_file = "/etc/tickets"
[[service.tls.certificate]]
file = "/etc/shop.crt"
key_file = "/etc/shop.key"
[[service.tls.certificate]]
file = "/etc/other.crt"
key_file = "/etc/other.key"
names = ["a.example", "*.b.example"]
[[service.upstream]]
hosts = ["a.example", "*.b.example"]
paths = ["/static/"]
methods = ["GET"]
headers = ["X-Beta: yes", "X-Any"]
backends = ["be0"]
address = ["127.0.0.1:9001", "127.0.0.1:9002"]
[[service.upstream]]
address = "127.0.0.1:9000"
servers_file = "/etc/app.servers"
[[node]]
name = "fe0"
address = ["10.0.1.11", "fd00::11"]
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.0.1.21"
roles = ["backend"]
[peers]
ca_file = "/etc/ca.crt"
cert_dir = "/etc"
"#;
        let expected = "\
cluster  shop (us-east-1)
service  203.0.113.10:80, [2001:db8::10]:80, hand-off direct
tls      203.0.113.10:443, [2001:db8::10]:443, TLS 1.3, ticket secrets in /etc/tickets, \
         203.0.113.10:80, [2001:db8::10]:80 redirects to it
tls      certificate /etc/shop.crt (key /etc/shop.key) for the names in it
tls      certificate /etc/other.crt (key /etc/other.key) for a.example *.b.example
upstream 127.0.0.1:9001, 127.0.0.1:9002 at be0: hosts a.example or *.b.example, \
         paths from /static/, methods GET, fields X-Beta: yes and X-Any
upstream 127.0.0.1:9000, those of /etc/app.servers: all other requests
switch   none: frontends relay every answer
node     fe0 10.0.1.11, fd00::11 (frontend)
node     be0 10.0.1.21 (backend)
";
        assert_eq!(of(&ConfigFile::from_toml(text).unwrap()), expected);
    }

    #[test]
    fn it_has_the_authority_of_acme_and_the_replicas() {
        let text = r#"
[cluster]
name = "demo"
[cluster.etcd]
endpoints = ["http://10.0.0.5:2379"]
[service]
address = "203.0.113.10:80"
[service.tls]
[service.acme]
directory = "https://acme.example/directory"
domains = ["s3.example.com"]
terms_agreed = true
[[node]]
name = "n0"
address = "10.0.1.11"
roles = ["frontend", "backend"]
[peers]
ca_file = "/etc/ca.crt"
cert_dir = "/etc"
"#;
        let found = of(&ConfigFile::from_toml(text).unwrap());
        for line in [
            "service  203.0.113.10:80, hand-off direct\n\
             tls      203.0.113.10:443, TLS 1.2 and 1.3\n\
             tls      certificate by ACME from https://acme.example/directory for s3.example.com\n",
            "\nreplicas 1 of each object, 1 in sync for a write\n",
        ] {
            assert!(found.contains(line), "{found}lacks\n{line}");
        }
    }
}
