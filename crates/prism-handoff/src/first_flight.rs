//! The first bytes that an imported socket sends.
//!
//! A new socket's kernel knows no round-trip time. If all of its first bytes are lost, it sends
//! them again after 1 s and 3 s more. The source knew the round-trip time, so this node waits as
//! long as the source's kernel would have done, and then renews the socket
//! ([`prism_sys::tcp::renew`]). It ends with the first acknowledgement.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use prism_sys::tcp::{TcpInfo, renew};

use crate::process::Process;
use crate::wait_timer::WaitTimer;

/// The timeout without a round-trip time (RFC 6298, section 2.1).
const UNKNOWN: Duration = Duration::from_secs(1);
/// The least margin over the round-trip time, as in Linux (`TCP_RTO_MIN`).
const MIN_MARGIN: Duration = Duration::from_millis(200);

/// A connection's first flight, if its socket is an imported one of which nothing is acknowledged
/// yet.
#[derive(Default)]
pub(crate) struct FirstFlight(Option<Unheard>);

struct Unheard {
    process: Arc<Process>,
    timeout: Duration,
}

impl FirstFlight {
    /// That of an imported socket. `srtt_us` is the source's round-trip time, 0 if unknown. Nothing
    /// is done without the programs that a renewal needs.
    pub(crate) fn new(process: &Arc<Process>, srtt_us: u32) -> Self {
        if process.freezer().is_none() || process.initial_window().is_none() {
            return Self::default();
        }
        let round_trip = Duration::from_micros(srtt_us.into());
        // As `tcp_init_metrics` does with a remembered time.
        let timeout = match srtt_us {
            0 => UNKNOWN,
            _ => round_trip + MIN_MARGIN.max(2 * round_trip),
        };
        Self(Some(Unheard {
            process: process.clone(),
            timeout,
        }))
    }

    /// [`WaitTimer::wait`] for `work` on `socket`, whose first bytes may be lost.
    pub(crate) async fn wait<T>(
        &mut self,
        timer: &mut WaitTimer,
        timeout: Duration,
        socket: BorrowedFd<'_>,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let Some(unheard) = &self.0 else {
            return timer.wait(timeout, work).await;
        };
        let first_look = unheard.timeout;
        let look = |_| {
            let next = self.0.as_mut().and_then(|unheard| unheard.look(socket));
            if next.is_none() {
                self.0 = None;
            }
            Ok(next.unwrap_or(Duration::MAX))
        };
        timer.wait_looking(timeout, first_look, look, work).await
    }
}

impl Unheard {
    /// Renews the socket if that is due. Returns the time until the next look; `None` if there is
    /// nothing left to do.
    fn look(&mut self, socket: BorrowedFd<'_>) -> Option<Duration> {
        let info = TcpInfo::read(socket).ok()?;
        let kernels = Duration::from_micros(info.rto_us.into());
        // The kernel may remember the client from another connection.
        if info.srtt_us > 0 || kernels <= self.timeout {
            return None;
        }
        let rest = Duration::from_millis(info.rest_ms.into());
        if info.unacked_segments == 0 {
            // Nothing is sent during this wait.
            return Some(Duration::MAX);
        }
        if rest < self.timeout {
            return Some(self.timeout - rest);
        }
        let freezer = self.process.freezer()?;
        let window = self.process.initial_window()?;
        match renew(socket, freezer, window) {
            Ok(true) => self.process.counters.sockets_renewed.add_one(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot send lost bytes of a connection again");
                return None;
            }
        }
        // RFC 6298, section 5.5.
        self.timeout *= 2;
        Some(self.timeout)
    }
}
