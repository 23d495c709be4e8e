//! The clocks, in nanoseconds.
//!
//! Protocol code takes the time as an argument; this is where the drivers get
//! it. A read is a few tens of nanoseconds (vDSO), without a system call, unless it
//! says otherwise.

/// Since an arbitrary start, never backwards; stops while the host sleeps.
/// The clock of timeouts, and of `bpf_ktime_get_ns`.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Processor time that this thread has taken so far. A system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable and outlives the call. It cannot fail: the
    // clocks exist in every kernel since 3.10.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    // Neither clock is negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    // 2^64 ns last until 2554.
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
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
