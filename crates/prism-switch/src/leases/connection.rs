//! One connection: the greeting, by which a run gets its lease, and the messages after it.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use prism_proto::control::{FlowState, MESSAGE_BYTES, Ops, Owner, RunId, Status, Term};
use prism_proto::lease::{
    Done, LEAVING, NewClients, PlacementVerdict, SPEAKS_OF_TERMS, TAKES_NO_MORE, TermNotice,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::parting::Parting;
use super::table::{LeaseTable, Run};
use super::{Leases, keys};

/// The time in which a connection must identify itself.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// A host that answers no keepalive for 2 + 4 * 1 = 6 s is out of reach.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 4;
/// The same for a host that leaves a byte unacknowledged, as the kernel sends no keepalives then.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// A run, as its request for a lease describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) run: Run,
    /// Digest of its node's placement.
    pub(super) digest: u64,
    /// The greatest term that its node knows; `None` if the run does not speak of terms.
    pub(super) term: Option<Term>,
    /// The key that it has signed with.
    pub(super) key_id: u32,
}

/// The news that a connection has carried.
#[derive(Default)]
struct CarriedNews {
    verdict: Option<PlacementVerdict>,
    notice: Option<TermNotice>,
}

impl Leases {
    /// Serves one connection, from its first byte to its end. `age` is its number among
    /// unidentified connections; `gives_way` has it make room for newer ones.
    pub(super) async fn serve_connection(
        &self,
        mut stream: TcpStream,
        age: u64,
        gives_way: &Notify,
    ) -> io::Result<()> {
        let greeting = tokio::time::timeout(HANDSHAKE, self.admit(&mut stream));
        let admitted = tokio::select! {
            admitted = greeting => admitted.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
            () = gives_way.notified() => Err(io::Error::other("it had to give way to others")),
        };
        self.newcomers.lock().leave(age);
        let (greeting, _counted) = admitted?;
        watch_host(&stream)?;
        if self.begin(&greeting, Instant::now()) {
            let parting = self.listen(&mut stream, &greeting).await;
            self.end(greeting.run, parting, Instant::now());
        }
        Ok(())
    }

    /// Reads a run's messages and answers them, until its connection ends. `None`: the agent ends
    /// it.
    async fn listen(&self, stream: &mut TcpStream, greeting: &Greeting) -> Option<Parting> {
        let Greeting {
            run, digest, term, ..
        } = *greeting;
        let mut code = [0; 1];
        let mut awaits_answer = false;
        let mut told = CarriedNews::default();
        loop {
            let message = tokio::select! {
                read = stream.read(&mut code) => match (read, code) {
                    (Ok(1), [TAKES_NO_MORE]) => {
                        self.withdraw(run, Instant::now());
                        awaits_answer = true;
                        continue;
                    }
                    (Ok(1), [Done::CODE]) if term.is_some() => {
                        match read_done(stream).await {
                            Ok(done) => self.note_done(run, done),
                            Err(error) => return Some(Parting::after_error(&error)),
                        }
                        continue;
                    }
                    (Ok(1), [LEAVING]) => return Some(Parting::LEFT),
                    (Err(error), _) => return Some(Parting::after_error(&error)),
                    (Ok(_), _) => return Some(Parting::CLOSED),
                },
                answer = self.answer(run), if awaits_answer => {
                    awaits_answer = false;
                    vec![answer as u8]
                }
                verdict = self.verdict(digest, told.verdict) => {
                    told.verdict = Some(verdict);
                    vec![verdict as u8]
                }
                notice = self.notice(told.notice), if term.is_some() => {
                    told.notice = Some(notice);
                    notice.encode().to_vec()
                }
                () = self.closed() => return None,
            };
            if let Err(error) = stream.write_all(&message).await {
                return Some(Parting::after_error(&error));
            }
        }
    }

    /// Waits for a verdict on a placement other than the one that the node was `told`.
    async fn verdict(&self, digest: u64, told: Option<PlacementVerdict>) -> PlacementVerdict {
        let is_news = |verdict: &PlacementVerdict| Some(*verdict) != told;
        self.wait_for(&self.verdicts, |table| {
            table.placements.verdict(digest).filter(is_news)
        })
        .await
    }

