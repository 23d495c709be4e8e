//! Copies of this worker's flows to the standby of a pair of switches. `prism_proto::copy` decides
//! what is copied and when. Each host of the pair has a task here, with a socket of its own, and
//! no command to the switch that decides waits for it.
//!
//! The switch's entry is what keeps packets from a socket that is moved without being frozen. A
//! worker that cannot freeze therefore copies nothing: after a take-over an outdated entry would
//! let them through.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_proto::control::{MESSAGE_BYTES, Term};
use prism_proto::copy::{Copier, Copy, DEADLINE_NS};
use prism_proto::export::Method;
use prism_proto::steering::{CommandId, Steering};
use prism_sys::clock::monotonic_ns;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::control::Control;
use crate::copy_backlog::HostBacklog;
use crate::process::Process;
use crate::signing::SigningKey;

/// The longest wait. A new term, and its end, are noticed by then.
const PAUSE: Duration = Duration::from_secs(1);

/// The copying of one worker's flows.
pub(crate) struct FlowCopies {
    pub(crate) control: Rc<Control>,
    pub(crate) process: Arc<Process>,
    /// How the node means to stop a connection's packets.
    pub(crate) method: Method,
}

impl FlowCopies {
    /// Copies the flows to the host number `index` of the pair, whenever it is the standby, until
    /// dropped.
    pub(crate) async fn copy_all(&self, index: usize) {
        let control = &self.control;
        let (Some(address), Some(host)) = (
            control.identity.switch.hosts.get(index),
            control.flows.copies.hosts.get(index),
        ) else {
            return std::future::pending().await;
        };
        // Copies under way ended with the former task.
        host.copier.replace(Copier::default());
        loop {
            match CopyLink::open(control, *address) {
                Ok(mut way) => way.copy(self, host).await,
                Err(error) => tracing::debug!(%address, %error, "cannot copy flows"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether this worker freezes the sockets of hand-offs.
    fn freezes(&self) -> bool {
        self.method == Method::Freeze && self.process.freezer().is_some()
    }
}

/// The way to one host.
struct CopyLink<'c> {
    control: &'c Control,
    socket: UdpSocket,
    keys: watch::Receiver<SigningKey>,
    steering: Steering,
    under_way: HashMap<CommandId, Copy>,
}

impl<'c> CopyLink<'c> {
    fn open(control: &'c Control, address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((control.identity.node, 0))?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            control,
            socket: UdpSocket::from_std(socket)?,
            keys: control.identity.switch.key.clone(),
            steering: control.identity.steering(),
            under_way: HashMap::new(),
        })
    }

    /// Copies until dropped.
    async fn copy(&mut self, copies: &FlowCopies, host: &HostBacklog) {
        loop {
            let has_heard = self.receive(host);
            let may_copy = copies.freezes()
                && self.control.term() != Term::NONE
                && !self.control.flows.is_young();
            if self.keys.has_changed().unwrap_or(false) {
                let SigningKey { key_id, key, .. } = self.keys.borrow_and_update().clone();
                self.steering.set_key(key_id, key);
            }
            if may_copy {
                self.start(host);
            }
            self.transmit();
            let flows = &self.control.flows;
            flows
                .copies
                .count_lag(&flows.registry.borrow(), &self.control.counters);
            if has_heard {
                // The other tasks of this worker come first.
                tokio::task::yield_now().await;
            } else {
                self.wait(host, may_copy).await;
            }
        }
    }

    /// Handles what has arrived, and what has not. Returns whether a copy has ended.
    fn receive(&mut self, host: &HostBacklog) -> bool {
        let now = monotonic_ns();
        let mut buffer = [0; MESSAGE_BYTES + 1];
        while let Ok(len) = self.socket.try_recv(&mut buffer) {
            let datagram = buffer.get(..len).unwrap_or_default();
            if let Err(error) = self.steering.handle_datagram(datagram, now) {
                tracing::debug!(%error, "datagram about a copy refused");
            }
        }
        self.steering.handle_timeout(now);
        let heard = self.steering.term();
        let mut copier = host.copier.borrow_mut();
        let mut has_ended = false;
        while let Some((id, outcome)) = self.steering.poll_finished() {
            if let Some(copy) = self.under_way.remove(&id) {
                copier.handle(&copy, heard, outcome, now);
                has_ended = true;
            }
        }
        if !copier.has_standby() && self.under_way.is_empty() && heard != Term::NONE {
            // A host that has lost its term may come back in a lesser one.
            self.steering = self.control.identity.steering();
        }
        has_ended
    }

    fn start(&mut self, host: &HostBacklog) {
        let now = monotonic_ns();
        let term = self.control.term();
        let registry = self.control.flows.registry.borrow();
        let mut copier = host.copier.borrow_mut();
        while let Some(copy) = copier.poll(&registry, term, now) {
            let until = now.saturating_add(DEADLINE_NS);
            let id = self.steering.start_in(term, copy.command, now, until);
            self.under_way.insert(id, copy);
            self.control.counters.flows_copied.add_one();
        }
    }

    /// Sends what is due. A datagram that the socket does not take is repeated like a lost one.
    fn transmit(&mut self) {
        let now = monotonic_ns();
        while let Some(datagram) = self.steering.poll_transmit(now) {
            if let Err(error) = self.socket.try_send(&datagram) {
                tracing::debug!(%error, "copy of a flow not sent");
            }
        }
    }

    /// Waits until there may be something to do.
    async fn wait(&self, host: &HostBacklog, may_copy: bool) {
        let next = host.copier.borrow().next_timeout_ns();
        let timers = [self.steering.next_timeout_ns(), next.filter(|_| may_copy)];
        let now = monotonic_ns();
        let waits = timers.into_iter().flatten();
        let waits = waits.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let wait = waits.min().map_or(PAUSE, |wait| wait.min(PAUSE));
        tokio::select! {
            _ = self.socket.readable() => {}
            () = host.changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}
