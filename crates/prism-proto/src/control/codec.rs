//! Control messages as bytes.

use std::net::SocketAddr;

use super::{
    Answer, ControlError, ControlKey, FlowKey, FlowState, KIND_ANSWER, KIND_REQUEST, MAGIC,
    MESSAGE_BYTES, Ops, Owner, Request, RunId, Status, VERSION, offset,
};
use crate::wire::{DecodeError, Put, Reader, ip_bytes};

/// The fields on the wire, the same in both directions.
struct Raw {
    kind: u8,
    ops: Ops,
    status: u8,
    key_id: u32,
    state: u8,
    request_id: u64,
    time_ns: u64,
    epoch: u64,
    flow: FlowKey,
    owner: Owner,
    run: RunId,
}

impl Raw {
    fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let mut out = Vec::with_capacity(MESSAGE_BYTES);
        out.put(&MAGIC.to_be_bytes());
        out.put(&[VERSION, self.kind, self.ops.0, self.status]);
        out.put(&self.key_id.to_be_bytes());
        out.put(&[self.state, 0, 0, 0]);
        out.put(&self.request_id.to_be_bytes());
        out.put(&self.time_ns.to_be_bytes());
        out.put(&self.epoch.to_be_bytes());
        for ip in [
            self.flow.client.ip(),
            self.flow.vip.ip(),
            self.owner.addr.ip(),
            self.owner.via,
        ] {
            out.put(&ip_bytes(ip));
        }
        for port in [
            self.flow.client.port(),
            self.flow.vip.port(),
            self.owner.addr.port(),
            self.run.0,
        ] {
            out.put(&port.to_be_bytes());
        }
        let mac = key.mac(&out);
        out.put(&mac);
        let mut message = [0; MESSAGE_BYTES];
        message.copy_from_slice(&out);
        message
    }

    fn decode(bytes: &[u8], kind: u8, key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        if bytes.len() != MESSAGE_BYTES {
            return Err(DecodeError::Truncated("control message").into());
        }
        let (signed, mac) = bytes.split_at(offset::MAC);
        let mut r = Reader::new(signed);
        if r.u32("magic")? != MAGIC {
            return Err(DecodeError::Invalid("magic").into());
        }
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(DecodeError::Version {
                found: version,
                expected: VERSION,
            }
            .into());
        }
        if r.u8("kind")? != kind {
            return Err(DecodeError::Invalid("kind").into());
        }
        let (ops, status) = (Ops(r.u8("ops")?), r.u8("status")?);
        let found_key = r.u32("key_id")?;
        if found_key != key_id {
            return Err(ControlError::UnknownKey(found_key));
        }
        if !constant_time_eq(&key.mac(signed), mac) {
            return Err(ControlError::Forged);
        }
        let state = r.u8("state")?;
        r.array::<3>("reserved")?;
        let (request_id, time_ns, epoch) =
            (r.u64("request_id")?, r.u64("time_ns")?, r.u64("epoch")?);
        let (client, vip) = (r.ip("client_addr")?, r.ip("vip_addr")?);
        let (owner, via) = (r.ip("owner_addr")?, r.ip("via_addr")?);
        let client = SocketAddr::new(client, r.u16("client_port")?);
        let vip = SocketAddr::new(vip, r.u16("vip_port")?);
        let addr = SocketAddr::new(owner, r.u16("owner_port")?);
        let run = RunId(r.u16("owner_run")?);
        Ok(Self {
            kind,
            ops,
            status,
            key_id,
            state,
            request_id,
            time_ns,
            epoch,
            flow: FlowKey { client, vip },
            owner: Owner { addr, via },
            run,
        })
    }
}

fn constant_time_eq(a: &[u8; 8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

impl Request {
    /// The datagram of this request, under `key`, without a run.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        self.encode_of(RunId::NONE, key)
    }

    /// [`Self::encode`] with the run of the owner.
    pub fn encode_of(&self, run: RunId, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let raw = Raw {
            kind: KIND_REQUEST,
            ops: self.ops,
            status: 0,
            key_id: self.key_id,
            state: 0,
            request_id: self.request_id,
            time_ns: self.time_ns,
            epoch: self.epoch,
            flow: self.flow,
            owner: self.owner,
            run,
        };
        raw.encode(key)
    }

    /// Reads and authenticates a request, as the switch does.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        Self::decode_of(bytes, key_id, key).map(|(request, _)| request)
    }

    /// [`Self::decode`], with the run of the owner.
    pub fn decode_of(
        bytes: &[u8],
        key_id: u32,
        key: &ControlKey,
    ) -> Result<(Self, RunId), ControlError> {
        let raw = Raw::decode(bytes, KIND_REQUEST, key_id, key)?;
        let request = Self {
            key_id,
            request_id: raw.request_id,
            time_ns: raw.time_ns,
            ops: raw.ops,
            epoch: raw.epoch,
            flow: raw.flow,
            owner: raw.owner,
        };
        Ok((request, raw.run))
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

impl Answer {
    /// The datagram of this answer, under `key`.
    pub fn encode(&self, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let raw = Raw {
            kind: KIND_ANSWER,
            ops: self.ops,
            status: self.status.code(),
            key_id: self.key_id,
            state: self.state.code(),
            request_id: self.request_id,
            time_ns: self.time_ns,
            epoch: self.epoch,
            flow: self.flow,
            owner: self.owner,
            run: RunId::NONE,
        };
        raw.encode(key)
    }

    /// Reads and authenticates an answer.
    pub fn decode(bytes: &[u8], key_id: u32, key: &ControlKey) -> Result<Self, ControlError> {
        let raw = Raw::decode(bytes, KIND_ANSWER, key_id, key)?;
        Ok(Self {
            status: Status::from_code(raw.status).ok_or(DecodeError::Invalid("status"))?,
            state: FlowState::from_code(raw.state).ok_or(DecodeError::Invalid("state"))?,
            time_ns: raw.time_ns,
            epoch: raw.epoch,
            owner: raw.owner,
            key_id,
            request_id: raw.request_id,
            ops: raw.ops,
            flow: raw.flow,
        })
    }
}

impl Status {
    pub(super) const ALL: [Self; 8] = [
        Self::Ok,
        Self::Stale,
        Self::Full,
        Self::Denied,
        Self::NoService,
        Self::Late,
        Self::BadRequest,
        Self::Ahead,
    ];

    /// Value on the wire.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }
}

impl FlowState {
    /// Value on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Absent, Self::Forward, Self::Blocked]
            .into_iter()
            .find(|s| s.code() == code)
    }
}
