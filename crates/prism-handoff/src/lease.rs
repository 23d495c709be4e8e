//! This worker's lease at the switch's agent: a connection that lasts as long as the worker
//! (docs/protocol.md, section 1.7). No request waits for a lease. Without one a death goes
//! unnoticed, and a frontend gets no new clients while another frontend has a lease.
//!
//! A run that has said that it takes no new clients cannot take that back. A worker that takes
//! new clients again therefore holds one more lease, of a further run that owns no flow.

mod speaker;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_proto::control::{Answer, MESSAGE_BYTES, RunId, Status, Term, VERSION};
use prism_proto::lease::{
    CHALLENGE_BYTES, Done, LEAVING, LeaseRequest, NewClients, PlacementVerdict, TAKES_NO_MORE,
    TermNotice,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::client_intake::ClientIntake;
use crate::control::Control;
use crate::counters::Counters;
use crate::process::Process;
use crate::signing::{self, SigningKey};

use speaker::{CountedRun, Speaker};

/// A worker that holds leases.
#[derive(Clone)]
pub(crate) struct Leaseholder {
    pub(crate) control: Rc<Control>,
    pub(crate) intake: Rc<ClientIntake>,
    pub(crate) process: Arc<Process>,
}

/// The messages of the agent on one connection.
#[derive(Default)]
struct Hearing {
    /// The bytes of a term's notice that have come.
    notice: Vec<u8>,
    /// The term of the last notice.
    told: Term,
}

impl Hearing {
    /// Handles a byte of the agent. A byte without a meaning is ignored. False: the connection is
    /// of no use.
    fn hear(&mut self, byte: u8, holder: &Leaseholder, speaker: Speaker) -> bool {
        let begins = matches!(byte, TermNotice::YOUNG | TermNotice::SETTLED);
        if begins || !self.notice.is_empty() {
            self.notice.push(byte);
            let Ok(notice) = <[u8; TermNotice::BYTES]>::try_from(self.notice.as_slice()) else {
                return true;
            };
            self.notice.clear();
            let Ok(notice) = TermNotice::decode(notice) else {
                return false;
            };
            self.told = notice.term;
            return holder.control.on_notice(notice);
        }
        if let Some(answer) = NewClients::from_byte(byte) {
            holder.intake.note(speaker.number, answer);
        }
        if let Some(verdict) = PlacementVerdict::from_byte(byte) {
            note(verdict, &holder.process.counters);
        }
        true
    }
}

/// Notes a verdict on the node's placement, and logs a change. It holds until the next verdict,
/// also without a lease.
fn note(verdict: PlacementVerdict, counters: &Counters) {
    let differs = verdict == PlacementVerdict::Differs;
    let differed = counters.placement_differs.replace(differs.into()) != 0;
    match (differed, differs) {
        (false, true) => tracing::error!(
            "this node's configuration places objects differently from most nodes': all \
            requests are refused. Compare the nodes' files; the log of the switch's agent \
            names the nodes"
        ),
        (true, false) => tracing::info!("most nodes place objects as this one: it serves again"),
        _ => {}
    }
}

/// The pause before a lost or refused lease is requested again, well within the agent's grace of
/// 500 ms. It doubles with each failure.
const AGAIN: Duration = Duration::from_millis(50);
/// The longest pause. Some attempts fit into the agent's grace for a host that was out of reach.
const LATER: Duration = Duration::from_millis(500);
/// The longest pause while nobody listens at the switch's address. An agent that has started waits
/// 1 s for the nodes.
const NOBODY_THERE: Duration = Duration::from_millis(200);
/// The time limit of a request. TCP repeats a lost first packet only after 1 s, so a new connection
/// is quicker.
const DEADLINE: Duration = Duration::from_millis(500);
/// The agent has the same values: a connection ends 6 s after the last answer to a keepalive or a
/// byte.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 4;
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// The time after which the last message is repeated. Another host that has the switch's address
/// now answers it with a reset, so an idle worker hears soon that a term has begun.
const REPEATED: Duration = Duration::from_millis(200);

impl Leaseholder {
    /// Holds a lease for this worker until dropped, and counts it in `workers_leased`. A new term
    /// ends a pause, because the switch waits for the lease ([`prism_proto::term::ABSENT_NS`]).
    pub(crate) async fn keep(&self) {
        let speaker = Speaker {
            run: self.control.identity.run,
            number: 0,
        };
        self.keep_for(speaker).await;
    }

    /// Holds a further lease while this worker takes new clients again after it has taken none.
    pub(crate) async fn take_again(&self) {
        let mut stances = self.intake.follow();
        loop {
            // The sender lives as long as `self`.
            let again = stances.wait_for(|stance| stance.speaker > 0).await;
            let Ok(number) = again.map(|stance| stance.speaker) else {
                return;
            };
            let _counted = CountedRun::new(&self.process.runs);
            let speaker = Speaker::further(self.control.identity.run, number);
            tokio::select! {
                () = self.keep_for(speaker) => {}
                _ = stances.wait_for(|stance| stance.speaker != number) => {}
            }
        }
    }

    async fn keep_for(&self, speaker: Speaker) {
        let control = &self.control;
        let held = &self.process.counters.workers_leased;
        let mut wait = AGAIN;
        loop {
            let term = control.term();
            let asking = LeaseConnection::ask(control, speaker.run, term);
            let asked = tokio::time::timeout(DEADLINE, asking).await;
            match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(mut lease) => {
                    if speaker.owns_flows() {
                        held.add_one();
                    }
                    lease.hold(self, speaker).await;
                    lease.has_ended = true;
                    if speaker.owns_flows() {
                        held.sub_one();
                    }
                    wait = AGAIN;
                }
                Err(error) => {
                    // Once: every later attempt ends the same way, until one succeeds.
                    if error.kind() == io::ErrorKind::InvalidData && wait == AGAIN {
                        tracing::warn!(%error, "no lease at the switch")
                    } else {
                        tracing::debug!(%error, "no lease at the switch")
                    }
                    let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    let longest = if is_refused { NOBODY_THERE } else { LATER };
                    wait = longest.min(wait * 2);
                }
            }
            let heard = control.flows.hear_of_another(term);
            if tokio::time::timeout(wait, heard).await.is_ok() {
                wait = AGAIN;
                // All workers hear of a term at about the same time.
                tokio::time::sleep(AGAIN.mul_f32(fastrand::f32())).await;
            }
        }
    }
}

