//! `prism switch`: the agent of the eBPF switch on this host. Packets do not pass through
//! this process, and go on while it is away.

mod pages;
mod reload;
mod role;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use prism_config::{Config, HookMode, Running};
use prism_handoff::supervise::supervise;
use prism_proto::control::ControlKey;
use prism_switch::{
    ALL_TENANTS, Agent, Leases, NodeConfig, Roles, SenderConfig, ServiceConfig, Switch,
    SwitchConfig,
};
use tokio::sync::watch;

use prism_membership::{Directory, observe as observe_cluster};

use crate::notify::{Beat, Notifier, Reporter, Watchdog};
use crate::observe::{self, Pages, bind};

use self::role::Role;

/// The tenant of the first service; the others follow.
const FIRST_TENANT: u32 = 1;
/// The tenant of hosts that are no nodes: the switch itself, and etcd.
const NO_TENANT: u32 = 0;
/// The directory of state without one from systemd.
const STATE_DIRECTORY: &str = "/var/lib/prism-switch";
/// Pause after a failure to age flows or to update the tables.
const RETRY: Duration = Duration::from_secs(1);
/// Pause after a failure to listen on the control address.
const LISTEN_RETRY: Duration = Duration::from_secs(10);

/// Load the switch into this host's kernel, and age its flows.
///
/// The switch goes on when this command is stopped (SIGTERM, Ctrl-C, even SIGKILL),
/// because its programs and tables are pinned. The next start takes them over and
/// replaces the programs without losing a packet. --unload removes them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    crate::log::init(&config.log, false)?;
    let Some(settings) = &config.switch else {
        bail!("{} has no section [switch]; add it", args.config.display());
    };
    if args.unload {
        return Ok(Switch::unload(&settings.pin_dir)?);
    }
    let role = Arc::new(Role::of(settings, args.host.as_deref())?);
    let directories = nodes(&config, &[]);
    let tables = switch_config(&config, settings, &directories)?;
    let switch = load(&tables)?;
    tracing::info!(interfaces = ?settings.interfaces, control = %settings.control, "switch loaded");
    if let Some(host) = role.host() {
        tracing::info!(host, place = ?role.place(), active = role.is_active(), "one of a pair");
    }
    let keys = tables.senders.iter();
    let keys = keys.map(|sender| (sender.key_id, sender.key.clone()));
    let leases = Arc::new(Leases::of_keys(addresses(&directories), keys));
    limit_keys(&leases, &config, &directories);
    let parts = config.parts().into_iter();
    let observed = parts.filter(|part| part.cluster.etcd.is_some());
    let observed = observed.map(|part| observe_cluster(&part));
    let observed = observed.collect::<anyhow::Result<Vec<_>>>()?;
    let news: Vec<_> = observed.iter().map(|seen| seen.directory.clone()).collect();
    let pauses = Arc::new(Pauses::default());
    let control = settings.control.iter().collect();
    let listener = config.admin.switch_listen;
    let listener = listener
        .map(|address| bind(address, "admin.switch_listen"))
        .transpose()?;
    let mut agent = start_agent(&switch, leases.clone(), &tables, &role)?;
    let running = Arc::new(Running::new(config.clone()));
    let (known, shown, at_start) = (news.clone(), running.clone(), running.now());
    let pages = pages::pages(pages::Subject {
        pin_dir: settings.pin_dir.clone(),
        max_flows: settings.max_flows,
        leases: leases.clone(),
        role: role.clone(),
        census: agent.census(),
        directory: Box::new(move || {
            let all = nodes(&shown.now(), &known).into_iter();
            Arc::new(all.fold(Directory::default(), |all, other| all.joined_by(&other)))
        }),
    });
    let mut watchdog = Watchdog::new(Notifier::from_environment());
    serve(
        pauses.clone(),
        Beside {
            control,
            leases: leases.clone(),
            role: role.clone(),
            news: news.clone(),
            admin: listener.map(|listener| (listener, pages)),
            beat: watchdog.add("leases"),
            reload: reload::Reload {
                file: args.config.clone(),
                running: running.clone(),
                notifier: watchdog.notifier.clone(),
            },
        },
    )?;
    watchdog.notifier.ready();
    age_flows(
        &mut agent,
        &pauses,
        &watchdog,
        &Followed {
            observed: news,
            running,
            leases,
            role,
        },
        Given {
            nodes: directories,
            config: at_start,
        },
    );
    watchdog.stopping();
    tracing::info!("agent stopped; the switch goes on");
    Ok(())
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
    agent.use_terms(role.place(), term_file(&tables.pin_dir))?;
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

