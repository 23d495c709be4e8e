//! One worker of a node: it accepts clients, imports and exports connections, and speaks to the
//! switch. All of it belongs to one thread. Workers share a [`Process`].

mod accept;
mod tasks;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::channel::ChannelParts;
use crate::config::EndpointConfig;
use crate::handle::Handle;
use crate::import::Importer;
use crate::incoming::Incoming;
use crate::lifecycle::Lifecycle;
use crate::peers::Peers;
use crate::process::Process;
use crate::worker::Worker;

use accept::Acceptor;
use tasks::spawn;

/// The largest number of connections and relay streams that wait for [`Endpoint::next`].
const MAX_WAITING: usize = 1024;

/// One worker of a node.
pub struct Endpoint {
    incoming: mpsc::Receiver<Incoming>,
    handle: Handle,
}

impl Endpoint {
    /// Binds the node port and, if the configuration says so, the service address, and starts the
    /// tasks of one worker. Workers of one process bind the same ports (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// The kernel's error: an address that is not this host's, a port that is taken, a missing
    /// privilege.
    ///
    /// # Panics
    /// Outside of a `LocalSet`.
    pub async fn bind(config: EndpointConfig, process: Arc<Process>) -> io::Result<Self> {
        let (incoming_tx, incoming) = mpsc::channel(MAX_WAITING);
        let worker = Worker::open(config, process)?;
        let lifecycle = Rc::<Lifecycle>::default();
        let peers = Rc::new_cyclic(|peers| {
            let importer = Importer {
                worker: worker.clone(),
                peers: peers.clone(),
                lifecycle: lifecycle.clone(),
                incoming: incoming_tx.clone(),
                blanks: Rc::default(),
            };
            let channel_parts = ChannelParts {
                process: worker.process.clone(),
                deferred: worker.deferred.clone(),
                receiver: Rc::new(importer),
            };
            let control = worker.control.clone();
            Peers::new(&worker.config, control, worker.spare.clone(), channel_parts)
        });
        let handle = Handle {
            worker,
            peers,
            lifecycle,
            intake: Rc::default(),
        };
        let acceptor = Acceptor {
            worker: handle.worker.clone(),
            peers: handle.peers.clone(),
            lifecycle: handle.lifecycle.clone(),
            incoming: incoming_tx,
        };
        spawn(&handle, acceptor)?;
        Ok(Self { incoming, handle })
    }

    /// The next client connection or relay stream; `None` after [`Handle::stop`].
    pub async fn next(&mut self) -> Option<Incoming> {
        tokio::select! {
            biased;
            next = self.incoming.recv() => next,
            () = self.handle.lifecycle.stopping.notified() => None,
        }
    }

    /// A handle for other tasks of this worker.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.handle.worker.deferred.finish();
    }
}
