//! The process around a node: its threads, its admin socket, its signals.

use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, bail};
use prism_common::supervise::supervise;
use prism_gateway::{Farewells, farewells};
use prism_process::Stops;
use prism_process::notify::{Notifier, Watchdog};
use prism_process::pages::serve as show;
use prism_service::Stage;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::certificates::{keep_acme, watch_terms};
use super::files::follow_files;
use super::server::Server;
use super::successor::{Estate, Inheritance, Link, PassedOn, Sockets, pass_on, take_connections};
use super::worker::Reports;
use super::{admin, leave, pages, worker};

/// The longest wait of a successor for its lease in etcd.
const LEASED_IN: Duration = Duration::from_secs(10);
/// Time between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Why a node has stopped to serve.
pub(crate) enum Ended {
    /// By a signal, or because its successor has everything.
    Stopped,
    /// Its successor waits for its store, which is closed by now.
    Closing(Box<Estate>, Stops),
}

/// Serves until SIGTERM or SIGINT. `ready` is called once clients are accepted. No process can take
/// over this one.
pub(crate) fn until_stopped(
    server: Server,
    listener: Option<TcpListener>,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    run(server, listener, None, ready).map(|_| ())
}

/// Serves with the sockets of a predecessor, if there are some, until SIGTERM or SIGINT, or until a
/// successor takes over.
pub(crate) fn serve(
    server: Server,
    listener: Option<TcpListener>,
    inherited: Inheritance,
    ready: impl FnOnce(),
) -> anyhow::Result<Ended> {
    run(server, listener, Some(inherited), ready)
}

