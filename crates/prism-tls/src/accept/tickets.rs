//! Session tickets that every frontend with the same secret can open.
//!
//! The time since 1970 is divided into periods, and HKDF of a fleet secret gives each period
//! its key, so that frontends agree without talking. The present period's key seals tickets.
//! The keys of the present, the previous and the next period open them; the next one is for
//! frontends whose clock is behind.
//!
//! `ticket_key` has the form of a ticket. rustls decides what it holds.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use parking_lot::Mutex;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;

use super::ticket_key::PeriodKey;
use crate::keys::Secret;

/// Shortest period: clocks of frontends differ by far less.
const MIN_ROTATION_S: u32 = 600;
/// Longest period. A ticket lives for up to two periods, and at most for 7 days (RFC 8446,
/// 4.6.1).
const MAX_ROTATION_S: u32 = 302_400;
/// Most secrets at once: the present one, and old ones during a replacement.
const MAX_TICKET_SECRETS: usize = 4;

/// Bytes of a fleet secret; the strength of the keys made from it.
const SECRET_BYTES: usize = 32;

/// There are no tickets. The configuration is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum TicketsError {
    #[error("give 1 to {MAX_TICKET_SECRETS} ticket secrets")]
    SecretCount,
    #[error("a ticket secret is not {SECRET_BYTES} bytes long")]
    SecretLength,
    #[error("a rotation of {0} s is out of range; use {MIN_ROTATION_S} to {MAX_ROTATION_S}")]
    Rotation(u32),
}

/// Seals and opens the tickets of a fleet.
pub struct Tickets {
    rotation_s: u32,
    clock: Arc<dyn TimeProvider>,
    state: Mutex<State>,
}

struct State {
    roots: Vec<Prk>,
    ring: Arc<Ring>,
}

/// The keys that are in use during one period.
struct Ring {
    period: u64,
    /// The first one seals.
    keys: Vec<PeriodKey>,
}

impl Tickets {
    /// Tickets under the first of `secrets`, each of which has 32 random bytes. The others
    /// open tickets only, so that old tickets stay valid while a secret is replaced. A new key
    /// begins every `rotation_s` seconds of `clock`.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn new(
        secrets: &[Secret],
        rotation_s: u32,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, TicketsError> {
        if !(MIN_ROTATION_S..=MAX_ROTATION_S).contains(&rotation_s) {
            return Err(TicketsError::Rotation(rotation_s));
        }
        let state = State::new(secrets, period(&*clock, rotation_s), rotation_s)?;
        Ok(Self {
            rotation_s,
            clock,
            state: Mutex::new(state),
        })
    }

    /// Replaces the secrets.
    ///
    /// # Errors
    /// If their number or length is wrong. The old ones then stay in force.
    pub fn replace_secrets(&self, secrets: &[Secret]) -> Result<(), TicketsError> {
        let period = period(&*self.clock, self.rotation_s);
        *self.state.lock() = State::new(secrets, period, self.rotation_s)?;
        Ok(())
    }