/// The changes that the agent follows.
struct Followed {
    /// The nodes of each service that etcd knows; empty without etcd.
    observed: Vec<watch::Receiver<Arc<Directory>>>,
    running: Arc<Running>,
    leases: Arc<Leases>,
    role: Arc<Role>,
}

/// The nodes and the configuration that the switch has been given.
struct Given {
    nodes: Vec<Directory>,
    config: Arc<Config>,
}

/// Ages flows, and gives the switch new nodes, until the process ends.
fn age_flows(
    agent: &mut Agent<'_>,
    pauses: &Pauses,
    watchdog: &Watchdog,
    followed: &Followed,
    mut given: Given,
) {
    let mut reporter = Reporter::new(watchdog);
    while !pauses.stop.load(Ordering::Relaxed) {
        if let Err(error) = agent.run(&pauses.pause, || reporter.turn()) {
            tracing::warn!(%error, "cannot age flows; trying again");
            std::thread::sleep(RETRY);
        }
        reporter.turn();
        pauses.pause.store(false, Ordering::Relaxed);
        if let Err(error) = agent.set_active(followed.role.is_active()) {
            tracing::warn!(%error, "the programs do not know this switch's role; trying again");
        }
        let config = followed.running.now();
        let now = nodes(&config, &followed.observed);
        if now == given.nodes && config.admin.scrapers == given.config.admin.scrapers {
            continue;
        }
        if !update_tables(agent, &config, &now) {
            std::thread::sleep(RETRY);
            pauses.pause.store(true, Ordering::Relaxed);
            continue;
        }
        given = Given { nodes: now, config };
        tracing::info!(
            nodes = given.nodes.iter().flat_map(Directory::iter).count(),
            "the switch has the present nodes"
        );
        followed.leases.set_nodes(addresses(&given.nodes));
        limit_keys(&followed.leases, &given.config, &given.nodes);
    }
}

/// The nodes of each service: those of the file, and those that etcd knows.
fn nodes(config: &Config, known: &[watch::Receiver<Arc<Directory>>]) -> Vec<Directory> {
    let parts = config.parts().into_iter().enumerate();
    let all = parts.map(|(index, part)| match known.get(index) {
        Some(known) => Directory::of(&part).joined_by(&known.borrow()),
        None => Directory::of(&part),
    });
    all.collect()
}

/// Each key is for leases of the nodes of its service.
fn limit_keys(leases: &Leases, config: &Config, directories: &[Directory]) {
    for (part, directory) in config.parts().iter().zip(directories) {
        if let Some(switch) = &part.switch {
            leases.limit_key(switch.key_id, addresses(std::slice::from_ref(directory)));
        }
    }
}

/// Gives the switch these nodes. Returns whether it has them; a failure is logged.
fn update_tables(agent: &mut Agent<'_>, config: &Config, directories: &[Directory]) -> bool {
    let settings = config
        .switch
        .as_ref()
        .context("there is no section [switch]");
    let updated = settings
        .and_then(|settings| switch_config(config, settings, directories))
        .and_then(|tables| Ok(agent.update_tables(&tables)?));
    if let Err(error) = &updated {
        tracing::error!(
            error = format!("{error:#}"),
            "the switch's tables lack a change of the nodes; trying again"
        );
    }
    updated.is_ok()
}

/// The addresses of etcd's endpoints. Names that cannot be resolved are left out, with
/// a warning.
fn etcd_addresses(config: &Config) -> Vec<IpAddr> {
    let endpoints = config.cluster.etcd.iter().flat_map(|etcd| &etcd.endpoints);
    let resolved = endpoints.flat_map(|endpoint| {
        let found = (endpoint.host(), endpoint.port()).to_socket_addrs();
        found.unwrap_or_else(|error| {
            tracing::warn!(%endpoint, %error, "cannot resolve an endpoint of etcd; backends behind this switch do not reach it");
            Vec::new().into_iter()
        })
    });
    resolved
        .map(|address| address.ip().to_canonical())
        .collect()
}

/// Signals to the agent's loop.
#[derive(Default)]
struct Pauses {
    /// The process ends.
    stop: AtomicBool,
    /// The agent returns from its loop, to look for news.
    pause: AtomicBool,
}

