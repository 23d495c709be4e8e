//! The terms that nodes tell a switch, which may have lost count: its file is gone, or the other
//! switch of the pair has begun later terms since.
//!
//! A node may tell a term that no switch has made: its key may be in wrong hands. So each node has
//! one word, and a term counts if more than half of the nodes know it or a later one. A node that
//! knows of no term, because it has just started, has no word.
//!
//! Terms may follow each other so quickly that few nodes have heard of the last one. While a term
//! is young, and nothing is decided, the word of one node therefore counts too: some times for each
//! node ([`LONE_WORDS`]), and for some terms only ([`LONE_STEP`]).

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::control::Term;

/// The time in which living nodes tell what they know, after a switch begins to grant leases. Until
/// then the nodes that have not come are counted too, so that the first one does not decide alone.
pub const UNHEARD_NS: u64 = 2_000_000_000;
/// The greatest term that a switch takes from nodes, three quarters of all. The minutes since 2026
/// that a switch without a file begins with reach it in 2049. The 4 million terms behind it are for
/// the switch's own counting: no node can use them up.
pub const MOST_TOLD: Term = Term(0xc0_0000);

/// The most times that the word of one node counts alone, after a switch begins to decide. Terms of
/// two switches that follow each other within a moment need two.
pub const LONE_WORDS: u8 = 4;
/// The most terms that a switch advances by such words. The minutes since 2026 grow by so
/// many in 45 days, so one of two switches may have been set up so much later.
pub const LONE_STEP: u32 = 1 << 16;

/// The words of the living nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownTerms {
    /// The nodes that know of a term, and the greatest one that each knows.
    pub known: Vec<(IpAddr, Term)>,
    /// The number of nodes that have a word, if some may not have come yet; 0 if all have.
    pub expected: usize,
}

impl KnownTerms {
    /// The greatest term that more than half of the nodes know. Terms above [`MOST_TOLD`] are not
    /// taken from nodes.
    #[must_use]
    pub fn believed(&self) -> Term {
        let mut known: Vec<Term> = self.known.iter().map(|(_, term)| *term).collect();
        known.sort_unstable_by_key(|term| Reverse(*term));
        let voices = self.expected.max(known.len());
        let most = known.get(voices / 2).copied().unwrap_or(Term::NONE);
        if most > MOST_TOLD { Term::NONE } else { most }
    }

    /// The greatest term that a node knows.
    #[must_use]
    pub fn greatest(&self) -> Term {
        let known = self.known.iter().map(|(_, term)| *term);
        known.max().unwrap_or(Term::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: usize) -> IpAddr {
        IpAddr::from([10, 0, 0, u8::try_from(n).unwrap_or(u8::MAX)])
    }

    #[test]
    fn a_term_is_believed_that_more_than_half_of_the_nodes_know() {
        let cases: [(&[u32], usize, u32); 14] = [
            (&[], 0, 0),
            (&[], 3, 0),
            // All have come.
            (&[7], 0, 7),
            (&[5, 9], 0, 5),
            (&[9, 9], 0, 9),
            (&[5, 5, 9], 0, 5),
            (&[9, 5, 9], 0, 9),
            (&[5, 7, 9], 0, 7),
            (&[5, 5, 9, 9], 0, 5),
            // Some may not have come.
            (&[9], 2, 0),
            (&[9], 1, 9),
            (&[9, 9], 3, 9),
            (&[9, 9], 4, 0),
            // More have come than were expected.
            (&[5, 9], 1, 5),
        ];
        for (known, expected, believed) in cases {
            let known = known.iter().enumerate();
            let known = known.map(|(n, term)| (node(n), Term(*term))).collect();
            let told = KnownTerms { known, expected };
            assert_eq!(told.believed(), Term(believed), "{told:?}");
        }
    }

    #[test]
    fn terms_that_would_use_up_all_others_are_not_taken_from_any_number_of_nodes() {
        for (term, believed) in [
            (MOST_TOLD, MOST_TOLD),
            (Term(MOST_TOLD.0 + 1), Term::NONE),
            (Term::MAX, Term::NONE),
        ] {
            let told = KnownTerms {
                known: (0..5).map(|n| (node(n), term)).collect(),
                expected: 0,
            };
            assert_eq!(told.believed(), believed);
            assert_eq!(told.greatest(), term);
        }
    }
}
