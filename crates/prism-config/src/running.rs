//! The configuration of a process that runs. A reload replaces it as a whole.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::model::Config;
use crate::service::Service;

/// The present configuration of a process.
#[derive(Debug)]
pub struct Running<S = Service> {
    config: RwLock<Arc<Config<S>>>,
    /// Raised by each replacement.
    version: AtomicU64,
}

impl<S> Running<S> {
    /// A process with this configuration.
    pub fn new(config: Config<S>) -> Self {
        Self {
            config: RwLock::new(Arc::new(config)),
            version: AtomicU64::new(0),
        }
    }

    /// The present configuration. Requests use [`Running::of_thread`] instead, which takes no lock.
    pub fn now(&self) -> Arc<Config<S>> {
        self.config.read().clone()
    }

    /// Replaces the configuration.
    pub fn replace(&self, config: Config<S>) {
        let mut present = self.config.write();
        *present = Arc::new(config);
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Running {
    /// The configuration for the calling thread.
    pub fn of_thread(self: &Arc<Self>) -> RunningOfThread {
        // The version is older than the configuration, never newer.
        let seen = self.version.load(Ordering::Acquire);
        RunningOfThread {
            seen: Cell::new(seen),
            config: RefCell::new(Rc::new((*self.now()).clone())),
            running: self.clone(),
        }
    }
}

/// The present configuration with a copy for one thread. A look at it costs one load.
#[derive(Debug)]
pub struct RunningOfThread {
    running: Arc<Running>,
    seen: Cell<u64>,
    config: RefCell<Rc<Config>>,
}

impl RunningOfThread {
    /// The present configuration.
    pub fn now(&self) -> Rc<Config> {
        let version = self.running.version.load(Ordering::Acquire);
        if version != self.seen.get() {
            self.seen.set(version);
            self.config.replace(Rc::new((*self.running.now()).clone()));
        }
        self.config.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sees_a_replacement() {
        let running = Arc::new(Running::new(Config::<Service>::default()));
        let of_thread = running.of_thread();
        let mut other = Config::<Service>::default();
        other.limits.connections = 7;
        assert!(Rc::ptr_eq(&of_thread.now(), &of_thread.now()));
        running.replace(other.clone());
        assert_eq!(*of_thread.now(), other);
        assert_eq!(*running.now(), other);
    }
}
