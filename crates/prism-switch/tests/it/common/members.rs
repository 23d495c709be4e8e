//! Nodes with keys of their own.

use std::net::{IpAddr, SocketAddr};

use prism_packets::Hook;
use prism_proto::control::{ControlKey, Ops, Pass, Passage, Status};
use prism_switch::{SenderConfig, TermPhase};

use super::{
    BACKEND, BACKEND2, BOTH, CLIENT, Lab, VIP, flow, in_lab, numbers, owned, set_term, stating,
    tai_ns,
};

pub const TERM: u32 = 5;
pub const HOLD: Ops = Ops::OWN.and(Ops::BLOCK);

/// A node with a key of its own. `secret` tells the keys of two secrets apart.
#[derive(Clone, Copy)]
pub struct Member {
    pub owner: SocketAddr,
    secret: u8,
}

pub const FE: Member = member(VIP, 1);
pub const BE: Member = member(BACKEND, 1);
pub const BE2: Member = member(BACKEND2, 1);

const fn member(owner: SocketAddr, secret: u8) -> Member {
    Member { owner, secret }
}

impl Member {
    pub fn via(self) -> IpAddr {
        owned(self.owner).via
    }

    pub fn key_id(self) -> u32 {
        let [_, a, b, c] = numbers(self.via());
        u32::from_be_bytes([self.secret, a, b, c])
    }

    pub fn key(self) -> ControlKey {
        let mut bytes = [self.secret; 16];
        bytes[..4].copy_from_slice(&self.key_id().to_be_bytes());
        ControlKey::new(bytes)
    }

    pub fn sender(self) -> SenderConfig {
        SenderConfig {
            key_id: self.key_id(),
            key: self.key(),
            tenant: 1,
            node: vec![self.via()],
        }
    }

    pub fn with_secret(self, secret: u8) -> Self {
        Self { secret, ..self }
    }

    /// Its word that `to` may take the flow of `CLIENT` at `epoch`.
    pub fn pass(self, to: Self, epoch: u64) -> Pass {
        Pass::new(&self.key(), &passage(to, epoch))
    }
}

pub fn passage(to: Member, epoch: u64) -> Passage {
    Passage {
        flow: flow(CLIENT),
        epoch,
        via: to.via(),
    }
}

/// A switch whose nodes all have keys under two secrets, and one key that all share. The tests
/// begin in a settled term.
pub fn in_contained(name: &str, test: impl Fn(&Lab, Hook) + Sync) {
    in_lab(
        name,
        |config| {
            let members = [FE, BE, BE2];
            let both = |member: Member| [member.sender(), member.with_secret(2).sender()];
            config.senders.extend(members.into_iter().flat_map(both));
        },
        |lab| {
            set_term(lab, TERM, TermPhase::Settled, 0);
            for hook in BOTH {
                test(lab, hook);
                // The next hook begins with a tombstone.
                let now = lab.view.flow_of(&flow(CLIENT)).unwrap();
                let epoch = now.map_or(0, |now| now.epoch).max(tai_ns()) + 1;
                let end = stating(Ops::RELEASE, CLIENT, VIP, epoch);
                let end = lab.in_term(Hook::Tc, TERM, end).unwrap();
                assert_eq!(end.message.status, Status::Ok);
            }
        },
    );
}
