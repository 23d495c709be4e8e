//! A bad way to the switch: a relay of UDP datagrams that loses, doubles and reorders some of
//! them, or loses all of them, in both directions. Leases pass it unharmed, and wait while all
//! datagrams are lost.
//!
//! Nodes are told the relay's address in place of the switch's
//! ([`crate::LabSpec::configure_nodes`]). The relay passes their datagrams on to the switch,
//! with one socket for each worker of a node, and passes the answers back. It does not read the
//! datagrams.
//!
//! Call [`Impairment::start`] inside the relay's namespace: its threads stay there.

mod leases;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest datagram that is passed on whole; the control protocol has shorter ones.
const MAX_DATAGRAM_BYTES: usize = 2_048;
/// The most senders at a time, each with a thread; a lab has far fewer workers.
const MAX_SENDERS: usize = 256;
/// The longest wait of a thread for a datagram before it checks its other work.
const POLL: Duration = Duration::from_millis(20);
/// The most datagrams that overtake a late one ...
const MAX_OVERTAKERS: u64 = 3;
/// ... and the longest time that it waits for them.
const MAX_LATE: Duration = Duration::from_millis(3);

/// Rates of faults, per 1,000 datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub drop_permille: u16,
    /// Sent twice.
    pub duplicate_permille: u16,
    /// Sent after up to three later ones, or 3 ms late.
    pub reorder_permille: u16,
}

/// Counts of datagrams, both directions together.
#[derive(Debug, Default)]
pub struct Tally {
    passed: AtomicU64,
    dropped: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    blackholed: AtomicU64,
}

/// [`Tally`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallySnapshot {
    /// Passed on at once.
    pub passed: u64,
    /// Lost by chance.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent late.
    pub reordered: u64,
    /// Lost while the switch was out of reach.
    pub blackholed: u64,
}

/// A running relay. Dropping it ends it.
#[derive(Debug)]
pub struct Impairment {
    shared: Arc<ImpairedPath>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct ImpairedPath {
    listener: UdpSocket,
    switch: SocketAddr,
    faults: Mutex<Faults>,
    is_blackhole: AtomicBool,
    stop: AtomicBool,
    tally: Tally,
    seed: u64,
}

impl Impairment {
    /// Starts relaying between `listen` and `switch`, in the caller's namespace. The same
    /// `seed` gives the same decisions for the same order of datagrams.
    ///
    /// # Errors When `listen` cannot be bound, or a thread cannot be started.
    pub fn start(
        listen: SocketAddr,
        switch: SocketAddr,
        faults: Faults,
        seed: u64,
    ) -> io::Result<Self> {
        let listener = UdpSocket::bind(listen)?;
        listener.set_read_timeout(Some(POLL))?;
        let lease_listener = TcpListener::bind(listener.local_addr()?)?;
        lease_listener.set_nonblocking(true)?;
        let shared = Arc::new(ImpairedPath {
            listener,
            switch,
            faults: Mutex::new(faults),
            is_blackhole: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            tally: Tally::default(),
            seed,
        });
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work)
        };
        let datagrams = shared.clone();
        let leases = shared.clone();
        let threads = vec![
            start("impair", Box::new(move || datagrams.run()))?,
            start(
                "impair-leases",
                Box::new(move || leases::run(&leases, &lease_listener)),
            )?,
        ];
        Ok(Self { shared, threads })
    }

    /// Replaces the faults of later datagrams.
    pub fn set_faults(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// Loses all later datagrams and has leases wait, or no longer does.
    pub fn set_blackhole(&self, on: bool) {
        self.shared.is_blackhole.store(on, Ordering::Relaxed);
    }

    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> TallySnapshot {
        let tally = &self.shared.tally;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TallySnapshot {
            passed: read(&tally.passed),
            dropped: read(&tally.dropped),
            duplicated: read(&tally.duplicated),
            reordered: read(&tally.reordered),
            blackholed: read(&tally.blackholed),
        }
    }
}

impl Drop for Impairment {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The threads return nothing.
            let _ = thread.join();
        }
    }
}

