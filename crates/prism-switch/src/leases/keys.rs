//! The keys of requests for leases. With several services each has a key of its own, which is
//! for leases of its nodes only.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;

use prism_proto::control::{ControlKey, MESSAGE_BYTES, Request, Stamped};
use prism_proto::lease::CHALLENGE_BYTES;

use super::locked;

/// All keys.
#[derive(Debug)]
pub(super) struct Keys {
    keys: HashMap<u32, ControlKey>,
    /// The nodes that a key is for, by its number; other keys are for all nodes.
    limits: Mutex<HashMap<u32, HashSet<IpAddr>>>,
}

/// A request, and the key that has signed it.
pub(super) struct Signed<'k> {
    pub(super) request: Stamped<Request>,
    pub(super) key: &'k ControlKey,
    key_id: u32,
}

impl Keys {
    pub(super) fn new(keys: impl IntoIterator<Item = (u32, ControlKey)>) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            limits: Mutex::default(),
        }
    }

    /// Has the key be for leases of these nodes only.
    pub(super) fn limit(&self, key_id: u32, nodes: HashSet<IpAddr>) {
        locked(&self.limits).insert(key_id, nodes);
    }

    /// Reads a request. Fails if no key has signed it.
    pub(super) fn read(&self, message: &[u8; MESSAGE_BYTES]) -> io::Result<Signed<'_>> {
        let mut error = io::Error::from(io::ErrorKind::InvalidData);
        for (key_id, key) in &self.keys {
            let key_id = *key_id;
            match Stamped::<Request>::decode(message, key_id, key) {
                Ok(request) => {
                    return Ok(Signed {
                        request,
                        key,
                        key_id,
                    });
                }
                Err(fault) => error = io::Error::new(io::ErrorKind::InvalidData, fault),
            }
        }
        Err(error)
    }

    /// Whether the key of this request is for leases of `node`.
    pub(super) fn are_for(&self, signed: &Signed<'_>, node: IpAddr) -> bool {
        let limits = locked(&self.limits);
        let limit = limits.get(&signed.key_id);
        limit.is_none_or(|nodes| nodes.contains(&node))
    }
}

/// Bytes that nobody can predict.
pub(super) fn challenge() -> io::Result<[u8; CHALLENGE_BYTES]> {
    let mut bytes = [0; CHALLENGE_BYTES];
    // The kernel never cuts requests of up to 256 bytes short (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
