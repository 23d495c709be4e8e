//! Copies of this worker's flows to the standby of a pair of switches. `prism_proto::copy` decides
//! what is copied and when. Each host of the pair has a task here, with a socket of its own, and
//! no command to the switch that decides waits for it.
//!
//! The switch's entry is what keeps packets from a socket that is moved without being frozen. A
//! worker that cannot freeze therefore copies nothing: after a take-over an outdated entry would
//! let them through.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prism_proto::control::{FlowKey, MESSAGE_BYTES, Term};
use prism_proto::copy::{Copier, Copy, DEADLINE_NS};
use prism_proto::export::Method;
use prism_proto::steering::{CommandId, Steering};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};

use crate::control::{Control, now_ns};
use crate::endpoint::Shared;
use crate::signing::SigningKey;

/// The longest wait. A new term, and its end, are noticed by then.
const PAUSE: Duration = Duration::from_secs(1);

/// The copies of one worker's flows.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// For each host of the pair.
    hosts: Vec<CopyTarget>,
    /// The part of this worker in the gauge.
    lag: Cell<u64>,
}

#[derive(Debug, Default)]
struct CopyTarget {
    copier: RefCell<Copier>,
    changed: Notify,
}

impl Copies {
    pub(crate) fn new(hosts: usize) -> Self {
        let hosts = std::iter::repeat_with(CopyTarget::default).take(hosts);
        Self {
            hosts: hosts.collect(),
            lag: Cell::new(0),
        }
    }

    /// The registry has a new state of `flow`.
    pub(crate) fn touch(&self, flow: FlowKey) {
        self.each(|copier| copier.touch(flow));
    }

    /// The flow has ended, and was released at `epoch`.
    pub(crate) fn release(&self, flow: FlowKey, epoch: u64) {
        self.each(|copier| copier.release(flow, epoch));
    }

    fn each(&self, change: impl Fn(&mut Copier)) {
        for host in &self.hosts {
            let mut copier = host.copier.borrow_mut();
            if copier.has_standby() {
                change(&mut copier);
                host.changed.notify_one();
            }
        }
    }
}

impl Control {
    /// Counts the flows that the standby lacks; without one, all.
    fn count_uncopied(&self) {
        let registry = self.flows.registry.borrow();
        let hosts = self.copies.hosts.iter();
        let lag = hosts.map(|host| host.copier.borrow().lag(&registry)).min();
        let lag = lag.unwrap_or(0) as u64;
        let former = self.copies.lag.replace(lag);
        let gauge = &self.counters.flows_uncopied;
        gauge.add(lag.saturating_sub(former));
        gauge.sub(former.saturating_sub(lag));
    }
}

/// Copies the flows of this worker to the host number `index` of the pair, whenever it is the
/// standby, until dropped.
pub(crate) async fn copy_all(shared: &Shared, index: usize) {
    let Some(control) = &shared.control else {
        return std::future::pending().await;
    };
    let (Some(address), Some(host)) = (
        control.holder.switch.hosts.get(index),
        control.copies.hosts.get(index),
    ) else {
        return std::future::pending().await;
    };
    // Copies under way ended with the former task.
    host.copier.replace(Copier::default());
    loop {
        match CopyLink::open(control, *address) {
            Ok(mut way) => way.copy(shared, host).await,
            Err(error) => tracing::debug!(%address, %error, "cannot copy flows"),
        }
        tokio::time::sleep(PAUSE).await;
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
        let socket = std::net::UdpSocket::bind((control.holder.node, 0))?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            control,
            socket: UdpSocket::from_std(socket)?,
            keys: control.holder.switch.key.clone(),
            steering: steering(control),
            under_way: HashMap::new(),
        })
    }

    /// Copies until dropped.
    async fn copy(&mut self, shared: &Shared, host: &CopyTarget) {
        loop {
            let has_heard = self.receive(host);
            let may_copy = shared.method() == Method::Freeze
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
            self.control.count_uncopied();
            match has_heard {
                // The other tasks of this worker come first.
                true => tokio::task::yield_now().await,
                false => self.wait(host, may_copy).await,
            }
        }
    }

    /// Handles what has arrived, and what has not. Returns whether a copy has ended.
    fn receive(&mut self, host: &CopyTarget) -> bool {
        let now = now_ns();
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
            self.steering = steering(self.control);
        }
        has_ended
    }

    fn start(&mut self, host: &CopyTarget) {
        let now = now_ns();
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
        let now = now_ns();
        while let Some(datagram) = self.steering.poll_transmit(now) {
            if let Err(error) = self.socket.try_send(&datagram) {
                tracing::debug!(%error, "copy of a flow not sent");
            }
        }
    }

    /// Waits until there may be something to do.
    async fn wait(&self, host: &CopyTarget, may_copy: bool) {
        let next = host.copier.borrow().next_timeout_ns();
        let timers = [self.steering.next_timeout_ns(), next.filter(|_| may_copy)];
        let now = now_ns();
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

fn steering(control: &Control) -> Steering {
    let switch = &control.holder.switch;
    let run = control.holder.run;
    let SigningKey { key_id, key, .. } = switch.signing_key();
    Steering::new(key_id, key, fastrand::u64(..)).of_run(run)
}
