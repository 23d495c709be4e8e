//! What was measured: a row for each turn, kept as lines of JSON.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Args;

/// Of an object.
const LARGE: u64 = 64 << 10;

/// Which turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Speed of a server's link in bits a second; `None`: not shaped.
    pub(super) link_bit_s: Option<u64>,
    pub(super) scheme: String,
    pub(super) backends: usize,
    pub(super) connections: usize,
    /// Of an object.
    pub(super) bytes: u64,
    pub(super) round: usize,
    pub(super) system: String,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ran {
    pub(super) requests: u64,
    /// Of answers, also of those that did not end in time.
    pub(super) read_bytes: u64,
    pub(super) seconds: f64,
    /// From the request to the last byte of its answer.
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    /// User and system time of the processes on the frontend.
    pub(super) frontend_cpu_s: f64,
    /// The same on the backends.
    pub(super) backends_cpu_s: f64,
}

/// One turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) turn: Turn,
    #[serde(flatten)]
    pub(super) ran: Ran,
}

/// All of them, and where they are noted.
pub(super) struct Rows {
    all: Vec<Row>,
    file: Option<File>,
}

impl Turn {
    pub(super) fn of(args: &Args, bytes: u64, round: usize, system: &str) -> Self {
        let scheme = if args.tls { "https" } else { "http" };
        Self {
            link_bit_s: args.link().map(|link| link.bits_per_s()),
            scheme: scheme.to_owned(),
            backends: args.backends,
            connections: args.connections,
            bytes,
            round,
            system: system.to_owned(),
        }
    }

    /// Whether it is of the same case, and so to be compared.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let of = |turn: &Self| Self {
            round: 0,
            system: String::new(),
            ..turn.clone()
        };
        of(self) == of(other)
    }
}

impl Row {
    /// Objects' bytes a second, in MB. Of large ones those count that were on their
    /// way when the turn ended, and heads as well: they are less than a percent.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    pub(super) fn mb_s(&self) -> f64 {
        let bytes = match self.turn.bytes {
            LARGE.. => self.ran.read_bytes,
            bytes => self.ran.requests * bytes,
        };
        bytes as f64 / self.ran.seconds / 1e6
    }

    /// CPU time of the servers for one request, in µs.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    pub(super) fn cpu_us(&self) -> f64 {
        let cpu_s = self.ran.frontend_cpu_s + self.ran.backends_cpu_s;
        cpu_s * 1e6 / self.ran.requests as f64
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turn, ran } = self;
        let (round, system) = (turn.round + 1, &turn.system);
        let (mb_s, p50_ms) = (self.mb_s(), ran.p50_us / 1e3);
        write!(
            f,
            "{} of {} bytes, round {round}: {system}: {mb_s:.1} MB/s, p50 {p50_ms:.2} ms",
            turn.scheme, turn.bytes
        )
    }
}

impl Rows {
    /// With what `path` has already, where it is to be noted too.
    ///
    /// # Errors
    /// Where the file cannot be read or has something else in it.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            let (all, file) = (Vec::new(), None);
            return Ok(Self { all, file });
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context(format!("reading {}", path.display())),
        };
        let lines = (1..).zip(text.lines());
        let all = lines
            .map(|(number, line)| {
                let place = || format!("{}, line {number}: not a row of a sweep", path.display());
                serde_json::from_str(line).with_context(place)
            })
            .collect::<Result<_>>()?;
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        let file = Some(file);
        Ok(Self { all, file })
    }

    pub(super) fn has(&self, turn: &Turn) -> bool {
        self.all.iter().any(|row| row.turn == *turn)
    }

    pub(super) fn add(&mut self, row: Row) -> Result<()> {
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&row)? + "\n";
            file.write_all(line.as_bytes()).context("noting a turn")?;
        }
        self.all.push(row);
        Ok(())
    }

    pub(super) fn all(&self) -> &[Row] {
        &self.all
    }
}
