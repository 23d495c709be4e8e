//! The process around a node: its threads, its admin socket, its signals.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::{mpsc, watch};

use super::{Node, Worker, admin, fence};

/// How long the log's end stays one that a write may have been interrupted at.
const SEAL_EVERY: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT. `ready` is called once clients are accepted.
pub(crate) fn until_stopped(node: Node, ready: impl FnOnce()) -> anyhow::Result<()> {
    let node = Arc::new(node);
    if let Err(error) = prism_sys::process::raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let workers = match node.settings()?.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => usize::from(n),
    };
    let endpoint = node.endpoint_config()?;
    let (stop, stopping) = watch::channel(false);
    let (bound, all_bound) = mpsc::channel(workers);
    let threads: Vec<_> = (0..workers)
        .map(|n| {
            let (node, endpoint) = (node.clone(), endpoint.clone());
            let (stopping, bound) = (stopping.clone(), bound.clone());
            let name = format!("worker-{n}");
            let work = move || Worker::run(node, endpoint, stopping, bound);
            std::thread::Builder::new().name(name).spawn(work)
        })
        .collect::<Result<_, _>>()
        .context("starting a worker thread")?;
    drop((stopping, bound));
    let scrubbing = node.store.is_some().then(|| {
        let node = node.clone();
        let work = move || {
            if let Some(store) = &node.store {
                node.scrub.run(&node, store);
            }
        };
        std::thread::Builder::new().name("scrub".into()).spawn(work)
    });
    let scrubbing = scrubbing.transpose().context("starting the scrubber")?;
    let supervised = supervise(&node, stop, all_bound, workers, ready);
    node.scrub.end();
    if let Some(thread) = scrubbing
        && thread.join().is_err()
    {
        tracing::error!("the scrubber panicked");
    }
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => bail!("a worker panicked; see the log"),
        }
    }
    supervised
}

/// Answers the admin socket and waits for a signal, or for the workers' end.
fn supervise(
    node: &Arc<Node>,
    stop: watch::Sender<bool>,
    mut bound: mpsc::Receiver<()>,
    workers: usize,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let path = node.config.admin_socket(&node.name);
        let admin = admin::Admin::bind(&path)
            .with_context(|| format!("admin socket {}", path.display()))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let (hung_up, mut again) = watch::channel(());
        let pass_on = async {
            while hang_up.recv().await.is_some() {
                hung_up.send_replace(());
            }
            std::future::pending::<()>().await;
        };
        let mut hung_up_for_https = hung_up.subscribe();
        let keep_current = async {
            let Some(https) = &node.https else {
                return std::future::pending().await;
            };
            loop {
                tokio::select! {
                    () = https.keep_current() => {}
                    Ok(()) = hung_up_for_https.changed() => https.reload(),
                }
            }
        };
        let keep_users = node.cluster.keep_current(async || {
            if again.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        // Ends where a worker could not start: the process does then, too.
        let accepting = async {
            let mut started = 0;
            while bound.recv().await.is_some() {
                started += 1;
            }
            if started == workers {
                ready();
                std::future::pending().await
            }
        };
        tokio::select! {
            () = keep_sealed(node) => {}
            () = pass_on => {}
            () = keep_current => {}
            () = keep_users => {}
            () = fence::follow_views(node) => {}
            () = fence::follow_users(node) => {}
            () = admin.run(node.clone()) => {}
            () = accepting => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // All workers have failed to start.
            () = stop.closed() => {}
        }
        tracing::info!("stopping: requests under way are finished first");
        let _ = stop.send(true);
        anyhow::Ok(())
    })
}

/// Seals the log of the store, if there is one, from time to time.
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
            tracing::debug!(%error, "the log was not sealed");
        }
    }
}
