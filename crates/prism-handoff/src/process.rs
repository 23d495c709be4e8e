//! State that the workers of one process share.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_proto::health::Health;
use prism_proto::newcomers::LogThrottle;
use prism_sys::tcp::{Freezer, InitialWindow};

use crate::cost::Costs;
use crate::counters::Counters;
use crate::frozen::FrozenSockets;
use crate::given_up::GivenUp;
use crate::guests::GuestTable;
use crate::held_flows::HeldFlows;
use crate::leavers::Leavers;
use crate::listeners::Listeners;
use crate::moves::Moves;
use crate::newcomers::NewcomerTable;
use crate::parking::Parking;
use crate::peer_shares::PeerShares;
use crate::trace::Trace;

/// The interval of checks that frozen sockets are silent: one datagram over loopback each.
const FREEZER_CHECK: Duration = Duration::from_secs(5);

/// State that the workers of one process share.
#[derive(Debug, Default)]
pub struct Process {
    /// Its counters.
    pub counters: Arc<Counters>,
    /// Steps of recent hand-offs.
    pub trace: Trace,
    /// The connections that have moved to others.
    pub moves: Moves,
    pub(crate) held_flows: Arc<HeldFlows>,
    pub(crate) frozen: Arc<FrozenSockets>,
    pub(crate) given_up: Arc<GivenUp>,
    pub(crate) leavers: Leavers,
    pub(crate) peer_shares: PeerShares,
    pub(crate) costs: Costs,
    /// Clients without an admitted request, and handshakes of nodes.
    pub(crate) clients: Arc<NewcomerTable>,
    /// Clients with one whose callers are not known.
    pub(crate) guests: Arc<GuestTable>,
    pub(crate) handshakes: Arc<NewcomerTable>,
    pub(crate) refusals: Mutex<LogThrottle>,
    /// Which peers answer.
    pub health: Arc<Mutex<Health>>,
    /// The listeners, which may come from another process.
    pub listeners: Listeners,
    /// The connections that pass from one process to another.
    pub parking: Parking,
    /// The number of its workers that command the switch.
    pub(crate) runs: AtomicU16,
    initial_window: OnceLock<Option<InitialWindow>>,
    freezer: OnceLock<Option<Freezer>>,
    /// The freezer does not work, and is not repaired yet.
    leaks: AtomicBool,
    /// A worker watches the freezer.
    is_watched: AtomicBool,
}

impl Process {
    /// Prepares the freezing of sockets, and the carrying of congestion windows if wanted, as far
    /// as the host allows that.
    pub(crate) fn prepare(&self, carry_window: bool) {
        self.freezer.get_or_init(|| {
            allowed(
                Freezer::new(),
                "cannot freeze sockets: the switch blocks flows instead, and \
                an outage of the switch in a hand-off ends the connection",
            )
        });
        if carry_window {
            self.initial_window.get_or_init(|| {
                allowed(
                    InitialWindow::new(),
                    "cannot set congestion windows: a connection that \
                    has moved begins with 10 segments",
                )
            });
        }
    }

    /// Whether others that could answer should be asked before `name`.
    pub fn comes_last(&self, name: &str, now: Instant) -> bool {
        self.health.lock().comes_last(name, now)
    }

    /// Whether a peer is about to stop. It takes no connections, and others should be asked first.
    pub fn is_leaving(&self, peer: &str) -> bool {
        self.leavers.contains(peer)
    }

    /// Whether most nodes place objects differently, by the last word of the switch's agent.
    pub fn places_differently(&self) -> bool {
        self.counters.placement_differs.read() != 0
    }

    /// The mean processor time of the hand-offs that this process began, at both ends, in
    /// nanoseconds. Newer measurements count more. `None` until there are enough.
    pub fn hand_off_ns(&self) -> Option<f64> {
        self.costs.whole_ns()
    }

    pub(crate) fn initial_window(&self) -> Option<&InitialWindow> {
        self.initial_window.get()?.as_ref()
    }

    pub(crate) fn freezer(&self) -> Option<&Freezer> {
        let freezer = self.freezer.get()?.as_ref();
        freezer.filter(|_| !self.leaks.load(Ordering::Relaxed))
    }

    /// Whether the caller is the first, and has to watch the freezer.
    pub(crate) fn is_first_to_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Checks from time to time that frozen sockets are silent, and attaches the programs again if
    /// they are not: the process may have entered another control group.
    pub(crate) async fn watch_freezer(&self) {
        let Some(Some(freezer)) = self.freezer.get() else {
            return;
        };
        loop {
            tokio::time::sleep(FREEZER_CHECK).await;
            let Err(error) = freezer.check() else {
                self.leaks.store(false, Ordering::Relaxed);
                continue;
            };
            self.leaks.store(true, Ordering::Relaxed);
            match freezer.renew() {
                Ok(()) => {
                    self.counters.freezer_renewed.add_one();
                    self.leaks.store(false, Ordering::Relaxed);
                    tracing::warn!(%error, "frozen sockets were not silent; they are again");
                }
                Err(renewing) => tracing::error!(%error, %renewing, "frozen sockets are not \
                    silent: the switch blocks connections instead"),
            }
        }
    }
}

/// The result, or a warning about what is missing without it.
fn allowed<T, E: std::fmt::Display>(result: Result<T, E>, without: &str) -> Option<T> {
    result
        .inspect_err(|error| tracing::warn!(%error, "{without}"))
        .ok()
}
