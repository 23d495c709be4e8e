//! Rows: the values of each turn of each system, as lines of JSON.
//!
//! All commands use this form, so one file may have the rows of all:
//!
//! ```json
//! {"result":"sweep","case":{"bytes":4096,"scheme":"http"},"system":"nginx","round":0,"values":{"mb_s":9.5}}
//! ```
//!
//! `result` names the command, `case` its settings, and `system` the system that had the turn.
//! `values` are measured or derived; each name ends with the unit.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Settings by name: numbers and strings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Case(BTreeMap<String, Value>);

/// The identity of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// The command, as in `sweep`.
    pub(crate) result: String,
    pub(crate) case: Case,
    /// The name of the system, as in `nginx`.
    pub(crate) system: String,
    /// The number of the round, from 0. Ratios are of turns of the same round.
    pub(crate) round: usize,
}

/// Measured values by name; never NaN or infinite.
pub(crate) type Values = BTreeMap<String, f64>;

/// One turn and its values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) turn: Turn,
    pub(crate) values: Values,
}

/// The rows of one result, and the file that they are added to.
pub(crate) struct Rows {
    all: Vec<Row>,
    file: Option<File>,
}

impl Case {
    /// With `name` set to `value`, or removed if that is null.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        match value.into() {
            Value::Null => self.0.remove(name),
            value => self.0.insert(name.to_owned(), value),
        };
        self
    }

    /// With the names and values of `other`.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.0.extend(other.0.clone());
        self
    }

    /// Without `name`.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// The value of `name`; empty if it is not set.
    pub(crate) fn text(&self, name: &str) -> String {
        match self.0.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// All names, ascending.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, name) in self.names().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", self.text(name))?;
        }
        Ok(())
    }
}

impl Row {
    /// The value of `name`; NaN if it was not measured.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(f64::NAN)
    }

    /// Whether `name` was measured.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

impl Rows {
    /// Opens `path` for rows of `result`, and reads those that it has. Rows of other results
    /// stay. A last line without an end is from an interrupted command and is cut off.
    ///
    /// # Errors
    /// When the file cannot be read, or a line is no row.
    pub(crate) fn open(path: Option<&Path>, result: &str) -> Result<Self> {
        let Some(path) = path else {
            let all = Vec::new();
            let file = None;
            return Ok(Self { all, file });
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context(format!("reading {}", path.display())),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut all = parse(text.get(..whole).unwrap_or_default())
            .with_context(|| format!("reading {}", path.display()))?;
        all.retain(|row| row.turn.result == result);
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.with_context(|| format!("opening {}", path.display()))?;
        if whole < text.len() {
            file.set_len(u64::try_from(whole)?)?;
        }
        let file = Some(file);
        Ok(Self { all, file })
    }

    pub(crate) fn has(&self, turn: &Turn) -> bool {
        self.all.iter().any(|row| row.turn == *turn)
    }

    /// Adds a row, also to the file.
    ///
    /// # Errors
    /// When it cannot be written, or a value is NaN or infinite.
    pub(crate) fn add(&mut self, row: Row) -> Result<()> {
        for (name, value) in &row.values {
            ensure!(value.is_finite(), "{name} of {} is {value}", row.turn.case);
        }
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&row)? + "\n";
            file.write_all(line.as_bytes()).context("noting a turn")?;
        }
        self.all.push(row);
        Ok(())
    }

    pub(crate) fn all(&self) -> &[Row] {
        &self.all
    }
}

/// Reads rows of any results, one a line.
///
/// # Errors
/// When a line is no row.
pub(crate) fn parse(text: &str) -> Result<Vec<Row>> {
    let lines = (1..).zip(text.lines());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| format!("line {number} is not a row"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn row(result: &str, round: usize) -> Row {
        let case = Case::default().with("bytes", 4096).with("scheme", "http");
        Row {
            turn: Turn {
                result: result.to_owned(),
                case,
                system: "prism".to_owned(),
                round,
            },
            values: Values::from([("mb_s".to_owned(), 9.5)]),
        }
    }

    #[test]
    fn what_was_noted_is_there_again_and_a_line_cut_short_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        let mut rows = Rows::open(Some(&path), "sweep").unwrap();
        rows.add(row("sweep", 0)).unwrap();
        rows.add(row("sweep", 1)).unwrap();
        let mut others = Rows::open(Some(&path), "scale").unwrap();
        assert!(others.all().is_empty());
        others.add(row("scale", 0)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"result\":\"swe")).unwrap();
        let again = Rows::open(Some(&path), "sweep").unwrap();
        assert_eq!(again.all().len(), 2);
        assert!(again.has(&row("sweep", 1).turn));
        assert!(!again.has(&row("sweep", 2).turn));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(parse(&text).unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_number_is_not_noted() {
        let mut wrong = row("sweep", 0);
        wrong.values.insert("cpu_us".to_owned(), f64::NAN);
        assert!(Rows::open(None, "sweep").unwrap().add(wrong).is_err());
    }

    #[test]
    fn the_form_of_a_line_is_what_others_read() {
        let line = serde_json::to_string(&row("sweep", 3)).unwrap();
        assert_eq!(
            line,
            "{\"result\":\"sweep\",\"case\":{\"bytes\":4096,\"scheme\":\"http\"},\
             \"system\":\"prism\",\"round\":3,\"values\":{\"mb_s\":9.5}}"
        );
    }
}
