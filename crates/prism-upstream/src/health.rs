//! Whether an address of an upstream gets requests: by the answers to requests (passive), and by
//! checks (active). Pure: times are parameters.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use prism_proxy::Failure;

use crate::duty::Duty;
use crate::figures::ServerState;

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

/// The reason why a server failed a request or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It refused the connection.
    Refused,
    /// No way leads to it.
    Unreachable,
    /// It took no connection in time.
    ConnectTimeout,
    /// It ended the connection without an answer.
    Ended,
    /// It did not answer in time.
    AnswerTimeout,
    /// Its answer was malformed.
    Malformed,
    /// It answered with this status.
    Status(u16),
}

impl Reason {
    /// The reasons why requests fail.
    pub(crate) const OF_REQUESTS: [Self; 9] = [
        Self::Refused,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::Ended,
        Self::AnswerTimeout,
        Self::Malformed,
        Self::Status(502),
        Self::Status(503),
        Self::Status(504),
    ];

    /// The reason why a `connect` failed, if the server or the way to it is. Else this node is: it
    /// lacks descriptors, ports or memory.
    pub(crate) fn of_connect(fault: &io::Error) -> Option<Self> {
        use io::ErrorKind::{
            ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
        };
        Some(match fault.kind() {
            ConnectionRefused | ConnectionReset => Self::Refused,
            HostUnreachable | NetworkUnreachable => Self::Unreachable,
            TimedOut => Self::ConnectTimeout,
            _ => return None,
        })
    }

    /// The word for it in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::ConnectTimeout => "connect_timeout",
            Self::Ended => "ended",
            Self::AnswerTimeout => "answer_timeout",
            Self::Malformed => "malformed",
            Self::Status(502) => "status_502",
            Self::Status(503) => "status_503",
            Self::Status(504) => "status_504",
            Self::Status(_) => "status",
        }
    }

    /// Whether there was no connection.
    pub(crate) const fn is_of_connect(self) -> bool {
        matches!(
            self,
            Self::Refused | Self::Unreachable | Self::ConnectTimeout
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::Unreachable => "out of reach",
            Self::ConnectTimeout => "no connection in time",
            Self::Ended => "connection ended without an answer",
            Self::AnswerTimeout => "no answer in time",
            Self::Malformed => "malformed answer",
            Self::Status(status) => return write!(f, "status {status}"),
        })
    }
}

impl From<Failure> for Reason {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ended { .. } => Self::Ended,
            Failure::Silent => Self::AnswerTimeout,
            Failure::Malformed => Self::Malformed,
        }
    }
}

/// The outcome of a request at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has no answer.
    Failed(Reason),
    /// It was answered with this status.
    Answered(u16),
}

impl Outcome {
    /// The reason why it is bad: some of these in a row eject an address.
    pub(crate) const fn fault(self) -> Option<Reason> {
        match self {
            Self::Failed(reason) => Some(reason),
            Self::Answered(status @ 502..=504) => Some(Reason::Status(status)),
            Self::Answered(_) => None,
        }
    }

    /// Whether a client can cause it.
    pub(crate) const fn is_by_client(self) -> bool {
        !matches!(self, Self::Failed(reason) if reason.is_of_connect())
    }
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The server took a connection; nothing was asked.
    Connected,
    /// It answered, and the answer is good.
    Answered,
    Failed(Reason),
}

/// A failure that made an address unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    pub(crate) is_by_check: bool,
    pub(crate) at: Instant,
}

/// The health of an address, as operators see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) state: ServerState,
    pub(crate) gets_requests: bool,
    /// The last one.
    pub(crate) fault: Option<Fault>,
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
    duty: Duty,
    state: State,
    /// Ejections of late.
    ejections: u32,
    /// The last word of requests and checks. An address that fails may be in, because too few
    /// others would be left.
    seen: Seen,
    /// The last failure that made it unhealthy.
    fault: Option<Fault>,
    /// When something was last heard of it.
    heard: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Seen {
    Nothing,
    Good,
    /// As often in a row as ejects an address; since then.
    Bad(Instant),
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
            duty: Duty::Up,
            state: State::fresh(None),
            ejections: 0,
            seen: Seen::Nothing,
            fault: None,
            heard: None,
        }
    }
}

