//! The queue of a delay: packets in the order of their arrival, each for the same time. Pure;
//! the caller gives the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Waiting packets.
#[derive(Debug)]
pub(super) struct DelayQueue {
    delay: Duration,
    max_packets: usize,
    /// Each packet with the time at which it is due. All wait equally long, so the first is due
    /// first.
    waiting: VecDeque<(Instant, Vec<u8>)>,
}

impl DelayQueue {
    /// A queue of at most `max_packets`, each of which waits for `delay`.
    pub(super) fn new(delay: Duration, max_packets: usize) -> Self {
        Self {
            delay,
            max_packets,
            waiting: VecDeque::new(),
        }
    }

    /// Queues a packet that came at `now`. Returns false when there is no room.
    #[must_use]
    pub(super) fn push(&mut self, now: Instant, packet: &[u8]) -> bool {
        let has_room = self.waiting.len() < self.max_packets;
        if has_room {
            self.waiting.push_back((now + self.delay, packet.to_vec()));
        }
        has_room
    }

    /// The time from `now` until the next packet is due.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let (due, _) = self.waiting.front()?;
        Some(due.saturating_duration_since(now))
    }

    /// The next packet that is due at `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (_, packet) = self.waiting.pop_front_if(|(due, _)| *due <= now)?;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_packet_leaves_after_its_delay_and_not_before() {
        let (mut queue, start) = (DelayQueue::new(20 * MS, 8), Instant::now());
        assert!(queue.push(start, b"a") && queue.push(start + 5 * MS, b"b"));
        assert_eq!(queue.pause(start + 5 * MS), Some(15 * MS));
        assert_eq!(queue.pop(start + 20 * MS - Duration::from_nanos(1)), None);
        assert_eq!(queue.pop(start + 20 * MS), Some(b"a".to_vec()));
        assert_eq!(queue.pop(start + 20 * MS), None);
        assert_eq!(queue.pause(start + 20 * MS), Some(5 * MS));
        assert_eq!(queue.pop(start + 25 * MS), Some(b"b".to_vec()));
        assert_eq!(queue.pause(start + 25 * MS), None);
    }

    #[test]
    fn those_that_are_late_leave_at_once_and_in_their_order() {
        let (mut queue, start) = (DelayQueue::new(20 * MS, 8), Instant::now());
        for n in 0..5_u8 {
            assert!(queue.push(start + u32::from(n) * MS, &[n]));
        }
        let late = start + 100 * MS;
        assert_eq!(queue.pause(late), Some(Duration::ZERO));
        let left: Vec<_> = std::iter::from_fn(|| queue.pop(late)).collect();
        assert_eq!(left, [[0], [1], [2], [3], [4]]);
    }

    #[test]
    fn one_that_has_no_room_is_refused_until_another_has_left() {
        let (mut queue, start) = (DelayQueue::new(MS, 2), Instant::now());
        assert!(queue.push(start, b"a") && queue.push(start, b"b"));
        assert!(!queue.push(start, b"c"));
        assert!(queue.pop(start + MS).is_some());
        assert!(queue.push(start + MS, b"d"));
        assert_eq!(queue.pop(start + MS), Some(b"b".to_vec()));
    }
}
