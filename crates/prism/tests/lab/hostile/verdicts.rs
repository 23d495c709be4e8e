//! A target that has the state and does not take the connection: it refuses, knows nothing,
//! disappears, or stays silent. The source restores the connection.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use prism_http::Method;
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, Refusal};

use super::OBJECTS;
use super::frames::intercept;
use crate::support::bed::{Bed, NumberedClient, Way, content, path};
use crate::support::wire::Wire;
use crate::support::{say, turn};

/// The target's words when it has the state.
#[derive(Clone, Copy, Debug)]
enum Says {
    Refused(Refusal),
    Unknown,
    /// The channel breaks.
    Gone,
    /// Nothing, and acceptance when it is too late.
    NothingInTime,
}

/// Says it. Returns a channel that is still good.
fn say_verdict(says: Says, mut wire: Wire, id: u64) -> Option<Wire> {
    let verdict = match says {
        Says::Refused(reason) => Frame::Refused {
            id,
            reason,
            pass: None,
        },
        Says::Unknown => Frame::Unknown { id },
        Says::Gone => return None,
        Says::NothingInTime => return Some(wire),
    };
    wire.send(&verdict.encode()).unwrap();
    Some(wire)
}

/// Waits for the answer of `client`, while no other node relays for `be2`.
fn shed(listener: &TcpListener, client: &NumberedClient) {
    let deadline = Instant::now() + Duration::from_secs(10);
    client.stream.set_nonblocking(true).unwrap();
    while client.stream.peek(&mut [0]).is_err() && Instant::now() < deadline {
        if listener.accept().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    client.stream.set_nonblocking(false).unwrap();
}

/// One hand-off that fails. Its request is for a missing node; the request behind it is
/// answered.
fn comes_back(
    bed: &Bed,
    listener: &TcpListener,
    client: &mut NumberedClient,
    says: Says,
) -> Duration {
    let (wire, frame) = intercept(bed, client, listener);
    let Ok(Frame::HandOff(sent)) = Frame::decode(&frame[FRAME_PREFIX_BYTES..]) else {
        panic!("no hand-off");
    };
    // No node has the connection now.
    let n = bed.object_of("be1");
    let behind = client.signed("GET", &path(n), b"");
    client.stream.write_all(&behind).unwrap();
    let said = Instant::now();
    let wire = say_verdict(says, wire, sent.id);
    shed(listener, client);
    let took = said.elapsed();
    let answer = client.answer(&Method::GET);
    assert_eq!(answer.status(), 503, "{says:?}: {}", answer.text());
    assert!(answer.keep_alive(), "{says:?}");
    let answer = client.answer(&Method::GET);
    assert_eq!(answer.status(), 200, "{says:?}: {}", answer.text());
    assert!(answer.body == content(n), "{says:?}: other bytes");
    if let (Says::NothingInTime, Some(mut wire)) = (says, wire) {
        let accepted = Frame::Accepted {
            id: sent.id,
            spent_ns: 0,
        };
        wire.send(&accepted.encode()).unwrap();
        client.get(n);
    }
    took
}

#[test]
fn a_connection_whose_target_has_the_state_and_does_not_take_it_comes_back() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-verdict", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let resets = bed.watch_resets();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    let lost = bed.total("exports_lost");
    let mut client = bed.client();
    let all = [
        // As to a state of another version.
        Says::Refused(Refusal::Malformed),
        Says::Refused(Refusal::Busy),
        Says::Refused(Refusal::RestoreFailed),
        Says::Refused(Refusal::Stale),
        Says::Unknown,
        Says::Gone,
        Says::NothingInTime,
    ];
    for (round, says) in all.into_iter().enumerate() {
        let took = comes_back(&bed, &listener, &mut client, says);
        say(&format!("{says:?}: answered after {took:.1?}"));
        let bound = match says {
            Says::NothingInTime => Duration::from_secs(5),
            _ => Duration::from_secs(3),
        };
        assert!(took < bound, "{says:?}: {took:.1?}");
        // The next hand-off comes from another node.
        client.get_from(&bed, ["be0", "be1"][round % 2]);
    }
    drop(client);
    bed.assert_drained();
    assert_eq!(bed.total("exports_lost"), lost);
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}
