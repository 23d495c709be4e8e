//! Files of results as rows of one form: lines of rows, output of `--json`, and the documents
//! of commands without rows.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::rows::{self, Case, Row, Turn, Values};

/// Largest file, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// The rows of all files.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Each turn once, in the order of the files.
    pub(super) rows: Vec<Row>,
    /// Files and conditions of each result.
    pub(super) origins: BTreeMap<String, Vec<Origin>>,
}

/// A file with rows of a result, and their conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) file: String,
    /// Names and values from the file.
    pub(super) conditions: Vec<(String, String)>,
}

impl Input {
    /// Reads one more file. Gives the number of rows that it left out because an earlier file
    /// has their turns.
    ///
    /// # Errors
    /// When the file cannot be read, or is no result.
    pub(super) fn read(&mut self, path: &Path) -> Result<usize> {
        let file = path.display().to_string();
        let reading = || format!("reading {file}");
        let bytes = std::fs::metadata(path).with_context(reading)?.len();
        ensure!(
            bytes <= MOST_BYTES,
            "{file} has {bytes} bytes, more than {MOST_BYTES}"
        );
        let text = std::fs::read_to_string(path).with_context(reading)?;
        self.add(&file, &text).with_context(reading)
    }

    pub(super) fn add(&mut self, file: &str, text: &str) -> Result<usize> {
        // A single row is a JSON document, too.
        let document = serde_json::from_str::<Value>(text).ok();
        let document = document.filter(|document| document.get("values").is_none());
        let (rows, conditions) = match &document {
            Some(document) => (of_document(document)?, conditions(document)),
            None => (rows::parse(text)?, Vec::new()),
        };
        // Each run of a command without rounds is a round.
        let runs = match document.as_ref().is_some_and(is_one_run) {
            true => rows.first().map_or(0, |row| self.runs_of(&row.turn.result)),
            false => 0,
        };
        let mut left_out = 0;
        for mut row in rows {
            row.turn.round += runs;
            let origins = self.origins.entry(row.turn.result.clone()).or_default();
            let origin = Origin {
                file: file.to_owned(),
                conditions: conditions.clone(),
            };
            if !origins.contains(&origin) {
                origins.push(origin);
            }
            match self.rows.iter().any(|known| known.turn == row.turn) {
                true => left_out += 1,
                false => self.rows.push(row),
            }
        }
        Ok(left_out)
    }

    /// Rounds of a result that are known so far.
    fn runs_of(&self, result: &str) -> usize {
        let rows = self.rows.iter().filter(|row| row.turn.result == result);
        rows.map(|row| row.turn.round + 1).max().unwrap_or(0)
    }

    /// The rows of one result.
    pub(super) fn of(&self, result: &str) -> Vec<Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.turn.result == result)
            .cloned()
            .collect()
    }
}

/// The conditions of a document: its field `conditions`, or its own fields that are strings,
/// numbers or booleans.
pub(super) fn conditions(document: &Value) -> Vec<(String, String)> {
    let fields = document.get("conditions").unwrap_or(document).as_object();
    let told = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    };
    let fields = fields.into_iter().flatten();
    let fields = fields.filter(|(name, _)| *name != "result");
    fields
        .filter_map(|(name, value)| Some((name.clone(), told(value)?)))
        .collect()
}

/// Whether it is a document of `bench handoff` or `switch`.
fn is_one_run(document: &Value) -> bool {
    ["modes", "packets"]
        .iter()
        .any(|name| document.get(name).is_some())
}

pub(super) fn of_document(document: &Value) -> Result<Vec<Row>> {
    let list = |name: &str| document.get(name).and_then(Value::as_array);
    if document.get("result").is_some() {
        let rows = list("rows").context("no rows in it")?.iter();
        let rows = rows.map(|row| serde_json::from_value(row.clone()));
        return Ok(rows.collect::<Result<_, _>>()?);
    }
    if let Some(rows) = list("rows").filter(|_| document.get("cpu_ratios_to_prism").is_some()) {
        return rows.iter().map(of_store).collect();
    }
    if let Some(modes) = list("modes") {
        return Ok(modes
            .iter()
            .flat_map(|mode| of_mode(document, mode))
            .collect());
    }
    if let (Some(packets), Some(throughput)) = (list("packets"), list("throughput")) {
        let packets = packets.iter().map(|row| flat("switch", row, &SWITCH_CASE));
        let throughput = throughput.iter().map(|row| flat("switch", row, &PATH_CASE));
        return Ok(packets.chain(throughput).collect());
    }
    if let Some(suites) = document.as_array().filter(|rows| is_tls(rows)) {
        return Ok(suites.iter().flat_map(of_suite).collect());
    }
    bail!("it is of none of the commands of `prism-lab bench`")
}

