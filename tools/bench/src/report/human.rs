//! Names, values and cases of rows in the words of a reader.

use crate::rows::Case;
use crate::summary::{SYSTEM, Table};

/// Order of the parts of a title; names that are not here follow.
const ORDER: [&str; 5] = ["link_bit_s", "scheme", "way", "placement", "bytes"];

/// A system: `haproxy` is *HAProxy*.
pub(super) fn system(name: &str) -> &str {
    match name {
        "prism" => "Prism",
        "haproxy" => "HAProxy",
        "minio" => "MinIO",
        "garage" => "Garage",
        "openssl" => "OpenSSL",
        "carry" => "Prism, window moves",
        "fresh" => "Prism, new window",
        "fresh-two-phase" => "the same, two phases",
        "this" => "this build",
        "other" => "the other build",
        name => name,
    }
}

/// The heading of a column: `link_bit_s` is *links*.
fn heading(name: &str) -> &str {
    match name {
        "link_bit_s" => "links",
        "asked_backends" => "backends asked",
        "bytes" => "object",
        "frame_bytes" => "frame",
        "writes_percent" => "writes",
        "rtt_ms" => "round trip",
        "version" => "TLS",
        "together" => "bodies together",
        name => name,
    }
}

/// The value of a name in a table: 65536 bytes are *64 KiB*.
pub(super) fn value(name: &str, text: &str) -> String {
    let number = text.parse::<f64>().ok();
    match (name, text, number) {
        ("link_bit_s", "", _) => "unlimited".to_owned(),
        ("link_bit_s", _, Some(bits)) if bits >= 1e9 => format!("{} Gbit/s", bits / 1e9),
        ("link_bit_s", _, Some(bits)) => format!("{} Mbit/s", bits / 1e6),
        ("bytes", _, Some(_)) => size(text, " B", " KiB", " MiB"),
        ("frame_bytes", ..) => format!("{text} B"),
        ("writes_percent", "0", _) => "none".to_owned(),
        ("writes_percent", ..) => format!("{text} %"),
        ("rtt_ms", ..) => format!("{text} ms"),
        ("scheme", ..) => text.to_uppercase(),
        ("popularity", "single", _) => "one object".to_owned(),
        ("popularity", ..) => text.replace("zipf-", "Zipf "),
        ("state", "silent", _) => "no request yet".to_owned(),
        ("state", "served", _) => "after one request".to_owned(),
        ("placement", "partitioned", _) => "on one backend".to_owned(),
        ("placement", "replicated", _) => "on all backends".to_owned(),
        (SYSTEM, ..) => system(text).to_owned(),
        (_, _, Some(number)) if number >= 1000.0 => super::chart::number(number),
        _ => text.to_owned(),
    }
}

/// The value of a name below an axis, as short as it can be.
pub(super) fn tick(name: &str, text: &str) -> String {
    match (name, text) {
        ("bytes", _) => size(text, "", "K", "M"),
        ("popularity", "single") => "one".to_owned(),
        ("popularity", _) => text.replace("zipf-", ""),
        ("flows" | "connections", _) => match text.strip_suffix("000") {
            Some(thousands) => match thousands.strip_suffix("000") {
                Some(millions) => format!("{millions}M"),
                None => format!("{thousands}k"),
            },
            None => text.to_owned(),
        },
        _ => value(name, text),
    }
}

/// The name of a line or of bars.
pub(super) fn series(name: &str, text: &str) -> String {
    match (name, text) {
        ("writes_percent", "0") => "reads".to_owned(),
        ("writes_percent", _) => format!("{text} % writes"),
        _ => value(name, text),
    }
}

/// A part of a title: *Links of 100 Mbit/s*.
fn phrase(name: &str, text: &str) -> String {
    let value = value(name, text);
    match (name, text) {
        ("link_bit_s", "") => "unlimited links".to_owned(),
        ("link_bit_s", _) => format!("links of {value}"),
        ("bytes", _) => format!("objects of {value}"),
        ("connections" | "backends" | "flows" | "objects", _) => format!("{value} {name}"),
        ("asked_backends", _) => format!("{value} backends asked"),
        ("frame_bytes", _) => format!("frames of {value}"),
        ("writes_percent", _) => series(name, text),
        ("rtt_ms", _) => format!("round trips of {value}"),
        ("version", _) => format!("TLS {value}"),
        ("placement", _) => format!("each object {value}"),
        ("way", "hand-off") => "always handed off".to_owned(),
        ("way", "relay") => "always relayed".to_owned(),
        ("seconds", _) => format!("{value} s a turn"),
        ("method", _) => format!("method {value}"),
        _ => value,
    }
}

/// The title of a case: its values of `names`, as in *Links of 100 Mbit/s, HTTPS*.
pub(super) fn title<'n>(case: &Case, names: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let place = |name: &&str| ORDER.iter().position(|known| known == name);
    names.sort_by_key(|name| place(name).unwrap_or(ORDER.len()));
    let phrases = names.into_iter().map(|name| phrase(name, &case.text(name)));
    let phrases: Vec<String> = phrases.filter(|phrase| !phrase.is_empty()).collect();
    capital(&phrases.join(", "))
}

/// The same table with words for the names and values of its cases.
pub(super) fn words(mut table: Table) -> Table {
    let Some((head, rows)) = table.cells.split_first_mut() else {
        return table;
    };
    for row in rows {
        let cells = row.iter_mut().zip(head.iter()).take(table.words);
        for (cell, name) in cells {
            *cell = value(name, cell);
        }
    }
    for name in head.iter_mut().take(table.words) {
        *name = heading(name).to_owned();
    }
    table
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters).collect()
}

/// Bytes in the largest unit that gives a whole number.
fn size(text: &str, byte: &str, kib: &str, mib: &str) -> String {
    match text.parse::<u64>() {
        Ok(bytes) if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{}{mib}", bytes >> 20)
        }
        Ok(bytes) if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{}{kib}", bytes >> 10)
        }
        _ => format!("{text}{byte}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_title_in_words() {
        let case = Case::default()
            .with("scheme", "https")
            .with("connections", 1000)
            .with("link_bit_s", 100_000_000);
        assert_eq!(
            title(&case, case.names()),
            "Links of 100 Mbit/s, HTTPS, 1,000 connections"
        );
        let names = ["link_bit_s", "scheme"].into_iter();
        let unlimited = case.without("link_bit_s");
        assert_eq!(title(&unlimited, names), "Unlimited links, HTTPS");
    }

    #[test]
    fn ticks_are_short_and_values_are_not() {
        assert_eq!(tick("bytes", "65536"), "64K");
        assert_eq!(value("bytes", "65536"), "64 KiB");
        assert_eq!(value("bytes", "100"), "100 B");
        assert_eq!(tick("flows", "1000000"), "1M");
        assert_eq!(tick("popularity", "zipf-1.2"), "1.2");
    }
}
