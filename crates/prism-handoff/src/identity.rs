//! A worker as the switch and its agent know it.

use std::io;
use std::net::IpAddr;

use prism_proto::control::RunId;
use prism_proto::steering::Steering;

use crate::config::of_family;
use crate::signing::{SigningKey, SwitchAddress};

/// The names of one worker at the switch. Its commands and its lease have them.
pub(crate) struct WorkerIdentity {
    pub(crate) switch: SwitchAddress,
    pub(crate) node: IpAddr,
    pub(crate) run: RunId,
    /// Digest of the node's placement.
    pub(crate) placement: u64,
}

impl WorkerIdentity {
    /// A new run, at that of the node's `addresses` that is of the switch's family.
    pub(crate) fn new(
        addresses: &[IpAddr],
        placement: u64,
        switch: &SwitchAddress,
    ) -> io::Result<Self> {
        let node = of_family(addresses, switch.control.ip()).ok_or_else(|| {
            let control = switch.control;
            io::Error::other(format!(
                "this node has no address of the family of {control}"
            ))
        })?;
        Ok(Self {
            switch: switch.clone(),
            node,
            run: RunId(fastrand::u16(1..)),
            placement,
        })
    }

    /// A state machine for commands of this run, which signs with the node's present key.
    pub(crate) fn steering(&self) -> Steering {
        let SigningKey { key_id, key, .. } = self.switch.signing_key();
        Steering::new(key_id, key, fastrand::u64(..)).of_run(self.run)
    }
}
