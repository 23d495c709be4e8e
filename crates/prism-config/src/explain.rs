//! Values that have the wrong form: the faults that serde finds, in words of the file.

use std::net::{IpAddr, SocketAddr};

use toml::Value;

use crate::addresses::Address;

/// The tables that are no lists. serde would read the elements of a list as their fields.
const SINGLE_TABLES: [&str; 13] = [
    "acme", "admin", "cluster", "etcd", "health", "limits", "log", "peers", "s3", "store",
    "switch", "tls", "trace",
];
/// The longest part of a value that a fault shows, in characters.
const MAX_SHOWN_CHARS: usize = 80;

/// The fault, and how to fix it, for the message of serde about the value `found` of `field`.
pub(crate) fn explain(field: &str, message: &str, found: Option<&Value>) -> (String, String) {
    if let Some(fields) = message.strip_prefix("unknown field ") {
        let fix = "correct the name or remove the line";
        let fix = match expected(fields) {
            Some(fields) => format!("{fix}; the fields here are {}", without_one_of(fields)),
            None => fix.into(),
        };
        return ("unknown field".into(), fix);
    }
    if message.starts_with("unknown variant ")
        && let (Some(values), Some(found)) = (expected(message), found)
    {
        let values = without_one_of(values).replace('`', "\"");
        return (is_not(found, "a value of this field"), use_one(&values));
    }
    let is_type = message.starts_with("invalid type: ");
    if (is_type || message.starts_with("invalid value: "))
        && let (Some(form), Some(found)) = (expected(message), found)
    {
        let table = header(field);
        let name = table.trim_matches(['[', ']']);
        let last = name.rsplit('.').next().unwrap_or_default();
        if found.is_table() && field.ends_with(']') && SINGLE_TABLES.contains(&last) {
            let fix = format!("write [{name}], only once");
            return (format!("there is no list {table}"), fix);
        }
        return (fault_of(found), fix_of(field, form, found));
    }
    if let Some(Value::String(text)) = found
        && message.contains(<SocketAddr as Address>::FORM)
    {
        return (message_alone(message), with_port(field, text));
    }
    if let Some(Value::String(text)) = found
        && message.contains(<IpAddr as Address>::FORM)
    {
        return (message_alone(message), without_port(text));
    }
    match message.rsplit_once("; ") {
        Some((fault, fix)) => (fault.into(), fix.into()),
        None => (
            message.into(),
            "docs/configuration.md has the form of this field".into(),
        ),
    }
}

fn expected(message: &str) -> Option<&str> {
    let (_, expected) = message.split_once(", expected ")?;
    Some(expected)
}

fn without_one_of(list: &str) -> &str {
    list.strip_prefix("one of ").unwrap_or(list)
}

fn use_one(values: &str) -> String {
    if values.contains(", ") {
        format!("use one of {values}")
    } else {
        format!("use {values}")
    }
}

/// The value as a fault names it.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "a list".into(),
        Value::Table(_) => return "a table".into(),
        Value::Datetime(_) => return "a date".into(),
        value => value.to_string(),
    };
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}..", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn fault_of(found: &Value) -> String {
    match found {
        Value::Integer(_) | Value::Float(_) => format!("is the number {}", shown(found)),
        Value::String(_) => format!("is the text {}", shown(found)),
        found => format!("is {}", shown(found)),
    }
}

fn is_not(found: &Value, what: &str) -> String {
    format!("{} is not {what}", shown(found))
}

/// The fix for a value whose form is not the one that serde calls `form`.
fn fix_of(field: &str, form: &str, found: &Value) -> String {
    let highest = match form {
        "u8" => Some(u64::from(u8::MAX)),
        "u16" => Some(u16::MAX.into()),
        "u32" => Some(u32::MAX.into()),
        "u64" | "usize" => Some(i64::MAX.unsigned_abs()),
        _ => None,
    };
    if let Some(highest) = highest {
        let quotes = match found {
            Value::String(_) => ", without quotes",
            _ => "",
        };
        return format!("use a whole number from 0 to {highest}{quotes}");
    }
    let table = header(field);
    match (form, found) {
        ("a boolean", _) => "use true or false, without quotes".into(),
        ("a string" | "path string" | "string or table" | "string only", _) => {
            "use a text in quotes".into()
        }
        ("a sequence", Value::Table(_)) => {
            format!("make it a list: write [{table}] in the place of {table}")
        }
        ("a sequence", Value::String(_)) => format!("make it a list: [{}]", shown(found)),
        ("a sequence", _) => "make it a list, as in [\"a\", \"b\"]".into(),
        ("a map", _) => format!("make it a table: write its fields below a line {table}"),
        (form, _) if form.starts_with("struct ") => fix_of(field, "a map", found),
        (form, _) => format!("use {form}"),
    }
}

/// The header of a table in the file: `[limits]`, or `[[node]]` for one of a list.
fn header(field: &str) -> String {
    let parts = field.split('.').filter_map(|part| part.split('[').next());
    let name = parts.collect::<Vec<_>>().join(".");
    if field.ends_with(']') {
        format!("[[{name}]]")
    } else {
        format!("[{name}]")
    }
}

/// The beginning of a message that ends with the form of an address.
fn message_alone(message: &str) -> String {
    let (fault, _) = message.split_once(", as in").unwrap_or((message, ""));
    fault.into()
}

/// The fix for a text that is no address with a port.
pub(crate) fn with_port(field: &str, text: &str) -> String {
    let is_server = field.contains("upstream");
    let (example, form) = if is_server {
        (
            "\"127.0.0.1:9000\"",
            "write the address and port of the server",
        )
    } else {
        ("\"10.0.0.1:80\"", "write the address and port")
    };
    if let Some((scheme, _)) = text.split_once("://") {
        return match (scheme, is_server) {
            ("https", true) => format!(
                "Prism speaks HTTP without TLS to servers: {form} for plain HTTP, as in {example}"
            ),
            ("http", _) | (_, true) => format!("a URL is not supported: {form}, as in {example}"),
            _ => format!(
                "a URL is not supported: {form}, as in {example}; [service.tls] is for HTTPS"
            ),
        };
    }
    if text.starts_with("unix:") || text.starts_with(['/', '.', '@']) {
        return format!("Unix sockets are not supported: {form} over TCP, as in {example}");
    }
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b':')
        && !text.contains("::")
    {
        return format!("add the address in front of the port, as in {example}");
    }
    match text.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V6(address)) => {
            format!("add the port, with brackets around the address: \"[{address}]:PORT\"")
        }
        Ok(IpAddr::V4(address)) => format!("add the port: \"{address}:PORT\""),
        Err(_) => {
            format!("host names are not supported, only addresses: {form}, as in {example}")
        }
    }
}

/// The fix for a text that is no address of a host.
fn without_port(text: &str) -> String {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return format!("leave the port out: \"{}\"", address.ip());
    }
    if text.contains('/') {
        return "write the address alone, without a prefix length: \"10.0.0.11\"".into();
    }
    "host names are not supported: write the host's address, as in \"10.0.0.11\" or \"fd00::11\""
        .into()
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