    fn ring(&self) -> Arc<Ring> {
        let period = period(&*self.clock, self.rotation_s);
        let mut state = self.state.lock();
        if state.ring.period != period {
            state.ring = Arc::new(Ring::new(&state.roots, period, self.rotation_s));
        }
        state.ring.clone()
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("rotation_s", &self.rotation_s)
            .finish_non_exhaustive()
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    /// One period: a ticket of a period's last second lives no longer.
    fn lifetime(&self) -> u32 {
        self.rotation_s
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let ring = self.ring();
        ring.keys.first()?.seal(plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let ring = self.ring();
        ring.keys.iter().find(|key| key.made(ticket))?.open(ticket)
    }
}

fn period(clock: &dyn TimeProvider, rotation_s: u32) -> u64 {
    // A clock before 1970 gives no time.
    let now_s = clock.current_time().map_or(0, |now| now.as_secs());
    now_s / u64::from(rotation_s.max(1))
}

impl State {
    fn new(secrets: &[Secret], period: u64, rotation_s: u32) -> Result<Self, TicketsError> {
        if !(1..=MAX_TICKET_SECRETS).contains(&secrets.len()) {
            return Err(TicketsError::SecretCount);
        }
        if secrets.iter().any(|s| s.as_bytes().len() != SECRET_BYTES) {
            return Err(TicketsError::SecretLength);
        }
        let salt = Salt::new(HKDF_SHA256, b"prism session tickets 1");
        let roots: Vec<_> = secrets.iter().map(|s| salt.extract(s.as_bytes())).collect();
        let ring = Arc::new(Ring::new(&roots, period, rotation_s));
        Ok(Self { roots, ring })
    }
}

impl Ring {
    fn new(roots: &[Prk], period: u64, rotation_s: u32) -> Self {
        let periods = [Some(period), period.checked_sub(1), period.checked_add(1)];
        let keys = periods
            .into_iter()
            .flatten()
            .flat_map(|period| {
                roots
                    .iter()
                    .filter_map(move |root| PeriodKey::new(root, period, rotation_s))
            })
            .collect();
        Self { period, keys }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    const HOUR_S: u32 = 3_600;

    #[derive(Clone, Debug)]
    struct Wall(Arc<AtomicU64>);

    impl TimeProvider for Wall {
        fn current_time(&self) -> Option<UnixTime> {
            let now = Duration::from_secs(self.0.load(Ordering::Relaxed));
            Some(UnixTime::since_unix_epoch(now))
        }
    }

    impl Wall {
        fn at(seconds: u64) -> Self {
            Self(Arc::new(AtomicU64::new(seconds)))
        }

        fn set(&self, seconds: u64) {
            self.0.store(seconds, Ordering::Relaxed);
        }

        fn clock(&self) -> Arc<dyn TimeProvider> {
            Arc::new(self.clone())
        }
    }

    fn secret(byte: u8) -> Secret {
        Secret::new(&[byte; SECRET_BYTES]).unwrap()
    }

    fn tickets(byte: u8, wall: &Wall) -> Tickets {
        Tickets::new(&[secret(byte)], HOUR_S, wall.clock()).unwrap()
    }

    #[test]
    fn a_ticket_opens_at_another_frontend_of_the_same_secret_only() {
        let wall = Wall::at(1_000_000);
        let ticket = tickets(1, &wall).encrypt(b"session").unwrap();
        assert_eq!(tickets(1, &wall).decrypt(&ticket).unwrap(), b"session");
        assert_eq!(tickets(2, &wall).decrypt(&ticket), None);
        let other_rotation = Tickets::new(&[secret(1)], 2 * HOUR_S, wall.clock()).unwrap();
        assert_eq!(other_rotation.decrypt(&ticket), None);
    }

    #[test]
    fn a_ticket_lives_from_one_period_before_to_one_after_its_own() {
        let hour = u64::from(HOUR_S);
        let (issuer, reader) = (Wall::at(100 * hour), Wall::at(0));
        let ticket = tickets(1, &issuer).encrypt(b"session").unwrap();
        let there = tickets(1, &reader);
        for (at_s, lives) in [
            (99 * hour - 1, false),
            (99 * hour, true),
            (100 * hour, true),
            (102 * hour - 1, true),
            (102 * hour, false),
            (100 * hour, true),
        ] {
            reader.set(at_s);
            assert_eq!(there.decrypt(&ticket).is_some(), lives, "at {at_s}");
        }
    }

    #[test]
    fn a_secret_can_be_replaced_while_old_tickets_still_open() {
        let wall = Wall::at(1_000_000);
        let fleet = tickets(1, &wall);
        let old = fleet.encrypt(b"old").unwrap();
        fleet.replace_secrets(&[secret(2), secret(1)]).unwrap();
        let new = fleet.encrypt(b"new").unwrap();
        assert_eq!(fleet.decrypt(&old).unwrap(), b"old");
        assert_eq!(tickets(2, &wall).decrypt(&new).unwrap(), b"new");
        fleet.replace_secrets(&[secret(2)]).unwrap();
        assert_eq!(fleet.decrypt(&old), None);
        assert_eq!(fleet.replace_secrets(&[]), Err(TicketsError::SecretCount));
        assert!(fleet.decrypt(&new).is_some(), "the old secrets stay");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let wall = Wall::at(0);
        for rotation_s in [0, MIN_ROTATION_S - 1, MAX_ROTATION_S + 1] {
            let made = Tickets::new(&[secret(1)], rotation_s, wall.clock());
            assert_eq!(made.err(), Some(TicketsError::Rotation(rotation_s)));
        }
        let short = Secret::new(&[1; 16]).unwrap();
        let made = Tickets::new(&[short], HOUR_S, wall.clock());
        assert_eq!(made.err(), Some(TicketsError::SecretLength));
    }
}
