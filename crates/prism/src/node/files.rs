//! Files that a node reads again while it runs: when they change, and on SIGHUP.
//!
//! Not here: what is in them.

use std::io;
use std::time::Duration;

use prism_common::supervise::supervise;
use prism_pki::LoadCounts;
use prism_process::notify::Notifier;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::reload::reload_by_signal;
use super::server::Server;

/// The interval of looks at the key for the switch.
const KEY_EVERY: Duration = Duration::from_millis(500);

/// The arrivals of SIGHUP, one for each kind of file.
pub(super) struct HangUps {
    https: Again,
    users: Again,
    identity: Again,
    key: Again,
    config: Signal,
    manager: Signal,
}

/// The arrivals of SIGHUP, and of the question on the admin socket that has the same meaning.
struct Again {
    hang_up: Signal,
    asked: watch::Receiver<()>,
}

impl HangUps {
    /// From now on SIGHUP does not end the process.
    pub(super) fn new(server: &Server) -> io::Result<Self> {
        let hang_up = || signal(SignalKind::hangup());
        let again = || {
            io::Result::Ok(Again {
                hang_up: hang_up()?,
                asked: server.asked.subscribe(),
            })
        };
        Ok(Self {
            https: again()?,
            users: again()?,
            identity: again()?,
            key: again()?,
            config: hang_up()?,
            manager: hang_up()?,
        })
    }
}

/// Follows all of them, and tells the service manager of each SIGHUP. Never returns.
pub(super) async fn follow_files(server: &Server, notifier: &Notifier, hang_ups: &mut HangUps) {
    let HangUps {
        https: for_https,
        users: for_users,
        identity: for_identity,
        key: for_key,
        config: for_config,
        manager: for_manager,
    } = hang_ups;
    let node = &server.core;
    let https = supervise("certificates", async || match &server.https {
        Some(https) => {
            https.keep_current(async || arrival(for_https).await).await;
        }
        None => std::future::pending().await,
    });
    let users = supervise("users", async || {
        let again = async || arrival(for_users).await;
        node.cluster.keep_current(again).await;
    });
    let identity = supervise("the node's certificate", async || match &server.identity {
        Some(identity) => {
            let again = async || arrival(for_identity).await;
            let counters = &node.process.counters;
            let counts = LoadCounts {
                loaded: &counters.identity_loads,
                failed: &counters.identity_loads_failed,
            };
            identity.keep_current(counts, again).await;
        }
        None => std::future::pending().await,
    });
    let key = supervise("the key for the switch", async || {
        follow_key(server, for_key).await;
    });
    let config = reload_config(server, for_config);
    tokio::join!(
        https,
        users,
        identity,
        key,
        config,
        announce_reloads(notifier, for_manager)
    );
}

/// Reads the key for the switch when its file changes, and on SIGHUP. Never returns.
async fn follow_key(server: &Server, again: &mut Again) {
    let mut said = None;
    loop {
        match server.read_signing_key() {
            Ok(false) => said = None,
            Ok(true) => tracing::info!("this node signs with another key for the switch"),
            Err(error) => {
                let fault = error.to_string();
                if said.as_ref() != Some(&fault) {
                    tracing::warn!(fault, "the key for the switch stays the one before");
                }
                said = Some(fault);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(KEY_EVERY) => {}
            () = arrival(again) => {}
        }
    }
}

/// Returns when SIGHUP arrives.
async fn hung_up(hang_up: &mut Signal) {
    if hang_up.recv().await.is_none() {
        std::future::pending().await
    }
}

/// Returns when SIGHUP arrives, or the admin socket is asked to reload.
async fn arrival(again: &mut Again) {
    tokio::select! {
        () = hung_up(&mut again.hang_up) => {}
        // The sender lives as long as the server.
        _ = again.asked.changed() => {}
    }
}

/// Reads the configuration again on SIGHUP. Never returns.
async fn reload_config(server: &Server, hang_up: &mut Signal) {
    loop {
        hung_up(hang_up).await;
        reload_by_signal(server);
    }
}

/// Tells the service manager of each SIGHUP, and when all has been read again. Never returns.
async fn announce_reloads(notifier: &Notifier, hang_up: &mut Signal) {
    loop {
        hung_up(hang_up).await;
        notifier.reloading();
        // The others that wait for the signal are parts of the same task, and take it without
        // waiting. So all of them have taken it before this part of the task goes on.
        tokio::task::yield_now().await;
        notifier.ready();
    }
}
