//! From text to a checked [`Config`], with all faults reported at once.
//!
//! serde stops at the first fault. The loader therefore records a fault with its path,
//! removes its value from the table, and tries again. No field is required at this stage, so
//! this ends after at most [`MAX_PROBLEMS`] rounds.

use std::path::{Path, PathBuf};

use serde_path_to_error::Segment;
use toml::{Table, Value};

use crate::lines::line_of;
use crate::model::{Config, STDOUT};
use crate::problem::Problem;

/// Most faults of one report.
const MAX_PROBLEMS: usize = 64;
/// Longest file in bytes, far above any real one (200 bytes for each node).
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// the file cannot be read
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// the file is longer than any configuration
    #[error("{} is longer than {MAX_FILE_BYTES} bytes: not a Prism configuration", .0.display())]
    TooLong(PathBuf),
    /// the text is not TOML
    #[error("not valid TOML: {0}")]
    Syntax(Box<toml::de::Error>),
    /// the text is TOML, but not a valid configuration
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| match problem.line {
        Some(line) => format!("\n  line {line}: {problem}"),
        None => format!("\n  {problem}"),
    });
    let lines: String = lines.collect();
    format!("{} fault(s) in the configuration:{lines}", problems.len())
}

impl ConfigError {
    /// The reason in one line, for a log.
    pub fn in_one_line(&self) -> String {
        match self {
            Self::Syntax(error) => {
                let shown = error.to_string();
                let place = shown.lines().next().unwrap_or_default();
                format!("{place}: {}", error.message())
            }
            other => {
                let list = other.to_string().replacen(":\n  ", ": ", 1);
                list.replace("\n  ", ", and ")
            }
        }
    }
}

impl Config {
    /// Reads and checks the file at `path`. Relative paths in it are taken as
    /// relative to the directory of the file.
    ///
    /// # Errors
    /// The file cannot be read, or has faults, which are all listed.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read_error = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let size_bytes = std::fs::metadata(path).map_err(read_error)?.len();
        if size_bytes > MAX_FILE_BYTES {
            return Err(ConfigError::TooLong(path.to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        let mut config = Self::from_toml(&text)?;
        if let Some(directory) = path.parent() {
            config.anchor(directory);
        }
        Ok(config)
    }

    /// Parses and checks `text`.
    ///
    /// # Errors
    /// The text has faults, which are all listed.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let table: Table =
            toml::from_str(text).map_err(|error| ConfigError::Syntax(Box::new(error)))?;
        let (config, mut problems) = extract(Value::Table(table));
        let Some(config) = config else {
            return Err(invalid(problems, text));
        };
        let mut further = config.problems();
        // A removed value looks missing, but its fault has been reported.
        further.retain(|Problem { field, .. }| {
            let mut known = problems.iter().map(|problem| &problem.field);
            !known.any(|known| is_within(field, known) || is_within(known, field))
        });
        problems.extend(further);
        match problems.is_empty() {
            true => Ok(config),
            false => Err(invalid(problems, text)),
        }
    }

    fn anchor(&mut self, directory: &Path) {
        let paths = [
            &mut self.peers.ca_file,
            &mut self.peers.cert_dir,
            &mut self.s3.credentials_file,
            &mut self.admin.socket_dir,
            &mut self.log.audit,
        ];
        let access = Some(&mut self.log.access).filter(|path| path.as_os_str() != STDOUT);
        let key = self.switch.as_mut().map(|switch| &mut switch.key_file);
        let stores = self.nodes.iter_mut().map(|node| &mut node.store);
        let tls = self.service.tls.iter_mut().flat_map(|tls| {
            tls.certificates
                .iter_mut()
                .flat_map(|certificate| [&mut certificate.file, &mut certificate.key_file])
                .chain(&mut tls.ticket_secret_file)
        });
        let etcd = self.cluster.etcd.iter_mut().flat_map(|etcd| {
            let files = [&mut etcd.ca_file, &mut etcd.cert_file, &mut etcd.key_file];
            files.into_iter().flatten()
        });
        let others = key
            .into_iter()
            .chain(access)
            .chain(stores)
            .chain(tls)
            .chain(etcd);
        for path in paths.into_iter().chain(others) {
            if !path.as_os_str().is_empty() && path.is_relative() {
                *path = directory.join(&*path);
            }
        }
    }
}

/// The error of these problems of `text`, each with its line.
fn invalid(mut problems: Vec<Problem>, text: &str) -> ConfigError {
    for problem in &mut problems {
        problem.line = line_of(text, &problem.field);
    }
    ConfigError::Invalid(problems)
}

/// Whether `path` is `outer` or a part of it.
fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Deserializes the table, and records a problem for each value that fails.
fn extract(mut table: Value) -> (Option<Config>, Vec<Problem>) {
    let mut problems = Vec::new();
    while problems.len() < MAX_PROBLEMS {
        let error = match serde_path_to_error::deserialize::<_, Config>(table.clone()) {
            Ok(config) => return (Some(config), problems),
            Err(error) => error,
        };
        let segments: Vec<Segment> = error.path().iter().cloned().collect();
        problems.push(structural(&error));
        if !remove(&mut table, &segments) {
            break;
        }
    }
    (None, problems)
}

fn structural(error: &serde_path_to_error::Error<toml::de::Error>) -> Problem {
    let message = error.inner().message().trim().to_owned();
    let fix = if message.starts_with("unknown field") {
        "correct the name or remove the line"
    } else if message.starts_with("unknown variant") {
        "use one of these values"
    } else {
        "use a value of the form in docs/configuration.md"
    };
    Problem {
        field: error.path().to_string(),
        fault: message,
        fix: fix.into(),
        line: None,
    }
}

/// Removes the value at `path` from `table`. For an element of an array it removes the whole
/// array, so that the indexes of later messages stay right.
fn remove(table: &mut Value, path: &[Segment]) -> bool {
    let is_key = |segment: &Segment| matches!(segment, Segment::Map { .. });
    let (parents, leaf) = path.split_at(path.iter().rposition(is_key).unwrap_or_default());
    let parent = parents
        .iter()
        .try_fold(table, |place, segment| match segment {
            Segment::Map { key } => place.get_mut(key),
            Segment::Seq { index } => place.get_mut(*index),
            _ => None,
        });
    match (parent, leaf.first()) {
        (Some(Value::Table(table)), Some(Segment::Map { key })) => table.remove(key).is_some(),
        _ => false,
    }
}
