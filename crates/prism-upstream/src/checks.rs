//! Active checks of this node's servers: a GET by `health`, and connections.
//!
//! A connection finds a server that is gone although no request comes. It is tried only if
//! nothing has been heard of the server for a while. Without `health` it also finds a server that
//! is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::{HealthCheck, seconds};
use prism_http::{AnswerError, Limits, read_answer};
use prism_service::join_all;

use crate::Shared;
use crate::health::{Bounds, Check, Reason};
use crate::pool::{Address, Pool};
use crate::proxy_header::of_prism;
use crate::server::Server;
use crate::shared::Pools;

/// Time between two looks.
const TICK: Duration = Duration::from_millis(250);
/// A server of which nothing has been heard for this time gets a connection. Operators see a dead
/// server after this time, [`CONNECT_TIMEOUT`], and the second in which nodes ask each other.
const UNHEARD: Duration = Duration::from_secs(1);
/// Longest time to connect in a check without `health`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// One connection decides.
const BY_CONNECTION: Bounds = Bounds { fall: 1, rise: 1 };

/// Checks all addresses of this node, drops parked answers in time, and looks for duties that
/// another process has set, and for servers that come or go. Never returns.
pub(crate) async fn check_always(shared: &Shared) {
    let checking = async {
        let mut following = shared.follow_pools();
        loop {
            let pools = following.borrow_and_update().clone();
            let checks = pools.iter().map(|pool| check_pool(pool));
            let checks = join_all(checks.collect());
            // A pool may have nothing to check. The sender lives as long as `shared`.
            let checks = async { (checks.await, std::future::pending::<()>().await) };
            let others = async {
                while following.changed().await.is_ok() {
                    if !has_same_checks(&pools, &following.borrow_and_update()) {
                        break;
                    }
                }
            };
            tokio::select! {
                _ = checks => {}
                () = others => {}
            }
        }
    };
    let expiring = async {
        loop {
            tokio::time::sleep(TICK).await;
            shared.parking.expire(Instant::now());
            shared.refresh_duties();
            shared.refresh_servers();
        }
    };
    tokio::join!(checking, expiring);
}

/// Whether the checks of `new` are those of `present`. A check that begins again and again would
/// find no server that is out of reach.
pub(crate) fn has_same_checks(present: &Pools, new: &Pools) -> bool {
    let is_same = |(present, new): (&Arc<Pool>, &Arc<Pool>)| {
        let mut addresses = present.addresses.iter().zip(&new.addresses);
        present.settings == new.settings
            && present.addresses.len() == new.addresses.len()
            && addresses.all(|(present, new)| Arc::ptr_eq(present, new))
    };
    present.len() == new.len() && present.iter().zip(new.iter()).all(is_same)
}

async fn check_pool(pool: &Pool) {
    if pool.addresses.is_empty() {
        return;
    }
    match &pool.settings.health {
        Some(health) => {
            tokio::join!(ask_always(pool, health), connect_always(pool));
        }
        None => connect_always(pool).await,
    }
}

/// Asks each server by `health`. Never returns.
async fn ask_always(pool: &Pool, health: &HealthCheck) {
    let every = seconds(health.interval_s);
    loop {
        let begun = Instant::now();
        let checks = pool.addresses.iter();
        let checks = checks.map(|address| ask(address, pool, health));
        join_all(checks.collect()).await;
        tokio::time::sleep(every.saturating_sub(begun.elapsed()).max(TICK)).await;
    }
}

async fn ask(address: &Address, pool: &Pool, health: &HealthCheck) {
    let limit = seconds(health.timeout_s);
    let check = match connect(address, limit).await {
        None => return,
        Some(Err(reason)) => Check::Failed(reason),
        Some(Ok(server)) => {
            let asked = tokio::time::timeout(limit, status(server, preface(pool), health));
            match asked.await.unwrap_or(Err(Reason::AnswerTimeout)) {
                Ok(200..400) => Check::Answered,
                Ok(status) => Check::Failed(Reason::Status(status)),
                Err(reason) => Check::Failed(reason),
            }
        }
    };
    let bounds = Bounds {
        fall: health.fall.into(),
        rise: health.rise.into(),
    };
    address.checked(check, bounds);
}

/// Connects to servers of which nothing was heard, and without `health` to those that are out.
/// Never returns.
async fn connect_always(pool: &Pool) {
    loop {
        tokio::time::sleep(TICK).await;
        let due = pool.addresses.iter().filter(|address| {
            if address.is_in() {
                !address.is_heard_within(UNHEARD)
            } else {
                pool.settings.health.is_none()
            }
        });
        let checks = due.map(|address| try_connection(address, pool));
        join_all(checks.collect()).await;
    }
}

async fn try_connection(address: &Address, pool: &Pool) {
    let check = match connect(address, CONNECT_TIMEOUT).await {
        None => return,
        Some(Err(reason)) => Check::Failed(reason),
        Some(Ok(mut server)) => {
            // A server that awaits the header would log a connection without it.
            let _ = server.write_all(&preface(pool)).await;
            Check::Connected
        }
    };
    match check {
        // With `health` only an answer speaks for a server.
        Check::Connected if pool.settings.health.is_some() => address.connected(),
        check => address.checked(check, BY_CONNECTION),
    }
}

