//! The processor time of hand-offs, measured on some of them. It decides whether a connection is
//! worth a hand-off.

use std::pin::Pin;
use std::time::Duration;

use parking_lot::Mutex;
use prism_common::mean::Mean;
use prism_sys::clock::thread_cpu_ns;

/// One of this many hand-offs is measured, at each end.
const SAMPLED: u32 = 16;
/// The weight of measurements from which on the mean counts: the first hand-offs take longer than
/// later ones.
const ENOUGH: f64 = 8.0;
/// Runs `future`, and measures the processor time of its polls, system calls included; `None`
/// unless `measured`. The future must stay on one thread.
pub async fn metered<F: Future>(
    measured: bool,
    mut future: Pin<&mut F>,
) -> (F::Output, Option<Duration>) {
    let mut spent = measured.then_some(Duration::ZERO);
    let output = std::future::poll_fn(|context| {
        let begun = measured.then(thread_cpu_ns);
        let polled = future.as_mut().poll(context);
        if let (Some(begun), Some(spent)) = (begun, &mut spent) {
            *spent += Duration::from_nanos(thread_cpu_ns().saturating_sub(begun));
        }
        polled
    })
    .await;
    (output, spent)
}

/// The processor time of the hand-offs that this process began, at both ends.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    here_ns: Mutex<Mean>,
    there_ns: Mutex<Mean>,
}

impl Costs {
    /// Whether to measure the next one.
    pub(crate) fn is_sample() -> bool {
        fastrand::u32(..SAMPLED) == 0
    }

    /// Adds the time of one hand-off at its source, this process.
    pub(crate) fn took_here(&self, spent: Duration) {
        self.here_ns.lock().add(spent.as_secs_f64() * 1e9);
    }

    /// Adds the time of one hand-off that its target reports; 0 if the target did not measure it.
    pub(crate) fn took_there(&self, spent_ns: u32) {
        if spent_ns > 0 {
            self.there_ns.lock().add(spent_ns.into());
        }
    }

    /// The time of a whole hand-off in nanoseconds; `None` until enough was measured at both ends.
    pub(crate) fn whole_ns(&self) -> Option<f64> {
        let mean = |of: &Mutex<Mean>| of.lock().of_at_least(ENOUGH);
        Some(mean(&self.here_ns)? + mean(&self.there_ns)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_hand_off_is_known_when_both_ends_are() {
        let costs = Costs::default();
        for _ in 0..10 {
            assert_eq!(costs.whole_ns(), None);
            costs.took_here(Duration::from_micros(20));
            costs.took_there(0);
        }
        assert_eq!(costs.whole_ns(), None);
        (0..10).for_each(|_| costs.took_there(30_000));
        assert!((costs.whole_ns().unwrap() - 50_000.0).abs() < 1.0);
    }

    #[test]
    fn only_the_time_of_polls_is_metered() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let sleep = async { tokio::time::sleep(Duration::from_millis(50)).await };
        let (_, spent) = runtime.block_on(metered(true, pin!(sleep)));
        assert!(spent.unwrap() < Duration::from_millis(40));
        let (_, spent) = runtime.block_on(metered(false, pin!(async {})));
        assert_eq!(spent, None);
    }
}
