//! The engine against the theory of queues.

#![allow(clippy::indexing_slicing, reason = "test code")]

use super::*;

/// The mean time of jobs that arrive at random at a station with this use, which takes
/// 1 µs for each.
fn mean_us(used: f64, step: impl Fn(usize) -> JobStep, engine: &mut Engine) -> f64 {
    let mut random = fastrand::Rng::with_seed(1);
    let mut sum_us = 0.0;
    let mut count = 0.0;
    engine.set_timer(0, 0);
    while let Some(event) = engine.next_event() {
        match event {
            Event::End { took_ns, .. } => {
                sum_us += took_ns as f64 / 1e3;
                count += 1.0;
            }
            Event::Timer(_) if engine.now_ns() < 2_000_000_000 => {
                engine.begin([step(random.usize(0..4))]);
                let after_ns = -1e3 / used * (1.0 - random.f64()).ln();
                engine.set_timer(after_ns as u64, 0);
            }
            Event::Timer(_) => {}
        }
    }
    sum_us / count
}

/// Pollaczek and Khinchine: the wait at a station with equal times of service.
fn expected_us(used: f64) -> f64 {
    1.0 + used / (2.0 * (1.0 - used))
}

#[test]
fn queues_wait_as_theory_says() {
    for used in [0.3, 0.7, 0.9] {
        let mut engine = Engine::default();
        let machine = engine.add_machine(1);
        // Four threads share the one core.
        let threads: Vec<usize> = (0..4).map(|_| engine.add_thread(machine)).collect();
        let work = |n: usize| JobStep::Work {
            thread: threads[n],
            ns: 1_000,
        };
        let mean = mean_us(used, work, &mut engine);
        assert!(
            (mean / expected_us(used) - 1.0).abs() < 0.03,
            "{used}: {mean}"
        );

        let mut engine = Engine::default();
        let link = engine.add_link(8e9);
        let send = |_| JobStep::Send {
            link,
            bytes: 1_000 - HEADERS_BYTES,
        };
        let mean = mean_us(used, send, &mut engine);
        assert!(
            (mean / expected_us(used) - 1.0).abs() < 0.03,
            "{used}: {mean}"
        );
    }
}

#[test]
fn transfers_share_a_link() {
    let mut engine = Engine::default();
    let link = engine.add_link(8e9);
    let long = engine.begin([JobStep::Send {
        link,
        bytes: 10 * PIECE_BYTES,
    }]);
    let short = engine.begin([JobStep::Send { link, bytes: 1_000 }]);
    let ends = std::iter::from_fn(|| engine.next_event());
    let ends: Vec<_> = ends
        .map(|event| match event {
            Event::End { job, .. } => job,
            Event::Timer(number) => number,
        })
        .collect();
    assert_eq!(ends, [short, long]);
}