impl Health {
    /// Whether it is well enough for requests.
    pub(crate) fn is_in(&self) -> bool {
        matches!(self.state, State::In { .. })
    }

    pub(crate) fn duty(&self) -> Duty {
        self.duty
    }

    /// It goes on to be judged, so that its health is known when it is up again.
    pub(crate) fn set_duty(&mut self, duty: Duty) {
        self.duty = duty;
    }

    /// It is there, which is all that is known.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// Whether something was heard of it within `time`.
    pub(crate) fn is_heard_within(&self, time: Duration, now: Instant) -> bool {
        let since = self.heard.map(|at| now.saturating_duration_since(at));
        since.is_some_and(|since| since < time)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let state = match (self.duty, &self.state, self.seen) {
            (Duty::Drain, ..) => ServerState::Draining,
            (Duty::Down, ..) => ServerState::Down,
            (Duty::Up, State::Out { .. }, _) | (Duty::Up, _, Seen::Bad(_)) => {
                ServerState::Unhealthy
            }
            (Duty::Up, State::In { .. }, Seen::Good) => ServerState::Healthy,
            (Duty::Up, State::In { .. }, Seen::Nothing) => ServerState::Unknown,
        };
        Verdict {
            state,
            gets_requests: self.is_in() && self.duty == Duty::Up,
            fault: self.fault,
        }
    }

    /// A request had this outcome, by which the address may be ejected or not. Returns whether it
    /// is.
    pub(crate) fn request(&mut self, outcome: Outcome, may_eject: bool, now: Instant) -> bool {
        self.heard = Some(now);
        let State::In {
            silent,
            bad_answers,
            ..
        } = &mut self.state
        else {
            // Sent before, or because every address is out.
            return false;
        };
        let Some(reason) = outcome.fault() else {
            (*silent, *bad_answers) = (0, 0);
            self.seen = Seen::Good;
            return false;
        };
        match reason {
            Reason::Status(_) => (*silent, *bad_answers) = (0, bad_answers.saturating_add(1)),
            _ if reason.is_of_connect() => *silent = MAX_SILENT,
            _ => *silent = silent.saturating_add(1),
        }
        if *silent < MAX_SILENT && *bad_answers < MAX_BAD_ANSWERS {
            return false;
        }
        self.fail(reason, false, now);
        if may_eject {
            self.eject(now);
        }
        may_eject
    }

    /// A check had this outcome. Returns whether the state has changed by it.
    pub(crate) fn check(&mut self, check: Check, bounds: Bounds, now: Instant) -> bool {
        self.heard = Some(now);
        let fault = match check {
            Check::Failed(reason) => Some(reason),
            Check::Connected | Check::Answered => None,
        };
        match (&mut self.state, fault) {
            (State::In { bad_checks, .. }, None) => {
                *bad_checks = 0;
                self.see_good(check, now);
                false
            }
            (State::In { bad_checks, .. }, Some(reason)) => {
                *bad_checks = bad_checks.saturating_add(1);
                let ejects = *bad_checks >= bounds.fall;
                if ejects {
                    self.fail(reason, true, now);
                    self.eject(now);
                }
                ejects
            }
            (State::Out { good_checks, .. }, Some(_)) => {
                *good_checks = 0;
                false
            }
            (State::Out { until, good_checks }, None) => {
                *good_checks = good_checks.saturating_add(1);
                let returns = *good_checks >= bounds.rise && now >= *until;
                if returns {
                    self.state = State::fresh(Some(now));
                    self.seen = Seen::Good;
                }
                returns
            }
        }
    }

