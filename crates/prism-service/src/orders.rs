//! The orders to end a node: one task of the process gives [`Orders`], each thread follows them.

use tokio::sync::watch;

/// The stages of a node on the way to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It serves.
    #[default]
    Serving,
    /// It takes no connection from another node, and moves its own connections.
    Leaving,
    /// Each connection ends after its next answer.
    Closing,
    /// Connections that wait for a request are closed.
    Ending,
}

/// An order to all threads of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The stage of the node.
    pub stage: Stage,
    /// The number of orders to move so far. A connection that has followed another number moves.
    pub moves: u32,
    /// Whether another process of this host goes on as this node. Connections then pass to it, and
    /// the listeners are its own.
    pub to_successor: bool,
}

/// The present order, and the way to change it. The second channel has [`Order::to_successor`] for
/// tasks that are no thread of the node.
#[derive(Clone, Debug, Default)]
pub struct Orders(watch::Sender<Order>, watch::Sender<bool>);

impl Orders {
    /// The present order.
    pub fn now(&self) -> Order {
        *self.0.borrow()
    }

    /// The node enters a stage.
    pub fn enter(&self, stage: Stage) {
        self.0.send_modify(|order| order.stage = stage);
    }

    /// Moves all present connections to other nodes, each after its present answer.
    pub fn move_all(&self) {
        self.0
            .send_modify(|order| order.moves = order.moves.wrapping_add(1));
    }

    /// From now on connections pass to another process of this host, or no longer.
    pub fn pass_to_successor(&self, passes: bool) {
        self.0.send_modify(|order| {
            order.to_successor = passes;
            order.moves = order.moves.wrapping_add(1);
        });
        self.1.send_replace(passes);
    }

    /// Follows whether connections pass to another process. The receiver counts as no thread.
    pub fn passing(&self) -> watch::Receiver<bool> {
        self.1.subscribe()
    }

    /// Follows the orders. The receiver counts as a thread for [`Self::all_have_ended`].
    pub fn follow(&self) -> watch::Receiver<Order> {
        self.0.subscribe()
    }

    /// Resolves when the node has entered `stage` or a later one.
    pub async fn reached(&self, stage: Stage) {
        // Never an error, because `self` has the sender.
        let _ = self.follow().wait_for(|order| order.stage >= stage).await;
    }

    /// Resolves when no thread follows the orders.
    pub async fn all_have_ended(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_follows_the_take_over_is_no_thread_of_the_node() {
        let orders = Orders::default();
        let (thread, passing) = (orders.follow(), orders.passing());
        orders.pass_to_successor(true);
        assert!(*passing.borrow() && thread.borrow().to_successor);
        drop(thread);
        orders.all_have_ended().await;
    }
}
