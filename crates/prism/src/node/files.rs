//! Files that a node reads again while it runs: when they change, and on SIGHUP.
//!
//! Not here: what is in them.

use std::time::Duration;

use prism_common::followed::ReloadRequests;
use prism_common::supervise::supervise;
use prism_pki::LoadCounts;
use prism_process::notify::Notifier;
use tokio::signal::unix::Signal;

use super::reload::reload_by_signal;
use super::server::Server;

/// The interval of looks at the key for the switch.
const KEY_EVERY: Duration = Duration::from_millis(500);

/// Follows all files, and has them read again at each `hang_up`. Never returns.
pub(super) async fn follow_files(server: &Server, notifier: &Notifier, hang_up: &mut Signal) {
    let node = &server.core;
    let requests = server.reload_requests.subscribe();
    let https = supervise("certificates", async || match &server.https {
        Some(https) => https.keep_current(requests.clone()).await,
        None => std::future::pending().await,
    });
    let users = supervise("users", async || {
        node.cluster.keep_current(requests.clone()).await;
    });
    let identity = supervise("the node's certificate", async || match &server.identity {
        Some(identity) => {
            let counters = &node.process.counters;
            let counts = LoadCounts {
                loaded: &counters.identity_loads,
                failed: &counters.identity_loads_failed,
            };
            identity.keep_current(counts, requests.clone()).await;
        }
        None => std::future::pending().await,
    });
    let key = supervise("the key for the switch", async || {
        follow_key(server, requests.clone()).await;
    });
    let signals = reload_at_signals(server, notifier, hang_up);
    tokio::join!(https, users, identity, key, signals);
}

/// Reads the key for the switch when its file changes, and at each of the `requests`. Never
/// returns.
async fn follow_key(server: &Server, mut requests: ReloadRequests) {
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
            Ok(()) = requests.changed() => {}
        }
    }
}

/// Reads the configuration and all files again at each SIGHUP. Tells the service manager of it, and
/// when all has been read.
async fn reload_at_signals(server: &Server, notifier: &Notifier, hang_up: &mut Signal) {
    while hang_up.recv().await.is_some() {
        notifier.reloading();
        reload_by_signal(server);
        // The followers of files are parts of the same task, and read without waiting. All of them
        // have been polled once when this part goes on, some of them before the request. After the
        // second time all have read.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        notifier.ready();
    }
}
