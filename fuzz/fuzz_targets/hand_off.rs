//! Any bytes as a frame from another node, or damaged hand-offs: no panic, and no memory beyond the
//! frame's size. A frame that is accepted has no other encoding.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prism_proto::control::{ControlKey, FlowKey, Pass, Passage};
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, HandOff, MAX_FRAME_BYTES, Permit, TlsState};
use prism_proto::{Behaviour, Keepalive, NegotiatedOptions, TcpState, Window, WindowScale};
use prism_tls::{DirectionKeys, Secret, Session, SessionKeys, Suite};

/// A hand-off without a session, and one with a session.
static GOOD: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    [None, Some(tls())].map(|tls| {
        let frame = Frame::HandOff(Box::new(hand_off(tls)));
        frame.encode()[FRAME_PREFIX_BYTES..].to_vec()
    })
});

fn tls() -> TlsState {
    let keys = |seed| DirectionKeys::Tls13 {
        secret: Secret::new(&[seed; 32]).unwrap(),
        sequence: 7,
    };
    let (read, write) = (keys(1), keys(2));
    let suite = Suite::Aes128Gcm;
    let session = Session::new(SessionKeys { suite, read, write }).unwrap();
    TlsState {
        session: session.save().unwrap(),
        sealed: vec![23, 3, 3, 0, 40, 9],
    }
}

fn permit() -> Permit {
    let passage = Passage {
        flow: FlowKey {
            client: "192.0.2.9:50000".parse().unwrap(),
            vip: "198.51.100.1:80".parse().unwrap(),
        },
        via: "192.0.2.2".parse().unwrap(),
        epoch: 1 << 60,
    };
    Permit {
        pass: Pass::new(&ControlKey::new([1; 16]), &passage),
        source: "192.0.2.1".parse().unwrap(),
    }
}

fn hand_off(tls: Option<TlsState>) -> HandOff {
    HandOff {
        id: 3,
        epoch: 1 << 60,
        moves: 1,
        origin: "fe0".into(),
        context: b"ctx".to_vec(),
        input: b"GET".to_vec(),
        output: vec![1; 4],
        proxied: None,
        permit: tls.is_some().then_some(permit()),
        tls,
        tcp: TcpState {
            remote: "192.0.2.9:50000".parse().unwrap(),
            service: "198.51.100.1:80".parse().unwrap(),
            write_seq: u32::MAX,
            receive_seq: 5,
            sent: vec![2; 6],
            unsent: vec![3; 5],
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
    }
}

/// A valid frame with changed, inserted or missing bytes.
fn damaged(good: &[u8], edits: &[(u16, u8)], place: u16, left_out: u8, put_in: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for (at, value) in edits {
        let at = usize::from(*at) % bytes.len();
        bytes[at] = *value;
    }
    let start = usize::from(place) % bytes.len();
    let end = (start + usize::from(left_out)).min(bytes.len());
    bytes.splice(start..end, put_in.iter().copied());
    bytes
}

fuzz_target!(|parts: (u8, Vec<(u16, u8)>, u16, u8, &[u8])| {
    let (form, edits, place, left_out, raw) = parts;
    match GOOD.get(usize::from(form % 3)) {
        Some(good) => check(&damaged(good, &edits, place, left_out, raw)),
        None => check(raw),
    }
});

fn check(input: &[u8]) {
    if let Ok(Some(len)) = Frame::announced_len(input) {
        assert!(len <= MAX_FRAME_BYTES);
    }
    let _ = Frame::peek_hand_off_id(input);
    let Ok(frame) = Frame::decode(input) else {
        return;
    };
    let encoded = frame.encode();
    assert_eq!(&encoded[FRAME_PREFIX_BYTES..], input);
    let Frame::HandOff(hand_off) = frame else {
        return;
    };
    assert!(hand_off.tcp.queued_bytes() <= input.len());
    if let Some(tls) = hand_off.tls
        && let Ok(mut session) = Session::restore(&tls.session)
    {
        let _ = session.open(&mut tls.sealed.clone());
    }
}
