//! This worker's lease at the switch's agent: a connection that lasts as long as the worker
//! (docs/protocol.md, section 1.7). No request waits for a lease. Without one a death goes
//! unnoticed, and a frontend gets no new clients while another frontend has a lease.
//!
//! A run that has said that it takes no new clients cannot take that back. A worker that takes
//! new clients again therefore holds one more lease, of a further run that owns no flow.

mod taking;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
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

use crate::control::Control;
use crate::counters::Counters;
use crate::signing::SwitchAddress;
use crate::signing::{self, SigningKey};

pub(crate) use taking::Taking;
use taking::{CountedRun, Speaker};

/// The holder of a lease, as the request for it names it.
pub(crate) struct Holder {
    pub(crate) switch: SwitchAddress,
    pub(crate) node: IpAddr,
    pub(crate) run: RunId,
    /// Digest of the node's placement.
    pub(crate) placement: u64,
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
    fn hear(&mut self, byte: u8, control: &Control, speaker: Speaker) -> bool {
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
            return control.on_notice(notice);
        }
        if let Some(answer) = NewClients::from_byte(byte) {
            control.taking.note(speaker.number, answer);
        }
        if let Some(verdict) = PlacementVerdict::from_byte(byte) {
            note(verdict, &control.process.counters);
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

/// Holds a lease for this worker until dropped, and counts it in `workers_leased`. A new term ends
/// a pause, because the switch waits for the lease ([`prism_proto::term::ABSENT_NS`]).
pub(crate) async fn keep(control: &Control) {
    let speaker = Speaker {
        run: control.holder.run,
        number: 0,
    };
    keep_for(control, speaker).await;
}

/// Holds a further lease while this worker takes new clients again after it has taken none.
pub(crate) async fn take_again(control: &Control) {
    let mut stances = control.taking.follow();
    loop {
        // The sender lives as long as `control`.
        let again = stances.wait_for(|stance| stance.speaker > 0).await;
        let Ok(number) = again.map(|stance| stance.speaker) else {
            return;
        };
        let _counted = CountedRun::new(&control.process.runs);
        let speaker = Speaker::further(control.holder.run, number);
        tokio::select! {
            () = keep_for(control, speaker) => {}
            _ = stances.wait_for(|stance| stance.speaker != number) => {}
        }
    }
}

async fn keep_for(control: &Control, speaker: Speaker) {
    let held = &control.counters.workers_leased;
    let mut wait = AGAIN;
    loop {
        let term = control.term();
        let asked = tokio::time::timeout(DEADLINE, Lease::ask(control, speaker.run, term)).await;
        match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(mut lease) => {
                if speaker.owns_flows() {
                    held.add_one();
                }
                lease.hold(control, speaker).await;
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
                wait = LATER.min(wait * 2);
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

/// A lease. Dropping it tells the agent that the run ends in order, unless it has ended before.
struct Lease {
    stream: TcpStream,
    has_ended: bool,
    /// The keys that come after the one of this lease.
    keys: watch::Receiver<SigningKey>,
    /// The same connection, for the last byte, which is written without waiting.
    direct: std::net::TcpStream,
}

impl Lease {
    /// Asks for a lease. It does not wait for an answer to its first packet once there is a later
    /// term than `term`: that packet went to another host.
    async fn ask(control: &Control, run: RunId, term: Term) -> io::Result<Self> {
        let holder = &control.holder;
        let switch = &holder.switch;
        let node = holder.node;
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
            digest: holder.placement,
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
    async fn hold(&mut self, control: &Control, speaker: Speaker) {
        let mut has_said = false;
        let mut byte = [0; 1];
        let mut hearing = Hearing::default();
        let mut stances = control.taking.follow();
        let mut done = speaker.owns_flows().then(|| control.flows.on_new_lease());
        let mut keys = self.keys.clone();
        let message = |term| {
            let runs = control.process.runs.load(Ordering::Relaxed).max(1);
            Done { term, runs }.encode()
        };
        let mut last = None;
        let mut turns = tokio::time::interval(REPEATED);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let told = hearing.told;
            tokio::select! {
                read = self.stream.read(&mut byte) => match (read, byte) {
                    (Ok(1), [byte]) if hearing.hear(byte, control, speaker) => {}
                    _ => return,
                },
                // The switch has another table or is another host, and this connection is from
                // before.
                () = control.flows.hear_of_another(told), if told != Term::NONE => return,
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
                    let settled = speaker.settled_term(control, told).map(message);
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

impl Drop for Lease {
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
