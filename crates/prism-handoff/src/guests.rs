//! Client connections of unknown callers that give way while they wait for their next request.
//! `prism_proto::guests` has the table.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use prism_proto::guests::{Guests, Rest};

use crate::newcomers::Leave;

/// The state of a guest: busy, told to give way, or the milliseconds of the table's clock since
/// which it rests, plus one.
const BUSY: u64 = 0;
const TOLD: u64 = u64::MAX;

/// The guests of a process.
#[derive(Debug)]
pub(crate) struct GuestTable {
    all: Mutex<Guests<Arc<State>>>,
    begun: Instant,
}

#[derive(Debug)]
struct State {
    rest: AtomicU64,
    leave: Arc<Leave>,
}

/// One guest, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    table: Arc<GuestTable>,
    number: u64,
    state: Arc<State>,
}

impl Default for GuestTable {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            begun: Instant::now(),
        }
    }
}

impl GuestTable {
    /// Adds one from `address`, which is busy.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Guest {
        let state = Arc::new(State {
            rest: AtomicU64::new(BUSY),
            leave: Arc::default(),
        });
        let number = self.all.lock().enter(address, self.now(), state.clone());
        Guest {
            table: self.clone(),
            number,
            state,
        }
    }

    /// The number of guests from an address.
    pub(crate) fn of_address(&self, address: IpAddr) -> u32 {
        self.all.lock().of_address(address)
    }

    /// Whether a guest rests, so that it can give way.
    pub(crate) fn has_resting(&self) -> bool {
        let longest = self.all.lock().longest_rest(self.now(), rest_of);
        longest.is_some()
    }

    /// Makes the guest give way that has rested longest. Returns whether there was one.
    pub(crate) fn longest_rest_leaves(&self) -> bool {
        loop {
            let gone = self.all.lock().longest_rest_leaves(self.now(), rest_of);
            match gone {
                None => return false,
                Some(state) if state.tell() => return true,
                // Its next request has just begun. It stays, and is no guest any more.
                Some(_) => {}
            }
        }
    }

    fn now(&self) -> u64 {
        let now = self.begun.elapsed().as_millis();
        u64::try_from(now)
            .unwrap_or(TOLD - 1)
            .saturating_add(1)
            .min(TOLD - 1)
    }
}

fn rest_of(state: &Arc<State>) -> Rest {
    match state.rest.load(Ordering::Relaxed) {
        BUSY | TOLD => Rest::Busy,
        since => Rest::Since(since),
    }
}

impl State {
    /// Tells it to give way, unless it is busy. Returns whether it is told.
    fn tell(&self) -> bool {
        let order = Ordering::Relaxed;
        let told = self
            .rest
            .fetch_update(order, order, |rest| (rest != BUSY).then_some(TOLD));
        if told.is_ok() {
            // It may have been told before.
            let _ = self.leave.set(());
        }
        told.is_ok()
    }
}

impl Guest {
    /// It waits for its next request from now on.
    pub(crate) fn rests(&self) {
        let now = self.table.now();
        let order = Ordering::Relaxed;
        let rest = &self.state.rest;
        let _ = rest.fetch_update(order, order, |rest| (rest == BUSY).then_some(now));
    }

    /// A request begins. Returns whether it may: a guest that was told to give way ends.
    pub(crate) fn wakes(&self) -> bool {
        let order = Ordering::Relaxed;
        let rest = &self.state.rest;
        let woken = rest.fetch_update(order, order, |rest| (rest != TOLD).then_some(BUSY));
        woken.is_ok()
    }

    /// Set when it has to give way.
    pub(crate) fn leave(&self) -> &Arc<Leave> {
        &self.state.leave
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.table.all.lock().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gives_way_only_while_it_rests() {
        let table = Arc::<GuestTable>::default();
        let from = IpAddr::from([10, 0, 0, 1]);
        let (first, second) = (table.enter(from), table.enter(from));
        assert!(!table.longest_rest_leaves());
        second.rests();
        assert!(table.longest_rest_leaves());
        assert!(second.leave().initialized() && !second.wakes());
        assert!(!first.leave().initialized() && first.wakes());
        assert_eq!(table.of_address(from), 1);
        first.rests();
        assert!(first.wakes());
        assert!(!table.longest_rest_leaves());
        drop((first, second));
        assert_eq!(table.of_address(from), 0);
    }
}