    /// Waits for another state of the term than the one that the run was `told`.
    async fn notice(&self, told: Option<TermNotice>) -> TermNotice {
        let is_news = |notice: &TermNotice| Some(*notice) != told;
        self.wait_for(&self.terms, |table| table.notice.filter(is_news))
            .await
    }

    /// Waits until this switch grants no leases.
    async fn closed(&self) {
        self.wait_for(&self.terms, |table| table.is_closed.then_some(()))
            .await;
    }

    /// Waits for the agent's answer to a run that takes no more clients.
    async fn answer(&self, run: Run) -> NewClients {
        self.wait_for(&self.answers, |table| table.leases.get(&run)?.answer)
            .await
    }

    /// Waits until `find` finds something in the table, which may be when `changes` come.
    async fn wait_for<T>(&self, changes: &Notify, find: impl Fn(&LeaseTable) -> Option<T>) -> T {
        loop {
            let change = changes.notified();
            if let Some(found) = find(&self.table()) {
                return found;
            }
            change.await;
        }
    }

    /// Has the other side prove its identity with a request about a random number.
    async fn admit(&self, stream: &mut TcpStream) -> io::Result<(Greeting, Counted<'_>)> {
        let challenge = keys::challenge()?;
        stream.write_all(&challenge).await?;
        let mut message = [0; MESSAGE_BYTES];
        stream.read_exact(&mut message).await?;
        let signed = self.keys.lock().read(&message)?;
        let request = signed.request.message;
        let via = request.owner.via.to_canonical();
        let run = request.run;
        let node = self.hosts.lock().node_of(via);
        let node = node.filter(|_| signed.is_for(via));
        let is_lease = request.ops == Ops::QUERY
            && run != RunId::NONE
            && request.request_id == u64::from_be_bytes(challenge);
        let status = match (is_lease, node) {
            (false, _) => Status::BadRequest,
            (true, None) => Status::Denied,
            (true, Some(node)) if !self.table().count_connection(node) => Status::Full,
            (true, Some(_)) => Status::Ok,
        };
        let counted = node.filter(|_| status == Status::Ok);
        let counted = counted.map(|node| Counted { leases: self, node });
        let answer = request.answer(status, FlowState::Absent, 0, Owner::NONE, 0);
        stream.write_all(&answer.encode(&signed.key.key)).await?;
        let speaks_of_terms = request.owner.addr.port() == SPEAKS_OF_TERMS;
        let counted = counted.ok_or_else(|| {
            let why = match status {
                Status::Full => "its node has as many connections as it may have",
                _ => "no lease for this request",
            };
            io::Error::new(io::ErrorKind::PermissionDenied, why)
        })?;
        let greeting = Greeting {
            run: (counted.node, run),
            digest: request.epoch,
            term: speaks_of_terms.then_some(signed.request.term),
            key_id: signed.key.key_id,
        };
        Ok((greeting, counted))
    }
}

/// A connection that is counted among those of its node, until dropped.
struct Counted<'l> {
    leases: &'l Leases,
    node: IpAddr,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.leases.table().uncount_connection(self.node);
    }
}

/// Reads the rest of a message whose code has been read.
async fn read_done(stream: &mut TcpStream) -> io::Result<Done> {
    let mut message = [Done::CODE; Done::BYTES];
    let (_, rest) = message.split_at_mut(1);
    stream.read_exact(rest).await?;
    Done::decode(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Has the kernel notice when the other host is out of reach.
fn watch_host(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_a_run_repeats_wakes_the_agent_once() {
        let node = IpAddr::from([10, 0, 0, 7]);
        let leases = Leases::new([vec![node]], []);
        let run = (node, RunId(99));
        let greeting = Greeting {
            run,
            digest: 0,
            term: Some(Term(5)),
            key_id: 3,
        };
        leases.begin(&greeting, Instant::now());
        let is_news = || std::mem::take(&mut leases.table().has_news);
        assert!(is_news());
        for (term, runs, expected) in [(5, 1, true), (5, 1, false), (5, 2, true), (6, 2, true)] {
            let term = Term(term);
            leases.note_done(run, Done { term, runs });
            assert_eq!(is_news(), expected, "{term:?}, {runs} runs");
        }
    }
}