impl ImpairedPath {
    /// Relays towards the switch for all senders. Answers have a thread each.
    fn run(self: Arc<Self>) {
        let mut ways: HashMap<SocketAddr, (Arc<UdpSocket>, OneWay)> = HashMap::new();
        let mut answering = Vec::new();
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        while !self.stop.load(Ordering::Relaxed) {
            let received = self.listener.recv_from(&mut buffer);
            for (upstream, way) in ways.values_mut() {
                way.flush_late(&mut |bytes| send(upstream, bytes));
            }
            let Ok((len, from)) = received else { continue };
            if !ways.contains_key(&from) && ways.len() < MAX_SENDERS {
                let number = ways.len() as u64;
                if let Ok((upstream, thread)) = self.clone().open(from, number) {
                    answering.push(thread);
                    ways.insert(from, (upstream, OneWay::new(self.seed, 2 * number)));
                }
            }
            if let Some((upstream, way)) = ways.get_mut(&from) {
                let bytes = buffer.get(..len).unwrap_or_default();
                way.pass(&self, bytes, &mut |bytes| send(upstream, bytes));
            }
            self.set_timeout(&self.listener, ways.values().any(|(_, way)| way.has_late()));
        }
        for thread in answering {
            let _ = thread.join();
        }
    }

    /// The socket that speaks to the switch for `from`, and the thread that returns its
    /// answers.
    fn open(
        self: Arc<Self>,
        from: SocketAddr,
        number: u64,
    ) -> io::Result<(Arc<UdpSocket>, JoinHandle<()>)> {
        let any = match self.switch {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let upstream = Arc::new(UdpSocket::bind(any)?);
        upstream.connect(self.switch)?;
        upstream.set_read_timeout(Some(POLL))?;
        let answers = upstream.clone();
        let thread = std::thread::Builder::new()
            .name(format!("impair-{number}"))
            .spawn(move || {
                self.bring_answers(&answers, from, OneWay::new(self.seed, 2 * number + 1))
            })?;
        Ok((upstream, thread))
    }

    fn bring_answers(&self, upstream: &UdpSocket, to: SocketAddr, mut way: OneWay) {
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        let mut deliver = |bytes: &[u8]| {
            // The sender may be gone.
            let _ = self.listener.send_to(bytes, to);
        };
        while !self.stop.load(Ordering::Relaxed) {
            let received = upstream.recv(&mut buffer);
            way.flush_late(&mut deliver);
            if let Ok(len) = received {
                let bytes = buffer.get(..len).unwrap_or_default();
                way.pass(self, bytes, &mut deliver);
            }
            self.set_timeout(upstream, way.has_late());
        }
    }

    fn set_timeout(&self, socket: &UdpSocket, has_late: bool) {
        let timeout = if has_late { MAX_LATE } else { POLL };
        // It fails only for a timeout of zero.
        let _ = socket.set_read_timeout(Some(timeout));
    }
}

fn send(upstream: &UdpSocket, bytes: &[u8]) {
    // An unreachable switch loses the datagram too.
    let _ = upstream.send(bytes);
}

/// The datagrams of one sender in one direction.
struct OneWay {
    random: SplitMix64,
    late: VecDeque<Late>,
}

struct Late {
    bytes: Vec<u8>,
    /// The number of datagrams that still overtake it.
    overtakers: u64,
    due: Instant,
}

impl OneWay {
    fn new(seed: u64, number: u64) -> Self {
        Self {
            random: SplitMix64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            late: VecDeque::new(),
        }
    }

    fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Decides on one datagram. It always draws three numbers, so that a change of one rate
    /// does not change the decisions of the others.
    fn pass(&mut self, shared: &ImpairedPath, bytes: &[u8], deliver: &mut impl FnMut(&[u8])) {
        let faults = *lock(&shared.faults);
        let is_lost = self.random.happens(faults.drop_permille);
        let is_doubled = self.random.happens(faults.duplicate_permille);
        let is_late = self.random.happens(faults.reorder_permille);
        let tally = &shared.tally;
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        if shared.is_blackhole.load(Ordering::Relaxed) {
            self.late.clear();
            count(&tally.blackholed);
            return;
        }
        if is_lost {
            count(&tally.dropped);
            return;
        }
        if is_doubled {
            count(&tally.duplicated);
            deliver(bytes);
        }
        if is_late {
            count(&tally.reordered);
            self.late.push_back(Late {
                bytes: bytes.to_vec(),
                overtakers: 1 + self.random.next() % MAX_OVERTAKERS,
                due: Instant::now() + MAX_LATE,
            });
            return;
        }
        count(&tally.passed);
        deliver(bytes);
        for late in &mut self.late {
            late.overtakers = late.overtakers.saturating_sub(1);
        }
        self.flush_late(deliver);
    }

