//! Frames of a node that has a certificate: repeated, cut and senseless.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use prism_http::Method;
use prism_proto::control::{FlowKey, Passage};
use prism_proto::facts;
use prism_proto::node::{
    ALPN_HAND_OFF, FRAME_PREFIX_BYTES, Frame, HandOff, MAX_FRAME_BYTES, Permit, Refusal,
    STATE_VERSION,
};

use super::{OBJECTS, SEED};
use crate::support::bed::{Bed, NumberedClient, Way, path};
use crate::support::wire::{Wire, acceptor, dialler, framed};
use crate::support::{eventually, node_key, say, turn};

/// Intercepts a hand-off to `be2`, whose place the test takes.
pub fn intercept(
    bed: &Bed,
    client: &mut NumberedClient,
    listener: &TcpListener,
) -> (Wire, Vec<u8>) {
    let target = path(bed.object_of("be2"));
    let acceptor = acceptor(&bed.pki(), "be2");
    listener.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let request = client.signed("GET", &target, b"");
        client.stream.write_all(&request).unwrap();
        // The frontend answers after a failed attempt, without a hand-off.
        client.stream.set_nonblocking(true).unwrap();
        while client.stream.peek(&mut [0]).is_err() && Instant::now() < deadline {
            let Ok((tcp, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            tcp.set_nonblocking(false).unwrap();
            let wire = Wire::accept(tcp, acceptor.clone());
            if let Ok(mut wire) = wire
                && wire.is_for_hand_offs()
            {
                client.stream.set_nonblocking(false).unwrap();
                let frame = wire.frame().unwrap();
                return (wire, frame);
            }
        }
        client.stream.set_nonblocking(false).unwrap();
        assert_eq!(client.answer(&Method::GET).status(), 503);
    }
    panic!("the frontend does not hand over");
}

/// The hand-off of a frame.
fn hand_off_in(frame: &[u8]) -> Box<HandOff> {
    match Frame::decode(&frame[FRAME_PREFIX_BYTES..]) {
        Ok(Frame::HandOff(hand_off)) => hand_off,
        other => panic!("no hand-off: {other:?}"),
    }
}

/// Has the frame's hand-off go on from `be2` to `be0`, with a pass for it.
fn passed_on(bed: &Bed, mut hand_off: Box<HandOff>) -> Box<HandOff> {
    let config = prism_config::ConfigFile::load(&bed.lab.config_path()).unwrap();
    let (key_id, key) = node_key(&config.switch.unwrap(), "be2");
    let client = hand_off.tcp.remote;
    let to = Passage {
        flow: FlowKey {
            client,
            vip: hand_off.tcp.service,
        },
        epoch: hand_off.epoch,
        via: bed.address_like("be0", client.ip()),
    };
    let permit = hand_off.permit.unwrap();
    let pass = permit.pass.onward(key_id, &key, &to).unwrap();
    hand_off.permit = Some(Permit { pass, ..permit });
    hand_off
}

/// A refusal because the flow is another's, whatever its pass.
fn is_stale(verdict: &Frame, of: u64) -> bool {
    matches!(verdict, Frame::Refused { id, reason: Refusal::Stale, .. } if *id == of)
}

/// The same connection, with a request that `be0` can answer.
fn redirected(bed: &Bed, frame: &[u8]) -> Vec<u8> {
    let mut hand_off = passed_on(bed, hand_off_in(frame));
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\r\n",
        path(bed.object_of("be0"))
    );
    hand_off.input = head.into_bytes();
    hand_off.tcp.received.clear();
    Frame::HandOff(hand_off).encode()
}

/// A channel for hand-offs from `be2` to a node.
fn dial(bed: &Bed, host: &str) -> Wire {
    let config = dialler(&bed.pki(), Some((&bed.pki(), "be2")), ALPN_HAND_OFF);
    let address = bed.node_port(host);
    bed.on("be2", || Wire::dial(address, host, config)).unwrap()
}

