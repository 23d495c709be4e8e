//! A host that has the connection: the session and its buffers, which a hand-off moves.

use prism_tls::{Event, Session};

use crate::kernel::KernelTls;
use crate::nonces::Nonces;

pub(crate) struct Host {
    pub(crate) session: Session<Nonces>,
    nonces: Nonces,
    /// Received, not opened.
    pub(crate) input: Vec<u8>,
    /// Opened, not used.
    pub(crate) plain: Vec<u8>,
    /// Sealed, not sent.
    pub(crate) output: Vec<u8>,
}

impl Host {
    pub(crate) fn new(session: Session<Nonces>, nonces: Nonces, input: Vec<u8>) -> Self {
        let (plain, output) = (Vec::new(), Vec::new());
        Self {
            session,
            nonces,
            input,
            plain,
            output,
        }
    }

    /// Opens one record. Returns its event, or `None` if the record is incomplete.
    pub(crate) fn open_one(&mut self) -> Option<Event> {
        let opened = self
            .session
            .open(&mut self.input)
            .expect("the peer makes no error");
        if let Event::Incomplete { need } = opened.event {
            assert!(need > self.input.len());
            return None;
        }
        if let Event::Data(place) = &opened.event {
            self.plain.extend_from_slice(&self.input[place.clone()]);
        }
        self.input.drain(..opened.consumed);
        Some(opened.event)
    }

    pub(crate) fn seal(&mut self, data: &[u8]) {
        self.session.seal(data, &mut self.output).unwrap();
    }

    /// Seals in place, as for bulk data.
    pub(crate) fn seal_in_place(&mut self, data: &[u8]) {
        self.session.seal_control(&mut self.output).unwrap();
        let room = self.session.surroundings();
        let start = self.output.len();
        self.output.resize(start + room.before, 0);
        self.output.extend_from_slice(data);
        self.output.resize(start + data.len() + room.total(), 0);
        let record = &mut self.output[start..];
        self.session.seal_in_place(record, data.len()).unwrap();
    }

    /// Has the kernel seal `data` in records of `piece` bytes.
    pub(crate) fn seal_in_kernel(&mut self, data: &[u8], piece: usize) {
        self.session.seal_control(&mut self.output).unwrap();
        let mut kernel = KernelTls::new(self.session.write_to_kernel().unwrap());
        for content in data.chunks(piece) {
            self.output.extend(kernel.seal(content, &self.nonces));
        }
        self.session.write_from_kernel(kernel.sequence).unwrap();
    }

    /// Has the kernel seal `data`, at most two full records. After each the session is saved for a
    /// hand-off that fails, and the kernel goes on.
    pub(crate) fn seal_in_kernel_and_stay(self, data: &[u8]) -> Self {
        let mut host = self;
        host.session.seal_control(&mut host.output).unwrap();
        let mut kernel = KernelTls::new(host.session.write_to_kernel().unwrap());
        let (first, second) = data.split_at(data.len() / 2);
        for content in [first, second].into_iter().filter(|c| !c.is_empty()) {
            host.output.extend(kernel.seal(content, &host.nonces));
            host.session.write_from_kernel(kernel.sequence).unwrap();
            host = host.hand_off();
            host.session.write_still_in_kernel(kernel.sequence).unwrap();
        }
        host.session.write_from_kernel(kernel.sequence).unwrap();
        host
    }

    /// Moves to another host, or back into use here if that refuses. Both restore the same bytes.
    pub(crate) fn hand_off(self) -> Self {
        let Self {
            session,
            nonces,
            input,
            plain,
            output,
        } = self;
        let bytes = session.save().unwrap();
        let session = restore(&bytes, &nonces);
        Self {
            session,
            nonces,
            input,
            plain,
            output,
        }
    }

    /// A KeyUpdate is due, as when this side's key is used up, or the peer's is, which it is then
    /// asked for. Byte 9 of a saved session tells (docs/protocol.md, section 2.5).
    pub(crate) fn plan_update(self, ask: bool) -> Self {
        let mut bytes = self.session.save().unwrap();
        bytes[9] |= if ask { 2 } else { 1 };
        let session = restore(&bytes, &self.nonces);
        Self { session, ..self }
    }

    /// A hand-off whose source goes on as if it had not sent the session.
    pub(crate) fn hand_off_and_go_on(self) -> Self {
        let Self {
            session,
            nonces,
            input,
            plain,
            output,
        } = self;
        let bytes = session.save().unwrap();
        restore(&bytes, &nonces)
            .seal(b"never sent", &mut Vec::new())
            .unwrap();
        let session = restore(&bytes, &nonces);
        Self {
            session,
            nonces,
            input,
            plain,
            output,
        }
    }
}

fn restore(bytes: &[u8], nonces: &Nonces) -> Session<Nonces> {
    Session::restore_witnessed(bytes, nonces.clone()).unwrap()
}
