//! The tasks of a worker.

use std::io;
use std::rc::Rc;

use prism_common::supervise::keep;

use super::accept::{Acceptor, ClientListener};
use crate::announcements::announce_all;
use crate::copies::FlowCopies;
use crate::handle::Handle;
use crate::lease::Leaseholder;
use crate::passing::adopt_arrivals;
use crate::worker::Worker;

/// Binds the listeners, and starts the tasks of the worker.
pub(super) fn spawn(handle: &Handle, acceptor: Acceptor) -> io::Result<()> {
    let worker = &handle.worker;
    let clients = acceptor.client_listeners()?;
    let acceptor = Rc::new(acceptor);
    accept_nodes(&acceptor)?;
    acceptor.lifecycle.listeners.send_replace(clients.len());
    speak_to_switch(handle);
    release_closed_sockets(worker);
    let adopter = worker.clone();
    let incoming = acceptor.incoming.clone();
    keep("adopting connections", async move || {
        adopt_arrivals(&adopter, &incoming).await
    });
    let deferred = worker.deferred.clone();
    keep("deferred", async move || deferred.run().await);
    for listener in clients {
        accept_clients(&acceptor, listener);
    }
    Ok(())
}

fn accept_nodes(acceptor: &Rc<Acceptor>) -> io::Result<()> {
    let worker = &acceptor.worker;
    let config = &worker.config;
    let Some(identity) = &config.identity else {
        return Ok(());
    };
    for address in &config.addresses {
        let address = (*address, config.peer_port).into();
        for listener in worker.process.listeners.open(address, None)? {
            let acceptor = acceptor.clone();
            let identity = identity.clone();
            keep("accepting nodes", async move || {
                acceptor.accept_nodes(&listener, &identity).await;
            });
        }
    }
    Ok(())
}

fn accept_clients(acceptor: &Rc<Acceptor>, listener: ClientListener) {
    let acceptor = acceptor.clone();
    let mut listener = Some(listener);
    keep("accepting clients", async move || {
        if let Some(open) = &listener {
            acceptor.accept_clients(open).await;
        }
        listener = None;
        let close_one = |open: &mut usize| *open = open.saturating_sub(1);
        acceptor.lifecycle.listeners.send_modify(close_one);
    });
}

/// The tasks that speak to the switch and to its agent, if there is a switch.
fn speak_to_switch(handle: &Handle) {
    let worker = &handle.worker;
    let Some(control) = &worker.control else {
        return;
    };
    let commands = control.clone();
    keep("commands to the switch", async move || commands.run().await);
    let signer = control.clone();
    keep("the node's key", async move || signer.follow_key().await);
    let clock = control.clone();
    keep("the switch's clock", async move || {
        clock.refresh_clock().await
    });
    let leased = Leaseholder {
        control: control.clone(),
        intake: handle.intake.clone(),
        process: worker.process.clone(),
    };
    let further = leased.clone();
    keep("the lease", async move || leased.keep().await);
    keep("the lease for new clients", async move || {
        further.take_again().await;
    });
    let claims = worker.claims.clone();
    let claimer = control.clone();
    keep("claims", async move || claims.run(&claimer).await);
    let unclaimed = worker.claims.clone();
    let announcer = control.clone();
    keep("announcements", async move || {
        announce_all(&announcer, &unclaimed).await;
    });
    for index in 0..control.identity.switch.hosts.len() {
        let copies = FlowCopies {
            control: control.clone(),
            process: worker.process.clone(),
            method: worker.config.method,
        };
        keep("copies of flows", async move || {
            copies.copy_all(index).await;
        });
    }
    if worker.process.is_first_to_watch() {
        let process = worker.process.clone();
        keep("the freezer", async move || process.watch_freezer().await);
    }
}

fn release_closed_sockets(worker: &Worker) {
    if let Some(closed_sockets) = worker.closed_sockets.clone() {
        let watching = closed_sockets.clone();
        keep("closed sockets", async move || watching.run().await);
        keep("releases", async move || closed_sockets.release_all().await);
    }
}