#[test]
fn a_hand_off_sent_again_does_not_disturb_the_connection() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-again", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let resets = bed.watch_resets();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    // The frontend may just have found nobody there.
    std::thread::sleep(Duration::from_millis(400));
    let mut client = bed.client();
    let (mut source, frame) = intercept(&bed, &mut client, &listener);
    let frame = redirected(&bed, &frame);
    let Ok(Frame::HandOff(sent)) = Frame::decode(&frame[FRAME_PREFIX_BYTES..]) else {
        panic!("no hand-off");
    };
    let mut target = dial(&bed, "be0");
    target.send(&frame).unwrap();
    let verdict = target.verdict().unwrap();
    let is_accepted = matches!(verdict, Frame::Accepted { id, .. } if id == sent.id);
    assert!(is_accepted, "{verdict:?}");
    source.send(&verdict.encode()).unwrap();
    let answer = client.answer(&Method::GET);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let known = bed.flow_of(client.local()).unwrap();
    assert_eq!(known.epoch, sent.epoch, "the hand-off's own epoch");

    // The frame goes to the flow's owner, with the flow's own epoch, and to another node.
    let mut other = dial(&bed, "be1");
    for round in 0..20 {
        for (host, wire) in [("be0", &mut target), ("be1", &mut other)] {
            // A node that does not own the connection may pass the frame on to the owner.
            let before = bed.total("imports_refused");
            wire.send(&frame).unwrap();
            let verdict = wire.verdict().unwrap();
            assert!(is_stale(&verdict, sent.id), "{host}, round {round}");
            assert_eq!(bed.total("imports_refused"), before + 1, "{host}");
            assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known), "{host}");
        }
        client.get(bed.object_of("be0"));
    }
    // The connection has moved on, and the frame goes to the node that it left.
    client.get_from(&bed, "be1");
    let known = bed.flow_of(client.local()).unwrap();
    target.send(&frame).unwrap();
    assert!(
        is_stale(&target.verdict().unwrap(), sent.id),
        "after it moved on"
    );
    client.get(bed.object_of("be1"));
    assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known));
    // The connection has ended.
    let local = client.local();
    drop(client);
    eventually("the flow goes", Duration::from_secs(5), || {
        bed.flow_of(local).is_none()
    });
    target.send(&frame).unwrap();
    assert!(
        is_stale(&target.verdict().unwrap(), sent.id),
        "after its end"
    );
    assert!(bed.flow_of(local).is_none(), "the flow came back");
    assert_eq!(bed.total("connections_open"), 0);
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

/// A verification of another version counts as none.
#[test]
fn a_target_that_cannot_read_what_was_verified_verifies_the_request_itself() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-context", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let resets = bed.watch_resets();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    let mut client = bed.client();
    let (mut source, frame) = intercept(&bed, &mut client, &listener);
    let mut hand_off = passed_on(&bed, hand_off_in(&frame));
    assert_eq!(hand_off.context[0], facts::VERSION);
    hand_off.context[0] += 1;
    hand_off.input = client.signed("GET", &path(bed.object_of("be0")), b"");
    hand_off.tcp.received.clear();
    let mut target = dial(&bed, "be0");
    target.send(&Frame::HandOff(hand_off).encode()).unwrap();
    let verdict = target.verdict().unwrap();
    assert!(matches!(verdict, Frame::Accepted { .. }), "{verdict:?}");
    source.send(&verdict.encode()).unwrap();
    let answer = client.answer(&Method::GET);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    client.get(bed.object_of("be1"));
    drop(client);
    bed.assert_drained();
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

