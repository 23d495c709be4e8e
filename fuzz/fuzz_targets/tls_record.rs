//! Input of a client to an established session: raw bytes, and records that authenticate but have
//! any content. There is no panic, and the same meaning whole and in pieces. An error ends the
//! session, and its alert can always be sealed.
#![no_main]

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use libfuzzer_sys::fuzz_target;
use prism_tls::{
    DirectionKeys, Event, KernelKeys, MAX_RECORD_BYTES, OpenError, Opened, Secret, Session,
    SessionKeys, Suite, Version,
};

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

fn direction(version: Version, suite: Suite, seed: u8) -> DirectionKeys {
    match version {
        Version::Tls13 => {
            let secret = Secret::new(&vec![seed; suite.traffic_secret_bytes()]).unwrap();
            DirectionKeys::Tls13 {
                secret,
                sequence: 0,
            }
        }
        Version::Tls12 => {
            let key = Secret::new(&vec![seed; suite.key_bytes()]).unwrap();
            DirectionKeys::Tls12 {
                key,
                iv: [seed; 12],
                sequence: 0,
            }
        }
    }
}

fn session(version: Version, suite: Suite, read: u8, write: u8) -> Session {
    let (read, write) = (
        direction(version, suite, read),
        direction(version, suite, write),
    );
    Session::new(SessionKeys { suite, read, write }).unwrap()
}

/// Seals any content of any type as the client.
struct Forger {
    /// Present between two calls.
    client: Option<Session>,
    keys: KernelKeys,
    sequence: u64,
}

impl Forger {
    fn new(version: Version, suite: Suite) -> Self {
        let mut client = session(version, suite, 2, 1);
        let keys = client.write_to_kernel().unwrap();
        Self {
            client: Some(client),
            keys,
            sequence: 0,
        }
    }

    /// A record. In TLS 1.3 the end of `inner` is its type.
    fn record(&mut self, kind: u8, mut inner: Vec<u8>) -> Vec<u8> {
        let tls13 = self.keys.version == Version::Tls13;
        let explicit = !tls13 && self.keys.suite != Suite::ChaCha20Poly1305;
        let kind = if tls13 { 23 } else { kind };
        let mut nonce: [u8; 12] = *self.keys.nonce;
        let sequence = self.sequence.to_be_bytes();
        nonce[4..]
            .iter_mut()
            .zip(sequence)
            .for_each(|(n, s)| *n ^= s);
        let body = inner.len() + 16 + if explicit { 8 } else { 0 };
        let mut record = vec![kind, 3, 3, (body >> 8) as u8, body as u8];
        let [high, low] = (inner.len() as u16).to_be_bytes();
        let aad = match tls13 {
            true => record.clone(),
            false => [&sequence[..], &[kind, 3, 3, high, low]].concat(),
        };
        if explicit {
            record.extend_from_slice(&nonce[4..]);
        }
        let algorithm = match self.keys.suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &self.keys.key).unwrap());
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut inner)
            .unwrap();
        record.extend_from_slice(&inner);
        self.sequence += 1;
        record
    }

    /// Takes the key after a KeyUpdate.
    fn next_key(&mut self) {
        let mut client = self.client.take().unwrap();
        client.write_from_kernel(self.sequence).unwrap();
        // A KeyUpdate is due (docs/protocol.md, section 2.5).
        let mut saved = client.save().unwrap();
        saved[9] |= 1;
        let mut client = Session::restore(&saved).unwrap();
        client.seal_control(&mut Vec::new()).unwrap();
        (self.keys, self.sequence) = (client.write_to_kernel().unwrap(), 0);
        self.client = Some(client);
    }
}

/// The bytes of the client for these acts.
fn wire(version: Version, suite: Suite, acts: Vec<(u8, Vec<u8>)>) -> Vec<u8> {
    let (mut forger, mut out) = (Forger::new(version, suite), Vec::new());
    for (act, content) in acts {
        match act {
            0..8 => out.extend(content),
            8..16 => {
                out.extend(forger.record(22, vec![24, 0, 0, 1, act & 1, 22]));
                if version == Version::Tls13 {
                    forger.next_key();
                }
            }
            16..32 => {
                let padding = vec![0; usize::from(act) * 2_000];
                out.extend(forger.record(23, [content, vec![23], padding].concat()));
            }
            kind => out.extend(forger.record(kind, [content, vec![kind]].concat())),
        }
    }
    out
}

/// The events of `input`, which the session gets `piece` bytes at a time.
fn understood(
    server: &mut Session,
    input: &[u8],
    piece: usize,
) -> (Vec<String>, Option<OpenError>) {
    let (mut buffer, mut seen, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for part in input.chunks(piece) {
        buffer.extend_from_slice(part);
        while !buffer.is_empty() {
            let Opened { consumed, event } = match server.open(&mut buffer) {
                Ok(opened) => opened,
                Err(error) => return (seen, Some(error)),
            };
            assert!(consumed <= buffer.len());
            match event {
                Event::Incomplete { need } => {
                    assert!(consumed == 0 && need > buffer.len() && need <= MAX_RECORD_BYTES);
                    break;
                }
                Event::Data(place) => {
                    assert!(!place.is_empty() && place.end <= consumed);
                    data.extend_from_slice(&buffer[place]);
                    seen.push(format!("{} bytes", data.len()));
                }
                Event::Discarded => {}
                Event::Aborted(description) => {
                    seen.push(format!("{description:?}"));
                    return (seen, None);
                }
                other => seen.push(format!("{other:?}")),
            }
            buffer.drain(..consumed);
        }
    }
    (seen, None)
}

fuzz_target!(|input: (u8, u16, Vec<(u8, Vec<u8>)>)| {
    let (choice, piece, acts) = input;
    let version = if choice & 1 == 0 {
        Version::Tls13
    } else {
        Version::Tls12
    };
    let suite = SUITES[usize::from(choice >> 1) % SUITES.len()];
    let input = wire(version, suite, acts);
    let (mut one, mut other) = (session(version, suite, 1, 2), session(version, suite, 1, 2));
    let whole = understood(&mut one, &input, input.len().max(1));
    let parts = understood(&mut other, &input, usize::from(piece).max(1));
    assert_eq!(whole, parts);
    let mut out = Vec::new();
    if let Some(error) = whole.1 {
        assert_eq!(one.open(&mut [23]), Err(OpenError::Failed));
        one.seal_fatal_alert(error.alert(), &mut out).unwrap();
        assert!(!out.is_empty() && one.write_closed());
    } else if !one.write_closed() {
        one.seal(b"answer", &mut out).unwrap();
        assert!(!one.wants_control());
    }
});
