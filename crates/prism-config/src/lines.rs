//! The line of a field in the text of a configuration, for messages about its faults.

use toml::de::{DeTable, DeValue};

/// The line of the field at `path`, such as `node[2].address`, in `text`. For a field that is
/// missing, the line of the innermost part of its path that is there.
pub(crate) fn line_of(text: &str, path: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?.into_inner();
    let root = DeValue::Table(document);
    let (mut place, mut start) = (&root, None);
    for part in path.split(['.', '[']) {
        let found = match part.strip_suffix(']') {
            Some(index) => place.get(index.parse::<usize>().ok()?),
            None => place.get(part),
        };
        let Some(found) = found else { break };
        (place, start) = (found.get_ref(), Some(found.span().start));
    }
    let before = text.get(..start?)?;
    Some(before.matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_line_of_its_value_or_of_what_surrounds_it() {
        let text =
            "a = 1\n\n[table]\nx = \"é\"\ny = [\n  1,\n  2,\n]\n\n[[list]]\nz = 1\n[[list]]\n";
        for (path, line) in [
            ("a", Some(1)),
            ("table.x", Some(4)),
            ("table.y[1]", Some(7)),
            ("table.missing", Some(3)),
            ("list[0].z", Some(11)),
            ("list[1].z", Some(12)),
            ("missing", None),
        ] {
            assert_eq!(line_of(text, path), line, "{path}");
        }
    }
}
