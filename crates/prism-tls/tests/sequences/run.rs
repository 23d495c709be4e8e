//! One sequence, whose steps follow from the seed.

use fastrand::Rng;
use prism_tls::{Event, Session, Version};

use crate::host::Host;
use crate::nonces::Nonces;
use crate::peer::{Act, Peer, Reply};
use crate::setup::Server;

/// A deliberate error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// The source of a hand-off seals after it.
    SourceGoesOn,
}

/// The events of sequences.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) sequences: u64,
    pub(crate) steps: u64,
    pub(crate) bytes: u64,
    pub(crate) hand_offs: u64,
    pub(crate) hand_offs_within_a_record: u64,
    pub(crate) hand_offs_with_an_answer_due: u64,
    pub(crate) key_updates: u64,
    pub(crate) in_kernel: u64,
    pub(crate) nonces: u64,
    pub(crate) repeated_nonces: u64,
}

impl Counts {
    fn all(&mut self) -> [&mut u64; 10] {
        [
            &mut self.sequences,
            &mut self.steps,
            &mut self.bytes,
            &mut self.hand_offs,
            &mut self.hand_offs_within_a_record,
            &mut self.hand_offs_with_an_answer_due,
            &mut self.key_updates,
            &mut self.in_kernel,
            &mut self.nonces,
            &mut self.repeated_nonces,
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut other = Self { ..*other };
        self.all()
            .into_iter()
            .zip(other.all())
            .for_each(|(to, from)| *to += *from);
    }

    /// Checks that every kind of event occurred: otherwise a run proves nothing about it.
    pub(crate) fn assert_everything_occurred(mut self) {
        assert_eq!(std::mem::take(&mut self.repeated_nonces), 0);
        let missing = self.all().into_iter().filter(|count| **count == 0).count();
        assert_eq!(missing, 1, "{self:?}");
    }
}

/// The data of one direction, in which each byte follows from its place.
struct Stream {
    seed: u64,
    sent: u64,
    received: u64,
}

impl Stream {
    fn byte(&self, at: u64) -> u8 {
        ((self.seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
    }

    fn next(&mut self, bytes: usize) -> Vec<u8> {
        let from = self.sent;
        self.sent += bytes as u64;
        (from..self.sent).map(|at| self.byte(at)).collect()
    }

    fn check(&mut self, data: &[u8]) {
        for byte in data {
            assert!(self.received < self.sent, "a byte that was never sent");
            assert_eq!(*byte, self.byte(self.received), "byte {}", self.received);
            self.received += 1;
        }
    }

    fn assert_all_received(&self) {
        assert_eq!(self.received, self.sent, "bytes were lost");
    }
}

pub(crate) struct Run<'a> {
    peer: &'a mut dyn Peer,
    host: Option<Host>,
    nonces: Nonces,
    rng: Rng,
    flaw: Flaw,
    version: Version,
    up: Stream,
    down: Stream,
    /// Bytes on their way to the server.
    to_server: Vec<u8>,
    /// Bytes on their way to the client.
    to_client: Vec<u8>,
    /// KeyUpdates of the client since its last data, answers included. A server ends a session
    /// with too many.
    updates: u32,
    server_closed: bool,
    counts: Counts,
}

impl<'a> Run<'a> {
    pub(crate) fn begin(
        server: &Server,
        peer: &'a mut dyn Peer,
        suite: &str,
        seed: u64,
        flaw: Flaw,
    ) -> Self {
        let (keys, unread) = server.handshake(peer);
        assert_eq!(
            keys.write.version() == Version::Tls12,
            suite.contains("_WITH_")
        );
        let nonces = Nonces::of_session(&keys);
        let session = Session::witnessed(keys, nonces.clone()).unwrap();
        let version = session.version();
        let stream = |seed| Stream {
            seed,
            sent: 0,
            received: 0,
        };
        Self {
            peer,
            host: Some(Host::new(session, nonces.clone(), unread)),
            nonces,
            rng: Rng::with_seed(seed),
            flaw,
            version,
            up: stream(seed),
            down: stream(!seed),
            to_server: Vec::new(),
            to_client: Vec::new(),
            updates: 0,
            server_closed: false,
            counts: Counts {
                sequences: 1,
                ..Counts::default()
            },
        }
    }

    /// Runs the sequence to its close, and returns its events.
    pub(crate) fn finish(mut self) -> Counts {
        for _ in 0..self.rng.u32(20..120) {
            self.counts.steps += 1;
            self.step();
        }
        self.close();
        self.up.assert_all_received();
        self.down.assert_all_received();
        self.counts.bytes = self.up.sent + self.down.sent;
        self.counts.nonces = self.nonces.total() as u64;
        self.counts.repeated_nonces = self.nonces.repeated() as u64;
        if self.flaw == Flaw::None {
            assert_eq!(self.counts.repeated_nonces, 0, "I4: a nonce was used twice");
        }
        self.counts
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().unwrap()
    }