/// The connection of a lease. Dropping it tells the agent that the run ends in order, unless it has
/// ended before.
struct LeaseConnection {
    stream: TcpStream,
    has_ended: bool,
    /// The keys that come after the one of this lease.
    keys: watch::Receiver<SigningKey>,
    /// The same connection, for the last byte, which is written without waiting.
    direct: std::net::TcpStream,
}

impl LeaseConnection {
    /// Asks for a lease. It does not wait for an answer to its first packet once there is a later
    /// term than `term`: that packet went to another host.
    async fn ask(control: &Control, run: RunId, term: Term) -> io::Result<Self> {
        let identity = &control.identity;
        let switch = &identity.switch;
        let node = identity.node;
        let mut stream = tokio::select! {
            dialed = dial(switch.control, node) => dialed?,
            () = control.flows.hear_of_another(term) => {
                return Err(io::ErrorKind::Interrupted.into());
            }
        };
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).await?;
        let request = LeaseRequest {
            challenge,
            node,
            run,
            digest: identity.placement,
            term: Some(control.term()),
        };
        let mut keys = switch.key.clone();
        let SigningKey { key_id, key, .. } = keys.borrow_and_update().clone();
        let request = request.encode(key_id, &key);
        stream.write_all(&request).await?;
        let mut answer = [0; MESSAGE_BYTES];
        stream.read_exact(&mut answer).await.map_err(unheard)?;
        let answer = Answer::decode(&answer, key_id, &key)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if answer.status != Status::Ok || answer.request_id != u64::from_be_bytes(challenge) {
            return Err(io::Error::other(format!("refused: {:?}", answer.status)));
        }
        let direct = SockRef::from(&stream).try_clone()?.into();
        Ok(Self {
            stream,
            has_ended: false,
            keys,
            direct,
        })
    }

    /// Holds the lease until the connection ends. Says that the worker takes no more clients, and
    /// that it has announced all its flows.
    async fn hold(&mut self, holder: &Leaseholder, speaker: Speaker) {
        let flows = &holder.control.flows;
        let mut has_said = false;
        let mut byte = [0; 1];
        let mut hearing = Hearing::default();
        let mut stances = holder.intake.follow();
        let mut done = speaker.owns_flows().then(|| flows.on_new_lease());
        let mut keys = self.keys.clone();
        let message = |term| {
            let runs = holder.process.runs.load(Ordering::Relaxed).max(1);
            Done { term, runs }.encode()
        };
        let mut last = None;
        let mut turns = tokio::time::interval(REPEATED);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let told = hearing.told;
            tokio::select! {
                read = self.stream.read(&mut byte) => match (read, byte) {
                    (Ok(1), [byte]) if hearing.hear(byte, holder, speaker) => {}
                    _ => return,
                },
                // The switch has another table or is another host, and this connection is from
                // before.
                () = flows.hear_of_another(told), if told != Term::NONE => return,
                // The agent is to hear of it before it forgets the old key.
                () = signing::changed(&mut keys) => return,
                term = next_done(&mut done) => {
                    let message = last.insert(message(term));
                    // A part of a message would be read as another one.
                    if self.direct.write_all(message).is_err() {
                        return;
                    }
                }
                _ = turns.tick() => {
                    let settled = speaker.settled_term(flows, told).map(message);
                    last = if speaker.owns_flows() { last.or(settled) } else { settled };
                    if let Some(message) = &last
                        && self.direct.write_all(message).is_err()
                    {
                        return;
                    }
                }
                _ = stances.wait_for(|stance| stance.is_over_for(speaker.number)), if !has_said => {
                    has_said = true;
                    // A failed write means that the connection has ended.
                    if self.direct.write(&[TAKES_NO_MORE]).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// The next term in which all flows are announced. Never resolves for a run without flows.
async fn next_done(done: &mut Option<watch::Receiver<Term>>) -> Term {
    if let Some(done) = done
        && done.changed().await.is_ok()
    {
        return *done.borrow_and_update();
    }
    std::future::pending().await
}

/// Names the causes for an agent that closes the connection instead of an answer.
fn unheard(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "its agent has not answered: it stops, speaks another version of the control \
                 protocol than {VERSION}, or has another switch.key_file"
            ),
        ),
        _ => error,
    }
}

impl Drop for LeaseConnection {
    fn drop(&mut self) {
        // After a panic connections have ended within requests, as after a crash.
        if !self.has_ended && !std::thread::panicking() {
            let _ = self.direct.write(&[LEAVING]);
        }
    }
}

async fn dial(to: SocketAddr, from: IpAddr) -> io::Result<TcpStream> {
    let socket = match from {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.bind((from, 0).into())?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(&socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    socket.connect(to).await
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
