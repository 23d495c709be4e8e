//! The end of a client's connection, at which the client gets all of the answer.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use crate::connection::{Connection, present};
use crate::connection_state::ConnectionState;
use crate::records::not_sealed;

/// The time from a client's close_notify to its FIN, with the jitter of a round trip. Afterwards
/// the client may be waiting for our close_notify.
const GOODBYE: Duration = Duration::from_millis(200);
/// The longest silence of a client that a closing connection waits for, and the longest time for
/// which it reads and drops what the client still sends.
const LINGER_SILENCE: Duration = Duration::from_secs(2);
const LINGER: Duration = Duration::from_secs(10);
/// The most bytes that are dropped at once.
const MAX_DROP_BYTES: usize = 32 << 10;

impl Connection {
    /// Ends the connection so that the client gets all of the answer. It closes our direction and
    /// waits a bounded time for the client's. The node releases the flow when no packet can leave
    /// the socket any more.
    pub async fn close(mut self) {
        if self.state.output.is_empty() && self.client_has_left().await {
            return;
        }
        let ended = self.end_session().await;
        let stream = ended.and_then(|()| present(&self.stream));
        let Ok(Ok(())) = stream.map(|s| SockRef::from(&s).shutdown(Shutdown::Write)) else {
            return;
        };
        self.state.io_timeout = LINGER_SILENCE;
        let dropping = async {
            self.state.give_up_input();
            while let Ok(1..) = self.receive_by(|_, socket| drop_once(socket)).await {}
        };
        // A reset would take the answer from a client that sends nevertheless.
        let _ = tokio::time::timeout(LINGER, dropping).await;
    }

    /// Ends the connection by a reset, by which the client learns that more was to come. Bytes that
    /// the client has not taken may be lost.
    pub fn reset(self) {
        if let Some(stream) = &self.stream {
            // A socket that has none is closed in order.
            let _ = SockRef::from(&stream.as_fd()).set_linger(Some(Duration::ZERO));
        }
    }

    /// Ends the TLS session, and writes the rest of the output.
    async fn end_session(&mut self) -> io::Result<()> {
        if self.is_in_kernel() {
            return self.close_by_kernel().await;
        }
        let ConnectionState { tls, output, .. } = &mut *self.state;
        if let Some(records) = tls {
            let sealed = records.session.seal_close_notify(output);
            sealed.map_err(not_sealed)?;
        }
        self.flush(false).await
    }

    /// Whether the client has closed both TLS and TCP. It would answer a close_notify with a reset.
    async fn client_has_left(&mut self) -> bool {
        let Some(records) = &self.state.tls else {
            return false;
        };
        // A client that closes sends its FIN right behind its close_notify.
        self.state.io_timeout = if records.session.read_closed() {
            GOODBYE
        } else {
            Duration::ZERO
        };
        matches!(self.receive().await, Ok(0))
    }
}

/// Drops bytes that the client has sent. Also returns whether the socket is empty now. TCP copies
/// nothing for `MSG_TRUNC` (tcp(7)), so a client that sends what nobody reads costs little.
fn drop_once(socket: BorrowedFd<'_>) -> io::Result<(usize, bool)> {
    let mut unused = [0; MAX_DROP_BYTES];
    let (_, n) = recv(socket, &mut unused, RecvFlags::TRUNC | RecvFlags::DONTWAIT)?;
    Ok((n, n < MAX_DROP_BYTES))
}