    fn step(&mut self) {
        match self.rng.u8(0..20) {
            0..=2 => self.client_sends(),
            3 => self.client_updates(),
            4..=6 => self.deliver_to_server(),
            7..=9 => self.open_some(),
            10..=11 => self.server_sends(),
            12 => self.server_sends_in_kernel(),
            13 => self.server_updates(),
            14..=16 => self.deliver_to_client(),
            _ => self.hand_off(),
        }
    }

    /// A length, mostly short, sometimes of several records.
    fn length(&mut self) -> usize {
        match self.rng.u8(0..16) {
            0 => self.rng.usize(1..50_000),
            1..=3 => self.rng.usize(1..3_000),
            _ => self.rng.usize(1..200),
        }
    }

    fn tell_client(&mut self, act: Act<'_>) {
        let Reply {
            wire,
            plain,
            closed,
        } = self.peer.act(act);
        self.to_server.extend(wire);
        self.down.check(&plain);
        self.server_closed |= closed;
    }

    fn client_sends(&mut self) {
        let length = self.length();
        let data = self.up.next(length);
        self.updates = 0;
        self.tell_client(Act::Send(&data));
    }

    fn client_updates(&mut self) {
        if self.version == Version::Tls13 && self.updates < 10 {
            self.updates += 1;
            let ask = self.rng.bool();
            self.tell_client(Act::KeyUpdate { ask });
        }
    }

    fn server_updates(&mut self) {
        if self.version == Version::Tls12 || self.updates >= 10 {
            return;
        }
        self.updates += 1;
        let ask = self.rng.bool();
        let now = self.rng.bool();
        self.host = self.host.take().map(|host| host.plan_update(ask));
        let host = self.host();
        if now {
            host.session.seal_control(&mut host.output).unwrap();
        }
    }

    fn server_sends(&mut self) {
        let length = self.length();
        if self.rng.bool() {
            let data = self.down.next(length);
            self.host().seal(&data);
        } else {
            let data = self.down.next(length.min(prism_tls::MAX_PLAINTEXT_BYTES));
            self.host().seal_in_place(&data);
        }
    }

    fn server_sends_in_kernel(&mut self) {
        self.counts.in_kernel += 1;
        if self.rng.u8(0..3) == 0 {
            let length = self.length().min(2 * prism_tls::MAX_PLAINTEXT_BYTES);
            let data = self.down.next(length);
            let host = self.host.take().unwrap();
            self.host = Some(host.seal_in_kernel_and_stay(&data));
            return;
        }
        let (length, piece) = (self.length(), self.rng.usize(100..16_384));
        let data = self.down.next(length);
        self.host().seal_in_kernel(&data, piece);
    }

    fn deliver_to_server(&mut self) {
        let count = self.rng.usize(0..=self.to_server.len());
        let bytes: Vec<u8> = self.to_server.drain(..count).collect();
        self.host().input.extend(bytes);
    }

    fn deliver_to_client(&mut self) {
        let host = self.host.as_mut().unwrap();
        self.to_client.append(&mut host.output);
        let count = self.rng.usize(0..=self.to_client.len());
        let bytes: Vec<u8> = self.to_client.drain(..count).collect();
        self.tell_client(Act::Receive(&bytes));
    }

    fn open_some(&mut self) {
        for _ in 0..self.rng.u8(1..4) {
            match self.host().open_one() {
                None => break,
                Some(Event::Data(_)) => {}
                Some(Event::KeyUpdate) => self.counts.key_updates += 1,
                Some(other) => panic!("{other:?}"),
            }
        }
        let host = self.host.as_mut().unwrap();
        let count = self.rng.usize(0..=host.plain.len());
        let used: Vec<u8> = host.plain.drain(..count).collect();
        self.up.check(&used);
    }

    fn hand_off(&mut self) {
        let host = self.host.take().unwrap();
        self.counts.hand_offs += 1;
        self.counts.hand_offs_within_a_record += u64::from(!host.input.is_empty());
        self.counts.hand_offs_with_an_answer_due += u64::from(host.session.wants_control());
        self.host = Some(match self.flaw {
            Flaw::None => host.hand_off(),
            Flaw::SourceGoesOn => host.hand_off_and_go_on(),
        });
    }

    /// The client closes first. The server sends its last data and closes.
    fn close(&mut self) {
        self.tell_client(Act::Close);
        let wire = std::mem::take(&mut self.to_server);
        self.host().input.extend(wire);
        loop {
            match self.host().open_one().expect("the client has closed") {
                Event::Data(_) => {}
                Event::KeyUpdate => self.counts.key_updates += 1,
                Event::CloseNotify => break,
                other => panic!("{other:?}"),
            }
        }
        self.hand_off();
        let (up, host) = (&mut self.up, self.host.as_mut().unwrap());
        up.check(&std::mem::take(&mut host.plain));
        assert!(host.session.read_closed() && host.input.is_empty());
        if self.version == Version::Tls13 {
            self.server_sends();
        }
        let host = self.host();
        host.session.seal_close_notify(&mut host.output).unwrap();
        let mut rest = std::mem::take(&mut self.to_client);
        rest.append(&mut self.host().output);
        self.tell_client(Act::Receive(&rest));
        assert!(self.server_closed, "close_notify has not come");
    }
}
