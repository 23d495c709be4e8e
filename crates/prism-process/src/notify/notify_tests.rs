#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;

/// Long enough for a slow machine to beat in time.
const LIMIT: Duration = Duration::from_secs(1);

/// A service manager's socket.
struct Manager {
    socket: UnixDatagram,
    name: OsString,
}

impl Manager {
    /// With a name of the abstract namespace, which is unique to this process.
    fn abstract_name(name: &str) -> Self {
        let name = format!("prism-notify-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let name = format!("@{name}").into();
        Self::of(socket, name)
    }

    fn of(socket: UnixDatagram, name: OsString) -> Self {
        socket.set_read_timeout(Some(10 * LIMIT)).unwrap();
        Self { socket, name }
    }

    /// The sender of a process with this manager.
    fn notifier(&self, watchdog: Option<Duration>, pid: u32) -> Notifier {
        Notifier::from_variables(|name| match name {
            "NOTIFY_SOCKET" => Some(self.name.clone()),
            "WATCHDOG_USEC" => watchdog.map(|limit| limit.as_micros().to_string().into()),
            "WATCHDOG_PID" => watchdog.map(|_| pid.to_string().into()),
            _ => None,
        })
    }

    fn next(&self) -> String {
        let mut message = [0; 200];
        let len = self.socket.recv(&mut message).unwrap();
        String::from_utf8(message.get(..len).unwrap().to_vec()).unwrap()
    }

    /// Whether a message comes within `time`.
    fn hears_within(&self, time: Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).unwrap();
        let heard = self.socket.recv(&mut [0; 200]).is_ok();
        self.socket.set_read_timeout(Some(10 * LIMIT)).unwrap();
        heard
    }
}

/// Runs `work` on a thread of its own, until this process ends.
fn on_a_thread(work: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(work);
    });
}

#[test]
fn messages_reach_a_socket_with_a_path_or_an_abstract_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let named = Manager::of(UnixDatagram::bind(&path).unwrap(), path.into());
    for manager in [named, Manager::abstract_name("messages")] {
        let notifier = manager.notifier(None, 0);
        notifier.ready();
        assert_eq!(manager.next(), "READY=1");
        notifier.reloading();
        let message = manager.next();
        let time = message
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap();
        assert!(time.parse::<u64>().unwrap() > 0, "{message}");
        notifier.stopping();
        assert_eq!(manager.next(), "STOPPING=1");
        assert!(Watchdog::new(notifier).period().is_none());
    }
}

#[test]
fn without_the_variable_nothing_is_sent() {
    let notifier = Notifier::from_variables(|name| match name {
        "WATCHDOG_USEC" => Some("1000000".into()),
        _ => None,
    });
    notifier.ready();
    assert!(notifier.target.is_none());
    assert!(Watchdog::new(notifier).period().is_none());
}

#[test]
fn a_socket_that_nobody_reads_stops_nobody() {
    let manager = Manager::abstract_name("full");
    let notifier = manager.notifier(None, 0);
    // More than the kernel queues for a socket.
    for _ in 0..5000 {
        notifier.ready();
    }
    drop(manager);
    notifier.ready();
}

#[test]
fn only_the_process_that_is_meant_has_a_watchdog() {
    let manager = Manager::abstract_name("meant");
    let own = std::process::id();
    let period = |pid| Watchdog::new(manager.notifier(Some(LIMIT), pid)).period();
    assert_eq!(period(own), Some(LIMIT / 2));
    assert_eq!(period(own + 1), None);
}

#[test]
fn a_process_is_alive_while_all_of_its_threads_run_their_tasks() {
    let manager = Manager::abstract_name("alive");
    let notifier = manager.notifier(Some(LIMIT), std::process::id());
    let mut watchdog = Watchdog::new(notifier);
    let (first, second) = (watchdog.add("worker-0"), watchdog.add("worker-1"));
    let (block, blocked) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel();
    on_a_thread(first.keep());
    on_a_thread(async move {
        let blocking = async move {
            let _ = blocked.await;
            // Its thread stands still meanwhile.
            let _ = released.recv();
        };
        tokio::join!(second.keep(), blocking);
    });
    on_a_thread(async move { watchdog.keep().await });
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    block.send(()).unwrap();
    // At most one report is under way.
    let heard = (0..3).filter(|_| manager.hears_within(2 * LIMIT)).count();
    assert!(
        heard <= 1,
        "{heard} messages of a process that stands still"
    );
    release.send(()).unwrap();
    assert_eq!(manager.next(), "WATCHDOG=1");
}

#[test]
fn a_process_of_two_services_is_ready_and_alive_when_both_are() {
    let manager = Manager::abstract_name("two");
    let [one, other] = manager
        .notifier(Some(LIMIT), std::process::id())
        .of_services(2)
        .try_into()
        .ok()
        .unwrap();
    for _ in 0..2 {
        one.alive();
        one.alive();
        other.alive();
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    other.ready();
    assert!(!manager.hears_within(Duration::from_millis(50)));
    one.ready();
    assert_eq!(manager.next(), "READY=1");
    // After a reload each says so again.
    other.ready();
    assert_eq!(manager.next(), "READY=1");
}
