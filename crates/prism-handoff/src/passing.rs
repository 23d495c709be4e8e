//! Connections that pass to another process of this host, or to another set of workers of this
//! process, together with their sockets. The client notices nothing: the socket stays the same.
//!
//! A worker parks a connection that waits for a request. Any worker can adopt a parked one, and
//! claims its flow again, because the switch has it by the run of the worker that parked it.
//!
//! Not here: the way to the other process (`prism`), and its order (`prism_proto::succession`).

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;

use prism_proto::control::FlowKey;
use prism_proto::newcomers::Bounds;
use prism_proto::node::TlsState;
use prism_proto::succession::ConnectionState as Saved;
use tokio::sync::mpsc;

use crate::buffers::Input;
use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::handle::Handle;
use crate::incoming::Incoming;
use crate::kernel_tx::KernelTx;
use crate::newcomers::Newcomer;
use crate::parking::Parked;
use crate::records::Records;
use crate::worker::Worker;

impl Handle {
    /// Parks a connection that waits for a request. Returns it if it cannot pass now.
    pub fn park(&self, mut connection: Connection) -> Option<Connection> {
        let is_settled = connection.is_settled().unwrap_or(false);
        let state = &connection.state;
        // A flow that waits for the switch's word gets it first.
        if !state.may_pass || !is_settled || state.settling.is_some() || !small_enough(&connection)
        {
            return Some(connection);
        }
        let saved = save(&mut connection)?;
        let socket = connection.stream.take().and_then(|stream| stream.into_fd());
        connection.state.count(false);
        if let Some(socket) = socket {
            let state = Box::new(saved);
            self.worker.process.parking.park(Parked::new(socket, state));
        }
        None
    }

    /// Has the listeners of this worker accept nobody, or accept again. Clients and nodes that
    /// connect meanwhile wait in the kernel.
    pub fn pause_accepting(&self, pauses: bool) {
        self.lifecycle.pauses.send_replace(pauses);
    }
}

/// Whether the state of a connection fits into a message, before the session is taken apart.
fn small_enough(connection: &Connection) -> bool {
    let state = &connection.state;
    let sealed = state.tls.as_ref().map(|tls| tls.sealed.unread().to_vec());
    let outline = Saved {
        tls: sealed.map(|sealed| TlsState {
            session: Vec::new().into(),
            sealed,
        }),
        ..outline(connection)
    };
    outline.fits()
}

fn outline(connection: &Connection) -> Saved {
    let state = &connection.state;
    Saved {
        flow: state.flow,
        local: state.local,
        epoch: state.epoch,
        confirmed: state.confirmed,
        since_ns: 0,
        moves: state.moves,
        origin: state.origin.clone(),
        is_newcomer: state.newcomer.is_some(),
        input: state.input.unread().to_vec(),
        output: state.output.clone(),
        tls: None,
        kernel: None,
        proxied: state.proxied,
    }
}

/// Ends the connection's session and claim here. `None` if the session is lost; the connection is
/// then closed.
fn save(connection: &mut Connection) -> Option<Saved> {
    let since_ns = connection.state.claimed.as_ref();
    let since_ns = since_ns.map_or(0, |claimed| claimed.since_ns());
    connection.state.end_claim();
    let records = connection.state.tls.take();
    let mut saved = Saved {
        since_ns,
        ..outline(connection)
    };
    if let Some(records) = records {
        let socket = connection.stream.as_ref()?.as_fd();
        match records.save(socket) {
            Ok((tls, kernel)) => {
                saved.tls = Some(tls);
                saved.kernel = kernel.map(|kernel| kernel.0);
            }
            Err(error) => {
                tracing::warn!(%error, client = %saved.flow.client,
                    "cannot save a TLS session; its connection is closed");
                return None;
            }
        }
    }
    Some(saved)
}

/// Adopts connections until dropped.
pub(crate) async fn adopt_arrivals(worker: &Rc<Worker>, incoming: &mpsc::Sender<Incoming>) {
    let parking = &worker.process.parking;
    loop {
        while let Some(parked) = parking.take_arrival() {
            let client = parked.state.flow.client;
            match adopt(worker, parked) {
                Ok(connection) => {
                    let _ = incoming.send(Incoming::Client(connection)).await;
                }
                Err(error) => {
                    tracing::error!(%client, %error, "a connection was lost in a take-over");
                }
            }
            // Other workers take their share.
            tokio::task::yield_now().await;
        }
        parking.arrival().await;
    }
}

fn adopt(worker: &Rc<Worker>, parked: Parked) -> io::Result<Connection> {
    let Parked {
        socket,
        state: saved,
        may_pass,
    } = parked;
    let saved = *saved;
    let FlowKey { client, vip } = saved.flow;
    let mut records = saved.tls.map(Records::restore).transpose();
    if let (Ok(Some(records)), Some(kernel)) = (&mut records, saved.kernel) {
        records.stay(KernelTx(kernel), socket.as_fd())?;
    }
    let mut state = ConnectionState::new(worker, client, vip, saved.local);
    state.tls = records.map_err(io::Error::other)?;
    state.input = Input::new(saved.input);
    state.output = saved.output;
    state.epoch = saved.epoch;
    state.confirmed = saved.confirmed;
    state.moves = saved.moves;
    state.origin = saved.origin;
    state.may_pass = may_pass;
    state.proxied = saved.proxied;
    if saved.is_newcomer {
        state.newcomer = newcomer_again(worker, state.counted_as());
    }
    state.claim_again(saved.since_ns);
    if let Some(closed) = &worker.closed_sockets {
        closed.unwatch(saved.local, state.flow);
    }
    Ok(Connection::new(socket, state))
}

/// An adopted newcomer has its time again. It enters above all bounds.
fn newcomer_again(worker: &Worker, address: IpAddr) -> Option<Newcomer> {
    let bounds = Bounds {
        per_address: u32::MAX,
        in_all: usize::MAX,
    };
    let timeout = worker.config.clients.newcomers_of(address).timeout;
    let entered = worker.process.clients.enter(address, bounds, timeout);
    entered.map(|newcomer| newcomer.counted(&worker.counters))
}
