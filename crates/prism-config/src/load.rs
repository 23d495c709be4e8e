//! From text to a checked [`ConfigFile`], with all faults reported at once.
//!
//! serde stops at the first fault. The loader therefore records a fault with its path,
//! removes its value from the table, and tries again. No field is required at this stage, so
//! this ends after at most [`MAX_PROBLEMS`] rounds.

use std::path::{Path, PathBuf};

use serde_path_to_error::Segment;
use toml::{Table, Value};

use crate::explain::explain;
use crate::model::{ConfigFile, STDOUT};
use crate::position::{FilePosition, Lines, line_at};
use crate::problem::{Problem, remedy};
use crate::service::Service;

/// Most faults of one report.
const MAX_PROBLEMS: usize = 64;
/// Longest file in bytes, far above any real one (200 bytes for each node).
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// the file cannot be read
    #[error("cannot read {}: {source}; {}", path.display(), remedy(source, "name the file of the cluster"))]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// the file is longer than any configuration
    #[error("{} is longer than {MAX_FILE_BYTES} bytes, so it is not a configuration of Prism; name another file", .0.display())]
    TooLong(PathBuf),
    /// the text is not TOML
    #[error("{place}not valid TOML: {fault}; correct this line")]
    Syntax {
        /// Where.
        place: FilePosition,
        /// The parser's message.
        fault: String,
    },
    /// the text is TOML, but not a valid configuration
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    if let [only] = problems {
        return only.to_string();
    }
    let lines = problems.iter().map(|problem| format!("\n  {problem}"));
    let lines: String = lines.collect();
    format!("{} faults in the configuration:{lines}", problems.len())
}

impl ConfigError {
    /// The reason in one line, for a log.
    pub fn in_one_line(&self) -> String {
        let list = self.to_string().replacen(":\n  ", ": ", 1);
        list.replace("\n  ", ", and ")
    }
}

impl ConfigFile {
    /// Reads and checks the file at `path`. Relative paths in it are taken as
    /// relative to the directory of the file.
    ///
    /// # Errors
    /// The file cannot be read, or has faults, which are all listed.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (config, _) = Self::load_with_warnings(path)?;
        Ok(config)
    }

    /// The same, with warnings: parts of the file that have no effect, or hardly the one that is
    /// meant.
    ///
    /// # Errors
    /// The file cannot be read, or has faults, which are all listed.
    pub fn load_with_warnings(path: &Path) -> Result<(Self, Vec<Problem>), ConfigError> {
        let read_error = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let size_bytes = std::fs::metadata(path).map_err(read_error)?.len();
        if size_bytes > MAX_FILE_BYTES {
            return Err(ConfigError::TooLong(path.to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        let mut config = Self::parse(&text, path)?;
        let warnings = placed(config.warnings(), &text, path);
        path.clone_into(&mut config.file);
        if let Some(directory) = path.parent() {
            config.anchor(directory);
        }
        Ok((config, warnings))
    }

    /// Parses and checks `text`.
    ///
    /// # Errors
    /// The text has faults, which are all listed.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::parse(text, Path::new(""))
    }

    /// `file` is for the errors.
    fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let table: Table = toml::from_str(text).map_err(|error| syntax(text, file, &error))?;
        let (config, mut problems) = extract(Value::Table(table));
        let mut further = config.iter().flat_map(Self::problems).collect::<Vec<_>>();
        // A removed value looks missing, but its fault has been reported.
        further.retain(|Problem { field, .. }| {
            let mut known = problems.iter().map(|problem| &problem.field);
            !known.any(|known| is_within(field, known) || is_within(known, field))
        });
        problems.extend(further);
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid(placed(problems, text, file))),
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
        let etcd = self.cluster.etcd.iter_mut().flat_map(|etcd| {
            let files = [&mut etcd.ca_file, &mut etcd.cert_file, &mut etcd.key_file];
            files.into_iter().flatten()
        });
        let services = self.service.iter_mut().flat_map(Service::files);
        let others = key.into_iter().chain(access).chain(stores).chain(etcd);
        for path in paths.into_iter().chain(others).chain(services) {
            if !path.as_os_str().is_empty() && path.is_relative() {
                *path = directory.join(&*path);
            }
        }
    }
}

fn syntax(text: &str, file: &Path, error: &toml::de::Error) -> ConfigError {
    let line = error.span().map(|span| line_at(text, span.start));
    let place = FilePosition::new(file, line);
    let fault = error.message().trim().replace('\n', ", ");
    ConfigError::Syntax { place, fault }
}

/// Gives each problem its place, and puts them in the order of the file. The problems of tables
/// that the file lacks are the last ones.
fn placed(mut problems: Vec<Problem>, text: &str, file: &Path) -> Vec<Problem> {
    let lines = Lines::of(text);
    for problem in &mut problems {
        problem.place = FilePosition::new(file, lines.line_of(&problem.field));
    }
    problems.sort_by_key(|problem| problem.place.line.unwrap_or(usize::MAX));
    problems
}

/// Whether `path` is `outer` or a part of it.
fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Deserializes the table, and records a problem for each value that fails.
fn extract(mut table: Value) -> (Option<ConfigFile>, Vec<Problem>) {
    let mut problems = Vec::new();
    while problems.len() < MAX_PROBLEMS {
        let error = match serde_path_to_error::deserialize::<_, ConfigFile>(table.clone()) {
            Ok(config) => return (Some(config), problems),
            Err(error) => error,
        };
        let segments: Vec<Segment> = error.path().iter().cloned().collect();
        let found = place_at(&mut table, &segments);
        problems.push(structural(&error, found.as_deref()));
        if !remove(&mut table, &segments) {
            break;
        }
    }
    (None, problems)
}

fn structural(
    error: &serde_path_to_error::Error<toml::de::Error>,
    found: Option<&Value>,
) -> Problem {
    let field = error.path().to_string();
    let (fault, fix) = explain(&field, error.inner().message().trim(), found);
    Problem {
        place: FilePosition::default(),
        field,
        fault,
        fix,
    }
}

/// The place at `path` in `table`.
fn place_at<'t>(table: &'t mut Value, path: &[Segment]) -> Option<&'t mut Value> {
    path.iter().try_fold(table, |place, segment| match segment {
        Segment::Map { key } => place.get_mut(key),
        Segment::Seq { index } => place.get_mut(*index),
        _ => None,
    })
}

/// Removes the value at `path` from `table`. For an element of an array it removes the whole
/// array, so that the indexes of later messages stay right.
fn remove(table: &mut Value, path: &[Segment]) -> bool {
    let is_key = |segment: &Segment| matches!(segment, Segment::Map { .. });
    let (parents, leaf) = path.split_at(path.iter().rposition(is_key).unwrap_or_default());
    match (place_at(table, parents), leaf.first()) {
        (Some(Value::Table(table)), Some(Segment::Map { key })) => table.remove(key).is_some(),
        _ => false,
    }
}
