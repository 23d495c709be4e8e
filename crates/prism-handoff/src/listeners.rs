//! The listeners of a process, which it may inherit from its predecessor and pass to its successor.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as Socket};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prism_sys::listen::listen_tcp;
use tokio::net::TcpListener;

/// The listeners of a process.
#[derive(Debug, Default)]
pub struct Listeners {
    inherited: Mutex<BTreeMap<SocketAddr, Share>>,
    open: Mutex<Vec<Weak<TcpListener>>>,
}

/// Inherited listeners of one address that no worker has taken yet.
#[derive(Debug)]
struct Share {
    sockets: Vec<Socket>,
    workers_left: usize,
}

impl Listeners {
    /// Gives the listeners of another process to this one, which has `workers` workers. Each
    /// listener has its own queue of clients, so none is left over, however many workers there are.
    pub fn inherit(&self, sockets: impl IntoIterator<Item = Socket>, workers: usize) {
        let mut inherited = self.inherited.lock();
        for socket in sockets {
            let Ok(address) = socket.local_addr() else {
                continue;
            };
            let share = inherited.entry(address).or_insert_with(|| Share {
                sockets: Vec::new(),
                workers_left: workers,
            });
            share.sockets.push(socket);
        }
    }

    /// Copies of the open listeners, for another process.
    ///
    /// # Errors
    /// The kernel's: no descriptor is left.
    pub fn copies(&self) -> io::Result<Vec<Socket>> {
        let open = self.open.lock();
        let open = open.iter().filter_map(Weak::upgrade);
        let copies = open.map(|listener| socket2::SockRef::from(&*listener).try_clone());
        copies.map(|copy| copy.map(Into::into)).collect()
    }

    /// The calling worker's listeners of `address`: its share of the inherited ones, or a new one.
    /// A new one tells clients to send segments of `segment_bytes` at most.
    pub(crate) fn open(
        &self,
        address: SocketAddr,
        segment_bytes: Option<u32>,
    ) -> io::Result<Vec<Arc<TcpListener>>> {
        let listen = || listen_tcp(address, segment_bytes).map_err(io::Error::other);
        let sockets = match self.take_share(address) {
            none if none.is_empty() => vec![listen()?],
            share => share,
        };
        let opened = sockets.into_iter().map(TcpListener::from_std);
        let opened = opened.map(|listener| listener.map(Arc::new));
        let opened = opened.collect::<io::Result<Vec<_>>>()?;
        let mut open = self.open.lock();
        open.retain(|listener| listener.strong_count() > 0);
        open.extend(opened.iter().map(Arc::downgrade));
        Ok(opened)
    }

    fn take_share(&self, address: SocketAddr) -> Vec<Socket> {
        let mut inherited = self.inherited.lock();
        let Some(share) = inherited.get_mut(&address) else {
            return Vec::new();
        };
        let count = share.sockets.len().div_ceil(share.workers_left.max(1));
        share.workers_left = share.workers_left.saturating_sub(1);
        share
            .sockets
            .drain(..count.min(share.sockets.len()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn inherited_listeners_are_shared_out_to_the_last_one() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            are_shared_out(address.parse().unwrap());
        }
    }

    fn are_shared_out(address: SocketAddr) {
        let first = listen_tcp(address, None).unwrap();
        let address = first.local_addr().unwrap();
        let more = || listen_tcp(address, None).unwrap();
        for (count, workers) in [(1, 1), (2, 1), (3, 2), (2, 3), (5, 2)] {
            let listeners = Listeners::default();
            listeners.inherit((0..count).map(|_| more()), workers);
            let shares = (0..workers).map(|_| listeners.take_share(address).len());
            let shares: Vec<_> = shares.collect();
            assert_eq!(shares.iter().sum::<usize>(), count, "{shares:?}");
            assert!(
                shares.iter().all(|n| *n <= count.div_ceil(workers)),
                "{shares:?}"
            );
        }
    }
}
