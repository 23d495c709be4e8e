//! The driver of `prism_proto::import`: restores a connection and makes this node its owner at the
//! switch.

use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use prism_proto::control::{FlowKey, Pass};
use prism_proto::fence::Fence;
use prism_proto::import::{Action, Event, Import};
use prism_proto::node::{HandOff, Refusal};
use prism_proto::steering::Command;

use super::offer::{check_absence, check_offer, make_room};
use super::socket::{Built, go_live, restore_socket, wait_silently};
use crate::blanks::Blanks;
use crate::connection::Connection;
use crate::control::Control;
use crate::given_up::Undecided;
use crate::permits::{flow_of, pass_back};
use crate::poll::poll_once;
use crate::records::Records;
use crate::trace::{HandOffStep, Record};
use crate::worker::Worker;

/// A refusal of a hand-off.
pub(super) struct Refused {
    pub(super) reason: Refusal,
    /// For the source, if the switch may have the flow as this node's. No other refusal has one: a
    /// peer could collect them for flows that come here later.
    pub(super) pass: Option<Pass>,
}

impl From<Refusal> for Refused {
    fn from(reason: Refusal) -> Self {
        Self { reason, pass: None }
    }
}

/// Restores the connection and makes this node its owner at the switch.
pub(super) async fn own_connection(
    worker: &Rc<Worker>,
    blanks: &Blanks,
    mut hand_off: HandOff,
    peer: &str,
    record: &mut Record,
) -> Result<Connection, Refused> {
    let control = check_offer(worker, &hand_off)?;
    let records = restore_records(&mut hand_off)?;
    let flow = flow_of(&hand_off);
    check_absence(worker, control, &flow, hand_off.epoch, peer).await?;
    let permit = hand_off.permit.map(|permit| permit.pass);
    // A hand-off without a pass needs a void one, unless all nodes share the key.
    let needs_pass = control.identity.switch.key.borrow().is_own;
    make_room(worker, &flow, hand_off.epoch);
    let (machine, mut action) = Import::start(worker.config.fence, flow, hand_off.epoch);
    let mut driver = Driver {
        announced: AnnouncedFlow {
            control,
            flow,
            epoch: None,
        },
        undecided: None,
        socket: None,
        worker,
        blanks,
        control,
        hand_off,
        permit,
        pass: permit.or(needs_pass.then_some(Pass::VOID)),
        machine,
        record,
    };
    loop {
        let event = match action {
            Action::Restore { is_mute } => driver.restore(is_mute),
            Action::Steer {
                command,
                deadline_ns,
            } => driver.steer(command, deadline_ns).await,
            Action::GoLive => return driver.go_live(records),
            // Dropping the restored socket closes it silently.
            Action::Refuse(why) => return Err(why.into()),
            Action::GiveUp(why) => return Err(driver.give_up(why)),
        };
        action = driver.machine.handle(event);
    }
}

/// An import while the switch has not decided. Its fields are dropped in this order.
struct Driver<'i> {
    announced: AnnouncedFlow<'i>,
    /// `Some` once the switch has not answered at once.
    undecided: Option<Undecided>,
    socket: Option<Built>,
    worker: &'i Rc<Worker>,
    blanks: &'i Blanks,
    control: &'i Rc<Control>,
    hand_off: HandOff,
    /// The pass that came with the hand-off.
    permit: Option<Pass>,
    /// The pass of the commands.
    pass: Option<Pass>,
    machine: Import,
    record: &'i mut Record,
}

impl Driver<'_> {
    fn restore(&mut self, is_mute: bool) -> Event {
        match restore_socket(self.worker, self.blanks, &self.hand_off, is_mute) {
            Ok(built) => {
                self.record.mark(HandOffStep::Restored);
                let owner = self.worker.config.owner(built.local);
                self.socket = Some(built);
                Event::Restored(owner)
            }
            Err(error) => {
                tracing::warn!(%error, client = %self.hand_off.tcp.remote,
                    "cannot build the socket of a hand-off; it is refused");
                Event::RestoreFailed
            }
        }
    }

    async fn steer(&mut self, command: Command, deadline_ns: u64) -> Event {
        let control = self.control;
        let mut call = pin!(control.call(self.pass, command, deadline_ns));
        let outcome = match poll_once(call.as_mut()).await {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                if self.undecided.is_none() {
                    self.wait_undecided(&command);
                }
                call.await
            }
        };
        let noted = control.note(outcome, command.owner);
        if let (Some(epoch), Some(pass)) = (noted, self.permit) {
            let flow = self.announced.flow;
            control.flows.keep_pass(flow, epoch, pass);
        }
        self.announced.epoch = noted.or(self.announced.epoch);
        self.record.mark(HandOffStep::Owned);
        Event::Steered(outcome)
    }

    /// The switch does not answer at once. Until it does, the source may ask for the outcome.
    fn wait_undecided(&mut self, command: &Command) {
        let is_deaf = wait_silently(self.worker, self.socket.as_mut());
        if !is_deaf && self.worker.config.fence == Fence::Switch {
            self.machine.must_insist();
            self.announced.insist(command, self.permit);
        }
        self.undecided = Some(self.await_switch());
    }

    fn await_switch(&self) -> Undecided {
        self.worker.process.given_up.wait(self.hand_off.id)
    }

    fn go_live(mut self, records: Option<Records>) -> Result<Connection, Refused> {
        let socket = self.socket.take().ok_or(Refusal::RestoreFailed)?;
        let back = pass_back(self.control, &self.hand_off);
        let live = go_live(self.worker, socket, self.hand_off, records);
        let connection = live.map_err(|reason| Refused { reason, pass: back })?;
        // From now on the connection has it.
        self.announced.epoch = None;
        Ok(connection)
    }

    /// Gives the hand-off up. Its socket stays, deaf.
    fn give_up(mut self, reason: Refusal) -> Refused {
        let socket = self.socket.take().map(|built| built.restored);
        let undecided = self.undecided.take();
        let undecided = undecided.unwrap_or_else(|| self.await_switch());
        let pass = pass_back(self.control, &self.hand_off);
        let closed_sockets = self.worker.closed_sockets.clone();
        let remains = self.machine.remains().zip(closed_sockets);
        let at_end = async move {
            if let Some((remains, closed_sockets)) = remains {
                closed_sockets.release_remains(remains).await;
            }
        };
        let flow = self.announced.flow;
        undecided.give_up(flow, self.hand_off.epoch, pass, socket, at_end);
        Refused { reason, pass }
    }
}

/// Takes the TLS session out of a hand-off.
fn restore_records(hand_off: &mut HandOff) -> Result<Option<Records>, Refusal> {
    let records = hand_off.tls.take().map(Records::restore).transpose();
    records.map_err(|error| {
        tracing::warn!(%error, client = %hand_off.tcp.remote,
            "a TLS session that arrived cannot be read; its hand-off is refused");
        Refusal::Malformed
    })
}

/// A flow that is announced while its hand-off is under way. Dropping it forgets the flow.
struct AnnouncedFlow<'c> {
    control: &'c Control,
    flow: FlowKey,
    epoch: Option<u64>,
}

impl AnnouncedFlow<'_> {
    /// No other host can go on with the connection.
    fn insist(&mut self, command: &Command, pass: Option<Pass>) {
        if let Some(pass) = pass {
            self.control.flows.keep_pass(self.flow, command.epoch, pass);
        }
        self.control.hold(self.flow, command.owner, command.epoch);
        self.epoch = Some(command.epoch);
    }
}

impl Drop for AnnouncedFlow<'_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.epoch {
            self.control.flows.forget(&self.flow, epoch);
        }
    }
}
