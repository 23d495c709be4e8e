//! Host mode in `Export` and `Import`: who may send, and when.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;

use prism_proto::control::{
    Answer, ControlKey, FlowKey, FlowState, MESSAGE_BYTES, Ops, Owner, Request, Stamped, Status,
    Term,
};
use prism_proto::export::{self, Export, Kept, Method, Outcome, Verdict};
use prism_proto::fence::{Fence, MUTE_DEADLINE_NS};
use prism_proto::import::{self, Import};
use prism_proto::node::Refusal;
use prism_proto::steering::{Command, CommandOutcome, Steering};

fn owner(host: u8) -> Owner {
    let addr = SocketAddr::from(([198, 51, 100, 1], 80));
    let via = [10, 0, 0, host].into();
    Owner { addr, via }
}

fn flow() -> FlowKey {
    FlowKey {
        client: SocketAddr::from(([192, 0, 2, 1], 9)),
        vip: owner(1).addr,
    }
}

fn answer(status: Status, state: FlowState, epoch: u64, owner: Owner) -> CommandOutcome {
    CommandOutcome::Answered(Answer {
        status,
        state,
        time_ns: 1,
        epoch,
        owner,
        key_id: 1,
        request_id: 1,
        ops: Ops::QUERY,
        flow: flow(),
    })
}

/// A source at epoch 10 that has sent its state, got this verdict, and asks for its flow.
fn reclaiming(verdict: Verdict) -> (Export, Command, u64) {
    let (mut export, first) =
        Export::start(Fence::Host, Method::Freeze, flow(), owner(1), 10, false);
    assert_eq!(first, export::Action::Save { freezes: true });
    export.handle(export::Event::Saved);
    export.handle(export::Event::Verdict(verdict));
    match export.handle(export::Event::Rebuilt) {
        export::Action::Steer {
            command,
            deadline_ns,
        } => (export, command, deadline_ns),
        other => panic!("{other:?}"),
    }
}

const SILENCE: export::Event = export::Event::Steered(CommandOutcome::Unanswered);

#[test]
fn a_blocked_socket_is_frozen_too() {
    let (mut export, _) = Export::start(Fence::Host, Method::TwoPhase, flow(), owner(1), 10, true);
    let blocked = answer(Status::Ok, FlowState::Blocked, 11, owner(1));
    let save = export.handle(export::Event::Steered(blocked));
    assert_eq!(save, export::Action::Save { freezes: true });
}

#[test]
fn a_source_stays_mute_until_the_arbiter_has_answered_though_its_target_has_refused() {
    let refused = || reclaiming(Verdict::Refused(Refusal::Busy));
    let (mut export, command, deadline_ns) = refused();
    assert_eq!((command.epoch, deadline_ns), (12, MUTE_DEADLINE_NS));
    assert!(!export.is_bound_to_term());
    assert_eq!(
        export.handle(SILENCE),
        export::Action::Finish(Outcome::Unknown)
    );
    let (mut export, ..) = refused();
    let here = answer(Status::Ok, FlowState::Forward, 12, owner(1));
    let kept = Outcome::Kept {
        epoch: 12,
        reason: Kept::TargetRefused(Refusal::Busy),
        settled: true,
    };
    assert_eq!(
        export.handle(export::Event::Steered(here)),
        export::Action::Finish(kept)
    );
}

#[test]
fn a_source_in_doubt_asks_its_target_when_the_arbiter_has_lost_its_table() {
    let (mut export, command, _) = reclaiming(Verdict::Unknown);
    assert_eq!(command.epoch, 11);
    assert!(export.is_bound_to_term());
    let later = answer(Status::OldTerm, FlowState::Forward, 10, owner(1));
    let asks = export.handle(export::Event::Steered(later));
    assert!(
        matches!(asks, export::Action::Ask { owner: None, .. }),
        "{asks:?}"
    );
    let told = export::Event::Told(Verdict::Refused(Refusal::SwitchFailed));
    match export.handle(told) {
        export::Action::Steer { command, .. } => assert_eq!(command.epoch, 12),
        other => panic!("{other:?}"),
    }
    assert!(!export.is_bound_to_term());
}

#[test]
fn a_target_is_mute_and_never_insists() {
    let (mut import, first) = Import::start(Fence::Host, flow(), 11);
    assert_eq!(first, import::Action::Restore { is_mute: true });
    import.handle(import::Event::Restored(owner(2)));
    import.must_insist();
    let silence = import::Event::Steered(CommandOutcome::Unanswered);
    let given_up = import::Action::GiveUp(Refusal::SwitchFailed);
    assert_eq!(import.handle(silence), given_up);
}

#[test]
fn a_target_that_has_given_up_releases_only_what_is_left_to_it() {
    let (mut import, _) = Import::start(Fence::Host, flow(), 11);
    import.handle(import::Event::Restored(owner(2)));
    import.handle(import::Event::Steered(CommandOutcome::Unanswered));
    let remains = import.remains().unwrap();
    assert_eq!(remains.query().ops, Ops::QUERY);
    let is_left = |state, epoch, of| match answer(Status::Ok, state, epoch, owner(of)) {
        CommandOutcome::Answered(answer) => remains.is_left(&answer),
        CommandOutcome::Unanswered => false,
    };
    assert!(is_left(FlowState::Forward, 11, 2));
    assert!(
        !is_left(FlowState::Forward, 11, 1),
        "the source's own command won"
    );
    assert!(
        !is_left(FlowState::Forward, 12, 1),
        "the source has it again"
    );
    assert!(
        !is_left(FlowState::Forward, 13, 2),
        "the connection has come back"
    );
    assert!(!is_left(FlowState::Absent, 11, 2));
    let (import, _) = Import::start(Fence::Switch, flow(), 11);
    assert_eq!(import.remains(), None, "a refusal of the next SYN ends it");
}

/// The term that the command is sent with next.
fn stamp_of(steering: &mut Steering, now_ns: u64) -> Option<Term> {
    let bytes: [u8; MESSAGE_BYTES] = steering.poll_transmit(now_ns)?;
    let key = ControlKey::new([3; 16]);
    Some(Stamped::<Request>::decode(&bytes, 7, &key).unwrap().term)
}

#[test]
fn a_bound_command_keeps_its_term() {
    for (binds, wanted) in [(false, Term(2)), (true, Term(1))] {
        let mut steering = Steering::new(7, ControlKey::new([3; 16]), 1);
        let (_, command, _) = reclaiming(Verdict::Unknown);
        let id = steering.start_in(Term(1), command, 0, 1_000_000_000);
        if binds {
            steering.bind(id);
        }
        assert_eq!(stamp_of(&mut steering, 0), Some(Term(1)));
        steering.restamp(&flow(), 10, Term(2));
        let later_ns = steering.next_timeout_ns().unwrap();
        steering.handle_timeout(later_ns);
        assert_eq!(stamp_of(&mut steering, later_ns), Some(wanted));
    }
}
