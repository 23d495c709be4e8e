//! The clocks, in nanoseconds.
//!
//! Protocol code takes the time as an argument, and its drivers read it here.

use rustix::time::{ClockId, clock_gettime};

/// The time since an arbitrary start, which never goes back and stops while the host sleeps. It is
/// the clock of timeouts, and of `bpf_ktime_get_ns`. A read takes some tens of nanoseconds (vDSO),
/// without a system call.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// The processor time of this thread so far. A system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock is negative, and 2^64 ns last until 2554.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first && first > 0);
    }
}
