#![allow(clippy::unwrap_used, reason = "test code")]
use super::*;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct File {
    host: HostAddrs,
    control: ControlAddrs,
    service: ServiceAddrs,
}

fn read(host: &str, control: &str, service: &str) -> Result<File, String> {
    let text = format!("host = {host}\ncontrol = {control}\nservice = {service}\n");
    toml::from_str(&text).map_err(|error: toml::de::Error| error.message().to_owned())
}

const HOST: &str = "\"10.0.0.1\"";
const PORT: &str = "\"10.0.0.1:80\"";

#[test]
fn a_single_address_is_a_string_and_several_are_a_list() {
    for (host, control, service) in [
        (HOST, PORT, PORT),
        ("\"fd00::1\"", "\"[fd00::1]:80\"", "\"[fd00::1]:80\""),
        (
            "[\"10.0.0.1\", \"fd00::1\"]",
            "[\"10.0.0.1:80\", \"[fd00::1]:80\"]",
            "[\"[fd00::1]:80\", \"10.0.0.1:81\", \"10.0.0.2:80\"]",
        ),
    ] {
        let file = read(host, control, service).unwrap();
        let text = toml::to_string(&file).unwrap();
        let lines = format!("host = {host}\ncontrol = {control}\nservice = {service}\n");
        assert_eq!(text, lines);
    }
}

#[test]
fn a_list_of_one_is_the_same_as_a_string() {
    let list = read("[\"10.0.0.1\"]", "[\"10.0.0.1:80\"]", "[\"10.0.0.1:80\"]");
    assert_eq!(list, read(HOST, PORT, PORT));
}

#[test]
fn a_fault_says_what_is_wrong() {
    for (host, control, service, fault) in [
        ("\"ten\"", PORT, PORT, "\"ten\" is not an address, as in"),
        (
            "7",
            PORT,
            PORT,
            "invalid type: integer `7`, expected an address",
        ),
        (
            "[\"10.0.0.1\", \"10.0.0.2\"]",
            PORT,
            PORT,
            "10.0.0.1 and 10.0.0.2 are of one family",
        ),
        (
            "[\"10.0.0.1\", \"::2\", \"::3\"]",
            PORT,
            PORT,
            "has more than 2 addresses",
        ),
        (
            "\"::ffff:10.0.0.1\"",
            PORT,
            PORT,
            "is the IPv4 address 10.0.0.1",
        ),
        (
            HOST,
            "[\"10.0.0.1:1\", \"[::2]:2\"]",
            PORT,
            "ports 1 and 2 differ",
        ),
        (
            HOST,
            "[\"10.0.0.1:1\", \"10.0.0.2:1\"]",
            PORT,
            "are of one family",
        ),
        (
            HOST,
            PORT,
            "\"fd00::1\"",
            "is not an address with a port, as in",
        ),
        (
            HOST,
            PORT,
            "\"[::ffff:10.0.0.1]:80\"",
            "is the IPv4 address 10.0.0.1",
        ),
    ] {
        let error = read(host, control, service).unwrap_err();
        assert!(error.contains(fault), "{error:?} lacks {fault:?}");
    }
}

#[test]
fn the_list_of_a_service_is_bounded() {
    let list = |n| vec![PORT; n].join(", ");
    assert!(read(HOST, PORT, &format!("[{}]", list(16))).is_ok());
    let error = read(HOST, PORT, &format!("[{}]", list(17))).unwrap_err();
    assert!(error.contains("has more than 16 addresses"), "{error}");
}

#[test]
fn hosts_talk_in_the_first_family_that_both_have() {
    let host = |text: &str| read(text, PORT, PORT).unwrap().host;
    let (v4, v6) = (host(HOST), host("\"fd00::1\""));
    let both = host("[\"fd00::2\", \"10.0.0.2\"]");
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(both.towards(&v4), Some((ip("10.0.0.2"), ip("10.0.0.1"))));
    assert_eq!(both.towards(&v6), Some((ip("fd00::2"), ip("fd00::1"))));
    assert_eq!(both.towards(&both).unwrap().0, ip("10.0.0.2"));
    assert_eq!(v4.towards(&v6), None);
    assert_eq!(both.of(ip("::1")), Some(ip("fd00::2")));
    assert!(both.contains(ip("fd00::2")) && !both.contains(ip("fd00::1")));
}

#[test]
fn https_has_each_host_once() {
    let file = read(
        HOST,
        PORT,
        "[\"10.0.0.1:80\", \"10.0.0.1:81\", \"[::1]:80\"]",
    )
    .unwrap();
    assert_eq!(
        file.service.at_port(443).to_string(),
        "10.0.0.1:443, [::1]:443"
    );
}
