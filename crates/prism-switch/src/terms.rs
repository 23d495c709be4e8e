//! The agent's part in terms (docs/design/terms.md): when a term begins and settles. The programs
//! read the present one from a map, and the runs of nodes hear of it on their leases.
//!
//! The map outlives the agent, which then goes on with its term. A file has the last term, for a
//! switch that has lost the map. If the file is lost too, or is behind the other switch's, most
//! nodes know a greater term.
//!
//! Not here: the rules (`prism_proto::term`), and what the programs make of them (`bpf/term.h`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libbpf_rs::{MapCore, MapFlags};
use prism_proto::control::Term;
use prism_proto::term::{SwitchOfPair, SwitchTerm, UNHEARD_NS};
use prism_sys::clock::monotonic_ns;
use zerocopy::IntoBytes;

use crate::error::{KernelError, kernel};
use crate::frontends::Frontends;
use crate::layout::{from_bytes, nanos};
use crate::leases::{LeaseChange, Leases};
use crate::skel::{SwitchMaps, types};

/// The key of the only entry of an array.
const ZERO: [u8; 4] = [0; 4];
/// Numbers of `struct term`'s generation.
const GENERATIONS: u8 = 4;
/// The time in which living nodes tell what they know of terms.
const UNHEARD: Duration = Duration::from_nanos(UNHEARD_NS);
/// 2026-01-01, from which a switch counts that has no file.
const FIRST_MINUTE_S: u64 = 1_767_225_600;

/// The phase of a switch's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermPhase {
    /// No agent has begun a term: commands are judged by their epochs alone.
    None = 0,
    /// Another switch decides.
    Standby = 1,
    /// Not all flows are known, and nothing is decided.
    Young = 2,
    /// All flows are known.
    Settled = 3,
}

impl TermPhase {
    fn of(code: u8) -> Self {
        match types::term_phase(code.into()) {
            types::term_phase::TERM_STANDBY => Self::Standby,
            types::term_phase::TERM_YOUNG => Self::Young,
            types::term_phase::TERM_SETTLED => Self::Settled,
            _ => Self::None,
        }
    }
}

/// The content of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TermState {
    pub(crate) term: Term,
    pub(crate) phase: TermPhase,
    generation: u8,
    settled_ns: u64,
}

impl TermState {
    pub(crate) fn read(map: &impl MapCore) -> Result<Self, KernelError> {
        let value = map.lookup(&ZERO, MapFlags::ANY);
        let value = value.map_err(kernel("read the term"))?.unwrap_or_default();
        let types::term_state { now, settled_ns } = from_bytes(&value);
        Ok(Self {
            term: Term(now.number),
            phase: TermPhase::of(now.phase),
            generation: now.generation % GENERATIONS,
            settled_ns,
        })
    }

    fn write(&self, map: &impl MapCore) -> Result<(), KernelError> {
        let value = types::term_state {
            now: types::term {
                number: self.term.0,
                phase: self.phase as u8,
                generation: self.generation,
                ..Default::default()
            },
            settled_ns: self.settled_ns,
        };
        let written = map.update(&ZERO, value.as_bytes(), MapFlags::ANY);
        written.map_err(kernel("write the term"))
    }
}

/// The terms of one switch.
pub(crate) struct Terms {
    rules: SwitchTerm,
    file: PathBuf,
    stored: Term,
    is_active: bool,
    /// The state that is wanted, and the one that the map has.
    state: TermState,
    written: TermState,
    started: Instant,
    /// When this switch began to grant leases.
    leases_since: Instant,
    other_host: Vec<IpAddr>,
}

