//! Channels between nodes: persistent mutual TLS connections that carry frames (docs/protocol.md,
//! section 2). There is one for each worker and peer. Either end sends hand-offs on it, so a
//! verdict leaves together with the next hand-off to the same peer.
//!
//! Not here: who dials channels (`peers`), their handshake (`node_tls`), and what becomes of a
//! hand-off that has arrived (`import`).

mod outbox;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_proto::facts::Form;
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, HandOff, Refusal};
use prism_sys::clock::monotonic_ns;
use prism_tls::{Event, MAX_RECORD_BYTES, SealError, Session};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use zeroize::{Zeroize, Zeroizing};

use crate::buffers::{read_once, receive};
use crate::deferred::DeferredWork;
use crate::given_up::HandOffEnd;
use crate::node_tls::Secured;
use crate::peer_shares::{Admitted, PartBytes};
use crate::poll::poll_once;
use crate::process::Process;
use prism_common::unguessable;

use outbox::{KEPT_BYTES, Outbox, append};

/// The size of one read: the rest of a record that has come in part, and another record.
const SEALED_BYTES: usize = 2 * MAX_RECORD_BYTES;
/// The kernel takes a channel for two-way for this time, well below the 40 ms.
const TWO_WAY_LASTS: Duration = Duration::from_millis(10);

/// A hand-off that has arrived, and the channel for its verdict.
pub(crate) struct Arrived {
    pub(crate) hand_off: Box<HandOff>,
    pub(crate) channel: Rc<Channel>,
    pub(crate) at_ns: u64,
}

/// The receiver of the frames that need more than the channel itself.
pub(crate) trait FrameReceiver {
    /// The work of a hand-off that has arrived.
    fn import(self: Rc<Self>, arrived: Arrived) -> Pin<Box<dyn Future<Output = ()>>>;

    /// The node `peer` leaves.
    fn on_leaving(&self, peer: &str);
}

/// One live channel.
pub(crate) struct Channel {
    pub(crate) peer: String,
    /// The peer speaks of passes.
    pub(crate) has_passes: bool,
    /// The form of the context of a request that the peer reads.
    pub(crate) form: Form,
    session: RefCell<Session>,
    outbox: Outbox,
    /// The deferred work has an entry that sends the outbox.
    will_send: Cell<bool>,
    process: Arc<Process>,
    deferred: Rc<DeferredWork>,
    receiver: Rc<dyn FrameReceiver>,
    /// Verdicts under way, by hand-off.
    verdicts: RefCell<HashMap<u64, oneshot::Sender<Frame>>>,
    open: Cell<bool>,
    /// Set when the peer has said on this channel that it leaves.
    leaver: RefCell<Option<Arc<str>>>,
    /// The TLS alert that tells the peer why this end reads no more.
    alert: Cell<Option<rustls::AlertDescription>>,
    _admitted: Option<Admitted>,
}

/// The parts of a worker that its channels use.
#[derive(Clone)]
pub(crate) struct ChannelParts {
    pub(crate) process: Arc<Process>,
    pub(crate) deferred: Rc<DeferredWork>,
    pub(crate) receiver: Rc<dyn FrameReceiver>,
}

