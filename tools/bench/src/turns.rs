//! Turns: every system has one in every round. A turn's row is written when it ends, and a turn
//! that has a row is not measured again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::rows::{Case, Row, Rows, Turn, Values};

/// Length of a turn that does not count.
const WARM_UP_S: u64 = 1;
/// Values in the line about a turn.
const HEADLINES: [&str; 4] = ["mb_s", "requests_s", "startup_us", "p50_us"];

/// Options of all commands with rounds.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds in which every system has its turn. A single round has no warm-up.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) rounds: usize,
    /// Seconds of a turn; more if the slowest system needs them to give every connection two
    /// objects.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) seconds: u64,
    /// A first look in a minute or a few: fewer cases and rounds, shorter turns.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub(crate) quick: bool,
    /// File for the turns, one JSON object a line. A turn that it has already is not measured
    /// again, so an interrupted run continues. Several commands may share a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
    /// The program `prism` to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) prism: Option<PathBuf>,
    /// Print JSON with every turn instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A system and a case, measured once in every round.
pub(crate) struct Job<J> {
    pub(crate) case: Case,
    pub(crate) system: &'static str,
    pub(crate) what: J,
}

/// The progress of a command.
pub(crate) struct Turns {
    result: &'static str,
    rounds: usize,
    warms_up: bool,
    rows: Rows,
    begun: Instant,
    /// All turns, finished turns, and turns that this run measured.
    planned: usize,
    done: usize,
    measured: usize,
    /// Set when the command is to end.
    cancel: Arc<AtomicBool>,
}

impl Options {
    /// Applies `--quick` and checks the ranges.
    pub(crate) fn settle(&mut self, quick_rounds: usize, quick_seconds: u64) -> Result<()> {
        if self.quick {
            (self.rounds, self.seconds) = (quick_rounds, quick_seconds);
        }
        within("--rounds", self.rounds, 100)?;
        within("--seconds", usize::try_from(self.seconds)?, 600)
    }
}

/// Whether an option has a value from 1 to `most`.
pub(crate) fn within(option: &str, value: usize, most: usize) -> Result<()> {
    ensure!(
        (1..=most).contains(&value),
        "{option} must be 1 to {most}, not {value}"
    );
    Ok(())
}

impl Turns {
    /// Begins a result with `jobs` jobs in all. From now on a signal lets the command remove
    /// its labs before it ends.
    pub(crate) fn begin(options: &Options, result: &'static str, jobs: usize) -> Result<Self> {
        let turns = Self::open(options, result, jobs)?;
        prism_lab::cancel_on_signal(turns.cancel())?;
        Ok(turns)
    }

    /// Tells labs that the command is to end.
    pub(crate) fn cancel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    fn open(options: &Options, result: &'static str, jobs: usize) -> Result<Self> {
        Ok(Self {
            result,
            rounds: options.rounds,
            warms_up: options.rounds > 1,
            rows: Rows::open(options.rows.as_deref(), result)?,
            begun: Instant::now(),
            planned: jobs * options.rounds,
            done: 0,
            measured: 0,
            cancel: Arc::default(),
        })
    }

    /// Whether a turn of `jobs` is missing.
    pub(crate) fn wants<J>(&self, jobs: &[Job<J>]) -> bool {
        let turns = jobs
            .iter()
            .flat_map(|job| (0..self.rounds).map(move |round| (job, round)));
        let mut turns = turns.map(|(job, round)| self.turn(job, round));
        turns.any(|turn| !self.rows.has(&turn))
    }

    /// Counts `jobs` as done without measuring.
    pub(crate) fn pass<J>(&mut self, jobs: &[Job<J>]) {
        self.done += jobs.len() * self.rounds;
    }

    /// Measures the missing turns of `jobs`, round by round. Before the first round each job has
    /// a warm-up: `measure` gets its length in seconds, and otherwise `None`.
    ///
    /// # Errors
    /// The first error of `measure`, or of writing a row.
    pub(crate) fn run<J>(
        &mut self,
        jobs: &[Job<J>],
        mut measure: impl FnMut(&J, Option<u64>) -> Result<Values>,
    ) -> Result<()> {
        if self.wants(jobs) && self.warms_up {
            for job in jobs {
                self.go_on()?;
                let warm_up = measure(&job.what, Some(WARM_UP_S));
                warm_up.with_context(|| format!("{}: {}", job.system, job.case))?;
            }
        }
        self.run_cold(jobs, |what| measure(what, None))
    }

