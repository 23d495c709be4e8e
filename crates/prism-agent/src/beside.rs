//! The thread beside the agent's loop: it grants leases, shows pages, and waits for signals and
//! news.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_common::supervise::supervise;
use prism_membership::Directory;
use prism_process::notify::Beat;
use prism_process::pages::{self as http, Pages};
use prism_switch::Leases;
use tokio::sync::watch;

use crate::interfaces::{self, Interfaces, Ways};
use crate::pauses::{Pauses, pause_for};
use crate::reload::Reload;
use crate::role::Role;
use crate::secrets;
use crate::tables::nodes;

/// Pause after a failure to listen on the control address.
const LISTEN_RETRY: Duration = Duration::from_secs(10);

/// The work of the thread beside the agent's loop.
pub(crate) struct Beside {
    pub(crate) control: Vec<SocketAddr>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) role: Arc<Role>,
    pub(crate) news: Vec<watch::Receiver<Arc<Directory>>>,
    pub(crate) admin: Option<(TcpListener, Arc<Pages>)>,
    pub(crate) beat: Beat,
    pub(crate) ways: Ways,
    pub(crate) interfaces: Arc<watch::Sender<Interfaces>>,
    pub(crate) reload: Reload,
}

/// Starts the thread that grants leases, and waits for a signal and for news.
pub(crate) fn serve(pauses: Arc<Pauses>, beside: Beside) -> anyhow::Result<()> {
    if let Err(error) = prism_sys::process::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let Beside {
        control,
        leases,
        role,
        news,
        admin,
        beat,
        ways,
        interfaces,
        reload,
    } = beside;
    std::thread::Builder::new()
        .name("leases".into())
        .spawn(move || {
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let signals = (
                    signal(SignalKind::terminate()),
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::hangup()),
                );
                let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hang_up)) = signals else {
                    return;
                };
                let known = news.clone();
                let present = || nodes(&reload.running.now(), &known);
                let look = interfaces::follow(ways, present, &interfaces, &pauses);
                for news in news {
                    tokio::spawn(pause_for(news, pauses.clone()));
                }
                let show_pages = async {
                    match admin {
                        Some((listener, pages)) => http::serve(listener, pages).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = show_pages => {}
                    () = reload.follow(&mut hang_up, &pauses) => {}
                    () = secrets::follow(&reload.running, &pauses) => {}
                    () = look => {}
                    () = beat.keep() => {}
                    () = role.follow(&pauses.pause) => {}
                    () = grant_all(&control, &leases, &role) => {}
                }
            });
            pauses.stop.store(true, Ordering::Relaxed);
            pauses.pause.store(true, Ordering::Relaxed);
        })?;
    Ok(())
}

/// Grants leases at each of the addresses. Never returns.
async fn grant_all(control: &[SocketAddr], leases: &Arc<Leases>, role: &Role) {
    let grant_at = async |index: usize| match control.get(index) {
        Some(address) => {
            supervise("leases", async || {
                grant(*address, leases.clone(), role).await
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