    /// Sends the late datagrams that have waited, or been overtaken, long enough.
    fn flush_late(&mut self, deliver: &mut impl FnMut(&[u8])) {
        let now = Instant::now();
        self.late.retain(|late| {
            let is_due = late.overtakers == 0 || late.due <= now;
            if is_due {
                deliver(&late.bytes);
            }
            !is_due
        });
    }
}

/// A small generator whose sequence is fixed by its seed (Steele, Lea and
/// Flood, OOPSLA 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn happens(&mut self, permille: u16) -> bool {
        self.next() % 1_000 < u64::from(permille)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    const ROUNDS: u32 = 3_000;

    /// The numbers of datagrams that return through an echo.
    fn echoed(faults: Faults) -> (Vec<u32>, TallySnapshot) {
        let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
        let switch = echo.local_addr().unwrap();
        echo.set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let echoing = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((len, from)) = echo.recv_from(&mut buffer) {
                echo.send_to(buffer.get(..len).unwrap(), from).unwrap();
            }
        });
        let relay = Impairment::start("127.0.0.1:0".parse().unwrap(), switch, faults, 7).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .connect(relay.shared.listener.local_addr().unwrap())
            .unwrap();
        let mut seen = Vec::new();
        let take = |seen: &mut Vec<u32>, patience| {
            let mut buffer = [0; 4];
            client.set_read_timeout(Some(patience)).unwrap();
            while client.recv(&mut buffer).is_ok() {
                seen.push(u32::from_be_bytes(buffer));
                client
                    .set_read_timeout(Some(Duration::from_millis(1)))
                    .unwrap();
            }
        };
        for n in 0..ROUNDS {
            client.send(&n.to_be_bytes()).unwrap();
            if n % 50 == 49 {
                take(&mut seen, Duration::from_millis(10));
            }
        }
        take(&mut seen, Duration::from_millis(50));
        let tally = relay.tally();
        drop(relay);
        echoing.join().unwrap();
        (seen, tally)
    }

    #[test]
    fn without_faults_everything_arrives_once_and_in_order() {
        let (seen, tally) = echoed(Faults::default());
        assert_eq!(seen, (0..ROUNDS).collect::<Vec<_>>());
        assert_eq!(tally.passed, 2 * u64::from(ROUNDS));
    }

    #[test]
    fn faults_happen_as_often_as_asked_for() {
        let (seen, tally) = echoed(Faults {
            drop_permille: 20,
            duplicate_permille: 20,
            reorder_permille: 20,
        });
        // 6,000 draws at 2 %: 120 each, with a standard deviation of 11.
        for count in [tally.dropped, tally.duplicated, tally.reordered] {
            assert!((65..175).contains(&count), "{tally:?}");
        }
        let mut distinct = seen.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() < ROUNDS as usize && seen.len() > distinct.len());
        assert!(seen.windows(2).any(|pair| pair.first() > pair.last()));
    }

    #[test]
    fn a_blackhole_lets_nothing_through_until_it_ends() {
        let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let relay =
            Impairment::start(listen, echo.local_addr().unwrap(), Faults::default(), 1).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .connect(relay.shared.listener.local_addr().unwrap())
            .unwrap();
        echo.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        relay.set_blackhole(true);
        client.send(b"lost").unwrap();
        assert!(echo.recv(&mut [0; 8]).is_err());
        relay.set_blackhole(false);
        client.send(b"there").unwrap();
        assert_eq!(echo.recv(&mut [0; 8]).unwrap(), 5);
        assert_eq!(relay.tally().blackholed, 1);
    }
}
