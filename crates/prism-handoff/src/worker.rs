//! The parts of one worker that its connections use: buffers, deferred work, and the way to the
//! switch. All of it belongs to one thread.
//!
//! Not here: how connections come and go (`endpoint`).

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prism_proto::export::Method;
use prism_sys::tcp::Freezer;
use prism_sys::tcp::ktls::Offered;

use crate::buffers::Spare;
use crate::claims::Claims;
use crate::closed_sockets::ClosedSockets;
use crate::config::EndpointConfig;
use crate::control::Control;
use crate::counters::Counters;
use crate::deferred::DeferredWork;
use crate::identity::WorkerIdentity;
use crate::process::Process;

/// The parts of one worker.
pub(crate) struct Worker {
    pub(crate) config: EndpointConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) process: Arc<Process>,
    pub(crate) control: Option<Rc<Control>>,
    pub(crate) closed_sockets: Option<Rc<ClosedSockets>>,
    pub(crate) claims: Rc<Claims>,
    pub(crate) deferred: Rc<DeferredWork>,
    pub(crate) spare: Rc<Spare>,
}

impl Worker {
    /// The parts of a new worker, which opens its sockets to the switch.
    pub(crate) fn open(config: EndpointConfig, process: Arc<Process>) -> io::Result<Rc<Self>> {
        let mut control = None;
        let mut closed_sockets = None;
        if let Some(switch) = &config.switch {
            let identity = WorkerIdentity::new(&config.addresses, config.placement, switch)?;
            let opened = Control::open(identity, &process)?;
            closed_sockets = Some(ClosedSockets::new(opened.clone())?);
            control = Some(opened);
            process.prepare(config.carry_window);
            process.runs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Rc::new(Self {
            config,
            counters: process.counters.clone(),
            process,
            control,
            closed_sockets,
            claims: Rc::default(),
            deferred: Rc::default(),
            spare: Rc::default(),
        }))
    }

    /// How a connection's packets are stopped during a hand-off.
    pub(crate) fn method(&self) -> Method {
        match self.freezer() {
            Some(_) => self.config.method,
            None => Method::TwoPhase,
        }
    }

    /// The freezer, if this host has one.
    pub(crate) fn freezer(&self) -> Option<&Freezer> {
        self.control.as_ref()?;
        self.process.freezer()
    }

    /// The TLS versions and ciphers that the kernel may seal with. Leaving a socket whose kernel
    /// has the key takes the switch, so there must be one.
    pub(crate) fn kernel_tls(&self) -> Option<&Offered> {
        let control = self.control.as_ref()?;
        let offered = self.config.tls.as_ref()?.kernel.as_ref()?;
        control.is_reachable().then_some(offered)
    }

    /// Whether one more client connection is within the bounds.
    pub(crate) fn has_room(&self) -> bool {
        self.counters.connections_open.read() < self.config.clients.connections()
    }
}