const SWITCH_CASE: [&str; 4] = ["family", "direction", "frame_bytes", "flows"];
const PATH_CASE: [&str; 3] = ["family", "path", "direction"];

fn text(value: &Value, name: &str) -> String {
    match value.get(name) {
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    }
}

fn row(result: &str, case: Case, system: &str, round: usize, values: Values) -> Row {
    let turn = Turn {
        result: result.to_owned(),
        case,
        system: system.to_owned(),
        round,
    };
    Row { turn, values }
}

/// The fields of `from` that are numbers and not in `case`.
fn numbers(from: &Value, case: &[&str]) -> Values {
    let fields = from.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !case.contains(&name.as_str()));
    fields
        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
        .collect()
}

/// A row with the fields `case` as its case, and all other numbers as values.
fn flat(result: &str, from: &Value, case: &[&str]) -> Row {
    let values = numbers(from, case);
    let set = case
        .iter()
        .filter_map(|name| Some((*name, from.get(*name)?)));
    let case = set.fold(Case::default(), |case, (name, value)| {
        case.with(name, value.clone())
    });
    row(result, case, "prism", 0, values)
}

/// A turn of `bench store` in its first form.
fn of_store(from: &Value) -> Result<Row> {
    let system = from.get("system").and_then(Value::as_str);
    let round = from.get("round").and_then(Value::as_u64);
    let mut values = numbers(from, &["round"]);
    if let (Some(requests), Some(seconds)) = (values.get("requests"), values.get("seconds")) {
        let requests_s = requests / seconds;
        values.insert("requests_s".to_owned(), requests_s);
    }
    let case = Case::default().with("case", text(from, "case"));
    let system = system.context("a row without a system")?;
    let round = usize::try_from(round.context("a row without a round")?)?;
    Ok(row("store", case, system, round, values))
}

/// The steps of one mode of `bench handoff`.
fn of_mode(document: &Value, mode: &Value) -> Vec<Row> {
    let is_tls = mode.get("tls").and_then(Value::as_bool) == Some(true);
    let scheme = if is_tls { "https" } else { "http" };
    let case = Case::default()
        .with("scheme", scheme)
        .with("method", text(document, "method"))
        .with("mode", text(mode, "mode"));
    let step = |name: &str, from: &Value| {
        let values = numbers(from, &[]).into_iter();
        let values = values.map(|(name, value)| (format!("{name}_us"), value));
        let case = case.clone().with("step", name);
        row("handoff", case, "prism", 0, values.collect())
    };
    let steps = mode.get("steps").and_then(Value::as_array);
    let steps = steps.into_iter().flatten();
    let totals = [("total", "total_us"), ("request", "request_us")];
    let totals = totals
        .iter()
        .filter_map(|(name, field)| Some(step(name, mode.get(*field)?)));
    steps
        .map(|from| step(&text(from, "name"), from))
        .chain(totals)
        .collect()
}

fn is_tls(rows: &[Value]) -> bool {
    !rows.is_empty() && rows.iter().all(|row| row.get("suite").is_some())
}

