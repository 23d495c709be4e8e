#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use crate::tcp_state::{Behaviour, Keepalive, NegotiatedOptions, Window, WindowScale};

pub(super) fn hand_off() -> HandOff {
    HandOff {
        id: 3,
        epoch: 1 << 60,
        moves: 1,
        origin: "fe0".into(),
        context: b"ctx".to_vec(),
        input: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        output: vec![1; 10],
        tls: None,
        tcp: TcpState {
            remote: "192.0.2.9:50000".parse().unwrap(),
            service: "198.51.100.1:80".parse().unwrap(),
            write_seq: u32::MAX,
            receive_seq: 5,
            sent: vec![2; 100],
            unsent: vec![3; 50],
            received: vec![4; 7],
            peer_closed: true,
            options: NegotiatedOptions {
                sack: true,
                timestamps: true,
                window_scale: Some(WindowScale {
                    send: 7,
                    receive: 14,
                }),
            },
            timestamp: 99,
            window: Window {
                send_wl1: 1,
                send_window_bytes: 2,
                max_window_bytes: 3,
                receive_window_bytes: 4,
                receive_wup: 5,
            },
            cwnd_segments: 10,
            srtt_us: 20,
            behaviour: Behaviour {
                mss_clamp_bytes: 1460,
                congestion: "cubic".into(),
                nodelay: true,
                keepalive: Some(Keepalive {
                    idle_s: 1,
                    interval_s: 2,
                    probes: 3,
                }),
                user_timeout_ms: 4,
            },
        },
        proxied: None,
        permit: None,
    }
}

fn pass() -> Pass {
    let key = crate::control::ControlKey::new([7; 16]);
    let flow = crate::control::FlowKey {
        client: "192.0.2.9:50000".parse().unwrap(),
        vip: "198.51.100.1:80".parse().unwrap(),
    };
    let via = "10.0.0.3".parse().unwrap();
    let passage = crate::control::Passage {
        flow,
        epoch: 8,
        via,
    };
    Pass::new(&key, &passage).onward(9, &key, &passage).unwrap()
}

fn frames() -> Vec<Frame> {
    let refused = |pass| {
        Refusal::ALL.map(|reason| Frame::Refused {
            id: 9,
            reason,
            pass,
        })
    };
    let tls = TlsState {
        session: Zeroizing::new(vec![5; 100]),
        sealed: vec![6; 40],
    };
    let secure = HandOff {
        tls: Some(tls),
        ..hand_off()
    };
    let permitted = HandOff {
        permit: Some(Permit {
            pass: pass(),
            source: "10.0.0.2".parse().unwrap(),
        }),
        ..hand_off()
    };
    let proxied = HandOff {
        proxied: Some(ClientFacts {
            address: "203.0.113.9:50000".parse().unwrap(),
            service: "203.0.113.1:443".parse().unwrap(),
            is_tls: true,
        }),
        ..hand_off()
    };
    let mut frames = vec![
        Frame::HandOff(Box::new(hand_off())),
        Frame::HandOff(Box::new(proxied)),
        Frame::HandOff(Box::new(permitted)),
        Frame::HandOff(Box::new(secure)),
        Frame::Accepted {
            id: 4,
            spent_ns: 20,
        },
        Frame::Unknown { id: 5 },
        Frame::Ask { id: 6 },
        Frame::Leaving { id: 7 },
        Frame::Heard { id: 8 },
    ];
    frames.extend(refused(None));
    frames.extend(refused(Some(pass())));
    frames
}

#[test]
fn frames_round_trip() {
    for frame in frames() {
        let bytes = frame.encode();
        assert_eq!(Frame::announced_len(&bytes), Ok(Some(bytes.len() - 4)));
        assert_eq!(Frame::decode(&bytes[4..]), Ok(frame));
    }
}

#[test]
fn every_truncation_and_any_addition_is_refused() {
    for frame in frames() {
        let bytes = frame.encode();
        for len in 4..bytes.len() {
            assert!(Frame::decode(&bytes[4..len]).is_err());
        }
        let longer = [&bytes[4..], &[0]].concat();
        assert_eq!(Frame::decode(&longer), Err(DecodeError::Trailing(1)));
    }
}

#[test]
fn random_changes_never_panic_and_never_allocate_beyond_the_frame() {
    let mut random = fastrand::Rng::with_seed(1);
    let good = Frame::HandOff(Box::new(hand_off())).encode();
    for _ in 0..100_000 {
        let mut bad = good.clone();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(4..bad.len());
            bad[at] = random.u8(..);
        }
        if let Ok(Frame::HandOff(h)) = Frame::decode(&bad[4..]) {
            assert!(h.tcp.queued_bytes() <= bad.len());
            // A hand-off has one encoding only.
            assert_eq!(Frame::HandOff(h).encode()[4..], bad[4..]);
        }
    }
}

#[test]
fn an_announced_giant_is_refused_before_it_is_read() {
    assert!(Frame::announced_len(&u32::MAX.to_be_bytes()).is_err());
    assert_eq!(Frame::announced_len(&[0, 0]), Ok(None));
}

#[test]
fn debug_shows_no_client_data() {
    let shown = format!("{:?}", Frame::HandOff(Box::new(hand_off())));
    assert!(
        !shown.contains("GET") && !shown.contains("71, 69, 84"),
        "{shown}"
    );
}
