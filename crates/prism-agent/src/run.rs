//! The command `prism switch`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_config::{ConfigFile, Running};
use prism_membership::{Directory, Observed, observe as observe_cluster};
use prism_process::notify::{Notifier, Reporter, Watchdog};
use prism_process::pages::bind;
use prism_switch::{Agent, Leases, Switch, SwitchConfig};
use tokio::sync::watch;

use crate::beside::{Beside, serve};
use crate::interfaces::{Interfaces, Ways};
use crate::reload::Reload;
use crate::role::Role;
use crate::secrets;
use crate::shared::{Pauses, Shared};
use crate::tables::{
    addresses, lease_keys, leases_of, nodes, nodes_at_start, switch_config, update_tables,
};

/// The directory of state without one from systemd.
const STATE_DIRECTORY: &str = "/var/lib/prism-switch";
/// Pause after a failure to age flows or to update the tables.
const RETRY: Duration = Duration::from_secs(1);

/// Load the switch into this host's kernel, and age its flows.
///
/// The switch goes on when this command is stopped (SIGTERM, Ctrl-C, even SIGKILL),
/// because its programs and tables are pinned. The next start takes them over and
/// replaces the programs without losing a packet. --unload removes them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// This host's name in switch.hosts [default: the host that has this host's address]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Remove the switch from this host's interfaces, forget its flows, and exit.
    #[arg(long)]
    unload: bool,
}

/// Runs until SIGTERM or SIGINT. `version` is that of the program.
///
/// # Errors
/// The configuration cannot be used, or the switch cannot be loaded.
pub fn run(args: &Args, version: &'static str) -> anyhow::Result<()> {
    let config = ConfigFile::load(&args.config)?;
    prism_process::log::init(&config.log, false)?;
    let Some(settings) = &config.switch else {
        bail!("{} has no section [switch]; add it", args.config.display());
    };
    if args.unload {
        return Ok(Switch::unload(&settings.pin_dir)?);
    }
    let role = Role::of(settings, args.host.as_deref())?;
    let directories = nodes_at_start(&config, settings.mode)?;
    let secrets = secrets::read(&config).context("switch.key_file")?;
    let mut ways = Ways::default();
    let interfaces = ways.look(&directories);
    let tables = SwitchConfig {
        copies: role.own().collect(),
        ..switch_config(&config, settings, &directories, &secrets, &interfaces)?
    };
    let switch = load(&tables)?;
    tell_of(settings, &role);
    let leases = Arc::new(leases_of(&tables, &directories));
    let observed = observe_all(&config)?;
    let control = settings.control.iter().collect();
    let admin = listen(&config)?;
    let mut agent = start_agent(&switch, leases.clone(), &tables, &role)?;
    let shared = Arc::new(Shared {
        version,
        pin_dir: settings.pin_dir.clone(),
        max_flows: settings.max_flows,
        running: Running::new(config.clone()),
        observed: observed.iter().map(|seen| seen.directory.clone()).collect(),
        leases,
        role,
        census: agent.census(),
        secrets: watch::Sender::new(secrets),
        interfaces: watch::Sender::new(interfaces.clone()),
        pauses: Pauses::default(),
    });
    let given = Given {
        interfaces,
        nodes: directories,
        config: shared.running.now(),
    };
    let mut watchdog = Watchdog::new(Notifier::from_environment());
    serve(
        shared.clone(),
        Beside {
            control,
            admin,
            beat: watchdog.add("leases"),
            ways,
            reload: Reload {
                file: args.config.clone(),
                notifier: watchdog.notifier.clone(),
            },
        },
    )?;
    watchdog.notifier.ready();
    age_flows(&mut agent, &watchdog, &shared, given);
    watchdog.stopping();
    tracing::info!("agent stopped; the switch goes on");
    Ok(())
}

/// Logs what this switch is.
fn tell_of(settings: &prism_config::Switch, role: &Role) {
    tracing::info!(interfaces = ?settings.interfaces, control = %settings.control, "switch loaded");
    if let Some(host) = role.host() {
        tracing::info!(host, place = ?role.place(), active = role.is_active(), "one of a pair");
    }
}

