//! A predecessor with a store, once the store is closed. It has no workers: connections wait in it
//! until the successor is ready, or until it serves again itself.

use std::io;

use prism_config::Config;
use prism_process::Stops;
use prism_proto::succession::{Action, Event};

use super::Inheritance;
use super::predecessor::{ANSWERED_IN, Estate, READY_IN};

impl Estate {
    /// Goes on where [`super::PassedOn::Closing`] has ended, now that the store is closed. Returns
    /// what this process needs to serve again, if the successor has failed: its present
    /// configuration, and its sockets. It also serves again to stop in order.
    ///
    /// # Errors
    /// The kernel's, of a runtime.
    pub(crate) fn settle(mut self, mut stops: Stops) -> io::Result<Option<(Config, Inheritance)>> {
        let runtime = prism_common::runtime()?;
        if !runtime.block_on(self.pass_all(&mut stops))? {
            self.end();
            return Ok(None);
        }
        tracing::error!("the successor has failed; this process opens its store again");
        let parking = &self.process.parking;
        let remaining = std::iter::from_fn(|| parking.take().or_else(|| parking.take_arrival()));
        let again = Inheritance {
            parked: remaining.collect(),
            listeners: self.listeners,
            admin: Some(self.admin),
            stops: Some(stops),
            link: None,
        };
        Ok(Some(((*self.config.now()).clone(), again)))
    }

    /// Passes all connections to the successor once it is ready. Whether this process is to serve
    /// again instead.
    async fn pass_all(&mut self, stops: &mut Stops) -> io::Result<bool> {
        let watched = self.link.watched()?;
        let mut action = self.machine.handle(Event::Closed);
        let mut is_ready = false;
        let mut is_asked = false;
        loop {
            match action {
                Action::Start => self.start(),
                // It serves, because its message was under way when the link ended.
                Action::Pass if is_asked => return Ok(false),
                Action::Pass => is_ready = true,
                Action::GoOn(unanswered) => {
                    self.take_back(unanswered);
                    return Ok(true);
                }
                Action::End => return Ok(false),
                action => self.follow(&action),
            }
            self.send_some();
            let is_all_gone = self.sent.is_empty() && self.process.parking.is_empty();
            let limit = match self.machine.unanswered() {
                0 => READY_IN,
                _ => ANSWERED_IN,
            };
            action = match is_all_gone.then(|| self.machine.handle(Event::AllGone)) {
                Some(Action::End) => Action::End,
                _ => tokio::select! {
                    event = self.event(&watched, limit) => self.machine.handle(event),
                    // A successor that serves gets everything first.
                    () = stops.asked(), if !is_ready && !is_asked => {
                        self.link.hang_up();
                        is_asked = true;
                        Action::Wait
                    }
                },
            };
        }
    }
}
