//! The keys of requests for leases: of one node each, or shared by the nodes of one service.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use prism_proto::control::{ControlError, ControlKey, MESSAGE_BYTES, Request, Stamped};
use prism_proto::lease::CHALLENGE_BYTES;

/// A key, and the nodes that may get a lease by it.
#[derive(Clone, Debug)]
pub struct LeaseKey {
    /// Its number in messages.
    pub key_id: u32,
    /// The key.
    pub key: ControlKey,
    /// The addresses of its nodes.
    pub nodes: HashSet<IpAddr>,
}

/// All keys, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Keys(HashMap<u32, LeaseKey>);

/// A request, and the key that has signed it.
pub(super) struct Signed {
    pub(super) request: Stamped<Request>,
    pub(super) key: LeaseKey,
}

impl Keys {
    pub(super) fn new(keys: impl IntoIterator<Item = LeaseKey>) -> Self {
        Self(keys.into_iter().map(|key| (key.key_id, key)).collect())
    }

    /// Reads a request. Fails if no key has signed it.
    pub(super) fn read(&self, message: &[u8; MESSAGE_BYTES]) -> io::Result<Signed> {
        let key_id = Request::peek_key_id(message);
        let known = self.0.get(&key_id);
        let key = known.ok_or_else(|| invalid(ControlError::UnknownKey(key_id)))?;
        let request = Stamped::<Request>::decode(message, key_id, &key.key).map_err(invalid)?;
        let key = key.clone();
        Ok(Signed { request, key })
    }
}

impl Signed {
    /// Whether the key of this request is for leases of `node`.
    pub(super) fn is_for(&self, node: IpAddr) -> bool {
        self.key.nodes.contains(&node)
    }
}

fn invalid(error: ControlError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Bytes that nobody can predict.
pub(super) fn challenge() -> io::Result<[u8; CHALLENGE_BYTES]> {
    let mut bytes = [0; CHALLENGE_BYTES];
    // The kernel never cuts requests of up to 256 bytes short (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