impl Terms {
    /// The terms of the switch that has `maps`. It stands by, unless its table has outlived an
    /// agent in a settled term.
    pub(crate) fn load(
        maps: &SwitchMaps<'_>,
        leases: &Leases,
        place: SwitchOfPair,
        other_host: Vec<IpAddr>,
        file: PathBuf,
        now: Instant,
    ) -> Result<Self, KernelError> {
        let state = TermState::read(&maps.term_state)?;
        let stored = stored(&file);
        // A table with flows and without a term was filled under a release without terms.
        let is_kept = match state.phase {
            TermPhase::Settled => true,
            TermPhase::None => maps.flows.keys().next().is_some(),
            TermPhase::Standby | TermPhase::Young => false,
        };
        let rules = if is_kept {
            SwitchTerm::settled(place, stored, state.term)
        } else {
            SwitchTerm::standby(place, stored.max(state.term))
        };
        let rules = rules.beside(other_host.clone());
        if !is_kept {
            leases.close();
        }
        Ok(Self {
            rules,
            file,
            stored,
            is_active: is_kept,
            state,
            written: state,
            started: now,
            leases_since: now,
            other_host,
        })
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    pub(crate) fn set_active(&mut self, is_active: bool) {
        self.is_active = is_active;
    }

    /// Begins and settles terms, as the runs and the time at `now` require. `changes` are those of
    /// runs since the last call. Returns whether the term has changed.
    pub(crate) fn update(
        &mut self,
        maps: &SwitchMaps<'_>,
        leases: &Leases,
        frontends: &mut Frontends,
        changes: &[LeaseChange],
        now: Instant,
    ) -> Result<bool, KernelError> {
        for change in changes {
            if let LeaseChange::Ended { node, run, .. } = change {
                self.rules.lease_ends(*node, *run);
            }
        }
        let is_behind = self.hear_nodes(leases, now);
        match (self.is_active, self.rules.is_arbiter()) {
            (true, false) => {
                frontends.wait_for_leases(now);
                leases.open(now);
                self.leases_since = now;
                self.begin(leases, now);
            }
            (true, true) if is_behind => self.begin(leases, now),
            (false, true) => {
                self.rules.step_down();
                self.state.settled_ns = monotonic_ns();
                leases.close();
            }
            _ => {}
        }
        if !self.rules.is_settled() || !changes.is_empty() {
            for (node, run, done) in leases.runs(self.rules.term()) {
                self.rules.lease_begins(node, run);
                if let Some(done) = done {
                    self.rules.run_is_done(node, run, done);
                }
            }
        }
        if self.rules.handle_timeout(self.time_ns(now)) {
            let settled = frontends.settle(maps, now);
            settled.map_err(kernel("keep the frontends of connections"))?;
            self.state.settled_ns = monotonic_ns();
        }
        self.bring_up_to_date(maps, leases)
    }

    /// Hears what the nodes know of terms. Returns whether they know a greater one than this: its
    /// file is lost, or the other switch has begun later ones.
    fn hear_nodes(&mut self, leases: &Leases, now: Instant) -> bool {
        let is_waiting = now.saturating_duration_since(self.leases_since) < UNHEARD;
        // A node on the other host of the pair has most likely died with it.
        let nodes = leases.nodes();
        let nodes = nodes.iter().filter(|node| !self.other_host.contains(node));
        let told = leases.told(if is_waiting { nodes.count() } else { 0 });
        let is_behind = self.rules.observe(&told, self.time_ns(now));
        let greatest = told.greatest();
        let is_disbelieved = self.is_active && !is_waiting && !is_behind;
        let is_disbelieved = is_disbelieved && greatest > self.rules.term();
        if leases.note_disbelief(is_disbelieved) {
            tracing::warn!(
                told = greatest.0,
                term = self.rules.term().0,
                "a node knows a later term than this switch, but most nodes do not, or it is too \
                 late for any switch. The switch ignores it. If no other switch has been active, \
                 the node's switch key may be in wrong hands"
            );
        }
        is_behind
    }

    fn begin(&mut self, leases: &Leases, now: Instant) {
        self.rules.begin(leases.nodes(), self.time_ns(now));
        if self.rules.is_last() {
            tracing::error!(
                term = self.rules.term().0,
                file = %self.file.display(),
                "the terms are used up: connections that move are lost when a switch loses its \
                 table. Stop all nodes and switches, delete the file, and start them again"
            );
        }
        self.state.generation = (self.state.generation + 1) % GENERATIONS;
    }

    /// Stores the term, then has the programs go by it, then tells the nodes.
    fn bring_up_to_date(
        &mut self,
        maps: &SwitchMaps<'_>,
        leases: &Leases,
    ) -> Result<bool, KernelError> {
        self.state.term = self.rules.term();
        self.state.phase = match (self.rules.is_arbiter(), self.rules.is_settled()) {
            (false, _) => TermPhase::Standby,
            (true, false) => TermPhase::Young,
            (true, true) => TermPhase::Settled,
        };
        let TermState { term, phase, .. } = self.state;
        if term != self.stored {
            if let Err(error) = store(&self.file, term) {
                tracing::error!(file = %self.file.display(), %error, "cannot store the term");
            }
            self.stored = term;
        }
        let is_change = self.state != self.written;
        if is_change {
            self.state.write(&maps.term_state)?;
            self.written = self.state;
            tracing::info!(term = term.0, ?phase, "the term has changed");
        }
        leases.publish(self.rules.notice(), self.rules.awaited());
        Ok(is_change)
    }

    fn time_ns(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.started))
    }
}

/// The last term of this host. Without a file it is the number of minutes since 2026: terms begin
/// less often, so it is most likely greater than all before.
fn stored(file: &Path) -> Term {
    let number = fs::read_to_string(file).and_then(|text| {
        let number = text.trim().parse::<u32>();
        let number = number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let is_term = number <= Term::MAX.0;
        is_term.then_some(number).ok_or_else(|| {
            let what = format!("{number} is greater than any term ({})", Term::MAX.0);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    });
    let number = number.unwrap_or_else(|error| {
        tracing::warn!(file = %file.display(), %error, "the last term is not known");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let minutes = since
            .unwrap_or_default()
            .as_secs()
            .saturating_sub(FIRST_MINUTE_S)
            / 60;
        u32::try_from(minutes).unwrap_or(0)
    });
    Term(number).min(Term::MAX)
}

/// Replaces the file in one step that outlives a crash.
fn store(file: &Path, term: Term) -> io::Result<()> {
    let new = file.with_extension("new");
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut content = File::create(&new)?;
    writeln!(content, "{}", term.0)?;
    content.sync_all()?;
    fs::rename(&new, file)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stored_term_is_read_and_without_one_time_counts() {
        let directory = std::env::temp_dir().join(format!("prism-term-{}", std::process::id()));
        let file = directory.join("deeper/term");
        assert!(stored(&file) > Term(100_000));
        store(&file, Term(7)).unwrap();
        assert_eq!(stored(&file), Term(7));
        fs::write(&file, Term::MAX.0.to_string()).unwrap();
        assert_eq!(stored(&file), Term::MAX);
        for bad in ["x", "16777216", "4294967295", "-1", ""] {
            fs::write(&file, bad).unwrap();
            let instead = stored(&file);
            assert!(instead > Term(100_000) && instead < Term::MAX, "{bad:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
