//! Two networks of the same shape: in one, connections move from the primary to replicas. In
//! the other, proxies on the primary's host are in front of the replicas.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use prism_kv::client::Client;
use prism_kv::config::{Config, Node, Switch};
use prism_lab::Rate;
use prism_nodes::{CONTROL, KEY, KEY_ID, Network, Plan};
use tempfile::TempDir;

use crate::processes::{Running, cpu_of_family};

/// The number of different keys.
pub(super) const KEYS: usize = 64;
pub(super) const MAX_REPLICAS: usize = 4;
const NAMES: [&str; MAX_REPLICAS + 1] = ["primary", "r1", "r2", "r3", "r4"];
/// The port of the service and of replicas.
const PORT: u16 = 6379;
const HAPROXY_PORT: u16 = 6380;
/// Reading values of this size is worth a move.
const MOVE_FROM_BYTES: usize = 16 << 10;
/// The longest time until replicas have a lease, and proxies answer.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Prism,
    Nutcracker,
    Haproxy,
    Direct,
}

impl System {
    pub(super) const ALL: [Self; 4] = [Self::Prism, Self::Nutcracker, Self::Haproxy, Self::Direct];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Prism => "prism",
            Self::Nutcracker => "nutcracker",
            Self::Haproxy => "haproxy",
            Self::Direct => "direct",
        }
    }
}

/// One of the networks, with its nodes: the primary first.
struct Side {
    nodes: Vec<Running>,
    network: Network,
}

pub(super) struct Cluster {
    plan: Plan,
    prism: Side,
    others: Side,
    nutcracker: Running,
    haproxy: Running,
    _files: TempDir,
}

/// The parts that both networks are built from.
struct Setup<'s> {
    plan: Plan,
    link: Option<Rate>,
    program: PathBuf,
    files: &'s Path,
}

impl Cluster {
    /// Builds both networks, and waits until all systems answer.
    pub(super) fn up(replicas: usize, link: Option<Rate>, program: PathBuf) -> Result<Self> {
        let plan = Plan {
            nodes: NAMES.get(..=replicas).context("too many replicas")?,
            port: PORT,
        };
        let files = tempfile::tempdir()?;
        let setup = Setup {
            plan,
            link,
            program,
            files: files.path(),
        };
        let (prism, others) = (setup.side(true)?, setup.side(false)?);
        let replicas: Vec<IpAddr> = plan.addresses().skip(1).map(|(_, a)| a.into()).collect();
        let config = setup.write("nutcracker.yml", &nutcracker(&plan, &replicas))?;
        let mut nutcracker = Command::new("nutcracker");
        // The largest buffers, which large values are copied through.
        nutcracker.args(["-m", "65536", "-c"]).arg(config);
        nutcracker
            .arg("-p")
            .arg(files.path().join("nutcracker.pid"));
        let config = setup.write("haproxy.cfg", &haproxy(&plan, &replicas))?;
        let mut haproxy = Command::new("haproxy");
        haproxy.args(["-db", "-f"]).arg(config);
        let cluster = Self {
            plan,
            nutcracker: others.proxy(nutcracker)?,
            haproxy: others.proxy(haproxy)?,
            prism,
            others,
            _files: files,
        };
        for system in System::ALL {
            for address in cluster.addresses(system) {
                cluster.until_ready(system, address)?;
            }
        }
        Ok(cluster)
    }

    fn side(&self, system: System) -> &Side {
        match system {
            System::Prism => &self.prism,
            _ => &self.others,
        }
    }

    /// The addresses that the client's processes ask: one for each replica.
    pub(super) fn addresses(&self, system: System) -> Vec<SocketAddr> {
        let mut nodes = self.plan.addresses().map(|(_, address)| address);
        let primary = nodes.next();
        let each = nodes.filter_map(|replica| {
            let (ip, port) = match system {
                System::Prism => (*self.plan.service().ip(), PORT),
                System::Nutcracker => (primary?, PORT),
                System::Haproxy => (primary?, HAPROXY_PORT),
                System::Direct => (replica, PORT),
            };
            Some(SocketAddr::from((ip, port)))
        });
        each.collect()
    }

    pub(super) fn spawn_client(&self, system: System, command: &mut Command) -> Result<Child> {
        let client = &self.side(system).network.client;
        let program = command.get_program().display().to_string();
        client.run(|| command.spawn())?.context(program)
    }

    fn client(&self, system: System, address: SocketAddr) -> Result<Client> {
        let client = &self.side(system).network.client;
        Ok(client.run(|| Client::connect(address))??)
    }

