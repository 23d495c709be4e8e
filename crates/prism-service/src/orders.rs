//! How a node ends: one task of the process gives [`Orders`], each thread follows them.

use tokio::sync::watch;

/// How far a node has come towards its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It serves.
    #[default]
    Serving,
    /// It takes no connection from another node, and moves those that it has.
    Leaving,
    /// Answers say that the connection ends.
    Closing,
    /// Connections that wait for a request are closed.
    Ending,
}

/// An order to all threads of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// How far the node has come.
    pub stage: Stage,
    /// Number of orders to move: a connection that has followed fewer is to move.
    pub moves: u32,
}

/// The present order, and the way to change it.
#[derive(Clone, Debug)]
pub struct Orders(watch::Sender<Order>);

impl Default for Orders {
    /// Those of a node that serves.
    fn default() -> Self {
        Self(watch::Sender::new(Order::default()))
    }
}

impl Orders {
    /// The present order.
    pub fn now(&self) -> Order {
        *self.0.borrow()
    }

    /// The node enters a stage.
    pub fn enter(&self, stage: Stage) {
        self.0.send_modify(|order| order.stage = stage);
    }

    /// All present connections are to move to other nodes, each after its present answer.
    pub fn move_all(&self) {
        self.0
            .send_modify(|order| order.moves = order.moves.wrapping_add(1));
    }

    /// Follows the orders; the receiver counts as a thread for [`Self::all_have_ended`].
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<Order> {
        self.0.subscribe()
    }

    /// Resolves when the node has entered `stage` or a later one.
    pub async fn reached(&self, stage: Stage) {
        // The sender is here.
        let _ = self.follow().wait_for(|order| order.stage >= stage).await;
    }

    /// Resolves when no thread follows the orders any more.
    pub async fn all_have_ended(&self) {
        self.0.closed().await;
    }
}
