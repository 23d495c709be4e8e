use super::*;

const NODES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

fn node(n: usize) -> IpAddr {
    NODES.get(n).copied().unwrap_or_default().into()
}

fn young() -> SwitchTerm {
    let mut switch = SwitchTerm::standby(SwitchOfPair::First, Term(4));
    assert_eq!(switch.begin([node(0), node(1)], 0), Term(5));
    switch
}

/// The words of all nodes.
fn told(terms: &[u32]) -> KnownTerms {
    let nodes = (1..).map(|n| IpAddr::from([10, 0, 0, n]));
    KnownTerms {
        known: nodes.zip(terms.iter().copied().map(Term)).collect(),
        expected: 0,
    }
}

fn done(term: u32, runs: u16) -> Done {
    let term = Term(term);
    Done { term, runs }
}

#[test]
fn a_term_settles_when_every_run_of_every_node_is_done() {
    let mut switch = young();
    for (n, run) in [(0, 1), (0, 2), (1, 7)] {
        switch.lease_begins(node(n), RunId(run));
    }
    switch.run_is_done(node(0), RunId(1), done(5, 2));
    switch.run_is_done(node(1), RunId(7), done(4, 1));
    assert!(!switch.handle_timeout(1), "of a former term");
    switch.run_is_done(node(1), RunId(7), done(5, 1));
    assert!(!switch.handle_timeout(1), "one of two runs is done");
    switch.run_is_done(node(0), RunId(2), done(5, 2));
    assert!(switch.handle_timeout(1) && switch.is_settled());
    assert!(!switch.handle_timeout(2), "once");
}

#[test]
fn a_run_without_a_lease_is_awaited_and_says_nothing() {
    let mut switch = young();
    switch.lease_begins(node(1), RunId(7));
    switch.lease_ends(node(1), RunId(7));
    switch.run_is_done(node(0), RunId(1), done(5, 1));
    assert!(!switch.handle_timeout(1));
    switch.lease_begins(node(0), RunId(1));
    switch.run_is_done(node(0), RunId(1), done(5, 2));
    assert!(!switch.handle_timeout(1), "its second run has no lease yet");
    assert!(!switch.handle_timeout(YOUNG_NS - 1));
    assert!(switch.handle_timeout(YOUNG_NS), "10 s are the bound");
}

#[test]
fn a_node_on_the_other_host_is_awaited_for_a_moment_unless_it_has_a_lease() {
    for (other, is_leased, settles) in [
        (node(1), false, true),
        (node(1), true, false),
        (node(0), false, false),
    ] {
        let mut switch = SwitchTerm::standby(SwitchOfPair::First, Term(4)).beside([other]);
        switch.begin([node(0), node(1)], 0);
        switch.lease_begins(node(0), RunId(1));
        switch.run_is_done(node(0), RunId(1), done(5, 1));
        if is_leased {
            switch.lease_begins(node(1), RunId(2));
        }
        assert!(!switch.handle_timeout(ABSENT_NS - 1));
        assert_eq!(
            switch.handle_timeout(ABSENT_NS),
            settles,
            "{other} {is_leased}"
        );
    }
}

#[test]
fn the_leases_of_a_switch_that_steps_down_are_over() {
    let mut switch = SwitchTerm::standby(SwitchOfPair::First, Term(4)).beside([node(0)]);
    switch.begin([node(0)], 0);
    switch.lease_begins(node(0), RunId(1));
    switch.step_down();
    switch.lease_begins(node(0), RunId(1));
    switch.begin([node(0)], 0);
    assert!(switch.handle_timeout(ABSENT_NS));
}

#[test]
fn a_node_that_comes_back_is_awaited_again() {
    let mut switch = young();
    switch.lease_begins(node(0), RunId(1));
    switch.lease_begins(node(1), RunId(7));
    switch.lease_ends(node(1), RunId(7));
    switch.lease_begins(node(1), RunId(8));
    switch.run_is_done(node(0), RunId(1), done(5, 1));
    assert!(!switch.handle_timeout(1));
    switch.lease_ends(node(1), RunId(8));
    assert!(switch.handle_timeout(1), "it has died");
}

