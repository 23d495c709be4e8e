//! Messages of the processes to a service manager. A datagram socket is systemd's side here.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prism_netns::NetNs;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::turn;

const PATIENCE: Duration = Duration::from_secs(20);
/// `WatchdogSec` of the processes. The agent of the switch takes a step each second.
const LIMIT: Duration = Duration::from_secs(4);

/// A service manager with one service.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
    service: Option<Child>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            dir,
            socket,
            service: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with this manager and a watchdog. `WATCHDOG_PID` is left out: it would be
    /// the number of the process that starts.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prism"));
        command
            .env("NOTIFY_SOCKET", self.path("notify"))
            .env("STATE_DIRECTORY", self.path("state"))
            .env("WATCHDOG_USEC", LIMIT.as_micros().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.service.as_ref().unwrap().id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn next(&self) -> String {
        let mut message = [0; 200];
        let len = self.socket.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    }

    /// The next message that is not `WATCHDOG=1`.
    fn next_change(&self) -> String {
        std::iter::repeat_with(|| self.next())
            .find(|message| message != "WATCHDOG=1")
            .unwrap()
    }

    /// A process that stands still is silent. It is not when it goes on.
    fn assert_watched(&self) {
        for _ in 0..2 {
            assert_eq!(self.next(), "WATCHDOG=1");
        }
        self.signal(Signal::STOP);
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 200]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
        self.socket.set_read_timeout(Some(LIMIT)).unwrap();
        let silent = self.socket.recv(&mut [0; 200]).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::WouldBlock);
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.signal(Signal::CONT);
        assert_eq!(self.next(), "WATCHDOG=1");
    }

    fn assert_stops(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.next_change(), "STOPPING=1");
        let status = self.service.as_mut().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(mut service) = self.service.take() {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

/// A directory of bpffs with the programs of a switch.
struct Pins(String);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(PathBuf::from("/sys/fs/bpf").join(&self.0));
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_node_tells_when_it_serves_reloads_and_ends_and_that_its_workers_live() {
    let mut manager = Manager::new();
    let (data, address) = (manager.path("data"), format!("127.0.0.1:{}", free_port()));
    let mut command = manager.command();
    command.arg("serve").arg(data).args(["--listen", &address]);
    command.args(["--admin-listen", "127.0.0.1:0"]);
    manager.service = Some(command.spawn().unwrap());
    assert_eq!(manager.next(), "READY=1");
    // Clients are accepted from then on.
    TcpStream::connect(&address).unwrap();
    manager.assert_watched();
    manager.signal(Signal::HUP);
    let reloading = manager.next_change();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(manager.next_change(), "READY=1");
    manager.assert_stops();
}

#[test]
fn the_agent_of_the_switch_tells_when_it_is_ready_and_ends_and_that_its_loop_lives() {
    let Some(_turn) = turn() else { return };
    let mut manager = Manager::new();
    let config = manager.path("prism.toml");
    let pins = Pins(format!("prism-notify-{}", std::process::id()));
    let text = include_str!("../../../../packaging/prism.toml")
        .replace("/etc/prism/switch.key", "switch.key")
        .replace(
            r#"interfaces = ["eth0", "eth1"]"#,
            &format!("interfaces = [\"lo\"]\npin_dir = \"{}\"", pins.0),
        );
    std::fs::write(&config, text).unwrap();
    let key = manager.path("switch.key");
    std::fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).unwrap();
    let namespace = NetNs::anonymous().unwrap();
    let mut command = manager.command();
    command.arg("switch").arg("--config").arg(&config);
    let up = || {
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        command.spawn().unwrap()
    };
    manager.service = Some(namespace.run(up).unwrap());
    assert_eq!(manager.next(), "READY=1");
    manager.assert_watched();
    manager.assert_stops();
}
