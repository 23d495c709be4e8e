//! Commands and claims of a sender, answered by the reference switch.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use prism_proto::claim::{self, Claim};
use prism_proto::control::{
    ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request, RunId, Status,
};
use prism_proto::steering::{Command, CommandOutcome, FIRST_RETRY_NS, MAX_RETRY_NS, Steering};
use prism_reference::FlowTable;

const MS: u64 = 1_000_000;

fn command(epoch: u64) -> Command {
    let addr = "10.0.0.2:80".parse::<std::net::SocketAddr>().unwrap();
    Command {
        ops: Ops::OWN.and(Ops::BLOCK),
        epoch,
        flow: FlowKey {
            client: "192.0.2.1:9".parse().unwrap(),
            vip: "198.51.100.1:80".parse().unwrap(),
        },
        owner: Owner {
            addr,
            via: addr.ip(),
        },
    }
}

fn key() -> ControlKey {
    ControlKey::new([3; 16])
}

#[test]
fn first_answer_sets_the_clock_and_the_command_is_repeated_at_once() {
    let (mut s, mut table) = (Steering::new(1, key(), 100), FlowTable::new(9));
    let id = s.start(command(5), 10, 100 * MS);
    let switch_clock = 77_000 * MS * 1000;
    for _ in 0..2 {
        let datagram = s.poll_transmit(10).unwrap();
        let request = Request::decode(&datagram, 1, &key()).unwrap();
        let answer = table.apply(&request, switch_clock);
        s.handle_datagram(&answer.encode(&key()), 10).unwrap();
    }
    let Some((done, CommandOutcome::Answered(answer))) = s.poll_finished() else {
        unreachable!("the command has ended")
    };
    assert_eq!((done, answer.status), (id, Status::Ok));
    assert_eq!(s.switch_clock_ns(11), Some(switch_clock + 1));
}

/// The times at which a silent switch is asked.
fn sent_until(deadline_ns: u64) -> Vec<u64> {
    let mut s = Steering::new(1, key(), 1);
    s.start(command(5), 0, deadline_ns);
    let mut sent_ns = Vec::new();
    while let Some(at) = s.next_timeout_ns() {
        s.handle_timeout(at);
        if s.poll_transmit(at).is_some() {
            sent_ns.push(at);
        }
    }
    let ended = s.poll_finished().map(|f| f.1);
    assert_eq!(ended, Some(CommandOutcome::Unanswered));
    sent_ns
}

#[test]
fn repeats_with_backoff_until_the_deadline() {
    let sent_ns = sent_until(200 * MS);
    let waits = sent_ns.windows(2).map(|pair| pair[1] - pair[0]);
    let doubled = (0..).map(|n| (FIRST_RETRY_NS << n).min(MAX_RETRY_NS));
    let is_jittered = |(wait, most): (u64, u64)| (most * 3 / 4..=most).contains(&wait);
    assert!(waits.zip(doubled).all(is_jittered), "{sent_ns:?}");
    assert!((9..=11).contains(&sent_ns.len()), "{sent_ns:?}");
}

#[test]
fn an_outage_that_ends_before_the_deadline_leaves_several_tries() {
    let sent_ns = sent_until(8_000 * MS);
    for (ends_ns, least) in [(5_000 * MS, 12), (6_000 * MS, 10), (7_000 * MS, 7)] {
        let since = sent_ns.iter().filter(|at| **at >= ends_ns).count();
        assert!(since >= least, "{since} after {ends_ns} ns: {sent_ns:?}");
    }
    assert!(sent_ns.len() <= 36, "{sent_ns:?}");
}

#[test]
fn foreign_and_duplicate_answers_change_nothing() {
    let mut s = Steering::new(1, key(), 1);
    let id = s.start(command(5), 0, 9 * MS);
    let request = Request::decode(&s.poll_transmit(0).unwrap(), 1, &key()).unwrap();
    let mut answer = FlowTable::new(1).apply(
        &Request {
            time_ns: 5,
            ..request
        },
        5,
    );
    answer.request_id += 1;
    s.handle_datagram(&answer.encode(&key()), 1).unwrap();
    assert!(
        s.handle_datagram(&answer.encode(&ControlKey::new([4; 16])), 1)
            .is_err()
    );
    assert_eq!(s.poll_finished(), None);
    answer.request_id -= 1;
    s.handle_datagram(&answer.encode(&key()), 1).unwrap();
    assert_eq!(s.poll_finished().map(|f| f.0), Some(id));
    s.handle_datagram(&answer.encode(&key()), 1).unwrap();
    assert_eq!(s.poll_finished(), None);
}

