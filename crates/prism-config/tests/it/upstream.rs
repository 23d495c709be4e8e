//! Tests of files with an upstream.

use prism_config::{ConfigError, ConfigFile};

const FILE: &str = r#"
[cluster]
name = "demo"
replicas = 2
[service]
address = "10.77.0.1:80"
upstream = "127.0.0.1:9000"
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
[[node]]
name = "be1"
address = "10.77.0.12"
roles = ["backend"]
upstream = ["127.0.0.1:9001", "10.77.0.12:9002"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
"#;

fn faults(text: &str) -> Vec<String> {
    match ConfigFile::from_toml(text) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Invalid(problems)) => {
            let shown = problems.iter();
            shown.map(|p| format!("{}: {}", p.field, p.fault)).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn an_upstream_needs_neither_users_nor_replicas() {
    let config = ConfigFile::from_toml(FILE).unwrap();
    let [part] = config.parts().try_into().unwrap();
    assert_eq!(part.cluster.replicas, 1);
    let upstreams = part.service.upstream.as_ref().unwrap();
    assert!(upstreams.is_single() && upstreams.iter().all(|one| one.is_at("be1")));
    assert_eq!(
        part.node("be1").unwrap().upstream.as_ref().unwrap().len(),
        2
    );
}

#[test]
fn faults_are_named() {
    let with = |old: &str, new: &str| {
        assert!(FILE.contains(old), "{old}");
        faults(&FILE.replacen(old, new, 1))
    };
    let one = "upstream = \"127.0.0.1:9000\"\n";
    for (new, expected) in [
        (
            "",
            "node[2].upstream: is there, but the service is the object store",
        ),
        (
            "upstream = \"127.0.0.1\"\n",
            "service.upstream: \"127.0.0.1\" is not an address with a port",
        ),
        (
            "upstream = \"0.0.0.0:9000\"\n",
            "service.upstream.address: 0.0.0.0:9000 cannot be",
        ),
        (
            "upstream = \"10.77.0.1:80\"\n",
            "service.upstream.address: 10.77.0.1:80 is the service",
        ),
        (
            "replicas = 2\nupstream = \"127.0.0.1:9000\"\n",
            "service.replicas: is there beside",
        ),
        (
            "[service.upstream]\n",
            "service.upstream.address: is missing",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nbackends = [\"fe0\"]\n",
            "service.upstream.backends: \"fe0\" is no backend",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\npaths = [\"api\"]\n",
            "service.upstream.paths: \"api\" is not",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\n[service.upstream.health]\nfall = 0\n",
            "service.upstream.health.fall: 0 is out of range",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nname = \"my app\"\n",
            "service.upstream.name: \"my app\" is not a valid name",
        ),
        (
            "[[service.upstream]]\naddress = \"127.0.0.1:9\"\nname = \"a\"\npaths = [\"/a/\"]\n\
             [[service.upstream]]\naddress = \"127.0.0.1:8\"\nname = \"a\"\n",
            "service.upstream[1].name: \"a\" is another upstream's",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\ncookie = \"a b\"\n",
            "service.upstream.cookie: \"a b\" is not the name",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nrequest_headers = [\"X-Env\"]\n",
            "service.upstream.request_headers: \"X-Env\" is not a header field with",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\nanswer_headers = [\"Date: a\"]\n",
            "service.upstream.answer_headers: \"Date: a\" is a field that only",
        ),
        (
            "[service.upstream]\naddress = \"127.0.0.1:9\"\ntunnel_timeout_s = 0\n",
            "service.upstream.tunnel_timeout_s: 0 is out of range",
        ),
        (
            "[[service.upstream]]\naddress = \"127.0.0.1:9\"\n\
             [[service.upstream]]\naddress = \"127.0.0.1:8\"\n",
            "service.upstream[1].address: gets no request, because upstream 0 gets all",
        ),
    ] {
        let found = with(one, new);
        let is_named = found.iter().any(|fault| fault.starts_with(expected));
        assert!(is_named, "{new}: {found:?}");
    }
    let found = with(
        "roles = [\"frontend\"]\n",
        "roles = [\"frontend\"]\nupstream = \"127.0.0.1:9\"\n",
    );
    assert_eq!(
        found,
        ["node[0].upstream: is there, but the node is no backend"]
    );
}

#[test]
fn a_rule_is_a_redirect_or_an_answer() {
    let with = |rule: &str| faults(&format!("{FILE}[[service.rule]]\n{rule}"));
    for good in [
        "redirect = \"https://www.example.com{uri}\"",
        "redirect = \"/new/{rest}\"\nstatus = 308\npaths = [\"/old/\"]",
        "status = 204",
        "status = 503\nanswer = \"Back at 9.\"\nanswer_headers = [\"Retry-After: 60\"]",
        "status = 403\nclients = [\"10.0.0.0/8\"]\nhosts = [\"~^x\", \"www.example.*\"]",
    ] {
        assert_eq!(with(good), Vec::<String>::new(), "{good}");
    }
    for (rule, expected) in [
        (
            "answer = \"x\"",
            "status: is missing, and there is no `redirect`",
        ),
        (
            "status = 304",
            "status: 304 is not the status of an answer with a text",
        ),
        ("status = 101", "status: 101 is not the status"),
        (
            "status = 204\nanswer = \"x\"",
            "status: 204 is not the status",
        ),
        (
            "redirect = \"/\"\nstatus = 200",
            "status: 200 is no redirect",
        ),
        (
            "redirect = \"/\"\nanswer = \"x\"",
            "answer: is there beside `redirect`",
        ),
        (
            "redirect = \"https://a.example{rest}\"",
            "redirect: would let a client choose the host",
        ),
        (
            "redirect = \"/x/{rest}\"\npaths = [\"=/x\"]",
            "redirect: has {rest}, but not every one of `paths` is the beginning",
        ),
        (
            "redirect = \"/x/{1}\"",
            "redirect: has a group, but not every one of `paths` is a regular expression",
        ),
        (
            "redirect = \"/{who}\"",
            "redirect: has a variable that is not known",
        ),
        ("redirect = \"a b\"", "redirect: is no URL, and no path"),
        (
            "redirect = \"/a b\"",
            "redirect: cannot stand in a header field",
        ),
        (
            "status = 403\npaths = [\"~(\"]",
            "paths: \"~(\" is no regular expression: unclosed group",
        ),
        (
            "status = 403\nhosts = [\"a:b/c\"]",
            "hosts: \"a:b/c\" is not a host",
        ),
        (
            "status = 403\nclients = [\"all\"]",
            "clients: \"all\" is not a network",
        ),
        (
            "status = 403\nanswer_headers = [\"Date: now\"]",
            "answer_headers: \"Date: now\" is a field that only Prism and the client set",
        ),
    ] {
        let found = with(rule);
        let is_named = |fault: &String| fault.contains(&format!("service.rule[0].{expected}"));
        assert!(found.iter().any(is_named), "{rule}: {found:?}");
    }
    let upstream = |fields: &str| {
        let table = format!("[service.upstream]\naddress = \"127.0.0.1:9\"\n{fields}\n");
        faults(&FILE.replace("upstream = \"127.0.0.1:9000\"\n", &table))
    };
    assert!(upstream("paths = [\"/a/\"]\nreplace_prefix = \"/\"").is_empty());
    for (fields, expected) in [
        (
            "replace_prefix = \"/\"",
            "has no beginning of a path to replace",
        ),
        (
            "paths = [\"/a/\", \"=/b\"]\nreplace_prefix = \"/\"",
            "has no beginning of a path to replace",
        ),
        (
            "paths = [\"/a/\"]\nreplace_prefix = \"b\"",
            "\"b\" is not the beginning of a path",
        ),
        (
            "paths = [\"/a/\"]\nreplace_prefix = \"/\"\nambiguous_paths = true",
            "is there beside `ambiguous_paths`",
        ),
    ] {
        let found = upstream(fields);
        let start = format!("service.upstream.replace_prefix: {expected}");
        assert!(
            found.iter().any(|fault| fault.starts_with(&start)),
            "{found:?}"
        );
    }
}

#[test]
fn an_upstream_stands_beside_the_object_store_in_etcd() {
    let text = r#"
[cluster]
name = "demo"
replicas = 2
[cluster.etcd]
endpoints = ["http://10.77.0.5:2379"]
[[service]]
name = "demo"
address = "10.77.0.1:80"
backends = ["be0"]
[[service]]
name = "shop"
address = "10.77.0.3:80"
backends = ["be1"]
peer_port = 7401
[[service.upstream]]
address = "127.0.0.1:9001"
paths = ["/static/"]
proxy_protocol = true
[[service.upstream]]
address = "127.0.0.1:9000"
balance = "hash:header:X-User"
health = { path = "/up" }
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
[[node]]
name = "be1"
address = "10.77.0.12"
roles = ["backend"]
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
"#;
    let config = ConfigFile::from_toml(text).unwrap();
    let written = toml::to_string(&config).unwrap();
    assert_eq!(
        ConfigFile::from_toml(&written).unwrap(),
        config,
        "{written}"
    );
    let [objects, shop] = config.parts().try_into().unwrap();
    assert!(objects.cluster.etcd.is_some() && objects.cluster.replicas == 2);
    assert!(shop.cluster.etcd.is_some() && shop.cluster.replicas == 1);
    assert_eq!(shop.backends().count(), 1);
    assert!(config.has_upstream(config.node("be1").unwrap()));
    assert!(!config.has_upstream(config.node("be0").unwrap()));
    let swapped = text
        .replacen("[\"/static/\"]", "[\"/\"]", 1)
        .replace("paths = [\"/\"]\n", "");
    let found = faults(&swapped);
    assert_eq!(
        found,
        ["service[1].upstream[1].address: gets no request, because upstream 0 gets all"]
    );
}

/// A service with the object store too.
const COMBINED: &str = r#"
[cluster]
name = "demo"
replicas = 1
[service]
address = "10.77.0.1:80"
[service.objects]
paths = ["/protected/"]
replace_prefix = "/media/"
internal = true
[[service.upstream]]
name = "files"
address = "127.0.0.1:9001"
internal = true
[[service.upstream]]
name = "app"
address = "127.0.0.1:9000"
[service.upstream.redirects]
access_key = "APP"
locations = { "http://store.internal:9000/" = "store", "http://f/" = "files" }
[s3]
credentials_file = "/etc/prism/users.toml"
[[node]]
name = "fe0"
address = "10.77.0.10"
roles = ["frontend"]
[[node]]
name = "be0"
address = "10.77.0.11"
roles = ["backend"]
store = "/var/lib/prism"
[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"
"#;

#[test]
fn a_service_may_have_upstreams_and_objects() {
    assert_eq!(faults(COMBINED), [""; 0]);
    let config = ConfigFile::from_toml(COMBINED).unwrap();
    let written = toml::to_string(&config).unwrap();
    assert_eq!(
        ConfigFile::from_toml(&written).unwrap(),
        config,
        "{written}"
    );
    let part = config.parts().remove(0);
    assert!(part.service.keeps_objects() && part.cluster.replicas == 1);
    assert!(!config.has_upstream(config.node("be0").unwrap()));
    for (from, to, expected) in [
        (
            "name = \"app\"\n",
            "",
            "service.upstream[1].name: is missing",
        ),
        (
            "name = \"app\"",
            "name = \"store\"",
            "service.upstream[1].name: \"store\" is the name of the object store of this service",
        ),
        (
            "paths = [\"/protected/\"]\n",
            "",
            "service.objects.replace_prefix: has no beginning of a path to replace",
        ),
        (
            "= \"files\" }",
            "= \"other\" }",
            "service.upstream[1].redirects.locations: \"other\" is neither \"store\" nor the \
             `name` of an upstream",
        ),
        (
            "http://f/",
            "http://f",
            "service.upstream[1].redirects.locations: \"http://f\" is not the beginning of a URL \
             with a whole host",
        ),
        (
            "access_key = \"APP\"",
            "fields = [\"Content-Length\"]",
            "service.upstream[1].redirects.fields: \"Content-Length\" is not the name of a \
             header field that may be passed",
        ),
    ] {
        let found = faults(&COMBINED.replace(from, to));
        assert_eq!(found, [expected], "{from}");
    }
}

#[test]
fn a_service_without_upstreams_is_the_store_anyway() {
    let alone = "[service.objects]\n";
    let found = faults(&FILE.replace("upstream = \"127.0.0.1:9000\"\n", alone));
    let is_of_store = |fault: &String| fault.starts_with("service.objects: ");
    assert!(found.iter().any(is_of_store), "{found:?}");
}

#[test]
fn a_file_of_servers_stands_for_addresses_and_is_beside_the_configuration() {
    let own = "upstream = \"127.0.0.1:9001\"\n";
    let table = "[service.upstream]\nservers_file = \"app.servers\"\n";
    let text = FILE
        .replace("upstream = \"127.0.0.1:9000\"\n", table)
        .replace(own, "");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("prism.toml");
    std::fs::write(&file, text).unwrap();
    let config = ConfigFile::load(&file).unwrap();
    let parts = config.parts();
    let mut upstreams = parts[0].service.upstream.as_ref().unwrap().iter();
    let upstream = upstreams.next().unwrap();
    let servers = upstream.servers_file.clone().unwrap();
    assert_eq!(servers, directory.path().join("app.servers"));
    assert!(upstream.address.is_empty());
    let text = std::fs::read_to_string(&file).unwrap();
    let error = ConfigFile::from_toml(&text.replace("app.servers", "")).unwrap_err();
    let expected = "service.upstream.servers_file: is missing; give the path of a file";
    assert!(error.to_string().contains(expected), "{error}");
}
