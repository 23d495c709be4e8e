//! The thread beside the agent's loop: it grants leases, shows pages, and waits for signals and
//! news.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_common::supervise::supervise;
use prism_process::Stops;
use prism_process::notify::Beat;
use prism_process::pages::serve as serve_pages;
use prism_switch::Leases;

use crate::interfaces::{self, Ways};
use crate::pages::pages;
use crate::reload::Reload;
use crate::role::Role;
use crate::secrets;
use crate::shared::{Shared, pause_for};

/// Pause after a failure to listen on the control address.
const LISTEN_RETRY: Duration = Duration::from_secs(10);

/// The work of the thread beside the agent's loop.
pub(crate) struct Beside {
    pub(crate) control: Vec<SocketAddr>,
    /// For readers of the pages.
    pub(crate) admin: Option<TcpListener>,
    pub(crate) beat: Beat,
    pub(crate) ways: Ways,
    pub(crate) reload: Reload,
}

/// Starts the thread that grants leases, and waits for a signal and for news.
pub(crate) fn serve(shared: Arc<Shared>, beside: Beside) -> anyhow::Result<()> {
    if let Err(error) = prism_sys::process::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let runtime = prism_common::runtime()?;
    let Beside {
        control,
        admin,
        beat,
        ways,
        reload,
    } = beside;
    std::thread::Builder::new()
        .name("leases".into())
        .spawn(move || {
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let signals = (Stops::follow(), signal(SignalKind::hangup()));
                let (Ok(mut stops), Ok(mut hang_up)) = signals else {
                    return;
                };
                for news in shared.observed.clone() {
                    tokio::spawn(pause_for(news, shared.clone()));
                }
                let show_pages = async {
                    match admin {
                        Some(listener) => {
                            let names = shared.running.now().admin_names();
                            serve_pages(listener, names, pages(shared.clone())).await;
                        }
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = stops.asked() => {}
                    () = show_pages => {}
                    () = reload.follow(&mut hang_up, &shared) => {}
                    () = secrets::follow(&shared) => {}
                    () = interfaces::follow(ways, &shared) => {}
                    () = beat.keep() => {}
                    () = shared.role.follow(&shared.pauses.pause) => {}
                    () = grant_all(&control, &shared) => {}
                }
            });
            shared.pauses.stop.store(true, Ordering::Relaxed);
            shared.pauses.pause.store(true, Ordering::Relaxed);
        })?;
    Ok(())
}

/// Grants leases at each of the addresses. Never returns.
async fn grant_all(control: &[SocketAddr], shared: &Shared) {
    let grant_at = async |index: usize| match control.get(index) {
        Some(address) => {
            supervise("leases", async || {
                grant(*address, shared.leases.clone(), &shared.role).await
            })
            .await
        }
        None => std::future::pending().await,
    };
    // There is one address of each family at most.
    tokio::join!(grant_at(0), grant_at(1));
}

/// Grants leases as soon as this host can listen on the address. Never returns.
async fn grant(control: SocketAddr, leases: Arc<Leases>, role: &Role) {
    let listener = loop {
        match role.listen(control) {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::warn!(%control, %error, "cannot listen on switch.control; dead nodes are not noticed");
                tokio::time::sleep(LISTEN_RETRY).await;
            }
        }
    };
    leases.serve(listener).await;
}