/// The rounds of one suite of `bench tls`.
fn of_suite(suite: &Value) -> Vec<Row> {
    let case = Case::default()
        .with("version", text(suite, "version"))
        .with("suite", text(suite, "suite"));
    let each = |name: &str| suite.get(name).and_then(Value::as_array);
    let rounds = each("seal").map_or(0, Vec::len);
    let moved = [
        ("export_us", "/export/p50"),
        ("export_p99_us", "/export/p99"),
        ("rebuild_us", "/rebuild/p50"),
        ("rebuild_p99_us", "/rebuild/p99"),
    ];
    let moved = moved.iter().filter_map(|(name, place)| {
        let value = suite.pointer(place)?.as_f64()?;
        Some(((*name).to_owned(), value))
    });
    let moved: Values = moved.collect();
    let of_round = |round: usize| {
        let rate = |name: &str| each(name)?.get(round)?.as_f64();
        let ours = [("seal_gb_s", "seal"), ("open_gb_s", "open")];
        let ours = ours
            .iter()
            .filter_map(|(name, field)| Some(((*name).to_owned(), rate(field)?)));
        let mut values = moved.clone();
        values.extend(ours);
        let mut rows = vec![row("tls", case.clone(), "prism", round, values)];
        if let Some(theirs) = rate("openssl") {
            let both = ["seal_gb_s", "open_gb_s"].map(|name| (name.to_owned(), theirs));
            rows.push(row("tls", case.clone(), "openssl", round, both.into()));
        }
        rows
    };
    (0..rounds).flat_map(of_round).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn read(text: &str) -> Input {
        let mut input = Input::default();
        input.add("file", text).unwrap();
        input
    }

    const LINE: &str = r#"{"result":"sweep","case":{"bytes":64},"system":"nginx","round":0,"values":{"mb_s":9.5}}"#;

    #[test]
    fn lines_of_rows_and_documents_with_rows_are_the_same_and_none_counts_twice() {
        let input = read(&format!("{LINE}\n"));
        assert_eq!(input.of("sweep").len(), 1);
        let mut input = read(&format!("{LINE}\n{}\n", LINE.replace("nginx", "prism")));
        let document = format!(
            r#"{{"result":"sweep","conditions":{{"kernel":"6.1","cores":2}},"rows":[{LINE}]}}"#
        );
        assert_eq!(input.add("other", &document).unwrap(), 1);
        assert_eq!(input.of("sweep").len(), 2);
        let origins = &input.origins["sweep"];
        assert_eq!(origins.len(), 2);
        let told = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
        let expected = [("cores", "2"), ("kernel", "6.1")].map(told);
        assert_eq!(origins[1].conditions, expected);
    }

    #[test]
    fn what_commands_without_rows_print_is_understood() {
        let stats = r#"{"p50":4.5,"p99":9.0,"stddev":1.0}"#;
        let hand_offs = format!(
            r#"{{"kernel":"6.1","cpus":2,"method":"freeze","modes":[{{"mode":"direct","tls":true,"count":9,
            "total_us":{stats},"request_us":{stats},"steps":[{{"name":"freeze","p50":4.5,"p99":9.0,"stddev":1.0}}]}}]}}"#
        );
        let mut input = read(&hand_offs);
        let steps = input.of("handoff");
        assert_eq!(steps.len(), 3);
        // Another run is another round.
        assert_eq!(input.add("again", &hand_offs).unwrap(), 0);
        let rounds = input.of("handoff");
        let rounds: Vec<_> = rounds.iter().map(|row| row.turn.round).collect();
        assert_eq!(rounds, [0, 0, 0, 1, 1, 1]);
        assert_eq!(steps[0].turn.case.text("step"), "freeze");
        assert_eq!(steps[0].turn.case.text("scheme"), "https");
        assert!((steps[1].value("p99_us") - 9.0).abs() < 1e-9);

        let input = read(
            r#"{"kernel":"6.1","cpus":2,"rounds":1,"packets":[{"direction":"to","frame_bytes":60,"flows":2,
            "ns_median":90.0,"ns_min":80.0,"ns_max":99.0}],"throughput":[]}"#,
        );
        assert_eq!(input.of("switch")[0].turn.case.text("frame_bytes"), "60");

        let quantiles = r#"{"p50":1.0,"p99":2.0}"#;
        let input = read(&format!(
            r#"[{{"version":"1.3","suite":"AES","seal":[9.0,8.0],"open":[9.0,8.0],"openssl":[7.0,7.5],
            "export":{quantiles},"rebuild":{quantiles}}}]"#
        ));
        assert_eq!(input.of("tls").len(), 4);

        let input = read(
            r#"{"conditions":{"kernel":"6.1"},"cpu_ratios_to_prism":[],"rows":[{"case":"GET 4 KiB","round":1,
            "system":"nginx","requests":10,"seconds":2.0,"cpu_us":3.5}]}"#,
        );
        let row = &input.of("store")[0];
        assert_eq!((row.turn.round, row.turn.system.as_str()), (1, "nginx"));
        assert!((row.value("requests_s") - 5.0).abs() < 1e-9);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "{}", "[]", "hello", "{\"rows\":3}"] {
            let refused = Input::default().add("file", text);
            assert!(refused.is_err() || text.is_empty(), "{text}");
        }
    }
}
