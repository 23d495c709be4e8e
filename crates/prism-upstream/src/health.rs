//! Whether an address of an upstream gets requests: by the answers to requests (passive), and by
//! checks (active). Pure: times are parameters.

use std::io;
use std::time::{Duration, Instant};

/// Requests in a row without an answer after which an address is ejected.
const MAX_SILENT: u32 = 3;
/// Answers in a row with status 502, 503 or 504 after which an address is ejected.
const MAX_BAD_ANSWERS: u32 = 5;
/// The shortest ejection. Each further one lasts twice as long.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// The longest ejection.
const MAX_EJECTION: Duration = Duration::from_secs(30);
/// An address that was in for this time has no history.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The outcome of a request at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It took no connection.
    Refused,
    /// It sent no answer, or none in time.
    Silent,
    /// It answered with this status.
    Answered(u16),
}

impl Outcome {
    /// Whether some of these in a row eject an address.
    pub(crate) const fn is_bad(self) -> bool {
        !matches!(self, Self::Answered(..502 | 505..))
    }
}

/// Whether the server, or the way to it, is the reason why a `connect` failed. Else this node is:
/// it lacks descriptors, ports or memory.
pub(crate) fn is_of_server(fault: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
    };
    matches!(
        fault.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable | TimedOut
    )
}

/// Bad and good checks in a row that change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) fall: u32,
    pub(crate) rise: u32,
}

/// The health of one address.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    state: State,
    /// Ejections of late.
    ejections: u32,
}

#[derive(Clone, Debug)]
enum State {
    In {
        since: Option<Instant>,
        silent: u32,
        bad_answers: u32,
        bad_checks: u32,
    },
    Out {
        until: Instant,
        good_checks: u32,
    },
}

impl State {
    const fn fresh(since: Option<Instant>) -> Self {
        Self::In {
            since,
            silent: 0,
            bad_answers: 0,
            bad_checks: 0,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: State::fresh(None),
            ejections: 0,
        }
    }
}

impl Health {
    /// Whether it gets requests.
    pub(crate) fn is_in(&self) -> bool {
        matches!(self.state, State::In { .. })
    }

    /// A request had this outcome, by which the address may be ejected or not. Returns whether it
    /// is.
    pub(crate) fn request(&mut self, outcome: Outcome, may_eject: bool, now: Instant) -> bool {
        let State::In {
            silent,
            bad_answers,
            ..
        } = &mut self.state
        else {
            // Sent before, or because every address is out.
            return false;
        };
        match outcome {
            Outcome::Answered(_) if outcome.is_bad() => {
                (*silent, *bad_answers) = (0, bad_answers.saturating_add(1));
            }
            Outcome::Answered(_) => (*silent, *bad_answers) = (0, 0),
            Outcome::Silent => *silent = silent.saturating_add(1),
            Outcome::Refused => *silent = MAX_SILENT,
        }
        let is_too_bad = *silent >= MAX_SILENT || *bad_answers >= MAX_BAD_ANSWERS;
        let ejects = may_eject && is_too_bad;
        if ejects {
            self.eject(now);
        }
        ejects
    }

    /// A check had this outcome. Returns whether the state has changed by it.
    pub(crate) fn check(&mut self, is_good: bool, bounds: Bounds, now: Instant) -> bool {
        match &mut self.state {
            State::In { bad_checks, .. } => {
                *bad_checks = if is_good { 0 } else { *bad_checks + 1 };
                let ejects = *bad_checks >= bounds.fall;
                if ejects {
                    self.eject(now);
                }
                ejects
            }
            State::Out { until, good_checks } => {
                *good_checks = if is_good { *good_checks + 1 } else { 0 };
                let returns = *good_checks >= bounds.rise && now >= *until;
                if returns {
                    self.state = State::fresh(Some(now));
                }
                returns
            }
        }
    }

