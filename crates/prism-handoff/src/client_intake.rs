//! Whether a worker takes new clients, and where the switch's agent sends them otherwise.
//!
//! Not here: the leases that say so to the agent (`lease`).

use prism_proto::lease::NewClients;
use tokio::sync::watch;

/// Whether a worker takes new clients. A run repeats its announcement on each new lease.
#[derive(Debug)]
pub(crate) struct ClientIntake {
    stance: watch::Sender<IntakeStance>,
    /// The agent's answer to the present run.
    answer: watch::Sender<Option<NewClients>>,
}

/// The present word about new clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntakeStance {
    takes: bool,
    /// It takes none for good.
    has_ended: bool,
    /// The number of the run that says whether the worker takes new clients. It grows each time
    /// that the worker takes them again.
    pub(crate) speaker: u32,
}

impl Default for ClientIntake {
    fn default() -> Self {
        Self {
            stance: watch::Sender::new(IntakeStance {
                takes: true,
                has_ended: false,
                speaker: 0,
            }),
            answer: watch::Sender::default(),
        }
    }
}

impl IntakeStance {
    /// Whether the run with this number takes no new clients.
    pub(crate) fn is_over_for(&self, number: u32) -> bool {
        !self.takes || self.speaker != number
    }
}

impl ClientIntake {
    /// Takes new clients, or none for a while.
    pub(crate) fn set(&self, takes: bool) {
        self.stance.send_if_modified(|stance| {
            let is_new = !stance.has_ended && stance.takes != takes;
            if is_new {
                stance.takes = takes;
                if takes {
                    stance.speaker += 1;
                    self.answer.send_replace(None);
                }
            }
            is_new
        });
    }

    /// Ends the taking of new clients, and waits until the agent has said where they go.
    pub(crate) async fn end(&self) -> NewClients {
        self.stance.send_modify(|stance| {
            stance.takes = false;
            stance.has_ended = true;
        });
        let mut answers = self.answer.subscribe();
        loop {
            if let Some(answer) = *answers.borrow_and_update() {
                return answer;
            }
            // The sender lives as long as `self`.
            let _ = answers.changed().await;
        }
    }

    pub(crate) fn follow(&self) -> watch::Receiver<IntakeStance> {
        self.stance.subscribe()
    }

    /// Notes the agent's answer to the run with this number.
    pub(crate) fn note(&self, number: u32, answer: NewClients) {
        if self.stance.borrow().speaker == number {
            self.answer.send_replace(Some(answer));
        }
    }
}