#[test]
fn senseless_frames_of_a_node_are_refused_and_counted() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-frames", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut lost = bed.client();
    let (source, frame) = intercept(&bed, &mut lost, &listener);
    let mut hand_off = hand_off_in(&frame);
    hand_off.permit = None;
    let frame = Frame::HandOff(hand_off).encode();
    // Both ends of that hand-off are given up: the frontend takes it back.
    drop((source, lost, listener));
    let mut client = bed.client();
    client.get_from(&bed, "be0");
    let known = bed.flow_of(client.local()).unwrap();

    let pki = bed.pki();
    let address = bed.node_port("be0");
    let dial = || {
        let config = dialler(&pki, Some((&pki, "be2")), ALPN_HAND_OFF);
        bed.on("be2", || Wire::dial(address, "be0", config))
            .unwrap()
    };
    let malformed = || bed.count("be0", "frames_malformed");
    let (start, resident) = (malformed(), bed.resident_kib("be0"));
    let mut sent = 0;

    // A hand-off whose body is cut at any place is refused by its number.
    let body = &frame[FRAME_PREFIX_BYTES..];
    let mut wire = dial();
    for len in 9..body.len() {
        wire.send(&framed(&body[..len])).unwrap();
        sent += 1;
        let verdict = wire.verdict().unwrap();
        let refused = matches!(
            &verdict,
            Frame::Refused {
                reason: Refusal::Malformed,
                ..
            }
        );
        assert!(refused, "cut to {len}: {verdict:?}");
    }
    // The same of another version, with bytes behind its end, and with noise behind its number.
    let mut other_version = body.to_vec();
    // The type, the number and the magic precede it.
    assert_eq!(other_version[13], STATE_VERSION);
    other_version[13] += 1;
    let mut bodies = vec![other_version, [body, b"more"].concat()];
    for _ in 0..100 {
        let len = random.usize(0..4_096);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(len);
        bodies.push(body[..9].iter().copied().chain(noise).collect());
    }
    for body in &bodies {
        wire.send(&framed(body)).unwrap();
        sent += 1;
        let verdict = wire.verdict().unwrap();
        assert!(matches!(verdict, Frame::Refused { .. }), "{verdict:?}");
    }
    assert_eq!(malformed(), start + sent);

    // A frame without a number ends the channel.
    let mut fatal = vec![
        vec![],
        vec![0],
        vec![99; 20],
        vec![3; 5],
        vec![2; 8],
        vec![1; 4],
    ];
    for _ in 0..50 {
        let len = random.usize(1..600);
        let mut noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        noise[0] |= 4;
        fatal.push(noise);
    }
    for body in &fatal {
        let mut wire = dial();
        wire.send(&framed(body)).unwrap();
        sent += 1;
        wire.assert_ended();
    }
    eventually("they are counted", Duration::from_secs(2), || {
        malformed() >= start + sent
    });
    assert_eq!(malformed(), start + sent);

    // No node waits for these verdicts.
    let before = bed.count("be0", "verdicts_unexpected");
    let mut wire = dial();
    for id in 0..100 {
        wire.send(&Frame::Accepted { id, spent_ns: 0 }.encode())
            .unwrap();
    }
    eventually("they are counted", Duration::from_secs(2), || {
        bed.count("be0", "verdicts_unexpected") == before + 100
    });

    // Frames that are too long; and the longest frame, begun and never ended.
    for len in [MAX_FRAME_BYTES + 1, u32::MAX as usize] {
        let mut wire = dial();
        wire.send(&u32::try_from(len).unwrap().to_be_bytes())
            .unwrap();
        wire.assert_ended();
        sent += 1;
    }
    let counted = malformed() - start;
    let longest = u32::try_from(MAX_FRAME_BYTES).unwrap().to_be_bytes();
    let begun: Vec<Wire> = (0..40)
        .map(|_| {
            let mut wire = dial();
            wire.send(&longest).unwrap();
            wire.send(&vec![1; 256 << 10]).unwrap();
            wire
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let grown = bed.resident_kib("be0").saturating_sub(resident);
    say(&format!(
        "seed {SEED:#x}: {sent} senseless frames; {grown} KiB more with 40 frames of {} MiB begun",
        MAX_FRAME_BYTES >> 20
    ));
    assert!(grown < 96 << 10, "{grown} KiB");
    drop(begun);

    assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known));
    client.get(bed.object_of("be1"));
    client.get(bed.object_of("be0"));
    drop(client);
    assert_eq!(
        counted, sent,
        "frames that are too long are counted as well"
    );
}
