//! When a certificate is replaced, and an order tried again. Pure: times are arguments, in seconds
//! since 1970.

/// Thirtieths of a certificate's life, and their number after which it is renewed. A random part
/// of one more spreads the renewals of many clusters.
const PARTS: u64 = 30;
const RENEWED_AFTER: u64 = 19;
/// The shortest and the longest pause after a failure. Let's Encrypt allows five failures of a
/// host name in an hour.
const FIRST_PAUSE_S: u64 = 60;
const LAST_PAUSE_S: u64 = 6 * 3_600;
/// Shortest time between a certificate and the next one that another configuration asks for.
/// Two frontends with different files must not take turns.
const SETTLED_AFTER_S: u64 = 3_600;

/// When to renew a certificate: after about two thirds of its life. `random` is any number.
pub(crate) fn renewal_s(begin_s: u64, end_s: u64, random: u64) -> u64 {
    let life_s = end_s.saturating_sub(begin_s);
    // Not the product first, which may be beyond 64 bits.
    let after_s = life_s / PARTS * RENEWED_AFTER + life_s % PARTS * RENEWED_AFTER / PARTS;
    let spread_s = random % (life_s / PARTS + 1);
    begin_s.saturating_add(after_s).saturating_add(spread_s)
}

/// When to try again after `failures` in a row, of which the last was at `now_s`. Each pause is
/// twice as long as the one before, and up to a half longer at random.
pub(crate) fn retry_s(now_s: u64, failures: u32, random: u64) -> u64 {
    let doublings = failures.saturating_sub(1).min(16);
    let pause_s = (FIRST_PAUSE_S << doublings).min(LAST_PAUSE_S);
    now_s
        .saturating_add(pause_s)
        .saturating_add(random % (pause_s / 2))
}

/// When to replace a certificate that is not what the configuration asks for.
pub(crate) fn replaced_s(begin_s: u64, end_s: u64) -> u64 {
    let third_s = end_s.saturating_sub(begin_s) / 3;
    begin_s.saturating_add(third_s.min(SETTLED_AFTER_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let mut seen = std::collections::BTreeSet::new();
        for random in (0..1_000_000).step_by(7_919).chain([u64::MAX]) {
            let at_s = renewal_s(1_000, 1_000 + 90 * DAY_S, random);
            assert!(
                (57 * DAY_S..=60 * DAY_S).contains(&(at_s - 1_000)),
                "{at_s}"
            );
            seen.insert(at_s);
        }
        assert!(seen.len() > 100, "renewals are not spread");
        // A life of a minute, of no time, and one that ends before it begins.
        assert!((38..=40).contains(&renewal_s(0, 60, 12_345)));
        assert_eq!(renewal_s(500, 500, 9), 500);
        assert_eq!(renewal_s(500, 400, 9), 500);
        assert!(renewal_s(u64::MAX - 1, u64::MAX, 9) >= u64::MAX - 1);
    }

    #[test]
    fn pauses_double_up_to_six_hours_and_differ() {
        let mut shortest_s = 60;
        for failures in 1..100 {
            for random in [0, 1, 29, u64::MAX] {
                let pause_s = retry_s(5_000, failures, random) - 5_000;
                let range = shortest_s..shortest_s + shortest_s / 2;
                assert!(range.contains(&pause_s), "{failures}: {pause_s} s");
            }
            shortest_s = (shortest_s * 2).min(6 * 3_600);
        }
        assert_ne!(retry_s(0, 3, 1), retry_s(0, 3, 2));
        assert_eq!(retry_s(u64::MAX, u32::MAX, 3), u64::MAX);
    }

    #[test]
    fn frontends_with_different_files_do_not_take_turns() {
        assert_eq!(replaced_s(1_000, 1_000 + 90 * DAY_S), 1_000 + 3_600);
        assert_eq!(replaced_s(0, 60), 20);
        assert_eq!(replaced_s(500, 400), 500);
    }
}