    /// Measures the missing turns without a warm-up.
    ///
    /// # Errors
    /// The first error of `measure`, or of writing a row.
    pub(crate) fn run_cold<J>(
        &mut self,
        jobs: &[Job<J>],
        mut measure: impl FnMut(&J) -> Result<Values>,
    ) -> Result<()> {
        for round in 0..self.rounds {
            for job in in_turn(jobs, round) {
                self.done += 1;
                let turn = self.turn(job, round);
                if self.rows.has(&turn) {
                    continue;
                }
                self.go_on()?;
                let values = measure(&job.what);
                let values = values.with_context(|| format!("{}: {}", job.system, job.case))?;
                // A warm-up may be too short for large objects; a turn is not.
                let is_some = values
                    .get("requests")
                    .is_none_or(|requests| *requests > 0.0);
                ensure!(
                    is_some,
                    "{}: {}: no answer ended in time",
                    job.system,
                    job.case
                );
                self.measured += 1;
                let row = Row { turn, values };
                self.tell(&row);
                self.rows.add(row)?;
            }
        }
        Ok(())
    }

    /// All rows, also those of earlier runs.
    pub(crate) fn rows(&self) -> &[Row] {
        self.rows.all()
    }

    fn go_on(&self) -> Result<()> {
        ensure!(!self.cancel.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn turn<J>(&self, job: &Job<J>, round: usize) -> Turn {
        Turn {
            result: self.result.to_owned(),
            case: job.case.clone(),
            system: job.system.to_owned(),
            round,
        }
    }

    fn tell(&self, row: &Row) {
        let shown = HEADLINES.iter().filter_map(|name| {
            let value = row.values.get(*name)?;
            Some(format!("{name} {value:.1}"))
        });
        let shown: Vec<String> = shown.collect();
        eprintln!(
            "[{}/{}, {} left] {}, round {}: {}: {}",
            self.done,
            self.planned,
            minutes(self.left()),
            row.turn.case,
            row.turn.round + 1,
            row.turn.system,
            shown.join(", ")
        );
    }

    /// Time for the remaining turns, at the pace so far.
    fn left(&self) -> Duration {
        let left = self.planned.saturating_sub(self.done);
        let each = self.begun.elapsed() / u32::try_from(self.measured.max(1)).unwrap_or(u32::MAX);
        each.saturating_mul(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

/// The jobs in the order of a round. Every other round has the reverse order, so that no system
/// is always the first one.
fn in_turn<J>(jobs: &[Job<J>], round: usize) -> Vec<&Job<J>> {
    let jobs = jobs.iter();
    match round % 2 {
        0 => jobs.collect(),
        _ => jobs.rev().collect(),
    }
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn job(system: &'static str) -> Job<&'static str> {
        let case = Case::default().with("bytes", 1);
        Job {
            case,
            system,
            what: system,
        }
    }

    #[test]
    fn every_system_has_a_turn_in_every_round_after_a_warm_up_and_none_twice() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            rounds: 2,
            seconds: 1,
            quick: false,
            prism: None,
            rows: Some(directory.path().join("rows")),
            json: false,
        };
        let jobs = [job("a"), job("b")];
        let mut seen = Vec::new();
        let mut measure = |system: &&'static str, warm_up: Option<u64>| {
            seen.push((*system, warm_up.is_some()));
            anyhow::ensure!(seen.len() < 6, "interrupted");
            Ok(Values::new())
        };
        let mut turns = Turns::open(&options, "test", 2).unwrap();
        assert!(turns.run(&jobs, &mut measure).is_err());
        let mut again = Turns::open(&options, "test", 2).unwrap();
        assert_eq!(again.rows().len(), 3);
        let mut rest = Vec::new();
        let measure = |system: &&'static str, warm_up: Option<u64>| {
            rest.push((*system, warm_up.is_some()));
            Ok(Values::new())
        };
        again.run(&jobs, measure).unwrap();
        let [a, b] = ["a", "b"];
        let all = [(a, true), (b, true), (a, false), (b, false), (b, false)];
        assert_eq!(seen, [&all[..], &[(a, false)]].concat());
        assert_eq!(rest, [(a, true), (b, true), (a, false)]);
        assert!(!again.wants(&jobs));
    }
}