impl Channel {
    /// Takes over a TLS connection with the node `peer`.
    pub(crate) fn start(secured: Secured, peer: String, parts: &ChannelParts) -> Rc<Self> {
        let Secured {
            tcp,
            session,
            sealed,
            has_passes,
            form,
            admitted,
        } = secured;
        let (reader, writer) = tcp.into_split();
        let channel = Rc::new(Self {
            peer,
            has_passes,
            form,
            session: RefCell::new(session),
            outbox: Outbox::default(),
            will_send: Cell::default(),
            process: parts.process.clone(),
            deferred: parts.deferred.clone(),
            receiver: parts.receiver.clone(),
            verdicts: RefCell::default(),
            open: Cell::new(true),
            leaver: RefCell::default(),
            alert: Cell::default(),
            _admitted: admitted,
        });
        let writing = Closing(channel.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = writing.0.write(writer).await {
                tracing::debug!(peer = writing.0.peer, %error, "a channel to a node breaks");
            }
        });
        let reading = Closing(channel.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = reading.0.read(reader, sealed).await {
                tracing::info!(peer = reading.0.peer, %error, "a channel to a node has ended");
            }
        });
        channel
    }

    /// Frames can still be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Frames can still be sent, but the peer has not read for a while.
    pub(crate) fn is_stuck(&self) -> bool {
        self.outbox.is_stuck()
    }

    /// Sends and expects nothing more. TCP still repeats the bytes that have left until the peer
    /// has them.
    pub(crate) fn close(&self) {
        self.open.set(false);
        drop(self.leaver.take());
        // Tasks that wait for a verdict learn that none will come.
        self.verdicts.borrow_mut().clear();
        self.outbox.close();
    }

    /// Sends one frame, together with those of other tasks that are ready to run. Only an answer
    /// tells that it has arrived. `NotConnected` if the channel has broken.
    pub(crate) fn send(&self, frame: &Frame) -> io::Result<()> {
        self.send_encoded(&Zeroizing::new(frame.encode()))
    }

    /// [`Self::send`] for an encoded frame.
    pub(crate) fn send_encoded(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.open.get() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.outbox.add(bytes);
        self.outbox.send();
        Ok(())
    }

    /// Sends the verdict of a hand-off. An `Accepted` leaves with the next frame, or 20 ms later,
    /// because no client waits for it. Any other verdict leaves at once.
    pub(crate) fn send_verdict(self: &Rc<Self>, verdict: &Frame) {
        // The source gets no verdict, and asks the switch.
        if !self.open.get() {
            return;
        }
        self.outbox.add_reply(&verdict.encode());
        if !matches!(verdict, Frame::Accepted { .. }) {
            self.outbox.send();
        } else if !self.will_send.replace(true) {
            let channel = self.clone();
            self.deferred.add_batched(move || {
                channel.will_send.set(false);
                channel.outbox.send();
            });
        }
    }

    /// Sends what is in the outbox, until the channel is closed.
    async fn write(&self, mut tcp: OwnedWriteHalf) -> io::Result<()> {
        let mut sealed = Vec::new();
        while self.open.get() {
            self.outbox.is_to_be_sent().await;
            loop {
                sealed.clear();
                sealed.shrink_to(KEPT_BYTES);
                self.seal(&mut sealed).map_err(io::Error::other)?;
                if sealed.is_empty() {
                    break;
                }
                tcp.write_all(&sealed).await?;
            }
        }
        Ok(())
    }

    fn seal(&self, sealed: &mut Vec<u8>) -> Result<(), SealError> {
        let mut session = self.session.borrow_mut();
        self.outbox.empty(|frames| session.seal(frames, sealed))?;
        match self.alert.take() {
            Some(alert) => session.seal_fatal_alert(alert, sealed),
            None => Ok(()),
        }
    }

    /// Whether the verdict of the hand-off `id` is awaited.
    pub(crate) fn awaits(&self, id: u64) -> bool {
        self.verdicts.borrow().contains_key(&id)
    }

    /// Registers for the verdict of the hand-off `id`.
    pub(crate) fn await_verdict(self: &Rc<Self>, id: u64) -> AwaitedVerdict {
        let (sender, receiver) = oneshot::channel();
        self.verdicts.borrow_mut().insert(id, sender);
        AwaitedVerdict {
            id,
            channel: Rc::downgrade(self),
            receiver,
        }
    }

    /// Tells the peer that this node leaves. Waits for its answer, or for the end of the channel.
    pub(crate) async fn announce_leaving(self: &Rc<Self>) {
        let id = unguessable::number();
        let heard = self.await_verdict(id);
        if self.send(&Frame::Leaving { id }).is_ok() {
            let _ = heard.wait().await;
        }
    }

    async fn read(self: &Rc<Self>, tcp: OwnedReadHalf, mut sealed: Vec<u8>) -> io::Result<()> {
        sealed.reserve_exact(SEALED_BYTES.saturating_sub(sealed.len()));
        let mut frames = Vec::new();
        let mut frames_share = self.process.peer_shares.part_of(&self.peer);
        let mut told = None;
        loop {
            let mut start = 0;
            loop {
                let records = sealed.get_mut(start..).unwrap_or_default();
                let opened = self.session.borrow_mut().open(records);
                let opened = opened.map_err(|error| {
                    // The alert is the last thing that this end sends.
                    self.alert.set(Some(error.alert()));
                    io::Error::other(format!("the peer broke TLS: {error}"))
                })?;
                match opened.event {
                    Event::Incomplete { .. } => break,
                    Event::Data(place) => {
                        let data = records.get_mut(place).unwrap_or_default();
                        self.on_data(data, &mut frames).await?;
                        data.zeroize();
                        self.check_part(&mut frames_share, frames.capacity())?;
                    }
                    Event::Empty | Event::KeyUpdate => {}
                    Event::CloseNotify | Event::Aborted(_) | Event::Discarded => return Ok(()),
                }
                start += opened.consumed;
            }
            sealed.drain(..start);
            self.outbox.has_room().await;
            if read_some(tcp.as_ref(), &mut told, &mut sealed).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Counts the room of a frame that has come in part. An error ends the channel.
    fn check_part(&self, share: &mut PartBytes, bytes: usize) -> io::Result<()> {
        // Small buffers are kept from frame to frame.
        if share.set(bytes.saturating_sub(KEPT_BYTES)) {
            return Ok(());
        }
        self.process.counters.frames_malformed.add_one();
        Err(io::Error::other(
            "the peer has begun too many long frames at once",
        ))
    }

    /// Handles the frames that end within `data`. `part` keeps the beginning of the next one.
    async fn on_data(self: &Rc<Self>, data: &[u8], part: &mut Vec<u8>) -> io::Result<()> {
        // Most frames fill one record, and are decoded in place.
        if part.is_empty() {
            let read = self.on_frames(data).await?;
            append(part, data.get(read..).unwrap_or_default());
        } else {
            append(part, data);
            let read = self.on_frames(part).await?;
            consume(part, read);
        }
        Ok(())
    }

    /// Handles the whole frames at the start of `bytes`, and returns their length.
    async fn on_frames(self: &Rc<Self>, bytes: &[u8]) -> io::Result<usize> {
        let mut read = 0;
        loop {
            let rest = bytes.get(read..).unwrap_or_default();
            // A frame over the limit ends the channel, because the start of the one behind it
            // cannot be found.
            let announced = Frame::announced_len(rest).map_err(|error| {
                self.process.counters.frames_malformed.add_one();
                io::Error::other(error)
            });
            let Some(len) = announced? else {
                return Ok(read);
            };
            let end = FRAME_PREFIX_BYTES + len;
            let Some(frame) = rest.get(FRAME_PREFIX_BYTES..end) else {
                return Ok(read);
            };
            self.on_frame(frame).await?;
            read += end;
        }
    }

    async fn on_frame(self: &Rc<Self>, bytes: &[u8]) -> io::Result<()> {
        let at_ns = monotonic_ns();
        match Frame::decode(bytes) {
            Ok(Frame::HandOff(hand_off)) => {
                let arrived = Arrived {
                    hand_off,
                    channel: self.clone(),
                    at_ns,
                };
                // The import is over at once if the switch answers at once.
                let mut work = self.receiver.clone().import(arrived);
                if poll_once(work.as_mut()).await.is_pending() {
                    tokio::task::spawn_local(work);
                }
            }
            Ok(Frame::Ask { id }) => self.answer(id),
            Ok(
                verdict @ (Frame::Accepted { id, .. }
                | Frame::Refused { id, .. }
                | Frame::Unknown { id }
                | Frame::Heard { id }),
            ) => match self.verdicts.borrow_mut().remove(&id) {
                Some(waiting) => drop(waiting.send(verdict)),
                None => self.process.counters.verdicts_unexpected.add_one(),
            },
            Ok(Frame::Leaving { id }) => {
                let leavers = &self.process.leavers;
                let mut leaver = self.leaver.borrow_mut();
                leaver.get_or_insert_with(|| leavers.add(&self.peer));
                drop(leaver);
                self.receiver.on_leaving(&self.peer);
                self.send_verdict(&Frame::Heard { id });
            }
            Err(error) => {
                self.process.counters.frames_malformed.add_one();
                tracing::warn!(peer = self.peer, %error,
                    "a node sent a frame that cannot be decoded; compare the nodes' versions");
                let id = Frame::peek_hand_off_id(bytes).ok_or_else(|| io::Error::other(error))?;
                let reason = Refusal::Malformed;
                self.send_verdict(&Frame::Refused {
                    id,
                    reason,
                    pass: None,
                });
            }
        }
        Ok(())
    }

    /// Answers a source that asks for the outcome of its hand-off. There is no answer while the
    /// switch has not decided, so the source asks again.
    fn answer(self: &Rc<Self>, id: u64) {
        let frame = match self.process.given_up.ask(id) {
            Some(HandOffEnd::GivenUp(pass)) => Frame::Refused {
                id,
                reason: Refusal::SwitchFailed,
                pass: pass.filter(|_| self.has_passes),
            },
            Some(HandOffEnd::Unknown) => Frame::Unknown { id },
            None => return,
        };
        self.send_verdict(&frame);
    }
}

/// The reading or the writing half of a channel. Its end, also by a panic, closes the channel: an
/// open channel that is not read would swallow hand-offs.
struct Closing(Rc<Channel>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Waits for the socket, and reads into the room of `buffer`. `told` is the time of the last word
/// to the kernel that the channel goes both ways.
///
/// Frames are answered by frames, which carry the acknowledgements. After a rest of 40 ms (its
/// delay of an acknowledgement) the kernel takes a connection for a one-way stream. It then sends
/// an acknowledgement of its own within the read.
async fn read_some(
    tcp: &TcpStream,
    told: &mut Option<Instant>,
    buffer: &mut Vec<u8>,
) -> io::Result<usize> {
    receive(tcp, || {
        let now = Instant::now();
        if told.is_none_or(|told| now - told >= TWO_WAY_LASTS) {
            *told = Some(now);
            SockRef::from(tcp).set_tcp_quickack(false)?;
        }
        read_once(tcp, buffer)
    })
    .await
}

/// Drops the first `end` bytes, and wipes them and the old place of the others: frames carry the
/// secrets of clients' sessions.
fn consume(buffer: &mut Vec<u8>, end: usize) {
    let end = end.min(buffer.len());
    let rest = buffer.len() - end;
    buffer.copy_within(end.., 0);
    buffer.get_mut(rest..).unwrap_or_default().zeroize();
    buffer.truncate(rest);
    if rest == 0 {
        *buffer = Vec::new();
    }
}

/// Waits for one verdict; forgets it when dropped.
pub(crate) struct AwaitedVerdict {
    id: u64,
    channel: Weak<Channel>,
    receiver: oneshot::Receiver<Frame>,
}

impl AwaitedVerdict {
    /// The verdict, or `None` when the channel broke first.
    pub(crate) async fn wait(mut self) -> Option<Frame> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for AwaitedVerdict {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.verdicts.borrow_mut().remove(&self.id);
        }
    }
}
