//! Control messages as bytes.

use std::net::SocketAddr;

use super::{
    Answer, ControlError, ControlKey, FlowKey, FlowState, KIND_ANSWER, KIND_REQUEST, MAGIC,
    MESSAGE_BYTES, Ops, Owner, Pass, Request, RunId, SIGNED_BYTES, Stamped, Status, Term, VERSION,
};
use crate::wire::{DecodeError, Put, Reader, ip_bytes};

/// The fields that only one kind of message has. The other kind has zeros there.
struct Extra {
    kind: u8,
    status: u8,
    state: u8,
    term: Term,
    /// In the place of the owner's address.
    pass: Option<[u8; 16]>,
}

/// The datagram of a request, or of the answer that repeats its fields.
fn encode(fields: &Request, extra: &Extra, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
    let flow = &fields.flow;
    let owner = &fields.owner;
    let mut out = Vec::with_capacity(MESSAGE_BYTES);
    out.put(&MAGIC.to_be_bytes());
    let ops = match extra.pass {
        Some(_) => fields.ops.and(Ops::PASS),
        None => fields.ops,
    };
    out.put(&[VERSION, extra.kind, ops.0, extra.status]);
    out.put(&fields.key_id.to_be_bytes());
    let [_, high, middle, low] = extra.term.0.min(Term::MAX.0).to_be_bytes();
    out.put(&[extra.state, high, middle, low]);
    for number in [fields.request_id, fields.time_ns, fields.epoch] {
        out.put(&number.to_be_bytes());
    }
    let owner_addr = extra.pass.unwrap_or_else(|| ip_bytes(owner.addr.ip()));
    let addresses = [flow.client.ip(), flow.vip.ip()].map(ip_bytes);
    for address in addresses
        .into_iter()
        .chain([owner_addr, ip_bytes(owner.via)])
    {
        out.put(&address);
    }
    let ports = [flow.client, flow.vip, owner.addr].map(|addr| addr.port());
    for port in ports.into_iter().chain([fields.run.0]) {
        out.put(&port.to_be_bytes());
    }
    let mac = key.mac(&out);
    out.put(&mac);
    let mut message = [0; MESSAGE_BYTES];
    message.copy_from_slice(&out);
    message
}

fn decode(
    bytes: &[u8],
    kind: u8,
    key_id: u32,
    key: &ControlKey,
) -> Result<(Request, Extra), ControlError> {
    if bytes.len() != MESSAGE_BYTES {
        return Err(DecodeError::Truncated("control message").into());
    }
    let (signed, mac) = bytes.split_at(SIGNED_BYTES);
    let mut r = Reader::new(signed);
    r.magic(MAGIC, "magic")?;
    r.version(VERSION, "version")?;
    if r.u8("kind")? != kind {
        return Err(DecodeError::Invalid("kind").into());
    }
    let ops = Ops(r.u8("ops")?);
    let status = r.u8("status")?;
    let found_key = r.u32("key_id")?;
    if found_key != key_id {
        return Err(ControlError::UnknownKey(found_key));
    }
    if !constant_time_eq(&key.mac(signed), mac) {
        return Err(ControlError::Forged);
    }
    let state = r.u8("state")?;
    let [high, middle, low] = r.array::<3>("term")?;
    let term = Term(u32::from_be_bytes([0, high, middle, low]));
    let request_id = r.u64("request_id")?;
    let time_ns = r.u64("time_ns")?;
    let epoch = r.u64("epoch")?;
    let client = r.ip("client_addr")?;
    let vip = r.ip("vip_addr")?;
    let owner = r.ip("owner_addr")?;
    let via = r.ip("via_addr")?;
    let client = SocketAddr::new(client, r.u16("client_port")?);
    let vip = SocketAddr::new(vip, r.u16("vip_port")?);
    let addr = SocketAddr::new(owner, r.u16("owner_port")?);
    let run = RunId(r.u16("owner_run")?);
    let request = Request {
        key_id,
        request_id,
        time_ns,
        ops,
        epoch,
        flow: FlowKey { client, vip },
        owner: Owner { addr, via },
        run,
    };
    let extra = Extra {
        kind,
        status,
        state,
        term,
        pass: None,
    };
    Ok((request, extra))
}