fn run(
    server: Server,
    listener: Option<TcpListener>,
    inherited: Option<Inheritance>,
    ready: impl FnOnce(),
) -> anyhow::Result<Ended> {
    let server = Arc::new(server);
    let observed: Weak<Server> = Arc::downgrade(&server);
    server.core.observe(observed);
    let node = &server.core;
    if let Err(error) = prism_sys::process::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let workers = match server.settings()?.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => usize::from(n),
    };
    let endpoint = server.endpoint_config()?;
    let may_be_taken_over = inherited.is_some();
    let mut inherited = inherited.unwrap_or_default();
    let listeners = std::mem::take(&mut inherited.listeners);
    node.process.listeners.inherit(listeners, workers);
    // Clients wait in the kernel until this process is ready.
    node.orders.pass_to_successor(!inherited.is_empty());
    let (bound, all_bound) = mpsc::channel(workers);
    let (farewell, farewells) = farewells();
    let mut watchdog = Watchdog::new(server.notifier.clone());
    let threads: Vec<_> = (0..workers)
        .map(|n| {
            let server = server.clone();
            let endpoint = endpoint.clone();
            let name = server.thread_name(&format!("worker-{n}"));
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
    let service = server.service.clone().start_thread();
    let beside = service.context("starting the service's thread")?;
    let started = Workers {
        count: workers,
        bound: all_bound,
        farewells,
        watchdog,
        inherited,
        may_be_taken_over,
    };
    let attended = attend(&server, listener, started, ready);
    // The other workers have to end too, if one has failed to start.
    node.orders.enter(Stage::Ending);
    server.service.end_thread();
    if let Some(thread) = beside {
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
    inherited: Inheritance,
    may_be_taken_over: bool,
}

/// Answers the admin socket and waits for a signal, or for the workers' end.
fn attend(
    server: &Arc<Server>,
    listener: Option<TcpListener>,
    workers: Workers,
    ready: impl FnOnce(),
) -> anyhow::Result<Ended> {
    let Workers {
        count,
        mut bound,
        farewells,
        watchdog,
        mut inherited,
        may_be_taken_over,
    } = workers;
    let pages = listener.as_ref().map(TcpListener::try_clone).transpose()?;
    let (to_successors, successors) = mpsc::channel(1);
    let to_successors = may_be_taken_over.then_some(to_successors);
    let runtime = prism_common::runtime()?;
    runtime.block_on(async {
        let node = &server.core;
        let path = node.config.now().admin_socket(&node.name);
        let admin = admin::Admin::open(&path, inherited.admin.take(), to_successors)
            .with_context(|| format!("admin socket {}", path.display()))?;
        // From now on SIGHUP does not end the process.
        let mut hang_up = signal(SignalKind::hangup())?;
        let stops = inherited.stops.take();
        // Ends if a worker could not start, and with it the process. An answer on the admin socket
        // means that clients are accepted.
        let accepting = async {
            let mut started = 0;
            while bound.recv().await.is_some() {
                started += 1;
            }
            if started == count {
                begin(server, &mut inherited, &watchdog.notifier).await?;
                ready();
                // While it takes connections, it answers on the admin socket.
                let taking = async {
                    if let Some(link) = &inherited.link {
                        take_connections(server, link).await;
                    }
                    std::future::pending::<()>().await
                };
                tokio::select! {
                    () = taking => {}
                    () = supervise("the admin socket", async || admin.run(server).await) => {}
                }
            }
            anyhow::Ok(())
        };
        // The other tasks go on meanwhile.
        let stopped = stop(
            server, &admin, stops, pages, successors, farewells, &watchdog,
        );
        let mut ended = Ended::Stopped;
        tokio::select! {
            () = follow_files(server, &watchdog.notifier, &mut hang_up) => {}
            () = supervise("the ends of certificates", async || watch_terms(server).await) => {}
            () = keep_acme(server) => {}
            () = watchdog.keep() => {}
            () = server.service.follow_cluster() => {}
            () = supervise("the users' lease", async || log_doubt(server).await) => {}
            () = show_pages(server, listener) => {}
            () = server.requests.audit.keep_counting(&node.name) => {}
            accepted = accepting => accepted?,
            stopped = stopped => ended = stopped?,
        }
        anyhow::Ok(ended)
    })
}

/// Lets clients in, now that all workers have their listeners.
async fn begin(
    server: &Arc<Server>,
    inherited: &mut Inheritance,
    notifier: &Notifier,
) -> anyhow::Result<()> {
    let node = &server.core;
    if !node.orders.now().to_successor {
        server.accepts.store(true, Ordering::Relaxed);
        notifier.ready();
        return Ok(());
    }
    // Clients of a predecessor would get errors from a backend without a lease.
    let leased = async {
        while node.cluster.lease.begin().is_none() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    if tokio::time::timeout(LEASED_IN, leased).await.is_err() {
        tracing::warn!("this backend has no lease yet; it takes over nevertheless");
    }
    // The predecessor stops first: if it serves on itself, this process has accepted nobody.
    inherited.ready()?;
    server.accepts.store(true, Ordering::Relaxed);
    node.orders.pass_to_successor(false);
    let parked = std::mem::take(&mut inherited.parked);
    parked
        .into_iter()
        .for_each(|parked| node.process.parking.adopt(parked));
    match &inherited.link {
        Some(_) => notifier.ready_as_successor(),
        None => notifier.ready(),
    }
    Ok(())
}

/// Waits for a signal or a successor, and ends the node. `stops` are those of a process that serves
/// again because its successor has failed.
async fn stop(
    server: &Arc<Server>,
    admin: &admin::Admin,
    stops: Option<Stops>,
    pages: Option<TcpListener>,
    mut successors: mpsc::Receiver<Link>,
    mut farewells: Farewells,
    watchdog: &Watchdog,
) -> anyhow::Result<Ended> {
    let mut stops = match stops {
        Some(stops) => {
            // The connections that wait in this process are adopted before they can move.
            let mut passing = server.core.orders.passing();
            let _ = passing.wait_for(|passes| !passes).await;
            stops
        }
        None => Stops::follow()?,
    };
    loop {
        let link = tokio::select! {
            () = stops.asked() => break,
            // All workers have failed to start.
            _ = farewells.told.recv() => break,
            Some(link) = successors.recv() => link,
        };
        let sockets = Sockets {
            admin: admin.copy()?,
            pages: pages.as_ref().map(TcpListener::try_clone).transpose()?,
        };
        match pass_on(server, link, sockets, &mut farewells, &mut stops).await {
            PassedOn::GoesOn => {}
            PassedOn::Stops => break,
            PassedOn::Over => {
                admin.leave_file();
                return Ok(Ended::Stopped);
            }
            PassedOn::Closing(estate) => {
                admin.leave_file();
                return Ok(Ended::Closing(estate, stops));
            }
        }
    }
    tracing::info!("stopping: connections move to other nodes");
    watchdog.stopping();
    leave::wind_down(server, farewells).await;
    Ok(Ended::Stopped)
}

/// Answers HTTP requests for the node's pages. Never returns.
async fn show_pages(server: &Arc<Server>, listener: Option<TcpListener>) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    let mut passing = server.core.orders.passing();
    loop {
        // The successor answers while it has the connections.
        let _ = passing.wait_for(|passes| !passes).await;
        let Ok(listener) = listener.try_clone() else {
            return std::future::pending().await;
        };
        let names = server.core.config.now().admin_names();
        tokio::select! {
            () = show(listener, names, pages::pages(server)) => {}
            _ = passing.wait_for(|passes| *passes) => {}
        }
    }
}

/// Logs that this node begins and ceases to refuse requests with keys. Never returns.
async fn log_doubt(server: &Server) {
    let cluster = &server.core.cluster;
    loop {
        cluster.doubt_changes(false).await;
        tracing::warn!(
            silence_ms = cluster.users_lease.silence().as_millis(),
            "etcd does not answer: requests with keys are refused, because a key may have been \
             deleted; new clients go to other frontends"
        );
        cluster.doubt_changes(true).await;
        tracing::info!("etcd has confirmed the users: requests with keys are admitted again");
    }
}
