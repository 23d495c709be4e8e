//! A change as people read it: of a list only the elements that came, went or differ.

use std::slice;

use toml::{Table, Value};

use crate::upstream::Upstream;

/// The change of `field` from `old` to `new`, in TOML.
pub(crate) fn shown(field: &str, old: Option<&Value>, new: Option<&Value>) -> String {
    let mut parts = Vec::new();
    tell(field, old, new, &mut parts);
    parts.join("; ")
}

fn tell(field: &str, old: Option<&Value>, new: Option<&Value>, parts: &mut Vec<String>) {
    match (old, new) {
        (Some(Value::Table(old)), Some(Value::Table(new))) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            for key in old.keys().chain(added) {
                let old = old.get(key);
                let new = new.get(key);
                if old != new {
                    tell(&format!("{field}.{key}"), old, new, parts);
                }
            }
        }
        (Some(old), Some(new)) if old.is_array() || new.is_array() => {
            tell_of_lists(field, elements(old), elements(new), parts);
        }
        (old, new) => {
            let of = |value: Option<&Value>| value.map_or("none".into(), |one| short(field, one));
            parts.push(format!("{field}: {} -> {}", of(old), of(new)));
        }
    }
}

/// The elements of a list. A value that stands for a list of one is its element.
fn elements(value: &Value) -> &[Value] {
    match value {
        Value::Array(all) => all,
        one => slice::from_ref(one),
    }
}

fn tell_of_lists(field: &str, old: &[Value], new: &[Value], parts: &mut Vec<String>) {
    let are_tables = old.iter().chain(new).all(Value::is_table);
    if are_tables && old.len() == new.len() {
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            tell(&format!("{field}[{index}]"), Some(old), Some(new), parts);
        }
        return;
    }
    let removed = without(old, new);
    let added = without(new, old);
    for (verb, all) in [("added", &added), ("removed", &removed)] {
        if !all.is_empty() {
            parts.push(format!("{field}: {verb} {}", listed(field, all)));
        }
    }
    if removed.is_empty() && added.is_empty() {
        let all: Vec<&Value> = new.iter().collect();
        parts.push(format!(
            "{field}: in another order: {}",
            listed(field, &all)
        ));
    }
}

/// The elements of `all` that `others` lacks, with equal ones as often as it lacks them.
fn without<'v>(all: &'v [Value], others: &[Value]) -> Vec<&'v Value> {
    let mut others: Vec<&Value> = others.iter().collect();
    let mut missing = Vec::new();
    for value in all {
        match others.iter().position(|other| *other == value) {
            Some(at) => drop(others.swap_remove(at)),
            None => missing.push(value),
        }
    }
    missing
}

fn listed(field: &str, all: &[&Value]) -> String {
    let all = all.iter().map(|value| short(field, value));
    all.collect::<Vec<_>>().join(", ")
}

/// A value in TOML. An upstream has only the fields that differ from their defaults.
fn short(field: &str, value: &Value) -> String {
    match value {
        Value::Table(table) if field.ends_with(".upstream") => {
            let defaults = Table::try_from(Upstream::default()).unwrap_or_default();
            let is_own = |(key, value): &(&String, &Value)| defaults.get(*key) != Some(*value);
            let own = table.iter().filter(is_own);
            let own: Table = own
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            Value::Table(own).to_string()
        }
        value => value.to_string(),
    }
}