/// A connection for a check; `None` if this host cannot make one.
async fn connect(address: &Address, limit: Duration) -> Option<Result<Server, Reason>> {
    match Server::connect(address.address, limit).await {
        Ok(server) => Some(Ok(server)),
        Err(fault) => {
            let reason = Reason::of_connect(&fault);
            if reason.is_none() {
                tracing::debug!(address = %address.address, error = %fault, "no check");
            }
            reason.map(Err)
        }
    }
}

/// The header for a connection of a check.
fn preface(pool: &Pool) -> Vec<u8> {
    if pool.settings.proxy_protocol {
        of_prism()
    } else {
        Vec::new()
    }
}

/// The status of the answer to a check.
async fn status(mut server: Server, preface: Vec<u8>, health: &HealthCheck) -> Result<u16, Reason> {
    let ended = |_| Reason::Ended;
    let host = match health.host.as_str() {
        "" => server.address().map_err(ended)?.to_string(),
        host => host.to_owned(),
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Prism-health\r\nConnection: close\r\n\r\n",
        health.path
    );
    let request = [preface, request.into_bytes()].concat();
    server.write_all(&request).await.map_err(ended)?;
    match read_answer(&mut server, &Limits::ANSWER).await {
        Ok(head) => Ok(head.status()),
        Err(AnswerError::Head(_)) => Err(Reason::Malformed),
        Err(_) => Err(Reason::Ended),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::SocketAddr;

    use prism_config::{Config, Node, Role, Upstream};

    use super::*;
    use crate::figures::ServerState;
    use crate::pool::tests::pool_of;

    /// An upstream with one server, at the node that has it.
    fn pool(address: SocketAddr, health: Option<HealthCheck>) -> Pool {
        let settings = Upstream {
            address: address.into(),
            health,
            ..Upstream::default()
        };
        let mut config: Config = Config::default();
        config.nodes.push(Node {
            name: "be0".into(),
            roles: vec![Role::Backend],
            ..Node::default()
        });
        pool_of(&settings, &config, "be0")
    }

    fn seen(pool: &Pool) -> prism_figures::ServerState {
        pool.addresses.first().unwrap().figures("/", None)
    }

    fn run(work: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work);
    }

    /// Whether one check leaves the only address in.
    fn is_in_after_check(address: &str) -> bool {
        let health = HealthCheck {
            fall: 1,
            ..HealthCheck::default()
        };
        let pool = pool(address.parse().unwrap(), Some(health.clone()));
        run(ask(pool.addresses.first().unwrap(), &pool, &health));
        seen(&pool).gets_requests
    }

    #[test]
    fn a_check_that_this_host_cannot_make_says_nothing() {
        // Without an interface such an address is invalid here.
        assert!(is_in_after_check("[fe80::1]:9"));
        assert!(!is_in_after_check("127.0.0.1:9"));
    }

    /// Waits until the server has a state.
    async fn becomes(pool: &Pool, state: ServerState) {
        let seen = async {
            while seen(pool).state != state.word() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // Far less than operators wait for.
        let seen = tokio::time::timeout(Duration::from_secs(4), seen);
        assert!(seen.await.is_ok(), "it never becomes {}", state.word());
    }

    #[test]
    fn a_server_that_nobody_asks_is_seen_to_go_and_to_return() {
        run(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let pool = pool(address, None);
            assert_eq!(seen(&pool).state, "unknown");
            let looking = async {
                becomes(&pool, ServerState::Healthy).await;
                drop(listener);
                becomes(&pool, ServerState::Unhealthy).await;
                let fault = seen(&pool).last_fault.unwrap();
                assert_eq!(fault.reason, "connection refused");
                assert!(fault.by == "check" && !seen(&pool).gets_requests);
                // No request has failed.
                assert!(seen(&pool).errors.values().all(|count| *count == 0));
                let _listener = std::net::TcpListener::bind(address).unwrap();
                becomes(&pool, ServerState::Healthy).await;
            };
            tokio::select! {
                () = check_pool(&pool) => {}
                () = looking => {}
            }
        });
    }

    #[test]
    fn a_connection_is_no_answer_to_a_health_check() {
        run(async {
            // Its kernel takes connections, and nobody answers.
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let health = HealthCheck {
                interval_s: 1,
                timeout_s: 1,
                ..HealthCheck::default()
            };
            let pool = pool(listener.local_addr().unwrap(), Some(health));
            let address = pool.addresses.first().unwrap();
            try_connection(address, &pool).await;
            assert_eq!(seen(&pool).state, "unknown");
            // The next connection waits for its time.
            assert!(address.is_heard_within(UNHEARD));
            tokio::select! {
                () = check_pool(&pool) => {}
                () = becomes(&pool, ServerState::Unhealthy) => {}
            }
            let fault = seen(&pool).last_fault.unwrap();
            assert_eq!(fault.reason, "no answer in time");
        });
    }
}