#[test]
fn only_a_settled_arbiter_decides_and_only_in_its_own_term() {
    let own = Ops::OWN.and(Ops::UNBLOCK);
    let fact = own.and(Ops::ANNOUNCE);
    let mut switch = young();
    assert_eq!(switch.admit(Term(5), own), Admission::Refuse(Status::Young));
    assert_eq!(switch.admit(Term(5), fact), Admission::Merge);
    assert_eq!(
        switch.admit(Term(4), fact),
        Admission::Refuse(Status::Young)
    );
    assert_eq!(switch.admit(Term(4), Ops::QUERY), Admission::Judge);
    assert_eq!(switch.admit(Term(6), fact), Admission::Silence);
    switch.handle_timeout(YOUNG_NS);
    assert_eq!(switch.admit(Term(5), own), Admission::Judge);
    assert_eq!(switch.admit(Term::NONE, own), Admission::Judge);
    assert_eq!(
        switch.admit(Term(4), own),
        Admission::Refuse(Status::OldTerm)
    );
    assert_eq!(switch.admit(Term(5), fact), Admission::Compare);
    assert_eq!(switch.admit(Term(4), fact), Admission::Compare);
    for ops in [own, fact] {
        assert_eq!(switch.admit(Term(6), ops), Admission::Silence);
    }
    switch.step_down();
    assert_eq!(switch.admit(Term(5), own), Admission::Silence);
    assert_eq!(switch.admit(Term(5), fact), Admission::Merge);
    assert_eq!(switch.notice(), None);
}

#[test]
fn a_table_that_was_kept_goes_on_in_its_term_or_gets_one() {
    let kept = SwitchTerm::settled(SwitchOfPair::First, Term(4), Term(5));
    assert_eq!((kept.term(), kept.is_settled()), (Term(5), true));
    let mut new = SwitchTerm::settled(SwitchOfPair::Second, Term(5), Term::NONE);
    assert_eq!((new.term(), new.is_settled()), (Term(6), true));
    assert!(!new.observe(&told(&[6]), 0) && new.observe(&told(&[7]), 0));
}

#[test]
fn a_new_term_is_above_all_that_were_heard_of() {
    let mut switch = young();
    switch.handle_timeout(YOUNG_NS);
    assert!(!switch.observe(&told(&[5, 5]), YOUNG_NS));
    assert!(
        !switch.observe(&told(&[5, 9]), YOUNG_NS),
        "one of two nodes"
    );
    assert!(switch.observe(&told(&[9, 9]), YOUNG_NS));
    assert_eq!(switch.begin([], YOUNG_NS), Term(11));
    switch.step_down();
    assert!(!switch.observe(&told(&[20, 20]), 0), "a standby takes note");
    assert_eq!(switch.begin([], 2), Term(21));
}

#[test]
fn in_a_young_term_single_words_count_some_times_and_for_some_terms() {
    let mut switch = young();
    let nodes = [node(0), node(1)];
    assert!(!switch.observe(&told(&[5, 6 + LONE_STEP]), 0), "too far");
    assert!(!switch.observe(&told(&[5, Term::MAX.0]), 0));
    let mut term = 5;
    for time in 0..u64::from(LONE_WORDS) {
        assert!(switch.observe(&told(&[5, term + 2]), time));
        term += 4;
        assert_eq!(switch.begin(nodes, time), Term(term));
    }
    assert!(!switch.observe(&told(&[5, term + 2]), 9), "too often");
    // Another node, but late, or too far from the first term.
    assert!(!switch.observe(&told(&[term + 2, 5]), YOUNG_NS));
    assert!(!switch.observe(&told(&[6 + LONE_STEP, 5]), 10));
    assert!(switch.observe(&told(&[4 + LONE_STEP, 5]), YOUNG_NS - 1));
    assert_eq!(switch.begin(nodes, 10), Term(5 + LONE_STEP));
    // A settled term is not changed by a single word. The next table begins with new ones.
    switch.handle_timeout(u64::MAX);
    assert!(!switch.observe(&told(&[5, 9 + LONE_STEP]), 11));
    assert_eq!(switch.begin(nodes, 12), Term(7 + LONE_STEP));
    assert!(switch.observe(&told(&[5, 9 + LONE_STEP]), 13));
}

#[test]
fn a_switch_whose_terms_are_used_up_says_so() {
    let Term(max) = Term::MAX;
    for (place, before, last) in [
        (SwitchOfPair::First, max - 2, max),
        (SwitchOfPair::Second, max - 3, max - 1),
    ] {
        let mut switch = SwitchTerm::standby(place, Term(before));
        assert!(!switch.is_last());
        assert_eq!(switch.begin([], 0), Term(last));
        assert!(switch.is_last());
        assert_eq!(switch.begin([], 1), Term(last), "no other one is left");
    }
}