/// The addresses of each node.
fn addresses(directories: &[Directory]) -> impl Iterator<Item = Vec<IpAddr>> {
    let all = directories.iter().flat_map(Directory::iter);
    all.map(|(_, host)| host.address.iter().collect())
}

/// The tables of the switch. `directories` are those of the services.
fn switch_config(
    config: &Config,
    settings: &prism_config::Switch,
    directories: &[Directory],
) -> anyhow::Result<SwitchConfig> {
    let node = |addr, tenant, roles| NodeConfig {
        addr,
        tenant,
        roles,
        link: None,
    };
    let (mut nodes, mut services, mut senders) = (BTreeMap::new(), Vec::new(), Vec::new());
    for ((tenant, part), directory) in (FIRST_TENANT..).zip(config.parts()).zip(directories) {
        for (_, host) in directory.iter() {
            let (frontend, backend) = (host.is_frontend(), host.is_backend());
            let tenant = match frontend && config.service.are_several() {
                true => ALL_TENANTS,
                false => tenant,
            };
            // A node with an address of each family is two entries.
            let entries = host.address.iter();
            let roles = Roles { frontend, backend };
            nodes.extend(entries.map(|address| (address, node(address, tenant, roles))));
        }
        services.extend(services_of(&part, tenant, directory));
        let switch = part.switch.as_ref().unwrap_or(settings);
        let key = switch.load_key().context("the control key")?;
        senders.push(SenderConfig {
            key_id: switch.key_id,
            key: ControlKey::new(*key.bytes()),
            tenant,
        });
    }
    // The switch drops a backend's TCP to unknown hosts. Leases need the control address, and
    // backends also need etcd and answer those who read their metrics.
    let other = |addr| node(addr, NO_TENANT, Roles::default());
    let of_pair = settings.hosts.iter().flat_map(|host| host.address.iter());
    let own = settings.control.hosts.iter().chain(of_pair).map(other);
    let scrapers = config.admin.scrapers.iter().copied();
    let others = etcd_addresses(config)
        .into_iter()
        .chain(scrapers)
        .map(other);
    Ok(SwitchConfig {
        pin_dir: settings.pin_dir.clone(),
        interfaces: settings.interfaces.clone(),
        xdp: settings.mode == HookMode::Xdp,
        control: settings.control.iter().collect(),
        services,
        nodes: others.chain(nodes.into_values()).chain(own).collect(),
        senders,
        max_flows: settings.max_flows,
        idle: Duration::from_secs(settings.idle_timeout_s.into()),
        ..SwitchConfig::default()
    })
}

/// The addresses of the service of `part`, each with its frontends.
fn services_of(part: &Config, tenant: u32, directory: &Directory) -> Vec<ServiceConfig> {
    let https = part.tls_address().unwrap_or_default();
    let addresses = part.service.address.iter().chain(https.iter());
    let services = addresses.map(|address| {
        let frontends = directory.iter().filter(|(_, host)| host.is_frontend());
        let frontends = frontends.filter_map(|(_, host)| host.address.of(address.ip()));
        ServiceConfig {
            addr: address,
            tenant,
            frontends: frontends.collect(),
        }
    });
    services.collect()
}

/// The work of the thread beside the agent's loop.
struct Beside {
    control: Vec<SocketAddr>,
    leases: Arc<Leases>,
    role: Arc<Role>,
    news: Vec<watch::Receiver<Arc<Directory>>>,
    admin: Option<(TcpListener, Arc<Pages>)>,
    beat: Beat,
    reload: reload::Reload,
}

/// Starts the thread that grants leases, and waits for a signal and for news.
fn serve(pauses: Arc<Pauses>, beside: Beside) -> anyhow::Result<()> {
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
                for news in news {
                    tokio::spawn(pause_for(news, pauses.clone()));
                }
                let show_pages = async {
                    match admin {
                        Some((listener, pages)) => observe::serve(listener, pages).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = show_pages => {}
                    () = reload.follow(&mut hang_up, &pauses) => {}
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

/// Makes the agent pause whenever the nodes change. Never returns.
async fn pause_for(mut news: watch::Receiver<Arc<Directory>>, pauses: Arc<Pauses>) {
    // The nodes may have changed before this task started.
    news.mark_changed();
    while news.changed().await.is_ok() {
        news.borrow_and_update();
        pauses.pause.store(true, Ordering::Relaxed);
    }
    std::future::pending().await
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
