//! The size of etcd's database, which the operator has to keep below its quota.

use std::time::Duration;

use super::Participant;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(30);

impl Participant {
    /// Shows the size of the database to the node. Never returns.
    pub(super) async fn look_at_size(&self) {
        loop {
            match self.client().database().await {
                Ok(database) => drop(self.channels.database.send_replace(Some(database))),
                Err(error) => tracing::debug!(%error, "cannot ask for the size of etcd"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
