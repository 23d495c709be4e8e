//! Opens the parts of a node by its configuration, and ties them together.
//!
//! A node is a process with one thread per worker. Each worker has its own runtime, listeners
//! (`SO_REUSEPORT`), channels to other nodes and socket to the switch. So a connection never
//! changes threads.
//!
//! A frontend of several services serves each with threads and parts of its own, so that no
//! service's users, limits or connections meet another's.
//!
//! Not here: what the parts do.

mod admin;
mod certificates;
mod combined;
mod files;
mod leave;
mod metrics;
mod objects;
mod pages;
mod quota;
mod reload;
mod run;
mod server;
mod service;
mod spans;
mod state;
mod successor;
mod upstreams;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_config::{Config, ConfigFile};
use prism_membership::{Cluster, OwnStore};
use prism_process::notify::Notifier;
use prism_process::pages::bind;
use prism_store::Store;
use tokio::sync::watch;

pub(crate) use self::objects::open_store;
pub(crate) use self::run::until_stopped;
use self::run::{Ended, serve};
pub(crate) use self::server::Server;
use self::server::{signing_key, switch_address};
use self::successor::Inheritance;

/// Serve clients, objects, or both: one node of a cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which of its nodes this is.
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Take over the running process of this node on this host: its listeners and its clients'
    /// connections, without refusing or cutting one. That process then ends.
    #[arg(long)]
    take_over: bool,
}

/// The longest time in which the switch answers a successor.
const SWITCH_ANSWERS_IN: Duration = Duration::from_secs(5);
/// The longest time in which the lock of a store gets free whose process has just ended.
const UNLOCKED_IN: Duration = Duration::from_secs(10);
/// Time between two attempts to open such a store.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Runs until SIGTERM or SIGINT, or until a successor has taken over.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    prism_process::keep_files_private();
    let config = ConfigFile::load(&args.config)?;
    let services = config.parts_at(&args.node);
    prism_process::log::init(&config.log, services.len() > 1)?;
    config.known_node(&args.node)?;
    if let Some(fault) = prism_host::trace_fault(&config.trace) {
        bail!(fault);
    }
    let notifiers = Notifier::from_environment().of_services(services.len());
    let mut begun = Vec::new();
    for (config, notifier) in services.into_iter().zip(notifiers) {
        let inheritance = if args.take_over {
            take_over(&config, &args.node)?
        } else {
            Inheritance::default()
        };
        begun.push(Begun {
            config,
            notifier,
            inheritance,
        });
    }
    match begun.len() {
        1 => begun.into_iter().try_for_each(|begun| begun.run(args)),
        _ => run_each(begun, args),
    }
}

/// A service that is about to be served.
struct Begun {
    /// Its part of the configuration.
    config: Config,
    notifier: Notifier,
    inheritance: Inheritance,
}

impl Begun {
    fn run(self, args: &Args) -> anyhow::Result<()> {
        let Self {
            mut config,
            notifier,
            mut inheritance,
        } = self;
        loop {
            match serve_once(config, args, notifier.clone(), inheritance)? {
                Ended::Closing(estate, stops) => match estate.settle(stops)? {
                    Some(again) => (config, inheritance) = again,
                    None => return Ok(()),
                },
                Ended::Stopped => return Ok(()),
            }
        }
    }
}

/// Serves several services, each in threads of its own. The failure of one ends the process.
fn run_each(services: Vec<Begun>, args: &Args) -> anyhow::Result<()> {
    let (ended, ends) = mpsc::channel();
    for service in services {
        let args = args.clone();
        let ended = ended.clone();
        let name = service.config.service.name.clone();
        let work = {
            let name = name.clone();
            move || {
                let run = AssertUnwindSafe(|| service.run(&args));
                let outcome = catch_unwind(run).unwrap_or_else(|_| bail!("a panic; see the log"));
                // The receiver lives as long as the process.
                let _ = ended.send(outcome.with_context(|| format!("the service {name}")));
            }
        };
        let started = std::thread::Builder::new().name(name).spawn(work);
        started.context("starting the thread of a service")?;
    }
    drop(ended);
    ends.into_iter().collect()
}

/// Asks the running process for its sockets of a service, and has it stop as far as it has to.
fn take_over(config: &Config, name: &str) -> anyhow::Result<Inheritance> {
    let inheritance = Inheritance::ask(&config.admin_socket(name))?;
    let faults = prism_host::node_faults(config, name)?;
    if !faults.is_empty() {
        bail!(faults.join("\n  "));
    }
    // Without the switch's word no flow can pass to another process.
    let node = config.known_node(name)?;
    if let Some(switch) = &config.switch {
        let key = watch::Sender::new(signing_key(switch, name)?).subscribe();
        let switch = switch_address(switch, node, key)?;
        if let Some(own) = node.address.of(switch.control.ip()) {
            switch.check(own, SWITCH_ANSWERS_IN)?;
        }
    }
    inheritance.prepared()?;
    Ok(inheritance)
}

/// Opens the parts of the node, and serves.
fn serve_once(
    config: Config,
    args: &Args,
    notifier: Notifier,
    mut inherited: Inheritance,
) -> anyhow::Result<Ended> {
    let name = &args.node;
    // The store is opened first, because it has saved the cluster's last state.
    let store = if inherited.is_empty() {
        open_store(&config, name)?
    } else {
        open_store_again(&config, name)?
    };
    let saved = store.as_ref().map(OwnStore::of).transpose()?;
    let cluster = Cluster::open(&config, name, saved)?;
    let listener = config.admin_listen(name).map(|address| {
        let inherited = inherited.take_listener(address);
        inherited.map_or_else(|| bind(address, "admin.listen"), Ok)
    });
    let listener = listener.transpose()?;
    let mut server = Server::open(config, name, cluster, store, Some(args.config.clone()))?;
    server.notifier = notifier;
    serve(server, listener, inherited, || {})
}

/// Opens a store that another process, or this one, has just closed.
fn open_store_again(config: &Config, name: &str) -> anyhow::Result<Option<Store>> {
    let begun = Instant::now();
    loop {
        match open_store(config, name) {
            Err(error) if begun.elapsed() < UNLOCKED_IN && is_locked(&error) => {
                std::thread::sleep(TRY_AGAIN);
            }
            opened => return opened,
        }
    }
}

fn is_locked(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<prism_store::OpenError>(),
        Some(prism_store::OpenError::Locked(_))
    )
}
