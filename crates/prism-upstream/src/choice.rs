//! The choice among the backends of an upstream, and among its addresses at one backend. Pure.

use prism_config::Balance;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// A backend, or an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'c> {
    /// Its name, by which it is hashed.
    pub(crate) name: &'c str,
    /// Whether it may get requests.
    pub(crate) is_up: bool,
    /// Requests under way there.
    pub(crate) under_way: u32,
}

/// The candidates that are up, best first, by their place in the list. `turn` counts choices, and
/// `key` is the hashed part of the request.
pub(crate) fn order(
    balance: &Balance,
    candidates: &[Candidate<'_>],
    turn: usize,
    key: &str,
) -> Vec<usize> {
    let count = candidates.len().max(1);
    // Candidates that are alike have their turns.
    let in_turn = (0..candidates.len()).map(|n| (n + turn) % count);
    let up = in_turn.filter_map(|place| Some((place, candidates.get(place)?)));
    let mut up: Vec<_> = up.filter(|(_, candidate)| candidate.is_up).collect();
    match balance {
        Balance::RoundRobin => {}
        Balance::LeastRequests => up.sort_by_key(|(_, candidate)| candidate.under_way),
        Balance::Hash(_) => {
            up.sort_by_cached_key(|(_, candidate)| std::cmp::Reverse(score(key, candidate.name)));
        }
    }
    up.into_iter().map(|(place, _)| place).collect()
}

/// The rank of a candidate for a key (rendezvous hashing). It is the same at every node and in
/// every release.
pub(crate) fn score(key: &str, name: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    for part in [key, name] {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

/// Whether a backend with `own` requests under way gives a connection to one with `other`. A
/// hand-off costs more than a small difference.
pub(crate) const fn is_overloaded(own: u32, other: u32) -> bool {
    const SLACK: u32 = 8;
    own > other.saturating_mul(2).saturating_add(SLACK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use prism_config::HashOf;

    use super::*;

    const NAMES: [&str; 4] = ["be0", "be1", "be2", "be3"];

    fn candidates(rng: &mut fastrand::Rng) -> Vec<Candidate<'static>> {
        let one = |name| Candidate {
            name,
            is_up: rng.u8(..4) > 0,
            under_way: rng.u32(..5),
        };
        NAMES.into_iter().map(one).collect()
    }

    #[test]
    fn all_that_are_up_are_named_once_and_nobody_else() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let all = candidates(&mut rng);
            for balance in [
                Balance::LeastRequests,
                Balance::RoundRobin,
                Balance::Hash(HashOf::Path),
            ] {
                let found = order(&balance, &all, rng.usize(..), "/key");
                let mut sorted = found.clone();
                sorted.sort_unstable();
                let up: Vec<usize> = (0..4).filter(|n| all[*n].is_up).collect();
                assert_eq!(sorted, up, "seed {seed}");
                if balance == Balance::LeastRequests {
                    let loads = found.iter().map(|n| all[*n].under_way);
                    assert!(loads.is_sorted(), "seed {seed}");
                }
            }
        }
        assert!(order(&Balance::RoundRobin, &[], 7, "").is_empty());
    }

    #[test]
    fn each_has_its_turn() {
        let all = NAMES.map(|name| Candidate {
            name,
            is_up: true,
            under_way: 3,
        });
        for balance in [Balance::LeastRequests, Balance::RoundRobin] {
            let mut counts = [0; 4];
            for turn in 0..400 {
                counts[order(&balance, &all, turn, "")[0]] += 1;
            }
            assert_eq!(counts, [100; 4]);
        }
    }

    #[test]
    fn a_key_stays_where_it_is_unless_its_place_is_down() {
        let up = |down: Option<usize>| {
            let one = |(n, name)| Candidate {
                name,
                is_up: Some(n) != down,
                under_way: 0,
            };
            NAMES.into_iter().enumerate().map(one).collect::<Vec<_>>()
        };
        let hash = Balance::Hash(HashOf::Path);
        let mut counts = [0; 4];
        for n in 0..4_000_usize {
            let key = format!("/object/{n}");
            let owner = order(&hash, &up(None), n, &key)[0];
            counts[owner] += 1;
            let down = (owner + 1) % 4;
            assert_eq!(order(&hash, &up(Some(down)), n, &key)[0], owner);
            let second = order(&hash, &up(None), n, &key)[1];
            assert_eq!(order(&hash, &up(Some(owner)), n, &key)[0], second);
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
        // Equal in every release.
        assert_eq!(score("/a", "be0"), 10_645_850_049_538_911_648);
    }

    #[test]
    fn a_connection_leaves_a_backend_that_has_far_more_to_do() {
        assert!(!is_overloaded(8, 0) && is_overloaded(9, 0));
        assert!(!is_overloaded(108, 50) && is_overloaded(109, 50));
        assert!(!is_overloaded(u32::MAX, u32::MAX));
    }
}
