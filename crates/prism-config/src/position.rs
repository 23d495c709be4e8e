//! Positions in files: the line of a field, or of an offset, in a text of TOML.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A position in a file. It is displayed in front of a fault, as in `/etc/prism/prism.toml:7: `.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePosition {
    /// The file; empty for a text that is of no file.
    pub file: PathBuf,
    /// The line, from 1 on, where it is known.
    pub line: Option<usize>,
}

impl FilePosition {
    pub(crate) fn new(file: &Path, line: Option<usize>) -> Self {
        let file = file.to_owned();
        Self { file, line }
    }
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match (self.file.as_os_str().is_empty(), self.line) {
            (false, Some(line)) => write!(f, "{file}:{line}: "),
            (false, None) => write!(f, "{file}: "),
            (true, Some(line)) => write!(f, "line {line}: "),
            (true, None) => Ok(()),
        }
    }
}

/// The line of the byte at `offset`, from 1 on.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    let before = text.bytes().take(offset);
    1 + before.filter(|byte| *byte == b'\n').count()
}

/// The lines of the fields of a text.
pub(crate) struct Lines<'t> {
    text: &'t str,
    /// `None` if the text is not TOML.
    root: Option<Spanned<DeTable<'t>>>,
}

impl<'t> Lines<'t> {
    pub(crate) fn of(text: &'t str) -> Self {
        let root = DeTable::parse(text).ok();
        Self { text, root }
    }

    /// The line of a field, as in `node[2].address`, or else of the innermost table around it.
    pub(crate) fn line_of(&self, field: &str) -> Option<usize> {
        let mut table = Some(self.root.as_ref()?.get_ref());
        let mut offset = None;
        for segment in field.split('.') {
            let (name, indexes) = segment.split_once('[').unwrap_or((segment, ""));
            let Some((key, value)) = table.and_then(|table| table.get_key_value(name)) else {
                break;
            };
            offset = Some(key.span().start);
            let mut value = value;
            let indexes = indexes.split(['[', ']']).filter(|index| !index.is_empty());
            for index in indexes {
                let index = index.parse::<usize>().ok();
                let element = value.get_ref().as_array().zip(index);
                let element = element.and_then(|(array, index)| array.get(index));
                let Some(element) = element else { break };
                offset = Some(element.span().start);
                value = element;
            }
            table = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
        Some(line_at(self.text, offset?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_line_of_its_key_or_of_the_table_around_it() {
        let text = "# A comment.\n\
                    [service]\n\
                    address = \"10.0.0.1:80\"\n\
                    tls.port = 1\n\
                    [[service.tls.certificate]]\n\
                    file = \"a\"\n\
                    [[node]]\n\
                    name = \"a\"\n\
                    [[node]]\n\
                    name = \"b\"\n\
                    roles = [\n  \"frontend\",\n  \"chef\",\n]\n\
                    [limits]\n";
        let lines = Lines::of(text);
        for (field, line) in [
            ("service", Some(2)),
            ("service.address", Some(3)),
            ("service.absent", Some(2)),
            ("service.address.absent", Some(3)),
            ("service.tls.port", Some(4)),
            ("service.tls.certificate[0].file", Some(6)),
            ("service.tls.certificate[0].key_file", Some(5)),
            ("service.tls.certificate[7].file", Some(5)),
            ("node[0].name", Some(8)),
            ("node[0].address", Some(7)),
            ("node[1].name", Some(10)),
            ("node[1].address", Some(9)),
            ("node[1].roles[1]", Some(13)),
            ("limits", Some(15)),
            ("absent.name", None),
            ("", None),
        ] {
            assert_eq!(lines.line_of(field), line, "{field}");
        }
        assert_eq!(Lines::of("a = ").line_of("a"), None);
    }
}