    /// A check was good. A connection alone says little of a server that has failed requests.
    fn see_good(&mut self, check: Check, now: Instant) {
        let is_doubtful = match (check, self.seen) {
            (Check::Connected, Seen::Bad(at)) => now.saturating_duration_since(at) < MAX_EJECTION,
            _ => false,
        };
        if !is_doubtful {
            self.seen = Seen::Good;
        }
    }

    fn fail(&mut self, reason: Reason, is_by_check: bool, now: Instant) {
        self.seen = Seen::Bad(now);
        self.fault = Some(Fault {
            reason,
            is_by_check,
            at: now,
        });
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
    const REFUSED: Outcome = Outcome::Failed(Reason::Refused);
    const SILENT: Outcome = Outcome::Failed(Reason::AnswerTimeout);
    const GOOD: Check = Check::Answered;
    const BAD: Check = Check::Failed(Reason::Status(500));

    #[test]
    fn one_refusal_ejects_and_some_silences_or_bad_answers_in_a_row_do() {
        let now = Instant::now();
        let times = |outcome| {
            let mut health = Health::default();
            (1..).find(|_| health.request(outcome, true, now))
        };
        assert_eq!(times(REFUSED), Some(1));
        assert_eq!(times(SILENT), Some(MAX_SILENT));
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
    fn a_server_that_is_taken_down_is_judged_further() {
        let (now, mut health) = (Instant::now(), Health::default());
        for (duty, state) in [
            (Duty::Drain, ServerState::Draining),
            (Duty::Down, ServerState::Down),
        ] {
            health.set_duty(duty);
            let verdict = health.verdict();
            assert_eq!((verdict.state, verdict.gets_requests), (state, false));
            assert!(health.is_in());
        }
        health.request(REFUSED, true, now);
        assert_eq!(health.verdict().state, ServerState::Down);
        health.set_duty(Duty::Up);
        let verdict = health.verdict();
        assert_eq!(verdict.state, ServerState::Unhealthy);
        assert!(!verdict.gets_requests);
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
            assert!(
                Reason::of_connect(&io::Error::from_raw_os_error(code)).is_some(),
                "{code}"
            );
        }
        // ENFILE, EMFILE, EADDRNOTAVAIL, ENOBUFS and ENOMEM.
        for code in [23, 24, 99, 105, 12] {
            assert!(
                Reason::of_connect(&io::Error::from_raw_os_error(code)).is_none(),
                "{code}"
            );
        }
    }

    #[test]
    fn an_ejected_address_returns_after_its_time_and_good_checks() {
        let start = Instant::now();
        let mut health = Health::default();
        assert!(health.request(REFUSED, true, start));
        assert!(!health.check(GOOD, BOUNDS, start) && !health.check(GOOD, BOUNDS, start));
        let later = start + FIRST_EJECTION;
        assert!(health.check(GOOD, BOUNDS, later) && health.is_in());
        // The next one lasts longer, unless it was in for long.
        assert!(health.request(REFUSED, true, later));
        health.check(GOOD, BOUNDS, later);
        assert!(!health.check(GOOD, BOUNDS, later + FIRST_EJECTION));
        assert!(health.check(GOOD, BOUNDS, later + 2 * FIRST_EJECTION));
        let much_later = later + 2 * FIRST_EJECTION + FORGET_AFTER;
        assert!(health.request(REFUSED, true, much_later));
        health.check(GOOD, BOUNDS, much_later);
        assert!(health.check(GOOD, BOUNDS, much_later + FIRST_EJECTION));
    }

    #[test]
    fn checks_alone_take_an_address_out_and_in() {
        let (start, mut health) = (Instant::now(), Health::default());
        assert!(!health.check(BAD, BOUNDS, start) && !health.check(GOOD, BOUNDS, start));
        assert!(!health.check(BAD, BOUNDS, start) && health.check(BAD, BOUNDS, start));
        let later = start + MAX_EJECTION;
        assert!(!health.check(GOOD, BOUNDS, later) && !health.check(BAD, BOUNDS, later));
        assert!(!health.check(GOOD, BOUNDS, later) && health.check(GOOD, BOUNDS, later));
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
                    0 => health.request(REFUSED, true, now),
                    1 => health.request(SILENT, rng.bool(), now),
                    2 => health.request(Outcome::Answered(rng.u16(200..600)), true, now),
                    _ => health.check(if rng.bool() { GOOD } else { BAD }, BOUNDS, now),
                };
                assert_eq!(changed, was_in != health.is_in(), "seed {seed}");
            }
            now += MAX_EJECTION;
            health.check(GOOD, BOUNDS, now);
            health.check(GOOD, BOUNDS, now);
            assert!(health.is_in(), "seed {seed}");
        }
    }

    #[test]
    fn a_server_is_unknown_until_something_is_heard_of_it() {
        let (now, mut health) = (Instant::now(), Health::default());
        let state = |health: &Health| health.verdict().state;
        assert_eq!(state(&health), ServerState::Unknown);
        assert!(!health.is_heard_within(Duration::MAX, now));
        health.request(SILENT, true, now);
        assert_eq!(state(&health), ServerState::Unknown);
        assert!(health.is_heard_within(Duration::from_secs(1), now));
        assert!(!health.is_heard_within(Duration::from_secs(1), now + Duration::from_secs(1)));
        for check in [Check::Connected, Check::Answered] {
            let mut health = Health::default();
            health.check(check, BOUNDS, now);
            assert_eq!(state(&health), ServerState::Healthy);
        }
        health.request(Outcome::Answered(500), true, now);
        assert_eq!(state(&health), ServerState::Healthy);
        assert!(health.verdict().fault.is_none());
    }

    #[test]
    fn the_failure_that_took_a_server_out_is_named_and_stays_named() {
        let start = Instant::now();
        let mut health = Health::default();
        health.check(Check::Failed(Reason::Status(404)), BOUNDS, start);
        assert!(health.verdict().fault.is_none());
        health.check(Check::Failed(Reason::Status(503)), BOUNDS, start);
        let fault = |health: &Health| health.verdict().fault.map(|f| (f.reason, f.is_by_check));
        assert_eq!(health.verdict().state, ServerState::Unhealthy);
        assert_eq!(fault(&health), Some((Reason::Status(503), true)));
        let later = start + MAX_EJECTION;
        assert!(!health.check(GOOD, BOUNDS, later) && health.check(GOOD, BOUNDS, later));
        assert_eq!(health.verdict().state, ServerState::Healthy);
        assert_eq!(fault(&health), Some((Reason::Status(503), true)));
        health.request(REFUSED, true, later);
        assert_eq!(fault(&health), Some((Reason::Refused, false)));
        assert_eq!(Reason::Status(503).to_string(), "status 503");
    }

    #[test]
    fn a_failing_server_that_must_stay_is_unhealthy_until_it_answers() {
        let start = Instant::now();
        let failing = || {
            let mut health = Health::default();
            let mut asked = (0..MAX_SILENT).map(|_| health.request(SILENT, false, start));
            assert!(asked.all(|ejects| !ejects));
            health
        };
        let state = |health: &Health| health.verdict().state;
        let mut health = failing();
        assert!(health.is_in() && health.verdict().gets_requests);
        assert_eq!(state(&health), ServerState::Unhealthy);
        // Its kernel takes connections for it.
        health.check(Check::Connected, BOUNDS, start + Duration::from_secs(1));
        assert_eq!(state(&health), ServerState::Unhealthy);
        health.check(Check::Connected, BOUNDS, start + MAX_EJECTION);
        assert_eq!(state(&health), ServerState::Healthy);
        let mut health = failing();
        health.check(Check::Answered, BOUNDS, start);
        assert_eq!(state(&health), ServerState::Healthy);
        let mut health = failing();
        health.request(Outcome::Answered(200), false, start);
        assert_eq!(state(&health), ServerState::Healthy);
    }
}
