//! The frames that are to leave on a channel. A frame waits until every ready task of the worker
//! has run, so that frames share a record, a system call and a wake-up at the peer.

use std::cell::{Cell, RefCell};

use tokio::sync::Notify;
use zeroize::Zeroize;

/// The capacity of a buffer that is kept after a large frame.
pub(super) const KEPT_BYTES: usize = 64 << 10;
/// Above this number of unsent bytes of replies, the channel is not read.
const MAX_REPLY_BYTES: usize = 256 << 10;
/// Above this number of unsent bytes, the peer counts as one that does not read.
const MAX_WAITING_BYTES: usize = 4 << 20;

#[derive(Default)]
pub(super) struct Outbox {
    /// The frames, one behind the other; they may hold secrets of clients' sessions.
    frames: RefCell<Vec<u8>>,
    /// The number of bytes in them that are replies.
    replies_bytes: Cell<usize>,
    is_due: Notify,
    is_empty: Notify,
}

impl Outbox {
    /// Adds a frame, which leaves with the next [`Self::send`].
    pub(super) fn add(&self, frame: &[u8]) {
        append(&mut self.frames.borrow_mut(), frame);
    }

    /// [`Self::add`] for a reply to the peer.
    pub(super) fn add_reply(&self, frame: &[u8]) {
        self.replies_bytes
            .set(self.replies_bytes.get() + frame.len());
        self.add(frame);
    }

    /// The peer has not read for a while, so a new frame would be late.
    pub(super) fn is_stuck(&self) -> bool {
        self.frames.borrow().len() > MAX_WAITING_BYTES
    }

    /// Sends all frames.
    pub(super) fn send(&self) {
        self.is_due.notify_one();
    }

    /// Waits for [`Self::send`]. The waiting task runs behind those that were ready before.
    pub(super) async fn is_to_be_sent(&self) {
        self.is_due.notified().await;
    }

    /// Gives all frames to `seal`, and wipes them.
    pub(super) fn empty<E>(&self, seal: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut frames = self.frames.borrow_mut();
        let sealed = seal(&frames);
        frames.as_mut_slice().zeroize();
        frames.clear();
        frames.shrink_to(KEPT_BYTES);
        if self.replies_bytes.take() > MAX_REPLY_BYTES {
            self.is_empty.notify_one();
        }
        sealed
    }

    /// Sends the frames for the last time, and lets the reader go on.
    pub(super) fn close(&self) {
        self.replies_bytes.set(0);
        self.is_empty.notify_one();
        self.send();
    }

    /// Waits while the peer does not read the replies that it has asked for.
    pub(super) async fn has_room(&self) {
        while self.replies_bytes.get() > MAX_REPLY_BYTES {
            self.is_empty.notified().await;
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.frames.get_mut().as_mut_slice().zeroize();
    }
}

/// Appends `bytes`, and wipes the old buffer if it has to grow.
pub(super) fn append(buffer: &mut Vec<u8>, bytes: &[u8]) {
    if buffer.capacity() - buffer.len() < bytes.len() {
        let mut larger = Vec::with_capacity(2 * (buffer.len() + bytes.len()));
        larger.extend_from_slice(buffer);
        std::mem::replace(buffer, larger).zeroize();
    }
    buffer.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::convert::Infallible;

    use super::*;

    fn taken(outbox: &Outbox) -> Vec<u8> {
        let mut taken = Vec::new();
        let keep = |frames: &[u8]| {
            taken.extend_from_slice(frames);
            Ok::<_, Infallible>(())
        };
        outbox.empty(keep).unwrap();
        taken
    }

    #[test]
    fn frames_leave_in_order_and_once() {
        let outbox = Outbox::default();
        outbox.add(b"one");
        outbox.add_reply(b"two");
        outbox.add(&[b'3'; KEPT_BYTES]);
        let all = taken(&outbox);
        assert!(all.starts_with(b"onetwo333") && all.len() == 6 + KEPT_BYTES);
        assert_eq!(taken(&outbox), b"");
        assert!(outbox.frames.borrow().capacity() <= KEPT_BYTES);
    }

    #[test]
    fn it_is_stuck_while_much_waits() {
        let outbox = Outbox::default();
        outbox.add(&vec![0; MAX_WAITING_BYTES]);
        assert!(!outbox.is_stuck());
        outbox.add(&[0]);
        assert!(outbox.is_stuck());
        taken(&outbox);
        assert!(!outbox.is_stuck());
    }

    #[test]
    fn what_is_not_sealed_is_gone_too() {
        let outbox = Outbox::default();
        outbox.add(b"secret");
        assert_eq!(outbox.empty(|_| Err(7)), Err(7));
        assert_eq!(taken(&outbox), b"");
    }

    #[tokio::test]
    async fn it_is_sent_when_the_tasks_before_have_run() {
        let local = tokio::task::LocalSet::new();
        let outbox = std::rc::Rc::new(Outbox::default());
        let sender = outbox.clone();
        let sent = local.spawn_local(async move {
            sender.is_to_be_sent().await;
            taken(&sender)
        });
        local
            .run_until(async {
                tokio::task::yield_now().await;
                for n in 0..5 {
                    let outbox = outbox.clone();
                    tokio::task::spawn_local(async move {
                        outbox.add(&[n]);
                        outbox.send();
                    });
                }
                assert_eq!(sent.await.unwrap(), [0, 1, 2, 3, 4]);
            })
            .await;
    }

    #[tokio::test]
    async fn replies_that_are_not_read_stop_the_reader() {
        let outbox = Outbox::default();
        outbox.add(&vec![0; 2 * MAX_REPLY_BYTES]);
        outbox.has_room().await;
        outbox.add_reply(&vec![0; MAX_REPLY_BYTES]);
        outbox.has_room().await;
        outbox.add_reply(&[0]);
        tokio::select! {
            biased;
            () = outbox.has_room() => panic!("there is room"),
            () = std::future::ready(()) => {}
        }
        taken(&outbox);
        outbox.has_room().await;
        outbox.add_reply(&vec![0; 2 * MAX_REPLY_BYTES]);
        outbox.close();
        outbox.has_room().await;
    }
}
