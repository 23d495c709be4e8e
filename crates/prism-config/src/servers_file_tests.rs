//! Tests of the file of servers.
#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;
use crate::model::Role;

/// A service at 203.0.113.10:80 with the backends be0 and be1.
fn config() -> Config {
    let node = |name: &str| Node {
        name: name.into(),
        roles: vec![Role::Backend],
        ..Node::default()
    };
    let mut config: Config = Config::default();
    config.service.address = SocketAddr::from(([203, 0, 113, 10], 80)).into();
    config.nodes = vec![node("be0"), node("be1")];
    config
}

fn parsed(text: &str) -> ServerList {
    let parsed = config().parse_servers(text.as_bytes());
    parsed
        .map_err(|(line, LineFault(fault, _))| format!("{line}: {fault}"))
        .unwrap()
}

fn at(list: &ServerList, backend: &str) -> Vec<String> {
    list.at(backend)
        .map(|address| address.to_string())
        .collect()
}

#[test]
fn a_line_is_for_all_backends_or_for_one() {
    let list = parsed(
        "# by consul-template\n\n  127.0.0.1:9000\r\nbe0\t10.0.0.1:80 # new\nbe1 [fd00::1]:80#\n",
    );
    assert_eq!(at(&list, "be0"), ["127.0.0.1:9000", "10.0.0.1:80"]);
    assert_eq!(at(&list, "be1"), ["127.0.0.1:9000", "[fd00::1]:80"]);
    assert_eq!(list.len(), 3);
    for empty in ["", "\n", "# nothing \u{e9}\n   \n"] {
        assert!(parsed(empty).is_empty(), "{empty:?}");
    }
}

#[test]
fn each_fault_has_its_line_and_a_fix() {
    let many = "10.0.0.1:80\n".repeat(MAX_LISTED_SERVERS + 1);
    for (text, line, expected, fix) in [
        (
            "10.0.0.1:80\nlocalhost:80",
            2,
            "\"localhost:80\" is not an address",
            "host names",
        ),
        (
            "10.0.0.1",
            1,
            "is not an address with a port",
            "add the port",
        ),
        (
            "9000",
            1,
            "is not an address with a port",
            "add the address",
        ),
        (
            "http://10.0.0.1:80",
            1,
            "is not an address with a port",
            "a URL is not supported",
        ),
        ("10.0.0.1:99999", 1, "is not an address with a port", ""),
        ("10.0.0.1:0", 1, "has port 0", "use 1 to 65535"),
        ("0.0.0.0:80", 1, "cannot be the address of a server", ""),
        (
            "\n\n203.0.113.10:80",
            3,
            "is the service itself",
            "the server behind it",
        ),
        (
            "[::ffff:10.0.0.1]:80",
            1,
            "is the IPv4 address 10.0.0.1",
            "write it as such",
        ),
        (
            "10.0.0.1:80 10.0.0.2:80",
            1,
            "is not the name of a backend",
            "BACKEND ADDRESS:PORT",
        ),
        (
            "be0 10.0.0.1:80 weight=2",
            1,
            "has \"weight=2\" behind the address",
            "ADDRESS:PORT",
        ),
        (many.as_str(), 257, "has server number 257", "at most 256"),
    ] {
        let (found, LineFault(fault, given)) = config().parse_servers(text.as_bytes()).unwrap_err();
        assert_eq!(found, line, "{text}");
        assert!(
            fault.contains(expected) && given.contains(fix),
            "{text}: {fault}; {given}"
        );
    }
    let (line, LineFault(fault, _)) = config().parse_servers(b"#\n\xff").unwrap_err();
    assert_eq!((line, fault.as_str()), (2, "is not UTF-8"));
}

#[test]
fn a_file_that_cannot_be_read_or_is_too_long_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.servers");
    let missing = config().read_servers(&path).unwrap_err();
    assert_eq!(missing.read_error(), Some(io::ErrorKind::NotFound));
    let no_file = config().read_servers(directory.path()).unwrap_err();
    assert!(
        no_file.to_string().contains("name a file, not a directory"),
        "{no_file}"
    );
    std::fs::write(&path, "#".repeat(MAX_BYTES as usize)).unwrap();
    assert!(config().read_servers(&path).unwrap().is_empty());
    std::fs::write(&path, "#".repeat(MAX_BYTES as usize + 1)).unwrap();
    let long = config().read_servers(&path).unwrap_err().to_string();
    assert!(long.contains("more than 65536 bytes"), "{long}");
    std::fs::write(&path, "10.0.0.1:80\nx\n").unwrap();
    let line = config().read_servers(&path).unwrap_err();
    let start = format!(
        "{}:2: \"x\" is not an address with a port; ",
        path.display()
    );
    assert!(line.to_string().starts_with(&start), "{line}");
}

#[test]
fn lines_without_effect_are_named() {
    let mut config = config();
    let upstream = Upstream {
        address: SocketAddr::from(([10, 0, 0, 9], 80)).into(),
        ..Upstream::default()
    };
    let list = parsed(
        "10.0.0.1:80\nbe0 10.0.0.1:80\nbe0 10.0.0.2:80\nbe1 10.0.0.2:80\nbe7 10.0.0.3:80\n10.0.0.9:80\n",
    );
    let expected = [
        "line 2: 10.0.0.1:80 is in line 1 already",
        "line 5: \"be7\" is no backend of the upstream",
        "line 6: the configuration names 10.0.0.9:80 already",
    ];
    assert_eq!(config.doubts_of_servers(&upstream, &list), expected);
    // The other backend has it by the file alone.
    let own = SocketAddr::from(([10, 0, 0, 8], 80));
    config.nodes.first_mut().unwrap().upstream = Some(own.into());
    assert_eq!(config.doubts_of_servers(&upstream, &list).len(), 2);
}
