//! Messages to the service manager that started this process, by the protocol of
//! sd_notify(3): datagrams to the socket that `NOTIFY_SOCKET` names. Without that variable
//! nothing is sent.
//!
//! Not here: when a process is ready or alive. Its main loop says so.

mod watchdog;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use self::watchdog::{Beat, Reporter, Watchdog};

/// The sender of messages to the service manager. Its copies are the same sender.
#[derive(Clone)]
pub struct Notifier {
    /// `None` without a service manager that wants messages.
    target: Option<Arc<NotifySocket>>,
    /// The longest time between two messages [`Notifier::alive`]; `None` if none are wanted.
    limit: Option<Duration>,
    /// The bit of the service that it speaks for, among those of its process.
    service: u64,
    services: Arc<Services>,
}

/// The state of the services of one process, a bit for each.
#[derive(Default)]
struct Services {
    all: u64,
    ready: AtomicU64,
    /// The ones that have said so since the last message.
    alive: AtomicU64,
}

struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notifier {
    /// The sender that the variables `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` of this
    /// process name. A socket that cannot be used is logged, and nothing is sent.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let target = variable("NOTIFY_SOCKET").and_then(|name| match NotifySocket::open(&name) {
            Ok(target) => Some(Arc::new(target)),
            Err(error) => {
                tracing::warn!(?name, %error, "cannot use NOTIFY_SOCKET; the service manager gets no messages");
                None
            }
        });
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        // A process that was started by the service does not answer for it.
        let is_meant =
            number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|micros| is_meant && *micros > 0);
        Self {
            limit: limit
                .map(Duration::from_micros)
                .filter(|_| target.is_some()),
            target,
            service: 1,
            services: Arc::new(Services {
                all: 1,
                ..Services::default()
            }),
        }
    }

    /// Senders for the services of this process. It is ready, and alive, when all of them are.
    pub fn of_services(&self, count: usize) -> Vec<Self> {
        let bits = (0..u64::BITS).map(|bit| 1_u64 << bit).take(count);
        let services = Arc::new(Services {
            all: bits.clone().sum(),
            ..Services::default()
        });
        let senders = bits.map(|service| Self {
            service,
            services: services.clone(),
            ..self.clone()
        });
        senders.collect()
    }

    /// Sets this service's bit. Whether all have theirs.
    fn completes(&self, bits: &AtomicU64) -> bool {
        bits.fetch_or(self.service, Ordering::Relaxed) | self.service == self.services.all
    }

    /// The service takes requests. Also the end of [`Notifier::reloading`].
    pub fn ready(&self) {
        if self.completes(&self.services.ready) {
            self.send("READY=1");
        }
    }

    /// The service takes requests, and this process is the service from now on.
    pub fn ready_as_successor(&self) {
        if self.completes(&self.services.ready) {
            self.send(&format!("READY=1\nMAINPID={}", std::process::id()));
        }
    }

    /// The service reads its files again.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The service ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// The service goes on. The service manager restarts a service that does not say so in time.
    fn alive(&self) {
        if self.completes(&self.services.alive) {
            self.services.alive.store(0, Ordering::Relaxed);
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        let Some(target) = &self.target else { return };
        if let Err(error) = target.send(message.as_bytes()) {
            tracing::warn!(message, %error, "cannot send a message to the service manager");
        }
    }
}

impl NotifySocket {
    /// A path, or `@` and a name of the abstract namespace.
    fn open(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not stop the service.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to_addr(message, &self.address).map(|_| ())
    }
}

#[cfg(test)]
#[path = "notify/notify_tests.rs"]
mod tests;
