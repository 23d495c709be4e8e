//! Each example of docs/protocol.md is read by the code of the product and compared with
//! what the document says of it.

use std::collections::BTreeSet;
use std::hash::Hasher;

use prism_cluster::{NodeName, Placement, Placing};
use prism_proto::control::{Answer, ControlKey, FlowKey, FlowState, Ops, Owner, Request, Status};
use prism_proto::facts::{Body, Caller, Form};
use prism_proto::node::{Frame, HandOff, Refusal};
use prism_proto::relay::Preamble;
use prism_tls::{DirectionKeys, Secret, Session, SessionKeys, Suite};
use siphasher::sip::SipHasher24;

use crate::document::{self, Example};

const PROTOCOL: &str = include_str!("../../../../docs/protocol.md");
const KEY_ID: u32 = 7;

type Row = (&'static str, String);

#[test]
fn every_example_is_what_the_code_reads() {
    let examples = document::examples(PROTOCOL);
    let names: Vec<&str> = examples.iter().map(|e| e.name.as_str()).collect();
    let checked = [
        "request", "answer", "digests", "frames", "hand-off", "preamble", "session", "weights",
        "owners", "question", "reply", "prepare", "handed",
    ];
    assert_eq!(
        names, checked,
        "each example has a check, and each check one"
    );
    for example in &examples {
        match example.name.as_str() {
            "request" => request(example),
            "answer" => answer(example),
            "digests" => digests(example),
            "frames" => frames(example),
            "hand-off" => hand_off(example),
            "preamble" => preamble(example),
            "session" => session(example),
            "weights" => weights(example),
            "owners" => owners(example),
            // `prism-replicas` has the types of these, and a test.
            _ => assert!(example.block.starts_with('{'), "{}", example.name),
        }
    }
}

fn compare(example: &Example, fields: &[Row]) {
    let fields = fields.iter();
    let fields = fields.map(|(name, value)| vec![(*name).to_owned(), value.clone()]);
    assert_eq!(example.rows, fields.collect::<Vec<_>>(), "{}", example.name);
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn key() -> ControlKey {
    ControlKey::new(*b"0123456789abcdef")
}

fn ops(ops: Ops) -> String {
    let names = [
        (Ops::BLOCK, "BLOCK"),
        (Ops::OWN, "OWN"),
        (Ops::UNBLOCK, "UNBLOCK"),
        (Ops::RELEASE, "RELEASE"),
    ];
    let names = names.into_iter().filter(|(bit, _)| ops.has(*bit));
    names.map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

/// The rows that a request and its answer share.
fn control(
    request_id: u64,
    time_ns: u64,
    operations: Ops,
    epoch: u64,
    flow: FlowKey,
    owner: Owner,
) -> Vec<Row> {
    vec![
        ("key_id", KEY_ID.to_string()),
        ("ops", ops(operations)),
        ("request_id", format!("{request_id:#x}")),
        ("time_ns", time_ns.to_string()),
        ("epoch", epoch.to_string()),
        ("client", flow.client.to_string()),
        ("VIP", flow.vip.to_string()),
        ("owner", owner.addr.to_string()),
        ("via", owner.via.to_string()),
    ]
}

fn request(example: &Example) {
    let bytes = bytes_of(&example.block);
    let r = Request::decode(&bytes, KEY_ID, &key()).unwrap();
    let rows = control(r.request_id, r.time_ns, r.ops, r.epoch, r.flow, r.owner);
    compare(example, &rows);
    assert_eq!(r.encode(&key())[..], bytes);
}

fn answer(example: &Example) {
    let bytes = bytes_of(&example.block);
    let a = Answer::decode(&bytes, KEY_ID, &key()).unwrap();
    let mut rows = control(a.request_id, a.time_ns, a.ops, a.epoch, a.flow, a.owner);
    assert_eq!((a.status, a.state), (Status::Ok, FlowState::Forward));
    rows.extend([("status", "OK".to_owned()), ("state", "forward".to_owned())]);
    compare(example, &rows);
    assert_eq!(a.encode(&key())[..], bytes);
}

fn frames(example: &Example) {
    for row in &example.rows {
        let bytes = bytes_of(&row[1]);
        let frame = Frame::decode(&bytes[4..]).unwrap();
        let said = match &frame {
            Frame::Accepted { id, spent_ns } => format!("accepted, id {id}, {spent_ns} ns"),
            Frame::Refused {
                id,
                reason: Refusal::Stale,
                pass: None,
            } => format!("refused, id {id}, stale"),
            Frame::Unknown { id } => format!("unknown, id {id}"),
            Frame::Ask { id } => format!("ask, id {id}"),
            Frame::Leaving { id } => format!("leaving, id {id}"),
            Frame::Heard { id } => format!("heard, id {id}"),
            other => panic!("{other:?} has no row"),
        };
        assert_eq!(row[0], said);
        assert_eq!(frame.encode(), bytes);
    }
}

fn hand_off(example: &Example) {
    let bytes = bytes_of(&example.block);
    let frame = Frame::decode(&bytes[4..]).unwrap();
    assert_eq!(frame.encode(), bytes);
    let Frame::HandOff(hand_off) = frame else {
        panic!("{frame:?} is not a hand-off");
    };
    let HandOff {
        id,
        epoch,
        moves,
        origin,
        context,
        input,
        output,
        tls,
        tcp,
        proxied: _,
        permit: _,
    } = *hand_off;
    let text = |bytes: &[u8]| match bytes {
        [] => "empty".to_owned(),
        bytes => bytes.escape_ascii().to_string(),
    };
    let yes = |is_so| if is_so { "yes" } else { "no" }.to_owned();
    assert!(tls.is_none());
    let scale = tcp.options.window_scale.unwrap();
    let keepalive = tcp.behaviour.keepalive.unwrap();
    let window = tcp.window;
    let shifts = format!("{}, {}", scale.send, scale.receive);
    let (idle_s, interval_s) = (keepalive.idle_s, keepalive.interval_s);
    let fields = [
        ("id", id.to_string()),
        ("epoch", epoch.to_string()),
        ("moves", moves.to_string()),
        ("origin", origin),
        ("context", text(&context)),
        ("input", text(&input)),
        ("output", text(&output)),
        ("TLS", "none".to_owned()),
        ("remote", tcp.remote.to_string()),
        ("service", tcp.service.to_string()),
        ("peer has closed", yes(tcp.peer_closed)),
        ("SACK", yes(tcp.options.sack)),
        ("timestamps", yes(tcp.options.timestamps)),
        ("window shifts", shifts),
        ("no delay", yes(tcp.behaviour.nodelay)),
        ("MSS clamp", tcp.behaviour.mss_clamp_bytes.to_string()),
        ("write_seq", tcp.write_seq.to_string()),
        ("receive_seq", tcp.receive_seq.to_string()),
        ("timestamp value", tcp.timestamp.to_string()),
        ("snd_wl1", window.send_wl1.to_string()),
        ("snd_wnd", window.send_window_bytes.to_string()),
        ("max_window", window.max_window_bytes.to_string()),
        ("rcv_wnd", window.receive_window_bytes.to_string()),
        ("rcv_wup", window.receive_wup.to_string()),
        ("congestion window", tcp.cwnd_segments.to_string()),
        ("smoothed RTT", tcp.srtt_us.to_string()),
        ("user timeout", tcp.behaviour.user_timeout_ms.to_string()),
        (
            "keepalive",
            format!("{idle_s} s, {interval_s} s, {}", keepalive.probes),
        ),
        ("congestion control", tcp.behaviour.congestion),
        ("sent", text(&tcp.sent)),
        ("unsent", text(&tcp.unsent)),
        ("received", text(&tcp.received)),
    ];
    compare(example, &fields);
}

fn preamble(example: &Example) {
    let bytes = bytes_of(&example.block);
    let (preamble, len) = Preamble::decode(&bytes).unwrap().unwrap();
    assert_eq!(len, bytes.len());
    let Caller::AccessKey(access_key) = &preamble.facts.caller else {
        panic!("{preamble:?} has no access key");
    };
    assert_eq!(preamble.facts.body, Body::Unsaid);
    let (most_bytes, trace) = (preamble.most_bytes.unwrap(), preamble.facts.trace.unwrap());
    let alone = if preamble.alone { "yes" } else { "no" };
    let fields = [
        ("alone", alone.to_owned()),
        ("request", format!("{:016X}", preamble.facts.request_id)),
        (
            "trace",
            format!("{:032x}", u128::from_be_bytes(trace.bytes())),
        ),
        ("caller", format!("the access key {access_key}")),
        ("body", "nothing".to_owned()),
        ("most_bytes", most_bytes.to_string()),
    ];
    compare(example, &fields);
    let mut encoded = Vec::new();
    preamble.encode(Form::Entries, &mut encoded);
    assert_eq!(encoded, bytes);
}

/// The session of the table, saved, is the example.
fn session(example: &Example) {
    let direction = |sequence, seed| DirectionKeys::Tls13 {
        secret: Secret::new(&[seed; 32]).unwrap(),
        sequence,
    };
    let keys = SessionKeys {
        suite: Suite::Aes128Gcm,
        read: direction(1, 0x11),
        write: direction(2, 0x22),
    };
    let fields = [
        ("protocol", "TLS 1.3".to_owned()),
        ("suite", "AES-128-GCM".to_owned()),
        ("most plaintext", prism_tls::MAX_PLAINTEXT_BYTES.to_string()),
        ("read sequence number", 1.to_string()),
        ("read secret", "32 bytes 11".to_owned()),
        ("write sequence number", 2.to_string()),
        ("write secret", "32 bytes 22".to_owned()),
    ];
    compare(example, &fields);
    let bytes = bytes_of(&example.block);
    let saved = Session::new(keys).unwrap().save().unwrap();
    assert_eq!(saved[..], bytes);
    let restored = Session::restore(&bytes).unwrap();
    assert_eq!(restored.save().unwrap()[..], bytes);
}

fn names(list: &str) -> BTreeSet<NodeName> {
    let names = list.split(", ");
    names.map(|name| NodeName::new(name).unwrap()).collect()
}

fn digests(example: &Example) {
    for row in &example.rows {
        let digest = match row[0].as_str() {
            "0" => Placing::digest_in_etcd(&row[1]),
            replicas => {
                let placing = Placing::new(names(&row[1]), replicas.parse().unwrap());
                placing.unwrap().digest()
            }
        };
        assert_eq!(row[2], format!("{digest:#018x}"), "{row:?}");
    }
}

/// The weights by the documented function; the owners by the product's code.
fn weights(example: &Example) {
    let mut weighed = Vec::new();
    for row in &example.rows {
        let mut hasher = SipHasher24::new_with_key(b"prism placement1");
        for part in &row[..3] {
            hasher.write(&u32::try_from(part.len()).unwrap().to_be_bytes());
            hasher.write(part.as_bytes());
        }
        assert_eq!(row[3], format!("{:#018x}", hasher.finish()), "{row:?}");
        weighed.push((hasher.finish(), row));
    }
    weighed.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    for object in example.rows.iter().map(|row| &row[1..3]) {
        let of_object = weighed.iter().filter(|(_, row)| row[1..3] == *object);
        let heaviest: Vec<&str> = of_object.map(|(_, row)| row[0].as_str()).collect();
        let placement = Placement::new(&names(&heaviest.join(", ")));
        let owners = placement.owners(&object[0], &object[1], heaviest.len());
        assert_eq!(owners.map(NodeName::as_str).collect::<Vec<_>>(), heaviest);
    }
}

fn owners(example: &Example) {
    let placement = Placement::new(&names("be0, be1, be2, be3, be4"));
    for row in &example.rows {
        let owners = placement.owners("bucket", &row[0], 3).map(NodeName::as_str);
        assert_eq!(row[1], owners.collect::<Vec<_>>().join(", "));
    }
}

#[test]
#[should_panic(expected = "an example without a name")]
fn an_example_without_a_name_is_found() {
    let document = "A frame:\n\n```text\n00000005\n```\n";
    document::examples(document);
}
