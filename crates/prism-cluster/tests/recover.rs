//! A state that was lost is made anew only from what proves it, and with those in sync
//! only that are.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use prism_cluster::{
    Choice, Claim, Claims, Contents, Doubt, Lineage, NodeName, Placing, RecoverError, Recovery,
    State, Status, Testimonies, Testimony, Verdict, View, recover,
};

fn name(name: &str) -> NodeName {
    name.parse().unwrap()
}

/// Three backends in epoch 7, of which be2 is out.
fn last() -> State {
    let members = ["be0", "be1", "be2"].map(name);
    let mut state = State::new(Placing::new(members, 2).unwrap());
    (state.founding, state.epoch) = (11, 7);
    for (store, backend) in (100..).zip(state.backends.values_mut()) {
        backend.store = store;
    }
    let out = state.backends.get_mut("be2").unwrap();
    (out.status, out.since) = (Status::Out, 7);
    state
}

fn testimony(store: u64, state: &State) -> Testimony {
    Testimony {
        store,
        epoch: state.epoch,
        state: Some(state.clone()),
    }
}

/// be2 has heard nothing of its being out.
fn said() -> Testimonies {
    let mut before = last();
    before.epoch = 6;
    before.backends.get_mut("be2").unwrap().status = Status::InSync;
    Testimonies::from([
        (name("be0"), testimony(100, &last())),
        (name("be1"), testimony(101, &last())),
        (name("be2"), testimony(102, &before)),
    ])
}

/// Recovery from testimonies alone.
fn restored(
    present: Option<&State>,
    testimonies: &Testimonies,
    choice: &Choice,
) -> Result<Recovery, RecoverError> {
    let contents = Contents {
        state: present,
        lineage: None,
        testimonies,
        claims: &Claims::new(),
    };
    recover(&contents, &BTreeMap::new(), choice)
}

fn choice(without: &[&str]) -> Choice {
    Choice {
        of: None,
        accepted: BTreeSet::new(),
        without: without.iter().map(|n| name(n)).collect(),
        founding: 12,
    }
}

#[test]
fn who_was_out_in_the_last_epoch_is_not_believed_and_who_was_in_sync_is() {
    let recovery = restored(None, &said(), &choice(&[])).unwrap();
    let state = &recovery.state;
    state.check().unwrap();
    assert!(state.epoch > 7 && recovery.from_epoch == 7);
    assert_eq!(state.status("be0"), Some(Status::InSync));
    assert_eq!(state.status("be1"), Some(Status::InSync));
    assert_eq!(state.status("be2"), Some(Status::Out));
    assert_eq!(recovery.verdicts["be2"], Verdict::Behind);
    // All may act by it, and no store by what there was before.
    assert!(said().values().all(|testimony| testimony.accepts(state)));
    assert!(!testimony(100, state).accepts(&last()));
    // One that was catching up may have been in sync since, and nobody else.
    let mut catching_up = said();
    for testimony in catching_up.values_mut() {
        let state = testimony.state.as_mut().unwrap();
        state.backends.get_mut("be2").unwrap().status = Status::Lagging;
    }
    let recovery = restored(None, &catching_up, &choice(&[])).unwrap();
    assert_eq!(recovery.state.status("be2"), Some(Status::Lagging));
    catching_up.remove("be2");
    let refused = restored(None, &catching_up, &choice(&[]));
    assert!(matches!(refused, Err(RecoverError::Unproven(_))));
    let recovery = restored(None, &catching_up, &choice(&["be2"])).unwrap();
    assert_eq!(recovery.state.status("be2"), Some(Status::Out));
    // The one that is out need not be there.
    let recovery = restored(None, &said(), &choice(&[])).unwrap();
    let mut without = said();
    without.remove("be2");
    assert_eq!(restored(None, &without, &choice(&[])).unwrap(), recovery);
}

