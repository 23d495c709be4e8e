//! Every phase of `Export` and `Import` meets every event, also the wrong ones. An event that a
//! table does not name must end in giving the connection up.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::net::SocketAddr;

use prism_proto::control::{Answer, FlowKey, FlowState, Ops, Owner, Status};
use prism_proto::export::{self, Export, Method, Outcome, Verdict};
use prism_proto::fence::Fence;
use prism_proto::import::{self, Import};
use prism_proto::node::Refusal;
use prism_proto::steering::{Command, CommandOutcome};

/// Epoch of the flow before the hand-off: the block has 11, the target 12.
const EPOCH: u64 = 10;

fn owner(host: u8) -> Owner {
    let addr = SocketAddr::from(([10, 0, 0, host], 80));
    let via = addr.ip();
    Owner { addr, via }
}

fn flow() -> FlowKey {
    FlowKey {
        client: SocketAddr::from(([192, 0, 2, 1], 9)),
        vip: SocketAddr::from(([198, 51, 100, 1], 80)),
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

/// All answers of the switch, by name. Host 1 is the source, host 2 another.
fn answers() -> Vec<(&'static str, CommandOutcome)> {
    use FlowState::{Absent, Blocked, Forward};
    let stale = |state, epoch, owner| answer(Status::Stale, state, epoch, owner);
    let refused = |status| answer(status, Absent, 0, Owner::NONE);
    vec![
        ("ok", answer(Status::Ok, Forward, 12, owner(1))),
        ("stale, absent", stale(Absent, 50, Owner::NONE)),
        ("stale, here", stale(Blocked, 50, owner(1))),
        ("stale, target's", stale(Forward, 12, owner(2))),
        ("stale, another's", stale(Forward, 50, owner(2))),
        ("stale, a SYN's", stale(Absent, 1 << 60, Owner::NONE)),
        ("full", refused(Status::Full)),
        ("denied", refused(Status::Denied)),
        ("no service", refused(Status::NoService)),
        ("bad request", refused(Status::BadRequest)),
        ("silence", CommandOutcome::Unanswered),
    ]
}

fn export_events() -> Vec<(&'static str, export::Event)> {
    let steered = answers().into_iter();
    let mut all: Vec<_> = steered
        .map(|(name, o)| (name, export::Event::Steered(o)))
        .collect();
    all.extend([
        ("saved", export::Event::Saved),
        ("save failed", export::Event::SaveFailed),
        ("accepted", export::Event::Verdict(Verdict::Accepted)),
        (
            "refused",
            export::Event::Verdict(Verdict::Refused(Refusal::Busy)),
        ),
        ("no verdict", export::Event::Verdict(Verdict::Unknown)),
        ("rebuilt", export::Event::Rebuilt),
        ("rebuild failed", export::Event::RebuildFailed),
        ("returned", export::Event::Returned),
        ("told: accepted", export::Event::Told(Verdict::Accepted)),
        (
            "told: given up",
            export::Event::Told(Verdict::Refused(Refusal::SwitchFailed)),
        ),
        ("told nothing", export::Event::Told(Verdict::Unknown)),
    ]);
    all
}

fn show_command(command: &Command) -> String {
    let Command {
        ops,
        epoch,
        owner: to,
        ..
    } = *command;
    if ops == Ops::RELEASE {
        return format!("release {epoch}");
    }
    assert!(ops.has(Ops::OWN) && to != Owner::NONE);
    let verb = if ops.has(Ops::BLOCK) {
        "block"
    } else {
        "unblock"
    };
    format!("{verb} {epoch}")
}

fn show_export(action: &export::Action) -> String {
    match action {
        export::Action::Steer { command, .. } => show_command(command),
        export::Action::Save { .. } => "save".into(),
        export::Action::Send { epoch } => format!("send {epoch}"),
        export::Action::Rebuild => "rebuild".into(),
        export::Action::Ask { owner: Some(_), .. } => "ask the owner".into(),
        export::Action::Ask { owner: None, .. } => "ask the target".into(),
        export::Action::Finish(Outcome::Moved) => "moved".into(),
        export::Action::Finish(Outcome::Lost) => "lost".into(),
        export::Action::Finish(Outcome::Unknown) => "unknown".into(),
        export::Action::Finish(Outcome::Untouched { reason }) => format!("untouched, {reason:?}"),
        export::Action::Finish(Outcome::Kept {
            epoch,
            reason,
            settled,
        }) => {
            let doubt = if *settled { "" } else { ", unsettled" };
            format!("kept {epoch}, {reason:?}{doubt}")
        }
    }
}

type Table<'a> = &'a [(&'a str, &'a str)];

/// Each event in the phase that `path` leads to.
fn export_phase(never_steered: bool, path: &[&str], table: Table<'_>) {
    phase_of(Method::TwoPhase, never_steered, path, table);
}

fn phase_of(method: Method, never_steered: bool, path: &[&str], table: Table<'_>) {
    let events = export_events();
    for (name, _) in table {
        assert!(
            events.iter().any(|(known, _)| known == name),
            "no event {name}"
        );
    }
    for (name, event) in &events {
        let (mut export, first) = Export::start(
            Fence::Switch,
            method,
            flow(),
            owner(1),
            EPOCH,
            never_steered,
        );
        let begins = match method {
            Method::TwoPhase => "block 11",
            Method::Freeze => "save",
        };
        assert_eq!(show_export(&first), begins);
        for step in path {
            let step = events.iter().find(|(known, _)| known == step).unwrap();
            export.handle(step.1);
        }
        let found = show_export(&export.handle(*event));
        let wanted = table
            .iter()
            .find(|row| row.0 == *name)
            .map_or("lost", |row| row.1);
        assert_eq!(found, wanted, "{name} after {path:?}");
    }
}

#[test]
fn blocking() {
    let refused = [
        ("ok", "save"),
        ("full", "release 12"),
        ("denied", "untouched, SwitchRefused(Denied)"),
        ("no service", "untouched, SwitchRefused(NoService)"),
        ("bad request", "untouched, SwitchRefused(BadRequest)"),
        ("silence", "unblock 12"),
    ];
    export_phase(false, &[], &refused);
    let outbids = [
        ("stale, absent", "block 51"),
        ("stale, here", "block 51"),
        ("stale, a SYN's", "block 1152921504606846977"),
    ];
    export_phase(true, &[], &[refused.as_slice(), &outbids].concat());
}

#[test]
fn a_first_block_outbids_no_more_than_four_times() {
    let (mut export, _) = Export::start(
        Fence::Switch,
        Method::TwoPhase,
        flow(),
        owner(1),
        EPOCH,
        true,
    );
    let stale = export::Event::Steered(answers()[1].1);
    let actions = [(); 5].map(|()| show_export(&export.handle(stale)));
    let again = "block 51";
    assert_eq!(actions, [again, again, again, again, "lost"]);
}

#[test]
fn saving() {
    let table = [("saved", "send 12"), ("save failed", "unblock 12")];
    export_phase(false, &["ok"], &table);
}

#[test]
fn awaiting_the_verdict() {
    let table = [
        ("accepted", "moved"),
        ("refused", "rebuild"),
        ("no verdict", "rebuild"),
    ];
    export_phase(false, &["ok", "saved"], &table);
}

#[test]
fn rebuilding_reclaims_above_a_target_that_refused_and_beside_one_that_is_silent() {
    export_phase(
        false,
        &["ok", "saved", "no verdict"],
        &[("rebuilt", "unblock 12"), ("returned", "moved")],
    );
    export_phase(
        false,
        &["ok", "saved", "refused"],
        &[("rebuilt", "unblock 13"), ("returned", "moved")],
    );
}

/// Only the target can have taken the flow on from there.
const GONE_ON: [(&str, &str); 4] = [
    ("stale, absent", "moved"),
    ("stale, here", "moved"),
    ("stale, another's", "moved"),
    ("stale, a SYN's", "unknown"),
];

#[test]
fn reclaiming_goes_live_only_on_a_certain_answer() {
    let silent = [
        ("ok", "kept 12, TargetSilent"),
        ("stale, target's", "ask the owner"),
        ("silence", "ask the target"),
    ];
    let silent = [silent.as_slice(), &GONE_ON].concat();
    export_phase(false, &["ok", "saved", "no verdict", "rebuilt"], &silent);
}

#[test]
fn what_the_target_refused_goes_on_here_though_the_switch_is_silent() {
    let refused = [
        ("ok", "kept 13, TargetRefused(Busy)"),
        ("silence", "kept 13, TargetRefused(Busy), unsettled"),
    ];
    export_phase(false, &["ok", "saved", "refused", "rebuilt"], &refused);
}

#[test]
fn a_source_without_a_verdict_asks_before_it_drops_the_connection() {
    let rebuilt = ["ok", "saved", "no verdict", "rebuilt"];
    let after = |last: &'static str| [rebuilt.as_slice(), &[last]].concat();
    let told = |otherwise| {
        [
            ("told: accepted", "moved"),
            ("told: given up", "unblock 13"),
            ("told nothing", otherwise),
        ]
    };
    export_phase(false, &after("stale, target's"), &told("moved"));
    export_phase(false, &after("silence"), &told("unknown"));
    let given_up = [after("silence").as_slice(), &["told: given up"]].concat();
    let kept = [
        ("ok", "kept 13, TargetSilent"),
        ("silence", "kept 13, TargetSilent, unsettled"),
    ];
    export_phase(false, &given_up, &kept);
}

#[test]
fn a_freeze_asks_the_switch_for_nothing_before_the_verdict() {
    let freeze = |path: &[&str], table: Table<'_>| {
        phase_of(Method::Freeze, false, path, table);
    };
    let saving = [
        ("saved", "send 11"),
        ("save failed", "untouched, SaveFailed"),
    ];
    freeze(&[], &saving);
    let verdicts = [
        ("accepted", "moved"),
        ("refused", "rebuild"),
        ("no verdict", "rebuild"),
    ];
    freeze(&["saved"], &verdicts);
    let rebuilding = |epoch| [("rebuilt", epoch), ("returned", "moved")];
    freeze(&["saved", "no verdict"], &rebuilding("unblock 11"));
    freeze(&["saved", "refused"], &rebuilding("unblock 12"));
    let silent = [
        ("ok", "kept 11, TargetSilent"),
        ("silence", "ask the target"),
        ("stale, target's", "moved"),
    ];
    let silent = [silent.as_slice(), &GONE_ON].concat();
    freeze(&["saved", "no verdict", "rebuilt"], &silent);
}

#[test]
fn a_first_hand_off_is_two_phase_in_any_case() {
    let (_, first) = Export::start(Fence::Switch, Method::Freeze, flow(), owner(1), EPOCH, true);
    assert_eq!(show_export(&first), "block 11");
}

#[test]
fn unblocking_keeps_a_socket_that_never_left_unless_the_flow_is_anothers() {
    let kept = |why: &str| {
        let settled = ["ok", "full", "denied", "no service", "bad request"];
        let mut rows = Vec::from(settled.map(|name| (name, format!("kept 12, {why}"))));
        rows.push(("silence", format!("kept 12, {why}, unsettled")));
        rows
    };
    let check = |never_steered, path: &[&str], rows: &[(&str, String)]| {
        let rows: Vec<_> = rows.iter().map(|(a, b)| (*a, b.as_str())).collect();
        export_phase(never_steered, path, &rows);
    };
    check(false, &["ok", "save failed"], &kept("SaveFailed"));
    check(true, &["ok", "save failed"], &kept("SaveFailed"));
    check(false, &["silence"], &kept("SwitchSilent"));
    check(false, &["full"], &kept("SwitchRefused(Full)"));
    // Nothing was confirmed before, and nothing is now.
    let untouched = |why: &str, names: &[&'static str]| {
        let row = |name: &&'static str| (*name, format!("untouched, {why}"));
        names.iter().map(row).collect::<Vec<_>>()
    };
    let answered = [
        "full",
        "denied",
        "no service",
        "bad request",
        "stale, absent",
        "stale, here",
        "stale, a SYN's",
    ];
    let mut rows = untouched("SwitchSilent", &answered);
    rows.push(("ok", "kept 12, SwitchSilent".into()));
    rows.push(("silence", "kept 12, SwitchSilent, unsettled".into()));
    check(true, &["silence"], &rows);
    let mut rows = untouched("SwitchRefused(Full)", &answered);
    rows.push(("ok", "untouched, SwitchRefused(Full)".into()));
    rows.push(("silence", "kept 12, SwitchRefused(Full), unsettled".into()));
    check(true, &["full"], &rows);
}

#[test]
fn after_the_end_every_event_is_a_drivers_bug() {
    export_phase(false, &["saved"], &[]);
    export_phase(false, &["ok", "saved", "accepted"], &[]);
    export_phase(false, &["ok", "saved", "no verdict", "rebuild failed"], &[]);
}

fn import_events() -> Vec<(&'static str, import::Event)> {
    let steered = answers().into_iter();
    let mut all: Vec<_> = steered
        .map(|(name, o)| (name, import::Event::Steered(o)))
        .collect();
    all.push(("restored", import::Event::Restored(owner(2))));
    all.push(("restore failed", import::Event::RestoreFailed));
    all
}

fn show_import(action: &import::Action) -> String {
    match action {
        import::Action::Restore { .. } => "restore".into(),
        import::Action::Steer { command, .. } => show_command(command),
        import::Action::GoLive => "live".into(),
        import::Action::Refuse(why) => format!("{why:?}"),
        import::Action::GiveUp(why) => format!("{why:?}, deaf"),
    }
}

fn import_phase(path: &[&str], table: Table<'_>) {
    let events = import_events();
    for (name, event) in &events {
        let (mut import, first) = Import::start(Fence::Switch, flow(), 12);
        assert_eq!(show_import(&first), "restore");
        for step in path {
            import.handle(events.iter().find(|(known, _)| known == step).unwrap().1);
        }
        let found = show_import(&import.handle(*event));
        let wanted = table.iter().find(|row| row.0 == *name);
        assert_eq!(
            found,
            wanted.map_or("Malformed", |row| row.1),
            "{name} after {path:?}"
        );
    }
}

#[test]
fn importing() {
    let restoring = [
        ("restored", "unblock 12"),
        ("restore failed", "RestoreFailed"),
    ];
    import_phase(&[], &restoring);
    let owning = [
        ("full", "SwitchFailed, deaf"),
        ("silence", "SwitchFailed, deaf"),
        ("denied", "SwitchFailed"),
        ("no service", "SwitchFailed"),
        ("bad request", "SwitchFailed"),
        ("ok", "live"),
        ("stale, absent", "Stale"),
        ("stale, here", "Stale"),
        ("stale, target's", "Stale"),
        ("stale, another's", "Stale"),
        ("stale, a SYN's", "Stale"),
    ];
    import_phase(&["restored"], &owning);
    import_phase(&["restored", "ok"], &[]);
    import_phase(&["restore failed"], &[]);
}

#[test]
fn a_target_that_may_have_acknowledged_something_asks_again_before_it_gives_up() {
    let silence = import::Event::Steered(CommandOutcome::Unanswered);
    let (mut import, _) = Import::start(Fence::Switch, flow(), 12);
    import.handle(import::Event::Restored(owner(2)));
    import.must_insist();
    let deadline_of = |action: &import::Action| match action {
        import::Action::Steer { deadline_ns, .. } => *deadline_ns,
        other => panic!("{other:?}"),
    };
    let again = import.handle(silence);
    assert_eq!(show_import(&again), "unblock 12");
    assert_eq!(deadline_of(&again), export::SETTLE_DEADLINE_NS);
    assert_eq!(show_import(&import.handle(silence)), "SwitchFailed, deaf");
}
