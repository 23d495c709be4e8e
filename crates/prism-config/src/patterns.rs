//! Conditions that no request fits, or none that earlier ones leave. They are habits of other
//! proxies. `prism-rules` matches requests; the conditions are in docs/upstreams.md.

use prism_rules::Conditions;

use crate::problem::Problems;

/// Warns of `conditions` that hardly any request fits. `field_of` names their fields.
pub(crate) fn warn_of_patterns(
    conditions: &Conditions<'_>,
    field_of: impl Fn(&str) -> String,
    found: &mut Problems,
) {
    let judges: [(&str, &[String], Judge); 4] = [
        ("hosts", conditions.hosts, host_fault),
        ("paths", conditions.paths, path_fault),
        ("methods", conditions.methods, method_fault),
        ("headers", conditions.headers, header_fault),
    ];
    for (field, rules, judge) in judges {
        for rule in rules {
            if let Some((why, fix)) = judge(rule) {
                let fault = format!("{rule:?} fits hardly any request: {why}");
                found.check(false, &field_of(field), fault, &fix);
            }
        }
    }
}

/// The reason why no request fits a rule, and how to fix it.
type Judge = fn(&str) -> Option<(&'static str, String)>;

fn host_fault(host: &str) -> Option<(&'static str, String)> {
    if host.starts_with('~') {
        return None;
    }
    if host == "_" {
        let why = "there is no host of this name";
        let fix = "leave `hosts` out, in the last table, to get the requests of all other hosts";
        return Some((why, fix.into()));
    }
    if let Some(domain) = host.strip_prefix('.') {
        let why = "a name does not begin with a dot";
        return Some((why, format!("write \"*.{domain}\", and \"{domain}\"")));
    }
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((name, port)) = host.rsplit_once(':')
        && is_port(port)
        && (!name.contains(':') || name.ends_with(']'))
    {
        let why = "a host is compared without its port";
        return Some((why, format!("write {name:?}")));
    }
    if host.contains(':') && !host.starts_with('[') {
        let why = "a request has an IPv6 address in brackets";
        return Some((why, format!("write \"[{host}]\"")));
    }
    None
}

fn path_fault(path: &str) -> Option<(&'static str, String)> {
    let path = path.strip_prefix('=').unwrap_or(path);
    let has = |signs: &[&str]| signs.iter().any(|sign| path.contains(sign));
    let signs = ["|", "\\", "^", "[", "]", ".*", ".+", "(?"];
    let is_expression = has(&signs) || path.ends_with('$');
    let why = if path.starts_with('~') {
        return None;
    } else if is_expression {
        "a rule without ~ is the beginning of a path, and no regular expression"
    } else if has(&["{", "}"]) {
        "a rule is the beginning of a path, and has no placeholders"
    } else if has(&["?"]) {
        "a rule is the beginning of a path, without the query"
    } else if has(&["*"]) {
        "a rule is the beginning of a path, and `*` stands for itself"
    } else {
        return None;
    };
    let fix = match alternatives(path) {
        Some(all) => format!("write each beginning: {all}"),
        None => format!(
            "write the beginning that the paths have in common: {:?}",
            plain_beginning(path)
        ),
    };
    if is_expression {
        let expression = format!("~^{path}");
        return Some((why, format!("{fix}, or {expression:?}")));
    }
    Some((why, fix))
}

/// The part of a rule in front of its first sign that another proxy would give a meaning.
fn plain_beginning(path: &str) -> &str {
    let is_sign = |c: char| "*(){}|[]^\\?$".contains(c);
    let signs = [path.find(is_sign), path.find(".*"), path.find(".+")];
    let end = signs.into_iter().flatten().min();
    end.and_then(|end| path.get(..end)).unwrap_or(path)
}

/// The beginnings that `/(a|b)/` stands for, as a list for the file.
fn alternatives(path: &str) -> Option<String> {
    let (before, rest) = path.split_once('(')?;
    let (inside, after) = rest.split_once(')')?;
    let is_plain = |text: &str| !text.contains(|c: char| "*(){}[]^\\?$.".contains(c));
    if !inside.contains('|') || ![before, inside, after].into_iter().all(is_plain) {
        return None;
    }
    let all = inside.split('|');
    let all: Vec<String> = all.map(|one| format!("{before}{one}{after}")).collect();
    Some(format!("{all:?}"))
}

fn method_fault(method: &str) -> Option<(&'static str, String)> {
    let why = "a rule is the name of one method";
    let fix = "leave `methods` out for all methods";
    matches!(method, "ANY" | "ALL").then(|| (why, fix.into()))
}

fn header_fault(header: &str) -> Option<(&'static str, String)> {
    let (name, value) = header.split_once(':')?;
    let value = value.trim();
    if value == "*" || value == ".*" {
        let why = "a value is compared as a whole, and `*` stands for itself";
        return Some((why, format!("write {name:?} for any value")));
    }
    let is_expression = value.starts_with(['^', '~']) || value.contains(".*");
    let why = "a value is compared as a whole, and is no regular expression";
    let fix = format!("write the whole value, or {name:?} for any value");
    is_expression.then_some((why, fix))
}

/// Whether every request that fits `narrow` fits `wide` too, which has conditions.
pub(crate) fn is_hidden_by(narrow: &Conditions<'_>, wide: &Conditions<'_>) -> bool {
    let covers = |wide: &[String], narrow: &[String], fits: &dyn Fn(&str, &str) -> bool| {
        let is_within = |one: &String| wide.iter().any(|other| fits(other, one));
        wide.is_empty() || !narrow.is_empty() && narrow.iter().all(is_within)
    };
    !wide.are_none()
        && covers(wide.hosts, narrow.hosts, &is_wider_host)
        && covers(wide.paths, narrow.paths, &is_wider_path)
        && covers(wide.methods, narrow.methods, &|one, other| one == other)
        && wide.headers.iter().all(|one| {
            let name = one.split(':').next().unwrap_or_default();
            let is_within = |other: &String| {
                other == one || name == one && other.split(':').next() == Some(name)
            };
            narrow.headers.iter().any(is_within)
        })
}

fn is_wider_path(wide: &str, narrow: &str) -> bool {
    let path = narrow.strip_prefix('=').unwrap_or(narrow);
    wide == narrow || wide.starts_with('/') && path.starts_with(wide)
}

fn is_wider_host(wide: &str, narrow: &str) -> bool {
    let wide = wide.to_ascii_lowercase();
    let narrow = narrow.to_ascii_lowercase();
    if wide == narrow || [&wide, &narrow].iter().any(|host| host.starts_with('~')) {
        return wide == narrow;
    }
    let ends = wide.strip_prefix('*');
    let begins = wide.strip_suffix('*');
    ends.is_some_and(|end| narrow.len() > end.len() && narrow.ends_with(end))
        || begins.is_some_and(|start| narrow.len() > start.len() && narrow.starts_with(start))
}