#[test]
fn who_is_silent_or_has_lost_its_store_is_gone_on_without_only_when_told() {
    let mut silent = said();
    silent.remove("be1");
    let mut lost = said();
    let blank = Testimony {
        store: 900,
        epoch: 1,
        state: None,
    };
    lost.insert(name("be1"), blank);
    for (said, doubt) in [(silent, Doubt::Silent), (lost, Doubt::OtherStore)] {
        let refused = restored(None, &said, &choice(&[]));
        let expected = RecoverError::Unproven([(name("be1"), doubt)].into());
        assert_eq!(refused, Err(expected));
        let recovery = restored(None, &said, &choice(&["be1"])).unwrap();
        assert_eq!(recovery.verdicts["be1"], Verdict::LeftOut);
        let view = View::new(recovery.state).unwrap();
        let primaries = (0..20).filter_map(|n| view.primary("b", &n.to_string()));
        assert!(
            primaries
                .into_iter()
                .all(|primary| primary.as_str() == "be0")
        );
    }
}

#[test]
fn nobody_who_is_in_sync_is_left_out_and_not_everybody() {
    let refused = restored(None, &said(), &choice(&["be1"]));
    assert_eq!(refused, Err(RecoverError::NotInDoubt(name("be1"))));
    let mut only = said();
    only.retain(|name, _| name.as_str() == "be2");
    // By what be2 knows it was in sync, and two others are silent.
    let refused = restored(None, &only, &choice(&[]));
    assert!(matches!(refused, Err(RecoverError::Unproven(doubts)) if doubts.len() == 2));
    assert!(restored(None, &only, &choice(&["be0", "be1"])).is_ok());
    let refused = restored(None, &Testimonies::new(), &choice(&[]));
    assert_eq!(refused, Err(RecoverError::NoTestimony));
}

#[test]
fn a_state_founded_anew_is_contradicted_and_replaced() {
    let members = ["be0", "be1", "be2"].map(name);
    let mut anew = State::new(Placing::new(members, 2).unwrap());
    anew.founding = 55;
    assert!(anew.contradicted(&said()).is_some());
    // Also when it has gone on for long.
    let mut later = anew.clone();
    later.epoch = 500;
    assert!(later.contradicted(&said()).is_some());
    let recovery = restored(Some(&later), &said(), &choice(&[])).unwrap();
    assert!(recovery.state.epoch > 500 && recovery.state.succeeds(55, 500));
    let refused = restored(Some(&recovery.state), &said(), &choice(&[]));
    assert_eq!(refused, Err(RecoverError::NotNeeded));
    // Somebody has acted by it: which of the two counts is not for us to say.
    let mut both = said();
    both.insert(name("be2"), testimony(102, &anew));
    let refused = restored(Some(&anew), &both, &choice(&[]));
    assert!(
        matches!(refused, Err(RecoverError::Foundings(_))),
        "{refused:?}"
    );
    let mut chosen = choice(&[]);
    chosen.of = Some(name("be0"));
    let recovery = restored(Some(&anew), &both, &chosen).unwrap();
    assert_eq!((recovery.of, recovery.from_epoch), (name("be0"), 7));
    assert!(both["be2"].accepts(&recovery.state));
}

#[test]
fn an_old_copy_of_the_state_is_contradicted_and_a_store_of_another_cluster_does_not() {
    let mut old = last();
    old.epoch = 3;
    assert!(old.contradicted(&said()).is_some());
    assert!(last().contradicted(&said()).is_none());
    let mut foreign = said();
    let mut other = last();
    other.founding = 99;
    foreign.insert(name("be1"), testimony(700, &other));
    foreign.insert(name("be9"), testimony(701, &other));
    assert!(last().contradicted(&foreign).is_none());
    // Forks of one epoch are not told apart by it.
    let mut forked = said();
    let mut fork = last();
    fork.backends.get_mut("be1").unwrap().status = Status::Out;
    forked.insert(name("be0"), testimony(100, &fork));
    let refused = restored(None, &forked, &choice(&[]));
    assert!(matches!(refused, Err(RecoverError::Foundings(_))));
}

#[test]
fn a_state_without_a_founding_is_read_and_written_as_before() {
    let state = State::new(Placing::new([name("be0")], 1).unwrap());
    let text = serde_json::to_string(&state).unwrap();
    assert!(!text.contains("founding") && !text.contains("replaces"));
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    let newer = serde_json::to_string(&last()).unwrap();
    assert_eq!(serde_json::from_str::<State>(&newer).unwrap(), last());
}

