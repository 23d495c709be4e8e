//! The process around a node: its threads, its admin socket, its signals.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_gateway::{Farewells, farewells};
use prism_handoff::supervise::{supervise, supervise_thread};
use prism_replicas::{Node, follow_pauses, follow_views};
use prism_service::Stage;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::certificates::{keep_acme, watch_terms};
use super::files::{HangUps, follow_files};
use super::server::Server;
use super::state::figures;
use super::worker::Reports;
use super::{admin, leave, pages, worker};
use crate::notify::{Notifier, Watchdog};
use crate::observe::serve;

/// Time between two seals of the store's log.
const SEAL_EVERY: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT. `ready` is called once clients are accepted.
pub(crate) fn until_stopped(
    server: Server,
    listener: Option<TcpListener>,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let server = Arc::new(server);
    let shown = Arc::downgrade(&server);
    let figures = move || {
        shown
            .upgrade()
            .map_or(Value::Null, |server| figures(&server))
    };
    // Nobody else sets them.
    let _ = server.node.figures.set(Box::new(figures));
    let node = &server.node;
    if let Err(error) = prism_sys::process::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let workers = match server.settings()?.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => usize::from(n),
    };
    let endpoint = server.endpoint_config()?;
    let (bound, all_bound) = mpsc::channel(workers);
    let (farewell, farewells) = farewells();
    let mut watchdog = Watchdog::new(Notifier::from_environment());
    let threads: Vec<_> = (0..workers)
        .map(|n| {
            let (server, endpoint) = (server.clone(), endpoint.clone());
            let name = format!("worker-{n}");
            let reports = Reports {
                bound: bound.clone(),
                farewell: farewell.clone(),
                beat: watchdog.add(&name),
            };
            let work = move || worker::run(&server, endpoint, reports);
            std::thread::Builder::new().name(name).spawn(work)
        })
        .collect::<Result<_, _>>()
        .context("starting a worker thread")?;
    drop((bound, farewell));
    let scrubbing = node.store.is_some().then(|| {
        let node = node.clone();
        let work = move || {
            if let Some(store) = &node.store {
                supervise_thread("scrub", || node.scrub.run(&node, store));
            }
        };
        std::thread::Builder::new().name("scrub".into()).spawn(work)
    });
    let scrubbing = scrubbing.transpose().context("starting the scrubber")?;
    let started = Workers {
        count: workers,
        bound: all_bound,
        farewells,
        watchdog,
    };
    let attended = attend(&server, listener, started, ready);
    // The other workers have to end too, if one has failed to start.
    node.orders.enter(Stage::Ending);
    node.scrub.end();
    if let Some(thread) = scrubbing {
        // Never an error, because the thread is supervised.
        let _ = thread.join();
    }
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => bail!("a worker panicked; see the log"),
        }
    }
    attended
}

/// The workers, as the process around them knows them.
struct Workers {
    count: usize,
    /// Gets a message of each worker whose listeners exist.
    bound: mpsc::Receiver<()>,
    farewells: Farewells,
    watchdog: Watchdog,
}

/// Answers the admin socket and waits for a signal, or for the workers' end.
fn attend(
    server: &Arc<Server>,
    listener: Option<TcpListener>,
    workers: Workers,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let Workers {
        count,
        mut bound,
        mut farewells,
        watchdog,
    } = workers;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let node = &server.node;
        let path = node.config.now().admin_socket(&node.name);
        let admin = admin::Admin::bind(&path)
            .with_context(|| format!("admin socket {}", path.display()))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_ups = HangUps::new(server)?;
        // Ends if a worker could not start, and with it the process. An answer on the admin socket
        // means that clients are accepted.
        let accepting = async {
            let mut started = 0;
            while bound.recv().await.is_some() {
                started += 1;
            }
            if started == count {
                server.accepts.store(true, Ordering::Relaxed);
                watchdog.notifier.ready();
                ready();
                supervise("the admin socket", async || admin.run(server).await).await;
            }
        };
        // The other tasks go on meanwhile.
        let stopped = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                // All workers have failed to start.
                _ = farewells.told.recv() => {}
            }
            tracing::info!("stopping: connections move to other nodes");
            watchdog.stopping();
            leave::wind_down(node, farewells).await;
        };
        tokio::select! {
            () = supervise("the log's end", async || keep_sealed(node).await) => {}
            () = follow_files(server, &watchdog.notifier, &mut hang_ups) => {}
            () = supervise("the ends of certificates", async || watch_terms(server).await) => {}
            () = keep_acme(server) => {}
            () = watchdog.keep() => {}
            () = supervise("views", async || follow_views(node).await) => {}
            () = supervise("callers", async || follow_users(server).await) => {}
            () = supervise("pauses", async || follow_pauses(node).await) => {}
            () = show_pages(server, listener) => {}
            () = accepting => {}
            () = stopped => {}
        }
        anyhow::Ok(())
    })
}

/// Answers HTTP requests for the node's pages. Never returns.
async fn show_pages(server: &Arc<Server>, listener: Option<TcpListener>) {
    match listener {
        Some(listener) => serve(listener, pages::pages(server)).await,
        None => std::future::pending().await,
    }
}

/// Gives the service the present users, whenever they change. Never returns.
async fn follow_users(server: &Server) {
    let mut users = server.node.cluster.users.clone();
    loop {
        let present = users.borrow_and_update().clone();
        server.objects.replace_users(&present);
        if users.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Seals the log of the store, if there is one, from time to time. Never returns.
async fn keep_sealed(node: &Arc<Node>) {
    if node.store.is_none() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(SEAL_EVERY).await;
        let node = node.clone();
        let sealing = tokio::task::spawn_blocking(move || match &node.store {
            Some(store) => store.seal_log(),
            None => Ok(()),
        });
        if let Ok(Err(error)) = sealing.await {
            tracing::debug!(%error, "cannot seal the log");
        }
    }
}
