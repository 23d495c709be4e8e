//! Nodes whose files place objects differently, in groups that agree within themselves.

use std::time::Duration;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

/// The longest time of a new list of frontends, a verdict and a first hand-off.
const SOON: Duration = Duration::from_secs(10);
/// The shortest time between two changes of a list of frontends, and a little more.
const CHANGING: Duration = Duration::from_millis(2_500);
/// Rounds of connections after which each of two frontends has had some.
const ROUNDS: usize = 5;
const FAULT: &str = "places objects differently from most nodes'";
const WRONG: [&str; 2] = ["fe1", "be3"];

/// The nodes' configuration, in which only `host` keeps objects.
fn with_one_backend(config: &str, host: &str) -> String {
    let mut nodes = config.split("name = \"");
    let mut changed = nodes.next().unwrap().to_owned();
    for node in nodes {
        let is_host = node.starts_with(host);
        let roles = if is_host { "backend" } else { "frontend" };
        changed += "name = \"";
        changed += &node.replacen(
            "roles = [\"backend\"]",
            &format!("roles = [\"{roles}\"]"),
            1,
        );
    }
    changed
}

impl Cluster {
    fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.lab.log_path(host)).unwrap()
    }

    fn accepted(&self, frontend: &str) -> u64 {
        self.counter(frontend, "handoff", "accepted")
    }

    /// Whether the agent has told it to the nodes with the wrong file, and to no others.
    fn are_told(&self, wrong: &[&str]) -> bool {
        let hosts = self.frontends().into_iter().chain(self.backends());
        let told = |host: &str| self.counter(host, "handoff", "placement_differs") == 1;
        { hosts }.all(|host| told(&host) == wrong.contains(&host.as_str()))
    }

    /// Checks that a frontend refuses a request because of its file, and sends the client away.
    fn refuses(&self, method: &str, target: &str) {
        let answer = self.connect().call(&self.request(method, target));
        assert_eq!(answer.status(), 503, "{}", answer.text());
        assert!(answer.text().contains(FAULT), "{}", answer.text());
        assert_eq!(answer.header("connection"), "close");
    }

    /// Stores the objects that the cluster takes. It refuses others with 503.
    fn store(&self, objects: Vec<Object>) -> Vec<Object> {
        let stores = |object: &Object| {
            let answer = self.connect().try_to_put(self, object);
            assert!([200, 503].contains(&answer.status()), "{}", answer.text());
            answer.status() == 200
        };
        objects.into_iter().filter(stores).collect()
    }

    /// Reads the stored objects over new connections: each is there, or the answer says that
    /// this is unknown. Returns the number of those that are there.
    fn find(&self, stored: &[Object]) -> usize {
        let is_found = |object: &&Object| {
            let answer = self.connect().call(&Request::get(object).encode(self));
            let key = &object.key;
            assert!(
                [200, 503].contains(&answer.status()),
                "{key}: {}",
                answer.text()
            );
            answer.status() == 200
        };
        stored.iter().filter(is_found).count()
    }
}

#[test]
fn groups_of_nodes_whose_files_differ_notice_each_other() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(4, |spec| {
        spec.frontends = 2;
        spec.configure_nodes = Some(Box::new(|_| {}));
    });
    let mut stored = cluster.one_on_each("before", |_| 1_000);
    cluster.put_all(&stored);

    // By the file of a frontend and of be3, be3 has all objects.
    let path = cluster.lab.config_path().with_file_name("nodes.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, with_one_backend(&config, "be3")).unwrap();
    WRONG
        .iter()
        .for_each(|host| cluster.lab.restart(host).unwrap());
    std::fs::write(&path, &config).unwrap();
    eventually("they are told", SOON, || cluster.are_told(&WRONG));
    for (host, said) in WRONG
        .map(|host| (host, FAULT))
        .into_iter()
        .chain([("switch", "groups")])
    {
        let log = cluster.log(host);
        assert!(log.contains(said), "{host}: {log}");
    }

    // New clients go to the other frontend, also when the list may change again.
    std::thread::sleep(CHANGING);
    let before = cluster.accepted("fe1");
    for _ in 0..ROUNDS {
        assert_eq!(cluster.find(&stored), 3, "all but that of be3");
    }
    let more = cluster.store(cluster.one_on_each("meanwhile", |_| 1_000));
    assert_eq!(more.len(), 3);
    stored.extend(more);
    assert_eq!(cluster.accepted("fe1"), before);

    // When it is the only frontend, it refuses everything, and logs the cause.
    cluster.lab.stop("fe0").unwrap();
    let only = format!("frontends=[{}]", cluster.lab.address("fe1").unwrap());
    eventually("clients come to fe1", SOON, || {
        cluster.log("switch").contains(&only)
    });
    assert_eq!(cluster.find(&stored), 0);
    stored.extend(cluster.store(cluster.one_on_each("astray", |_| 1_000)));
    cluster.refuses("GET", "?versioning=");
    cluster.lab.restart("fe0").unwrap();
    eventually("clients go to fe0", SOON, || {
        cluster.find(&stored[..1]) == 1
    });
    cluster.find(&stored);

    // The files are the same again.
    WRONG
        .iter()
        .for_each(|host| cluster.lab.restart(host).unwrap());
    eventually("all agree", SOON, || cluster.are_told(&[]));
    eventually("all is there", SOON, || {
        cluster.find(&stored) == stored.len()
    });
    let before = cluster.accepted("fe1");
    eventually("fe1 has clients", SOON, || {
        assert_eq!(cluster.find(&stored), stored.len());
        cluster.accepted("fe1") > before
    });
    let more = cluster.store(cluster.one_on_each("after", |_| 1_000));
    assert_eq!(more.len(), 4);
}

#[test]
fn a_frontend_whose_file_lacks_a_backend_lists_nothing_and_deletes_no_bucket() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| {
        spec.configure_nodes = Some(Box::new(|_| {}));
    });
    let stored = cluster.one_on_each("stored", |_| 1_000);
    cluster.put_all(&stored);
    let path = cluster.lab.config_path().with_file_name("nodes.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, with_one_backend(&config, "be0")).unwrap();
    cluster.lab.restart("fe0").unwrap();
    eventually("it is told", SOON, || cluster.are_told(&["fe0"]));
    for (method, target) in [
        ("GET", "?list-type=2"),
        ("DELETE", ""),
        ("GET", "?versioning="),
    ] {
        cluster.refuses(method, target);
    }
    std::fs::write(&path, &config).unwrap();
    cluster.lab.restart("fe0").unwrap();
    eventually("all is there", SOON, || cluster.find(&stored) == 2);
}
