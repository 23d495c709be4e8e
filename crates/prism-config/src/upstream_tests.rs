#![allow(clippy::unwrap_used)]

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct File {
    upstream: Upstreams,
}

fn read(text: &str) -> Result<Vec<Upstream>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let written = toml::to_string(&file).unwrap();
    assert_eq!(toml::from_str::<File>(&written).unwrap(), file, "{written}");
    Ok(file.upstream.0)
}

fn addresses(upstream: &Upstream) -> String {
    upstream.address.to_string()
}

#[test]
fn an_upstream_is_an_address_or_a_table_or_several() {
    let one = read("upstream = \"127.0.0.1:9000\"").unwrap();
    assert_eq!(
        one,
        [at("127.0.0.1:9000"
            .parse::<std::net::SocketAddr>()
            .unwrap()
            .into())]
    );
    let two = read("upstream = [\"127.0.0.1:9000\", \"[::1]:9001\"]").unwrap();
    assert_eq!(two.len(), 1);
    assert_eq!(
        addresses(two.first().unwrap()),
        "127.0.0.1:9000, [::1]:9001"
    );
    let table = read("[upstream]\naddress = \"127.0.0.1:1\"\nbalance = \"round-robin\"").unwrap();
    assert_eq!(table.first().unwrap().balance, Balance::RoundRobin);
    let several = read(
        "[[upstream]]\npaths = [\"/api/\"]\naddress = \"127.0.0.1:1\"\n\
         [[upstream]]\naddress = \"127.0.0.1:2\"\n[upstream.health]\npath = \"/up\"",
    );
    let several = several.unwrap();
    assert_eq!(
        several.iter().map(addresses).collect::<Vec<_>>(),
        ["127.0.0.1:1", "127.0.0.1:2"]
    );
    assert_eq!(
        several
            .iter()
            .map(|one| one.conditions().are_none())
            .collect::<Vec<_>>(),
        [false, true]
    );
    for bad in [
        "upstream = []",
        "upstream = \"localhost\"",
        "upstream = [\"127.0.0.1:1\", {}]",
        "[upstream]\nadress = \"127.0.0.1:1\"",
        "[upstream]\nbalance = \"hash:query:\"",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_balance_is_read_as_it_is_written() {
    for text in [
        "least-requests",
        "round-robin",
        "hash:path",
        "hash:query:user",
        "hash:header:X-User",
    ] {
        assert_eq!(text.parse::<Balance>().unwrap().to_string(), text);
    }
    assert!("hash:".parse::<Balance>().is_err());
}
