//! Messages besides hand-offs: every kind of frame, and every verification of a relayed request.

use std::collections::BTreeSet;

use prism_lab::Mode;
use prism_proto::facts::{
    Body, Caller, ClientFacts, Facts, Form, LineageFacts, Progress, Seed, TraceId,
};
use prism_proto::node::{ALPN_HAND_OFF, ALPN_RELAY, Frame, Refusal};
use prism_proto::relay::Preamble;

use super::{TARGETS, Trial, up};
use crate::support::{say, turn};

/// The name of the frame's kind. Each has a row in [`frames`].
fn kind_of(frame: &Frame) -> &'static str {
    match frame {
        Frame::HandOff(_) => "hand-off",
        Frame::Accepted { .. } => "accepted",
        Frame::Unknown { .. } => "unknown",
        Frame::Refused { .. } => "refused",
        Frame::Ask { .. } => "ask",
        Frame::Leaving { .. } => "leaving",
        Frame::Heard { .. } => "heard",
    }
}
const KINDS: usize = 7;

fn frames(trial: &Trial<'_>) -> Vec<Frame> {
    let known = trial.victims[0].known.clone();
    let pass = trial
        .permit(&known, known.epoch + 1, "be0")
        .map(|permit| permit.pass);
    let mut frames = vec![Frame::HandOff(Box::new(
        trial.honest(&known, known.epoch + 1),
    ))];
    for id in [0, 1, u64::MAX, fastrand::u64(..)] {
        frames.extend([
            Frame::Accepted {
                id,
                spent_ns: u32::MAX,
            },
            Frame::Unknown { id },
            Frame::Refused {
                id,
                reason: Refusal::Stale,
                pass: None,
            },
            Frame::Refused {
                id,
                reason: Refusal::SwitchFailed,
                pass,
            },
            Frame::Ask { id },
            Frame::Leaving { id },
            Frame::Heard { id },
        ]);
    }
    frames
}

/// The same of what a verification says of the body; each has a row in [`verifications`].
fn kind_of_body(body: &Body) -> &'static str {
    match body {
        Body::Unsaid => "unsaid",
        Body::Sha256(_) => "SHA-256",
        Body::Chunks { seed: None, .. } => "chunks",
        Body::Chunks { seed: Some(_), .. } => "signed chunks",
    }
}
const BODIES: usize = 4;

/// Each verification that a relayed request can have, with its body.
fn verifications(caller: &Caller) -> Vec<Facts> {
    let seed = Some(Seed {
        signature: [7; 32],
        time_s: 1,
    });
    let bodies = [
        Body::Unsaid,
        Body::Sha256([7; 32]),
        Body::Chunks {
            trailer: true,
            seed: None,
        },
        Body::Chunks {
            trailer: false,
            seed,
        },
    ];
    let client = ClientFacts {
        address: ([198, 51, 100, 7], 7).into(),
        service: ([198, 51, 100, 8], 8).into(),
        is_tls: true,
    };
    let all_of = |progress| {
        let bodies = bodies.iter();
        bodies.map(move |body| Facts {
            trace: TraceId::new([7; 16]),
            caller: caller.clone(),
            body: body.clone(),
            progress,
            upstream: Some("another".into()),
            client: Some(client),
            lineage: Some(LineageFacts {
                count: u64::MAX,
                id: 1,
            }),
            retries: 3,
            ..Facts::of_anonymous(fastrand::u64(..))
        })
    };
    let ways = [Progress::First, Progress::MovedOn, Progress::AnswerWaits];
    ways.into_iter().flat_map(all_of).collect()
}

fn no_other_message_breaks_a_connection(mode: Mode) {
    let cluster = up(mode);
    let mut trial = Trial::new(&cluster, mode);
    let kinds: BTreeSet<_> = frames(&trial).iter().map(kind_of).collect();
    assert_eq!(kinds.len(), KINDS, "each kind of frame is tried");
    let said = verifications(&Caller::Anonymous);
    let bodies: BTreeSet<_> = said.iter().map(|of| kind_of_body(&of.body)).collect();
    assert_eq!(bodies.len(), BODIES, "each kind of body is tried");
    for target in TARGETS {
        for frame in frames(&trial) {
            let mut wire = trial.wire(target, ALPN_HAND_OFF);
            // Repeated, as one that was recorded.
            (0..3).for_each(|_| wire.send(&frame.encode()).unwrap());
            trial.all_go_on(&format!("{frame:?} at {target}"));
        }
        for caller in [Caller::Anonymous, Caller::AccessKey("nobody".into())] {
            for (facts, alone) in verifications(&caller)
                .into_iter()
                .flat_map(|facts| [true, false].map(|alone| (facts.clone(), alone)))
            {
                let what = format!("{facts:?} at {target}");
                let mut request = Vec::new();
                let preamble = Preamble {
                    alone,
                    facts,
                    most_bytes: Some(0),
                };
                preamble.encode(Form::Entries, &mut request);
                request.extend(b"GET /none/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                let mut wire = trial.wire(target, ALPN_RELAY);
                wire.send(&request).unwrap();
                wire.rest();
                trial.all_go_on(&what);
            }
        }
    }
    say(&format!("the connections were whole {} times", trial.tried));
}

#[test]
fn no_other_message_by_one_certificate_breaks_a_connection_of_others() {
    let Some(_turn) = turn() else { return };
    no_other_message_breaks_a_connection(Mode::Switch);
}

#[test]
fn no_other_message_by_one_certificate_breaks_a_connection_of_others_in_host_mode() {
    let Some(_turn) = turn() else { return };
    no_other_message_breaks_a_connection(Mode::Host);
}
