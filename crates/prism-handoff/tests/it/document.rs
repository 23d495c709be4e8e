//! The examples of docs/protocol.md. Each has a name in a comment above it:
//!
//! ```text
//! <!-- example: NAME -->
//! ```
//!
//! An example is a block, a block and the table of its fields below it, or a table. This file
//! needs nothing but `std`, so that the tests of another crate can include it.

/// One example.
#[derive(Default)]
pub struct Example {
    pub name: String,
    /// The text of its block; empty where it is a table only.
    pub block: String,
    /// The cells of its table without their backquotes, below the head.
    pub rows: Vec<Vec<String>>,
}

enum Part {
    Name(String),
    Block { language: String, text: String },
    Table(Vec<Vec<String>>),
    Prose,
}

/// The examples of `document`, in order.
///
/// # Panics
/// Panics at a place that looks like an example and has no name: JSON, hexadecimal digits, or
/// a table with 16 hexadecimal digits in a cell.
pub fn examples(document: &str) -> Vec<Example> {
    let mut examples = Vec::new();
    let mut example: Option<Example> = None;
    for part in parts(document) {
        let is_new = example.as_ref().is_some_and(|e| e.block.is_empty());
        match part {
            Part::Name(name) => {
                let named = Example {
                    name,
                    ..Example::default()
                };
                examples.extend(example.replace(named));
            }
            Part::Block { text, .. } if is_new => {
                example.iter_mut().for_each(|e| e.block.clone_from(&text));
            }
            Part::Table(rows) if example.is_some() => {
                example.iter_mut().for_each(|e| e.rows.clone_from(&rows));
                examples.extend(example.take());
            }
            Part::Block { language, text } => {
                let is_example = language == "json" || is_hex(&text);
                assert!(!is_example, "an example without a name: {text}");
                examples.extend(example.take());
            }
            Part::Table(rows) => {
                let is_long = |cell: &&String| cell.len() >= 16 && is_hex(cell);
                let found = rows.iter().flatten().find(is_long);
                assert!(found.is_none(), "an example without a name: {found:?}");
            }
            Part::Prose => examples.extend(example.take()),
        }
    }
    examples.extend(example);
    examples
}

fn is_hex(text: &str) -> bool {
    let digits = text.trim().trim_start_matches("0x");
    digits.contains(|c: char| c.is_ascii_digit())
        && digits
            .chars()
            .all(|c| c.is_ascii_hexdigit() || c.is_whitespace())
}

fn parts(document: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = document.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("<!-- example: ") {
            parts.push(Part::Name(name.trim_end_matches(" -->").to_owned()));
        } else if let Some(language) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| !line.starts_with("```"));
            let text = block.collect::<Vec<_>>().join("\n");
            let language = language.to_owned();
            parts.push(Part::Block { language, text });
        } else if line.starts_with('|') {
            let mut table = Vec::new();
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                table.push(cells(row));
            }
            // The first row of these is the line below the head.
            table.drain(..1.min(table.len()));
            parts.push(Part::Table(table));
        } else if !line.is_empty() {
            parts.push(Part::Prose);
        }
    }
    parts
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim_matches('|').replace('`', "");
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}