/// Two lost disks of three: no other backend has the keys of the two alone.
#[test]
fn a_backend_with_another_store_is_left_out_or_accepted_by_decision() {
    let state = last();
    let contents = Contents {
        state: Some(&state),
        lineage: None,
        testimonies: &Testimonies::new(),
        claims: &Claims::new(),
    };
    let stores = |of_be0| BTreeMap::from([(name("be0"), of_be0), (name("be1"), 101)]);
    let same = recover(&contents, &stores(100), &choice(&[]));
    assert_eq!(same, Err(RecoverError::NotNeeded));
    let other = stores(200);
    let doubts = BTreeMap::from([(name("be0"), Doubt::OtherStore)]);
    let refused = recover(&contents, &other, &choice(&[]));
    assert_eq!(refused, Err(RecoverError::Unproven(doubts)));
    let refused = recover(&contents, &other, &choice(&["be1"]));
    assert_eq!(refused, Err(RecoverError::NotInDoubt(name("be1"))));

    let left_out = recover(&contents, &other, &choice(&["be0"])).unwrap();
    assert_eq!(left_out.state.status("be0"), Some(Status::Out));
    assert_eq!(left_out.verdicts["be0"], Verdict::LeftOut);
    assert_eq!(left_out.state.status("be1"), Some(Status::InSync));
    let accepting = Choice {
        accepted: BTreeSet::from([name("be0")]),
        ..choice(&[])
    };
    let accepted = recover(&contents, &other, &accepting).unwrap();
    assert!(accepted.state.is_store_of("be0", 200));
    assert_eq!(accepted.state.status("be0"), Some(Status::InSync));
    assert_eq!(accepted.verdicts["be0"], Verdict::Accepted);
    for recovered in [left_out, accepted] {
        assert!(recovered.state.succeeds(state.founding, state.epoch));
        assert!(testimony(101, &state).accepts(&recovered.state));
    }
}

#[test]
fn an_older_copy_with_the_same_state_is_recovered_too() {
    let (state, said) = (last(), said());
    let first = Lineage::next(None, 1);
    let mark = Lineage::next(Some(&first), 2).mark();
    let claims = Claims::from([(name("be0"), Claim { store: 100, mark })]);
    let contents = Contents {
        state: Some(&state),
        lineage: Some(&first),
        testimonies: &said,
        claims: &claims,
    };
    let recovery = recover(&contents, &BTreeMap::new(), &choice(&[])).unwrap();
    assert!(recovery.state.succeeds(state.founding, state.epoch));
    let silent = Contents {
        testimonies: &Testimonies::from([(name("be0"), testimony(100, &state))]),
        ..contents
    };
    let refused = recover(&silent, &BTreeMap::new(), &choice(&[]));
    let doubts = BTreeMap::from([(name("be1"), Doubt::Silent)]);
    assert_eq!(refused, Err(RecoverError::Unproven(doubts)));
}

/// Before etcd was put back, be1 was out. After it, be1 alone goes on, and takes be0 out.
#[test]
fn steps_of_an_older_copy_do_not_replace_what_a_store_has_seen_before_it() {
    let without = |epoch, out: &str| {
        let mut state = last();
        state.epoch = epoch;
        state.backends.get_mut(out).unwrap().status = Status::Out;
        state
    };
    let (before, apart) = (without(8, "be1"), without(9, "be0"));
    let said = Testimonies::from([
        (name("be0"), testimony(100, &before)),
        (name("be1"), testimony(101, &apart)),
    ]);
    let copy = Lineage::next(None, 1);
    let lost = Lineage::next(Some(&copy), 2);
    let present = Lineage::next(Some(&copy), 3);
    let claim = |store, lineage: &Lineage| Claim {
        store,
        mark: lineage.mark(),
    };
    let claims = Claims::from([
        (name("be0"), claim(100, &lost)),
        (name("be1"), claim(101, &present)),
    ]);
    let contents = Contents {
        state: Some(&apart),
        lineage: Some(&present),
        testimonies: &said,
        claims: &claims,
    };
    let refused = recover(&contents, &BTreeMap::new(), &choice(&[]));
    let both = vec![name("be0"), name("be1")];
    assert_eq!(refused, Err(RecoverError::Foundings(both)));
    let chosen = Choice {
        of: Some(name("be0")),
        ..choice(&[])
    };
    let recovery = recover(&contents, &BTreeMap::new(), &chosen).unwrap();
    assert_eq!(recovery.verdicts["be0"], Verdict::InSync);
    assert_eq!(recovery.verdicts["be1"], Verdict::Behind);
}