/// The bytes in the place of the owner's address, which is that of the service or of the node.
fn in_place_of(is_at_service: bool, pass: Pass) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (head, tail) = bytes.split_at_mut(Pass::BYTES);
    head.copy_from_slice(&pass.encode());
    if let Some(place) = tail.first_mut() {
        *place = is_at_service.into();
    }
    bytes
}

fn constant_time_eq(a: &[u8; 8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

impl Stamped<Request> {
    /// The datagram of this request, under `key`.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        self.encode_with(None, key)
    }

    /// The same with a pass for its `OWN`.
    pub fn encode_with(&self, pass: Option<Pass>, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let owner = &self.message.owner;
        let flow = &self.message.flow;
        let pass = pass.filter(|_| self.message.ops.has(Ops::OWN));
        let extra = Extra {
            kind: KIND_REQUEST,
            status: 0,
            state: 0,
            term: self.term,
            pass: pass.map(|pass| in_place_of(owner.addr.ip() == flow.vip.ip(), pass)),
        };
        encode(&self.message, &extra, key)
    }

    /// Reads and authenticates a request, as the switch does.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        let (message, extra) = decode(bytes, KIND_REQUEST, key_id, key)?;
        let term = extra.term;
        Ok(Self { term, message })
    }
}

impl Request {
    /// The datagram of this request, under `key`, without a term.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        self.in_term(Term::NONE).encode(key)
    }

    /// Reads and authenticates a request whose term does not matter.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        Stamped::<Self>::decode(bytes, key_id, key).map(|stamped| stamped.message)
    }

    /// The number of the key that a message claims to be signed with.
    pub fn peek_key_id(bytes: &[u8; MESSAGE_BYTES]) -> u32 {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *bytes;
        u32::from_be_bytes([a, b, c, d])
    }

    /// This request in `term`.
    pub const fn in_term(self, term: Term) -> Stamped<Self> {
        let message = self;
        Stamped { term, message }
    }

    /// The answer to this request.
    pub fn answer(
        &self,
        status: Status,
        state: FlowState,
        epoch: u64,
        owner: Owner,
        now_ns: u64,
    ) -> Answer {
        Answer {
            status,
            state,
            time_ns: now_ns,
            epoch,
            owner,
            key_id: self.key_id,
            request_id: self.request_id,
            ops: self.ops,
            flow: self.flow,
        }
    }
}

impl Stamped<Answer> {
    /// The datagram of this answer, under `key`.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let answer = &self.message;
        let fields = Request {
            key_id: answer.key_id,
            request_id: answer.request_id,
            time_ns: answer.time_ns,
            ops: answer.ops,
            epoch: answer.epoch,
            flow: answer.flow,
            owner: answer.owner,
            run: RunId::NONE,
        };
        let extra = Extra {
            kind: KIND_ANSWER,
            status: answer.status as u8,
            state: answer.state as u8,
            term: self.term,
            pass: None,
        };
        encode(&fields, &extra, key)
    }

    /// Reads and authenticates an answer.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        let (fields, extra) = decode(bytes, KIND_ANSWER, key_id, key)?;
        let codes = [extra.status, extra.state];
        let mut r = Reader::new(&codes);
        let status = r.one_of(Status::ALL, |status| status as u8, "status")?;
        let state = r.one_of(FlowState::ALL, |state| state as u8, "state")?;
        let message = fields.answer(status, state, fields.epoch, fields.owner, fields.time_ns);
        let term = extra.term;
        Ok(Self { term, message })
    }
}

impl Answer {
    /// The datagram of this answer, under `key`, without a term.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        self.in_term(Term::NONE).encode(key)
    }

    /// Reads and authenticates an answer whose term does not matter.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        Stamped::<Self>::decode(bytes, key_id, key).map(|stamped| stamped.message)
    }

    /// This answer in `term`.
    pub const fn in_term(self, term: Term) -> Stamped<Self> {
        let message = self;
        Stamped { term, message }
    }
}

impl Status {
    pub(super) const ALL: [Self; 10] = [
        Self::Ok,
        Self::Stale,
        Self::Full,
        Self::Denied,
        Self::NoService,
        Self::Late,
        Self::BadRequest,
        Self::Ahead,
        Self::Young,
        Self::OldTerm,
    ];
}

impl FlowState {
    const ALL: [Self; 3] = [Self::Absent, Self::Forward, Self::Blocked];
}
