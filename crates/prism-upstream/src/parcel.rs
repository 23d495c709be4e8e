//! Messages of an operator to other backends: this process' way to them.
//!
//! Not here: their meaning (`assign.rs`, `amendment.rs`).

use std::rc::Rc;
use std::time::Duration;

use prism_service::{PeerRequest, Peers, join_all, parse_own_head};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::Shared;

/// Messages that wait for their way. Commands come one by one, each for at most all backends.
pub(crate) const MAX_PARCELS: usize = 1_024;
/// Longest answer.
const MAX_ANSWER_BYTES: usize = 4 << 10;
/// Longest wait for another node. A command of the admin socket has a longer one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A message on its way to another backend.
pub(crate) struct Parcel {
    backend: String,
    path: &'static str,
    body: Vec<u8>,
    outcome: oneshot::Sender<Result<Vec<u8>, String>>,
}

impl Shared {
    /// Sends a message to another backend. Returns its answer.
    ///
    /// # Errors
    /// For the operator: this node sends none, or the backend does not act by it.
    pub(crate) async fn send_to(
        &self,
        backend: &str,
        path: &'static str,
        message: &impl Serialize,
    ) -> Result<Vec<u8>, String> {
        if !self.is_frontend(&self.name) {
            return Err(format!(
                "{} is no frontend; give the command at {backend} or at a frontend",
                self.name
            ));
        }
        let (outcome, sent) = oneshot::channel();
        let parcel = Parcel {
            backend: backend.to_owned(),
            path,
            body: serde_json::to_vec(message).map_err(|error| error.to_string())?,
            outcome,
        };
        let busy = "this node is busy; try again";
        self.parcels.try_send(parcel).map_err(|_| busy)?;
        sent.await.unwrap_or_else(|_| Err(busy.into()))
    }
}

/// The outcomes at several backends, if all of them have acted.
///
/// # Errors
/// Says which ones have not.
pub(crate) async fn at_all<T>(
    outcomes: Vec<impl Future<Output = Result<T, String>>>,
) -> Result<Vec<T>, String> {
    let outcomes = join_all(outcomes).await.into_iter();
    let (good, faults): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
    let faults: Vec<String> = faults.into_iter().filter_map(Result::err).collect();
    match (faults.is_empty(), good.is_empty()) {
        (true, _) => Ok(good.into_iter().filter_map(Result::ok).collect()),
        (false, true) => Err(format!("nothing has changed: {}", faults.join("; "))),
        (false, false) => Err(format!(
            "only some backends have changed it: {}; give the command again",
            faults.join("; ")
        )),
    }
}

/// Sends the messages of this process to other nodes. Never returns.
pub(crate) async fn send_always(parcels: &mut mpsc::Receiver<Parcel>, peers: &Rc<Peers>) {
    while let Some(parcel) = parcels.recv().await {
        let peers = peers.clone();
        tokio::task::spawn_local(async move {
            let asking = ask(&peers, &parcel);
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
            let silent = Err("it does not answer in time".to_owned());
            // The operator may have gone.
            let _ = parcel.outcome.send(asked.unwrap_or(silent));
        });
    }
}

async fn ask(peers: &Peers, parcel: &Parcel) -> Result<Vec<u8>, String> {
    let Parcel {
        backend,
        path,
        body,
        ..
    } = parcel;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: prism\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let head = parse_own_head(head.as_bytes()).map_err(|error| error.to_string())?;
    let request = PeerRequest::for_node(&head);
    let asked = peers.ask(backend, &request, body, MAX_ANSWER_BYTES).await;
    let (answer, text) = asked.map_err(|error| format!("it does not answer: {error}"))?;
    match answer.status() {
        200 => Ok(text),
        403 | 409 => Err(String::from_utf8_lossy(&text).into_owned()),
        status => Err(format!(
            "it answers with status {status}; it may be of a former release"
        )),
    }
}
