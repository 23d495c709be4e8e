//! Tests of the choice among servers and backends.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use prism_config::{Config, Node, Role};

use super::*;
use crate::sources::Sources;

pub(crate) const REFUSED: Outcome = Outcome::Failed(Reason::Refused);
const SILENT: Outcome = Outcome::Failed(Reason::AnswerTimeout);

/// A configuration with these backends.
pub(crate) fn with_backends(names: &[&str]) -> Config {
    let nodes = names.iter().map(|name| Node {
        name: (*name).into(),
        roles: vec![Role::Backend],
        ..Node::default()
    });
    Config {
        nodes: nodes.collect(),
        ..Config::default()
    }
}

/// The upstream of these settings with the servers of the configuration, at the node `own`.
pub(crate) fn pool_of(settings: &Upstream, config: &Config, own: &str) -> Pool {
    let placed = Sources::new(config, own).placed("", settings);
    Pool::new(String::new(), settings, placed, own, None)
}

#[test]
fn clients_take_at_most_half_of_the_servers_out() {
    let addresses = [9, 10].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let settings = Upstream {
        address: addresses.into_iter().collect(),
        ..Upstream::default()
    };
    let config = with_backends(&["be0", "be1"]);
    for outcome in [SILENT, Outcome::Answered(503)] {
        let pool = pool_of(&settings, &config, "be0");
        let (first, second) = (&pool.addresses[0], &pool.addresses[1]);
        let many = |address: &Address| (0..20).for_each(|_| pool.learn(address, outcome));
        many(first);
        many(second);
        assert!(!first.is_in() && second.is_in());
        assert!(pool.is_tried(&Affinity::default()));
        // A refusal is never a client's doing.
        pool.learn(second, REFUSED);
        assert!(!second.is_in() && !pool.is_tried(&Affinity::default()));
        // The other backend is out too.
        pool.backends[1].learn(None);
        assert!(pool.is_tried(&Affinity::default()));
    }
    let pool = pool_of(&settings, &config, "be0");
    pool.backends[1].learn(None);
    (0..20).for_each(|_| pool.learn(&pool.addresses[0], SILENT));
    assert!(pool.addresses[0].is_in());
}

/// A request of a client whose cookie names this server.
fn of(server: &str) -> Affinity {
    Affinity {
        key: String::new(),
        server: Some(server.into()),
    }
}

#[test]
fn a_server_that_drains_gets_its_own_clients_and_one_that_is_down_gets_nobody() {
    let addresses = [9, 10].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let settings = Upstream {
        address: addresses.into_iter().collect(),
        cookie: Some("SRV".into()),
        ..Upstream::default()
    };
    let config = with_backends(&["be0", "be1"]);
    let pool = pool_of(&settings, &config, "be0");
    let (first, second) = (&pool.addresses[0], &pool.addresses[1]);
    let (nobodys, own) = (Affinity::default(), of(&first.server));
    first.set_duty(Duty::Drain);
    assert_eq!(pool.addresses(&nobodys), [1]);
    assert_eq!(pool.addresses(&own), [0, 1]);
    second.set_duty(Duty::Down);
    assert!(pool.addresses(&nobodys).is_empty() && !pool.is_tried(&nobodys));
    assert_eq!(pool.addresses(&own), [0]);
    assert!(pool.is_tried(&own));
    assert!(!pool.is_tried(&of(&second.server)));
    let report = pool.report();
    assert!(!report.is_up && report.drains);
    // Nobody else is up: a server that is down is not tried nevertheless.
    pool.backends[1].learn(None);
    assert!(!pool.is_tried(&nobodys) && pool.addresses(&nobodys).is_empty());
    // One that drains and fails loses its clients to others, if there are any.
    pool.learn(first, REFUSED);
    assert!(pool.is_tried(&own) && !pool.report().drains);
    pool.backends[1].learn(Some(Report {
        is_up: true,
        ..Report::default()
    }));
    assert!(!pool.is_tried(&own));
}

#[test]
fn a_frontend_sends_a_backend_that_drains_its_own_clients_only() {
    let settings = Upstream {
        address: SocketAddr::from(([127, 0, 0, 1], 9)).into(),
        cookie: Some("SRV".into()),
        ..Upstream::default()
    };
    let config = with_backends(&["be0", "be1", "be2"]);
    let pool = pool_of(&settings, &config, "fe0");
    let first = |affinity: &Affinity| pool.backends(affinity, &|_| false)[0].name.clone();
    let learn = |report: Report| pool.backends[1].learn(Some(report));
    learn(Report {
        drains: true,
        ..Report::default()
    });
    for _ in 0..6 {
        assert_eq!(first(&of("be1")), "be1");
        let other = first(&Affinity::default());
        assert_ne!(other, "be1");
        pool.sends(pool.backends.iter().find(|one| one.name == other).unwrap());
    }
    learn(Report::default());
    assert_ne!(first(&of("be1")), "be1");
    // As a former release says it.
    let former: Report = serde_json::from_str(r#"{"is_up": true, "under_way": 2}"#).unwrap();
    assert!(former.is_up && !former.drains);
}

#[test]
fn servers_that_operators_have_taken_down_are_not_spared() {
    let addresses = [1, 2, 3, 4].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let settings = Upstream {
        address: addresses.into_iter().collect(),
        ..Upstream::default()
    };
    let pool = pool_of(&settings, &with_backends(&["be0"]), "be0");
    pool.addresses[0].set_duty(Duty::Down);
    pool.addresses[1].set_duty(Duty::Drain);
    for address in &pool.addresses[2..] {
        (0..20).for_each(|_| pool.learn(address, SILENT));
    }
    // One of the two that are left.
    assert!(!pool.addresses[2].is_in() && pool.addresses[3].is_in());
}

#[test]
fn a_client_stays_with_its_server_also_if_all_are_out() {
    let settings = Upstream {
        address: SocketAddr::from(([127, 0, 0, 1], 9)).into(),
        ..Upstream::default()
    };
    let config = with_backends(&["be0", "be1", "be2"]);
    let pool = pool_of(&settings, &config, "fe0");
    pool.backends.iter().for_each(|backend| backend.learn(None));
    let affinity = of("be1");
    for _ in 0..4 {
        let backends = pool.backends(&affinity, &|_| false);
        assert_eq!((backends[0].name.as_str(), backends.len()), ("be1", 3));
        pool.sends(backends[0]);
    }
}
