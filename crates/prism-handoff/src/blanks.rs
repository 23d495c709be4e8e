//! Sockets for imports, which a worker prepares while no client waits.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

use prism_sys::tcp::{Blank, RestoreError};

use crate::config::EndpointConfig;

/// The number of sockets that each worker prepares for imports.
const BLANKS: usize = 8;
/// The local ports of imported connections, below Linux's default ephemeral range.
pub const LOCAL_PORTS: std::ops::Range<u16> = 20_000..30_000;
/// The MSS clamp of a handshake over Ethernet.
const USUAL_MSS_BYTES: u16 = 1460;

/// The sockets that one worker has prepared.
pub(crate) struct Blanks {
    ready: RefCell<Vec<Blank>>,
    /// The MSS clamp of the last import.
    usual_mss_bytes: Cell<u16>,
}

impl Default for Blanks {
    fn default() -> Self {
        Self {
            ready: RefCell::default(),
            usual_mss_bytes: Cell::new(USUAL_MSS_BYTES),
        }
    }
}

impl Blanks {
    /// A prepared socket for an import with `service`.
    pub(crate) fn take(
        &self,
        config: &EndpointConfig,
        service: SocketAddr,
        mss_clamp_bytes: u16,
    ) -> Result<Blank, RestoreError> {
        self.usual_mss_bytes.set(mss_clamp_bytes);
        let mut ready = self.ready.borrow_mut();
        match ready.iter().rposition(|blank| fits(config, blank, service)) {
            Some(at) => Ok(ready.swap_remove(at)),
            None => self.new_blank(config, service),
        }
    }

    /// Prepares sockets for imports with `service`, while no client waits.
    pub(crate) fn prepare(&self, config: &EndpointConfig, service: SocketAddr) {
        let mut ready = self.ready.borrow_mut();
        let fitting = ready.iter().filter(|blank| fits(config, blank, service));
        for _ in fitting.count()..BLANKS {
            match self.new_blank(config, service) {
                Ok(blank) => ready.push(blank),
                // The import that needs the socket reports the error.
                Err(_) => return,
            }
        }
    }

    /// A socket for an import. At a listener, and in host mode, it has the service's own address.
    /// Elsewhere the switch rewrites the address, and each connection gets a random port. It then
    /// meets neither its own remains when it comes back, nor a predecessor in TIME_WAIT.
    fn new_blank(
        &self,
        config: &EndpointConfig,
        service: SocketAddr,
    ) -> Result<Blank, RestoreError> {
        let local = if config.has_service_address() {
            service
        } else {
            let own = config.address_for(service.ip());
            let own = own.ok_or(RestoreError::NotLocal(service))?;
            SocketAddr::new(own, fastrand::u16(LOCAL_PORTS))
        };
        Blank::new(local, self.usual_mss_bytes.get())
    }
}

fn fits(config: &EndpointConfig, blank: &Blank, service: SocketAddr) -> bool {
    if config.has_service_address() {
        blank.bound() == service
    } else {
        blank.bound().is_ipv4() == service.is_ipv4()
    }
}
