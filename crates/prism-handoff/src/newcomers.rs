//! Client connections without an admitted request, and connections of nodes before the end of their
//! handshake. `prism_proto::newcomers` has the table, whose entries are tasks here.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prism_proto::newcomers::{Bounds, Newcomers};
use tokio::sync::SetOnce;
use tokio::time::Instant;

use crate::counters::Counters;

/// Bounds on client connections without an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewcomerLimits {
    /// The largest number from one address. Default 4096.
    pub per_address: u32,
    /// The time limit of each. Default 30 s.
    pub timeout: Duration,
    /// The largest number of connections from one address whose callers are not known, with or
    /// without an admitted request. Default 25,000.
    pub unknown_per_address: u32,
}

impl Default for NewcomerLimits {
    fn default() -> Self {
        Self {
            per_address: 4096,
            timeout: Duration::from_secs(30),
            unknown_per_address: 25_000,
        }
    }
}

/// The newcomers at one port of a process.
#[derive(Debug, Default)]
pub(crate) struct NewcomerTable(Mutex<Newcomers<Arc<Leave>>>);

/// Set when a connection has to give way.
pub(crate) type Leave = SetOnce<()>;

impl NewcomerTable {
    /// Adds one from `address` for `timeout`; `None` if the address has too many.
    pub(crate) fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        bounds: Bounds,
        timeout: Duration,
    ) -> Option<Newcomer> {
        let leave = Arc::new(Leave::default());
        let entered = self.0.lock().enter(address, bounds, leave.clone())?;
        if let Some(oldest) = entered.gives_way {
            give_way(&oldest);
        }
        Some(Newcomer {
            all: self.clone(),
            age: entered.age,
            leave,
            ends: Instant::now() + timeout,
            counted: None,
        })
    }

    /// Makes the oldest one give way that came before `newcomer`. Returns whether there was one.
    pub(crate) fn oldest_gives_way_to(&self, newcomer: &Newcomer) -> bool {
        let oldest = self.0.lock().oldest_before(newcomer.age);
        if let Some(oldest) = &oldest {
            give_way(oldest);
        }
        oldest.is_some()
    }
}

/// One newcomer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Newcomer {
    all: Arc<NewcomerTable>,
    age: u64,
    leave: Arc<Leave>,
    /// The end of its time.
    ends: Instant,
    counted: Option<Arc<Counters>>,
}

impl Newcomer {
    /// Counts it as a client's.
    pub(crate) fn counted(mut self, counters: &Arc<Counters>) -> Self {
        counters.unauthenticated_open.add_one();
        self.counted = Some(counters.clone());
        self
    }

    /// Set when it has to give way.
    pub(crate) fn leave(&self) -> &Arc<Leave> {
        &self.leave
    }

    /// The rest of its time.
    pub(crate) fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

fn give_way(leave: &Leave) {
    // It may have been told before.
    let _ = leave.set(());
}

/// Waits until a connection has to give way. The future does not borrow it.
pub(crate) fn told_to_leave(leave: Option<&Arc<Leave>>) -> impl Future<Output = ()> + use<> {
    let leave = leave.cloned();
    async move {
        match leave {
            Some(leave) => *leave.wait().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if let Some(counters) = &self.counted {
            counters.unauthenticated_open.sub_one();
        }
        self.all.0.lock().leave(self.age);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_told(newcomer: &Newcomer) -> bool {
        let told = pin!(newcomer.leave.wait());
        let ready = told.poll(&mut Context::from_waker(Waker::noop()));
        ready.is_ready() && newcomer.leave().initialized()
    }

    #[test]
    fn one_that_is_to_give_way_is_told_for_good_and_one_that_is_known_is_not() {
        let (all, counters) = (
            Arc::new(NewcomerTable::default()),
            Arc::<Counters>::default(),
        );
        let bounds = Bounds {
            per_address: 9,
            in_all: 2,
        };
        let enter = || {
            let entered = all.enter([10, 0, 0, 1].into(), bounds, Duration::from_secs(1));
            entered.unwrap().counted(&counters)
        };
        let (known, first) = (enter(), enter());
        assert!(first.time_left() > Duration::ZERO);
        drop(known);
        let second = enter();
        assert!(!is_told(&first) && !is_told(&second));
        let third = enter();
        assert!(is_told(&first) && is_told(&first) && !is_told(&second));
        assert!(all.oldest_gives_way_to(&third) && !all.oldest_gives_way_to(&third));
        assert!(is_told(&second) && !is_told(&third));
        assert_eq!(counters.unauthenticated_open.read(), 3);
        drop((first, second, third));
        assert_eq!(counters.unauthenticated_open.read(), 0);
    }
}
