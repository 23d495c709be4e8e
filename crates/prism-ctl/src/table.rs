//! Aligned tables with headers, numbers as texts for people, and colour on terminals.

use std::fmt::Write;
use std::io::IsTerminal;

use prism_process::printable;

/// The meaning of a cell, which has a colour on terminals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warning,
    Critical,
    Header,
}

/// Whether texts are coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Colour on standard output, if that is a terminal and `NO_COLOR` is not set
    /// (<https://no-color.org>).
    pub(crate) fn of_stdout() -> Self {
        let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !is_off)
    }

    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Critical => 31,
            Tone::Header => 1,
        };
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
    is_number: bool,
}

/// A text.
pub(crate) fn text(text: impl Into<String>) -> Cell {
    toned(text, Tone::Plain)
}

/// A text with a meaning.
pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Cell {
    Cell {
        text: printable(&text.into()),
        tone,
        is_number: false,
    }
}

/// A number, which is aligned to the right.
pub(crate) fn number(text: impl Into<String>) -> Cell {
    Cell {
        is_number: true,
        ..toned(text, Tone::Plain)
    }
}

/// A table as text: the header, and a line for each row.
pub(crate) fn table<const N: usize>(paint: Paint, header: [&str; N], rows: &[[Cell; N]]) -> String {
    let width = |column: usize, name: &str| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.text.chars().count()).max();
        widest.unwrap_or(0).max(name.chars().count())
    };
    let widths: Vec<usize> = (0..).zip(header).map(|(n, name)| width(n, name)).collect();
    let first = rows.first();
    let names = header.iter().enumerate().map(|(n, name)| Cell {
        text: (*name).to_owned(),
        tone: Tone::Header,
        is_number: first
            .and_then(|row| row.get(n))
            .is_some_and(|cell| cell.is_number),
    });
    let names: Vec<Cell> = names.collect();
    let mut all = String::new();
    for row in std::iter::once(&*names).chain(rows.iter().map(<[Cell; N]>::as_slice)) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let blank = " ".repeat(width.saturating_sub(cell.text.chars().count()));
            let shown = paint.paint(cell.tone, &cell.text);
            let _ = if cell.is_number {
                write!(line, "{blank}{shown}  ")
            } else {
                write!(line, "{shown}{blank}  ")
            };
        }
        all.push_str(line.trim_end());
        all.push('\n');
    }
    all
}

/// A number of bytes in decimal units, with three digits.
pub(crate) fn bytes(number: f64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut rest = number;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while rest >= 999.5 {
        let Some(next) = units.next() else { break };
        (rest, unit) = (rest / 1_000.0, Some(next));
    }
    let unit = unit.copied().unwrap_or_default();
    let digits = match (unit, rest) {
        ("B", _) | (_, 99.95..) => 0,
        (_, 9.995..) => 1,
        _ => 2,
    };
    format!("{rest:.digits$} {unit}")
}

/// A count in full, with separators.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A long duration in its two largest units.
pub(crate) fn age(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let first = UNITS.iter().position(|(_, unit)| seconds >= *unit);
    let Some(first) = first else {
        return "0 s".to_owned();
    };
    let mut rest = seconds;
    let parts = UNITS.iter().skip(first).take(2).map(|(name, unit)| {
        let whole = rest / unit;
        rest %= unit;
        format!("{whole} {name}")
    });
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_plain_without_a_terminal() {
        let rows = [
            [text("fe0"), number("7")],
            [toned("be10\x1b[2J", Tone::Critical), number("1,234")],
        ];
        let plain = table(Paint(false), ["NODE", "FLOWS"], &rows);
        assert_eq!(plain, "NODE      FLOWS\nfe0           7\nbe10 [2J  1,234\n");
        let painted = table(Paint(true), ["NODE", "FLOWS"], &rows);
        assert!(painted.contains("\x1b[31mbe10 [2J\x1b[0m"), "{painted:?}");
    }

    #[test]
    fn numbers_are_short_and_not_wrong() {
        let shown = [0.0, 999.0, 1_000.0, 12_345.0, 999_700.0, 1.5e9, 2e18].map(bytes);
        let wanted = [
            "0 B", "999 B", "1.00 kB", "12.3 kB", "1.00 MB", "1.50 GB", "2000 PB",
        ];
        assert_eq!(shown, wanted);
        assert_eq!(
            [0, 999, 1_000, 1_048_576].map(count),
            ["0", "999", "1,000", "1,048,576"]
        );
        assert_eq!(
            [0, 59, 61, 90_061].map(age),
            ["0 s", "59 s", "1 min 1 s", "1 d 1 h"]
        );
    }
}