    fn eject(&mut self, now: Instant) {
        if let State::In {
            since: Some(since), ..
        } = self.state
            && now.saturating_duration_since(since) >= FORGET_AFTER
        {
            self.ejections = 0;
        }
        let lasts = FIRST_EJECTION.saturating_mul(1 << self.ejections.min(8));
        self.ejections = self.ejections.saturating_add(1);
        self.state = State::Out {
            until: now + lasts.min(MAX_EJECTION),
            good_checks: 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { fall: 2, rise: 2 };

    #[test]
    fn one_refusal_ejects_and_some_silences_or_bad_answers_in_a_row_do() {
        let now = Instant::now();
        let times = |outcome| {
            let mut health = Health::default();
            (1..).find(|_| health.request(outcome, true, now))
        };
        assert_eq!(times(Outcome::Refused), Some(1));
        assert_eq!(times(Outcome::Silent), Some(MAX_SILENT));
        assert_eq!(times(Outcome::Answered(503)), Some(MAX_BAD_ANSWERS));
        let mut health = Health::default();
        for n in 0..100 {
            let outcome = match n % 5 {
                4 => Outcome::Answered(500),
                _ if n % 2 == 0 => Outcome::Answered(502),
                _ => Outcome::Answered(504),
            };
            assert!(!health.request(outcome, true, now));
        }
    }

    #[test]
    fn an_address_that_must_stay_is_ejected_once_it_may_go() {
        let (now, mut health) = (Instant::now(), Health::default());
        for _ in 0..100 {
            assert!(!health.request(Outcome::Answered(503), false, now));
        }
        assert!(health.is_in() && health.request(Outcome::Answered(503), true, now));
    }

    #[test]
    fn only_the_ends_of_a_way_to_a_server_are_its_fault() {
        // ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ECONNRESET and ETIMEDOUT of Linux.
        for code in [111, 113, 101, 104, 110] {
            assert!(is_of_server(&io::Error::from_raw_os_error(code)), "{code}");
        }
        // ENFILE, EMFILE, EADDRNOTAVAIL, ENOBUFS and ENOMEM.
        for code in [23, 24, 99, 105, 12] {
            assert!(!is_of_server(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }

    #[test]
    fn an_ejected_address_returns_after_its_time_and_good_checks() {
        let start = Instant::now();
        let mut health = Health::default();
        assert!(health.request(Outcome::Refused, true, start));
        assert!(!health.check(true, BOUNDS, start) && !health.check(true, BOUNDS, start));
        let later = start + FIRST_EJECTION;
        assert!(health.check(true, BOUNDS, later) && health.is_in());
        // The next one lasts longer, unless it was in for long.
        assert!(health.request(Outcome::Refused, true, later));
        health.check(true, BOUNDS, later);
        assert!(!health.check(true, BOUNDS, later + FIRST_EJECTION));
        assert!(health.check(true, BOUNDS, later + 2 * FIRST_EJECTION));
        let much_later = later + 2 * FIRST_EJECTION + FORGET_AFTER;
        assert!(health.request(Outcome::Refused, true, much_later));
        health.check(true, BOUNDS, much_later);
        assert!(health.check(true, BOUNDS, much_later + FIRST_EJECTION));
    }

    #[test]
    fn checks_alone_take_an_address_out_and_in() {
        let (start, mut health) = (Instant::now(), Health::default());
        assert!(!health.check(false, BOUNDS, start) && !health.check(true, BOUNDS, start));
        assert!(!health.check(false, BOUNDS, start) && health.check(false, BOUNDS, start));
        let later = start + MAX_EJECTION;
        assert!(!health.check(true, BOUNDS, later) && !health.check(false, BOUNDS, later));
        assert!(!health.check(true, BOUNDS, later) && health.check(true, BOUNDS, later));
    }

    #[test]
    fn every_ejection_ends_whatever_has_happened() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut now, mut health) = (Instant::now(), Health::default());
            for _ in 0..200 {
                now += Duration::from_millis(rng.u64(..2_000));
                let was_in = health.is_in();
                let changed = match rng.u8(..5) {
                    0 => health.request(Outcome::Refused, true, now),
                    1 => health.request(Outcome::Silent, rng.bool(), now),
                    2 => health.request(Outcome::Answered(rng.u16(200..600)), true, now),
                    _ => health.check(rng.bool(), BOUNDS, now),
                };
                assert_eq!(changed, was_in != health.is_in(), "seed {seed}");
            }
            now += MAX_EJECTION;
            health.check(true, BOUNDS, now);
            health.check(true, BOUNDS, now);
            assert!(health.is_in(), "seed {seed}");
        }
    }
}