/// The switch's answer to a datagram.
fn answer(table: &mut FlowTable, datagram: &[u8], clock_ns: u64) -> [u8; MESSAGE_BYTES] {
    let request = Request::decode(datagram, 1, &key()).unwrap();
    table.apply(&request, clock_ns).encode(&key())
}

#[test]
fn an_outage_of_12_s_costs_20_000_commands_a_bounded_number_of_datagrams_and_no_command() {
    const COMMANDS: u16 = 20_000;
    let (mut s, mut table) = (Steering::new(1, key(), 7), FlowTable::new(usize::MAX));
    for port in 0..COMMANDS {
        let mut command = command(5);
        command.flow.client.set_port(port);
        s.start(command, 0, 60_000 * MS);
    }
    let (mut at, mut answered, mut after_the_end) = (0, 0, 0);
    while let Some(next) = s.next_timeout_ns() {
        at = at.max(next);
        s.handle_timeout(at);
        while let Some(datagram) = s.poll_transmit(at) {
            if at > 12_000 * MS {
                after_the_end += 1;
                let answer = answer(&mut table, &datagram, at);
                s.handle_datagram(&answer, at).unwrap();
            }
        }
        while let Some((_, outcome)) = s.poll_finished() {
            assert!(matches!(outcome, CommandOutcome::Answered(_)));
            answered += 1;
        }
    }
    assert_eq!(answered, COMMANDS);
    let repeated = s.counters.retransmissions / u64::from(COMMANDS);
    assert!((10..=26).contains(&repeated), "{repeated} for each");
    // The clock is not known before the first answer, so the first command takes two.
    assert!(after_the_end <= u32::from(COMMANDS) + 1, "{after_the_end}");
    let late_ms = at / MS - 12_000;
    assert!(late_ms <= 70, "all within {late_ms} ms of the first answer");
}

#[test]
fn a_command_that_is_not_answered_does_not_slow_down_while_others_are() {
    let (mut s, mut table) = (Steering::new(1, key(), 1), FlowTable::new(9));
    let unheard = s.start(command(5), 0, 8_000 * MS).0;
    let mut sent = 0;
    for at in (0..8_000 * MS).step_by(MS as usize) {
        if at % (50 * MS) == 0 {
            s.start(command(6), at, at + 50 * MS);
        }
        s.handle_timeout(at);
        while let Some(datagram) = s.poll_transmit(at) {
            match Request::decode(&datagram, 1, &key()).unwrap().request_id {
                id if id == unheard => sent += 1,
                _ => drop(s.handle_datagram(&answer(&mut table, &datagram, at), at)),
            }
        }
    }
    assert!(sent >= 8_000 / 128, "{sent} datagrams");
}

#[test]
fn a_forgotten_connection_does_not_take_the_flow_of_the_next() {
    let flow = FlowKey {
        client: "192.0.2.1:9".parse().unwrap(),
        vip: "198.51.100.1:80".parse().unwrap(),
    };
    let mut table = FlowTable::new(9);
    let mut ask = |host: u8, epoch| {
        let here = Owner {
            addr: flow.vip,
            via: [10, 0, 0, host].into(),
        };
        let Command {
            ops,
            epoch,
            flow,
            owner,
        } = claim::command(flow, here, epoch);
        let request = Request {
            key_id: 1,
            request_id: 1,
            time_ns: 500,
            ops,
            epoch,
            flow,
            owner,
            run: RunId::NONE,
        };
        Claim::of(CommandOutcome::Answered(table.apply(&request, 500)))
    };
    assert_eq!(ask(2, 200), Claim::Held, "accepted last");
    assert_eq!(ask(1, 100), Claim::Refused, "accepted first");
    assert_eq!(ask(2, 200), Claim::Held, "repetition");
    assert_eq!(Claim::of(CommandOutcome::Unanswered), Claim::Unanswered);
}