/// Listens for readers of the pages, if the configuration has an address for that.
fn listen(config: &ConfigFile) -> anyhow::Result<Option<TcpListener>> {
    let address = config.admin.switch_listen;
    let listener = address.map(|address| bind(address, "admin.switch_listen"));
    listener.transpose()
}

/// Follows the cluster of each service whose state is in etcd.
fn observe_all(config: &ConfigFile) -> anyhow::Result<Vec<Observed>> {
    let parts = config.parts().into_iter();
    let observed = parts.filter(|part| part.cluster.etcd.is_some());
    observed.map(|part| observe_cluster(&part)).collect()
}

/// Loads the switch, and leaves its interfaces to [`start_agent`].
fn load(tables: &SwitchConfig) -> anyhow::Result<Switch> {
    let interfaces = Vec::new();
    let tables = tables.clone();
    Ok(Switch::load(&SwitchConfig {
        interfaces,
        ..tables
    })?)
}

/// Begins a term before the first packet comes: a table that is empty must not decide.
fn start_agent<'a>(
    switch: &'a Switch,
    leases: Arc<Leases>,
    tables: &SwitchConfig,
    role: &Role,
) -> anyhow::Result<Agent<'a>> {
    let mut agent = Agent::new(switch, leases, &tables.services)?;
    let other = role.other().to_vec();
    agent.use_terms(role.place(), other, term_file(&tables.pin_dir))?;
    agent.set_active(role.is_active())?;
    for interface in &tables.interfaces {
        switch.attach(interface, tables.xdp)?;
    }
    Ok(agent)
}

/// The file of the switch's last term, in the directory that the unit provides.
fn term_file(pin_dir: &str) -> PathBuf {
    let provided = std::env::var_os("STATE_DIRECTORY").filter(|path| !path.is_empty());
    let directory = provided.map_or_else(|| STATE_DIRECTORY.into(), PathBuf::from);
    directory.join(format!("{pin_dir}.term"))
}

/// The nodes and the configuration that the switch has been given.
struct Given {
    interfaces: Interfaces,
    nodes: Vec<Directory>,
    config: Arc<ConfigFile>,
}

/// Ages flows, and gives the switch new nodes, until the process ends.
fn age_flows(agent: &mut Agent<'_>, watchdog: &Watchdog, shared: &Shared, mut given: Given) {
    let pauses = &shared.pauses;
    let mut reporter = Reporter::new(watchdog);
    while !pauses.stop.load(Ordering::Relaxed) {
        if let Err(error) = agent.run(&pauses.pause, || reporter.turn()) {
            tracing::warn!(%error, "cannot age flows; trying again");
            std::thread::sleep(RETRY);
        }
        reporter.turn();
        pauses.pause.store(false, Ordering::Relaxed);
        if let Err(error) = agent.set_active(shared.role.is_active()) {
            tracing::warn!(%error, "the programs do not know this switch's role; trying again");
        }
        let config = shared.running.now();
        let now = nodes(&config, &shared.observed);
        let secrets = secrets::read(&config).unwrap_or_else(|error| {
            tracing::warn!(%error, "the keys of nodes stay those before");
            shared.secrets.borrow().clone()
        });
        let has_other_keys = secrets != *shared.secrets.borrow();
        let has_other_nodes = now != given.nodes;
        let interfaces = shared.interfaces.borrow().clone();
        let has_other_ways = interfaces != given.interfaces;
        let has_other_scrapers = config.admin.scrapers != given.config.admin.scrapers;
        if !has_other_nodes && !has_other_scrapers && !has_other_keys && !has_other_ways {
            continue;
        }
        let Some(tables) = update_tables(agent, &config, &now, &secrets, &interfaces) else {
            std::thread::sleep(RETRY);
            pauses.pause.store(true, Ordering::Relaxed);
            continue;
        };
        given = Given {
            interfaces,
            nodes: now,
            config,
        };
        if has_other_keys {
            tracing::info!("the switch has other keys of nodes");
        }
        tracing::info!(
            nodes = given.nodes.iter().flat_map(Directory::iter).count(),
            "the switch has the present nodes"
        );
        shared.leases.set_nodes(addresses(&given.nodes));
        shared.leases.set_keys(lease_keys(&tables, &given.nodes));
        shared.secrets.send_replace(secrets);
    }
}
