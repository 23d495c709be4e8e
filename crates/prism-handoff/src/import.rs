//! Importing connections: who may be imported, and how an import ends. The driver of
//! `prism_proto::import` is in `driver`.

mod driver;
mod offer;
mod socket;
mod transit;

use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};

use prism_proto::node::{Frame, Refusal};
use tokio::sync::mpsc;

use crate::blanks::Blanks;
use crate::channel::{Arrived, FrameReceiver};
use crate::cost::{Costs, metered};
use crate::incoming::Incoming;
use crate::lifecycle::{Lifecycle, WorkerPhase};
use crate::peers::Peers;
use crate::trace::{Ended, HandOffStep, Part, Record};
use crate::worker::Worker;
use prism_common::supervise::caught;

use driver::{Refused, own_connection};
use transit::{onward, pass_on};

/// The largest number of imports that wait for the switch at once.
const MAX_IMPORTS: usize = 1024;

/// The imports of one worker.
pub(crate) struct Importer {
    pub(crate) worker: Rc<Worker>,
    pub(crate) peers: Weak<Peers>,
    pub(crate) lifecycle: Rc<Lifecycle>,
    pub(crate) incoming: mpsc::Sender<Incoming>,
    pub(crate) blanks: Rc<Blanks>,
}

impl FrameReceiver for Importer {
    fn import(self: Rc<Self>, arrived: Arrived) -> Pin<Box<dyn Future<Output = ()>>> {
        let Lifecycle {
            phase, importing, ..
        } = &*self.lifecycle;
        let refusal = match *phase.borrow() {
            WorkerPhase::Open if importing.get() < MAX_IMPORTS => None,
            WorkerPhase::Open => Some(Refusal::Busy),
            WorkerPhase::Leaving | WorkerPhase::Deaf => Some(Refusal::Unwilling),
        };
        if let Some(reason) = refusal {
            self.worker.counters.imports_refused.add_one();
            let id = arrived.hand_off.id;
            arrived.channel.send_verdict(&Frame::Refused {
                id,
                reason,
                pass: None,
            });
            return Box::pin(std::future::ready(()));
        }
        importing.set(importing.get() + 1);
        Box::pin(async move {
            let id = arrived.hand_off.id;
            let channel = arrived.channel.clone();
            // A panic ends this import and leaves the channel to others.
            let ended = caught(self.bring_home(arrived)).await;
            let importing = &self.lifecycle.importing;
            importing.set(importing.get() - 1);
            if let Err(panic) = ended {
                tracing::error!(
                    peer = channel.peer,
                    id,
                    panic,
                    "an import panicked; its source asks the switch"
                );
                channel.send_verdict(&Frame::Unknown { id });
            }
        })
    }

    fn on_leaving(&self, peer: &str) {
        if let Some(peers) = self.peers.upgrade() {
            peers.forget_relays(peer);
        }
    }
}

impl Importer {
    /// Restores the connection here, or passes it on.
    async fn bring_home(&self, arrived: Arrived) {
        let worker = &self.worker;
        if let Some(peers) = self.peers.upgrade()
            && let Some(channel) = onward(worker, &peers, &arrived).await
        {
            return pass_on(worker, &peers, arrived, channel).await;
        }
        self.settle_here(arrived).await;
    }

    /// Restores the connection here, and tells the source the verdict.
    async fn settle_here(&self, arrived: Arrived) {
        let worker = &self.worker;
        let hand_off = arrived.hand_off;
        let channel = arrived.channel;
        let id = hand_off.id;
        let client = hand_off.tcp.remote;
        let service = hand_off.tcp.service;
        let mut record = Record::new(Part::Target, id, client.port());
        record.mark_at(HandOffStep::Received, arrived.at_ns);
        let trace = &worker.process.trace;
        let context = trace.context_for_observer(&hand_off.context);
        let (owned, spent) = {
            let peer = channel.peer.as_str();
            let owning = own_connection(worker, &self.blanks, *hand_off, peer, &mut record);
            metered(Costs::is_sample(), pin!(owning)).await
        };
        let verdict = match owned {
            Ok(connection) => {
                worker.counters.imported.add_one();
                // The application takes it soon, because it only spawns a task.
                let _ = self.incoming.send(Incoming::Client(connection)).await;
                record.mark(HandOffStep::Live);
                let spent_ns = spent.map_or(0, |spent| spent.as_nanos());
                let spent_ns = u32::try_from(spent_ns).unwrap_or(u32::MAX);
                Frame::Accepted { id, spent_ns }
            }
            Err(Refused { reason, pass }) => {
                worker.counters.imports_refused.add_one();
                tracing::info!(%client, peer = channel.peer, ?reason, "hand-off refused");
                Frame::Refused { id, reason, pass }
            }
        };
        channel.send_verdict(&verdict);
        trace.push(&Ended {
            record: &record,
            peer: &channel.peer,
            context: &context,
            outcome: name_of(&verdict),
        });
        let blanks = self.blanks.clone();
        let of_worker = worker.clone();
        (worker.deferred).add(move || blanks.prepare(&of_worker.config, service));
    }
}

/// A verdict as observers get it.
const fn name_of(verdict: &Frame) -> &'static str {
    match verdict {
        Frame::Accepted { .. } => "accepted",
        Frame::Refused { .. } => "refused",
        _ => "unknown",
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