    fn until_ready(&self, system: System, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let leases = (self.plan.nodes.len() - 1).to_string();
        loop {
            let is_ready = self
                .client(system, address)
                .is_ok_and(|mut client| match system {
                    System::Prism => client.info("leases").is_ok_and(|found| found == leases),
                    System::Direct => client.info("lease").is_ok_and(|found| found == "true"),
                    // A value that no key has.
                    _ => client
                        .call(&[b"GET", b"none"])
                        .is_ok_and(|found| found == b"nil"),
                });
            if is_ready {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{} does not answer at {address}",
                system.name()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// Stores values of this size under all keys in both networks, and compares what all
    /// systems answer.
    pub(super) fn store(&self, bytes: u64) -> Result<()> {
        let value = vec![b'v'; usize::try_from(bytes)?];
        let keys = (0..KEYS).map(|n| format!("key:{n:012}").into_bytes());
        let keys: Vec<_> = keys.collect();
        for system in [System::Prism, System::Direct] {
            let address = self.addresses(system).first().copied();
            let mut client = self.client(system, address.context("no replica")?)?;
            for key in &keys {
                let answer = client.call(&[b"SET", key, &value])?;
                ensure!(answer == b"OK", "{}", String::from_utf8_lossy(&answer));
            }
        }
        for system in System::ALL {
            for address in self.addresses(system) {
                let mut client = self.client(system, address)?;
                for key in &keys {
                    let answer = client.call(&[b"GET", key])?;
                    ensure!(answer == value, "{} has another value", system.name());
                }
                let moves = system == System::Prism && value.len() >= MOVE_FROM_BYTES;
                let is_at_primary = moves && client.info("node")? == "primary";
                ensure!(!is_at_primary, "a connection has not moved");
            }
        }
        Ok(())
    }

    /// CPU time so far of the primary with its proxy, and of all replicas.
    pub(super) fn cpu(&self, system: System) -> Result<[Duration; 2]> {
        let mut nodes = self
            .side(system)
            .nodes
            .iter()
            .map(|node| cpu_of_family(node.id()));
        let primary = nodes.next().context("no primary")??;
        let proxy = match system {
            System::Nutcracker => cpu_of_family(self.nutcracker.id())?,
            System::Haproxy => cpu_of_family(self.haproxy.id())?,
            System::Prism | System::Direct => Duration::ZERO,
        };
        Ok([primary + proxy, nodes.sum::<Result<Duration>>()?])
    }
}

impl Side {
    /// Starts a proxy on the primary's host.
    fn proxy(&self, mut command: Command) -> Result<Running> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let program = command.get_program().display().to_string();
        let child = self.network.node(NAMES[0])?.run(|| command.spawn())?;
        let missing = || format!("starting {program} (scripts/setup.sh bench installs it)");
        Ok(Running(child.with_context(missing)?))
    }
}

impl Setup<'_> {
    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.files.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    fn side(&self, moves: bool) -> Result<Side> {
        let pin_dir = format!("prism-bench-kv-{}", std::process::id());
        let network = match moves {
            true => Network::new(&self.plan, &pin_dir)?,
            false => Network::without_switch(&self.plan)?,
        };
        if let Some(link) = self.link {
            network.limit_links(link.bits_per_s())?;
        }
        let mut nodes = Vec::new();
        for (name, address) in self.plan.addresses() {
            let config = self.config(name, address.into(), &network, moves);
            let file = self.write(&format!("{name}-{moves}.toml"), &toml::to_string(&config)?)?;
            let mut command = Command::new(&self.program);
            command
                .arg(file)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            command.stderr(Stdio::null());
            let mut node = Running(network.node(name)?.run(|| command.spawn())??);
            let said = node.0.stdout.take().context("a node has no output")?;
            let mut ready = String::new();
            BufReader::new(said).read_line(&mut ready)?;
            ensure!(!ready.is_empty(), "{name} does not start");
            nodes.push(node);
        }
        Ok(Side { nodes, network })
    }

    fn config(&self, name: &str, address: IpAddr, network: &Network, moves: bool) -> Config {
        let is_primary = name == NAMES[0];
        let nodes = self.plan.addresses().map(|(name, address)| Node {
            name: name.to_owned(),
            address: address.into(),
        });
        Config {
            name: name.to_owned(),
            pki_dir: network.pki_dir().to_owned(),
            service: match moves {
                true => self.plan.service().into(),
                false => (address, PORT).into(),
            },
            // Clients of proxies are at the replicas only.
            listen: is_primary == moves,
            move_from_bytes: MOVE_FROM_BYTES,
            nodes: nodes.collect(),
            switch: moves.then_some(Switch {
                control: CONTROL.into(),
                key_id: KEY_ID,
                key: KEY,
            }),
        }
    }
}

fn primary(plan: &Plan) -> String {
    let primary = plan.addresses().next();
    primary.map_or_else(String::new, |(_, address)| address.to_string())
}

/// twemproxy: any replica answers, over several kept connections.
fn nutcracker(plan: &Plan, replicas: &[IpAddr]) -> String {
    let servers = replicas
        .iter()
        .map(|replica| format!("   - {replica}:{PORT}:1\n"));
    format!(
        "kv:\n  listen: {}:{PORT}\n  redis: true\n  distribution: random\n  hash: fnv1a_64\n\
         \x20 preconnect: true\n  server_connections: 8\n  backlog: 1024\n  servers:\n{}",
        primary(plan),
        servers.collect::<String>()
    )
}

/// HAProxy knows nothing of the protocol: a connection has one replica.
fn haproxy(plan: &Plan, replicas: &[IpAddr]) -> String {
    let servers = replicas.iter().enumerate();
    let servers = servers.map(|(n, replica)| format!(" server r{n} {replica}:{PORT}\n"));
    format!(
        "global\n nbthread 1\n maxconn 4000\n tune.bufsize 65536\n\
         defaults\n mode tcp\n option splice-auto\n balance roundrobin\n\
         timeout connect 10s\n timeout client 1h\n timeout server 1h\n\
         listen kv\n bind {}:{HAPROXY_PORT}\n{}",
        primary(plan),
        servers.collect::<String>()
    )
}
