//! Sockets whose kernel has the key of a TLS session: how a connection leaves one, and how it stays
//! in it after a failed hand-off.

use std::os::fd::AsFd;
use std::rc::Rc;

use prism_proto::export::Kept;

use super::drain::drain;
use super::driver::Driver;
use super::socket::Socket;
use super::{Exported, epoch_of, kept};
use crate::connection::{Connection, ConnectionState};
use crate::endpoint::Shared;
use crate::records::NotSaved;
use crate::trace::{Part, Record};

/// Gives the connection another socket on this host, by a hand-off that no peer is offered. It
/// takes two phases, because a frozen socket would be thawed. The intended result is `Kept` with
/// a refusal as its reason: the socket is new. With any other reason it is the old one.
pub(crate) async fn renew(shared: &Rc<Shared>, mut connection: Connection) -> Exported {
    let Some(control) = shared.control.as_ref().filter(|c| c.is_reachable()) else {
        return kept(connection, Kept::SwitchSilent);
    };
    if !drain(&connection, 0).await {
        return kept(connection, Kept::SaveFailed);
    }
    connection.state.end_claim();
    let Some(epoch) = epoch_of(&connection.state, control) else {
        return kept(connection, Kept::SwitchSilent);
    };
    let driver = Driver {
        shared,
        control,
        channel: None,
        context: &[],
        tls: None,
        kernel: None,
        record: Record::new(Part::Source, fastrand::u64(..), connection.client().port()),
    };
    driver.run(connection, epoch).await
}

impl Driver<'_> {
    /// Leaves the kernel its key if the connection goes on in the socket that it was saved from.
    pub(super) fn stay_in_kernel(
        &mut self,
        socket: &Socket,
        state: &mut ConnectionState,
    ) -> Result<(), NotSaved> {
        let (Some(kernel), Some(records)) = (self.kernel.take(), &mut state.tls) else {
            return Ok(());
        };
        match socket {
            Socket::Live(stream) => records.stay(kernel, stream.as_fd()),
            Socket::Silent(paused) => records.stay(kernel, paused.as_fd()),
            // A new socket has no key.
            _ => Ok(()),
        }
    }
}
