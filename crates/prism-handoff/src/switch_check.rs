//! Whether a switch answers this program, which is asked before anything depends on it.
//!
//! Not here: the commands of a node that serves ([`crate::control`]).

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use prism_proto::control::{MESSAGE_BYTES, VERSION};
use prism_proto::steering::{CommandOutcome, Steering};
use prism_sys::clock::monotonic_ns;

use crate::control::clock_query;
use crate::signing::SigningKey;
use crate::signing::SwitchAddress;

/// The shortest wait for a datagram, for which the kernel takes 0 as no bound.
const SHORTEST_WAIT: Duration = Duration::from_micros(100);

/// A switch cannot be used by this program.
#[derive(Debug, thiserror::Error)]
pub enum SwitchCheckError {
    /// This host has not the node's address, or no way to the switch.
    #[error("cannot ask the switch at {0}: {1}")]
    Unreachable(std::net::SocketAddr, io::Error),
    /// The switch does not answer in time.
    #[error(
        "the switch at {0} does not answer version {VERSION} of the control protocol. Its counter \
         `control_malformed` rises if it speaks another version: use the release of its agent. \
         `control_forged` rises if its switch.key_file is another one. Otherwise it is out of reach"
    )]
    Silent(std::net::SocketAddr),
}

impl SwitchAddress {
    /// Asks the switch for its clock, from the address of a node. Changes nothing there. Blocks up
    /// to `limit`.
    ///
    /// # Errors
    /// [`SwitchCheckError`], with the likely causes.
    pub fn check(&self, node: IpAddr, limit: Duration) -> Result<(), SwitchCheckError> {
        let answers = self.answers(node, limit);
        if answers.map_err(|error| SwitchCheckError::Unreachable(self.control, error))? {
            Ok(())
        } else {
            Err(SwitchCheckError::Silent(self.control))
        }
    }

    fn answers(&self, node: IpAddr, limit: Duration) -> io::Result<bool> {
        let socket = UdpSocket::bind((node, 0))?;
        socket.connect(self.control)?;
        let SigningKey { key_id, key, .. } = self.signing_key();
        let mut steering = Steering::new(key_id, key, fastrand::u64(..));
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let begun_ns = monotonic_ns();
        steering.start(clock_query(), begun_ns, begun_ns.saturating_add(limit_ns));
        let mut buffer = [0; MESSAGE_BYTES + 1];
        loop {
            let now = monotonic_ns();
            steering.handle_timeout(now);
            if let Some((_, outcome)) = steering.poll_finished() {
                return Ok(matches!(outcome, CommandOutcome::Answered(_)));
            }
            while let Some(datagram) = steering.poll_transmit(now) {
                // A datagram that is not sent is repeated like a lost one.
                let _ = socket.send(&datagram);
            }
            let due_ns = steering.next_timeout_ns().unwrap_or(now);
            let wait = Duration::from_nanos(due_ns.saturating_sub(now));
            socket.set_read_timeout(Some(wait.max(SHORTEST_WAIT)))?;
            // An error is about an earlier datagram, or the end of the wait.
            if let Ok(len) = socket.recv(&mut buffer) {
                let datagram = buffer.get(..len).unwrap_or_default();
                let _ = steering.handle_datagram(datagram, monotonic_ns());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::net::Ipv4Addr;

    use prism_proto::control::{ControlKey, FlowState, Owner, Request, Status};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);
    const KEY: [u8; 16] = [7; 16];

    /// Asks a switch that answers each request with the version that `version` makes of its own.
    fn ask(key: [u8; 16], version: impl Fn(u8) -> u8 + Send + 'static) -> Result<(), String> {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let switch = UdpSocket::bind((here, 0)).unwrap();
        let control = switch.local_addr().unwrap();
        switch.set_read_timeout(Some(2 * LIMIT)).unwrap();
        std::thread::spawn(move || {
            let (mut bytes, key) = ([0; MESSAGE_BYTES], ControlKey::new(key));
            while let Ok((_, from)) = switch.recv_from(&mut bytes) {
                // As the program of the switch, it drops other versions.
                if bytes[4] != version(bytes[4]) {
                    continue;
                }
                let Ok(request) = Request::decode(&bytes, 1, &key) else {
                    continue;
                };
                let time_ns = 1;
                let answer = request.answer(Status::Ok, FlowState::Absent, 0, Owner::NONE, time_ns);
                switch.send_to(&answer.encode(&key), from).unwrap();
            }
        });
        let address = SwitchAddress::new(control, 1, KEY);
        address
            .check(here, LIMIT)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_switch_is_asked_for_its_version_and_key() {
        assert_eq!(ask(KEY, |version| version), Ok(()));
        let other_version = ask(KEY, |version| version + 1).unwrap_err();
        let other_key = ask([8; 16], |version| version).unwrap_err();
        for told in [other_version, other_key] {
            assert!(
                told.contains("version 2 of the control protocol") && told.contains("key_file"),
                "{told}"
            );
        }
    }

    #[test]
    fn a_host_without_the_address_of_the_node_says_so() {
        let address = SwitchAddress::new("127.0.0.1:9".parse().unwrap(), 1, KEY);
        let error = address.check("192.0.2.1".parse().unwrap(), LIMIT);
        assert!(matches!(error, Err(SwitchCheckError::Unreachable(..))));
    }
}
