//! Active checks of this node's servers. An upstream without `health` has its addresses checked
//! only while they are ejected, by connecting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::HealthCheck;
use prism_http::{Limits, ResponseHead};
use prism_service::join_all;

use crate::Shared;
use crate::health::is_of_server;
use crate::pool::{Address, Pool};
use crate::proxy_header::of_prism;
use crate::server::{Server, write_some};

/// Time between two looks.
const TICK: Duration = Duration::from_millis(250);
/// Longest time to connect to an ejected address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks all addresses of this node, and drops parked answers in time. Never returns.
pub(crate) async fn check_always(shared: &Shared) {
    let checking = async {
        let mut following = shared.follow_pools();
        loop {
            let pools = following.borrow_and_update().clone();
            let checks = pools.iter().map(|pool| check_pool(pool));
            let checks = join_all(checks.collect());
            // A pool may have nothing to check. The sender lives as long as `shared`.
            let checks = async { (checks.await, std::future::pending::<()>().await) };
            tokio::select! {
                _ = checks => {}
                _ = following.changed() => {}
            }
        }
    };
    let expiring = async {
        loop {
            tokio::time::sleep(TICK).await;
            shared.parking.expire(Instant::now());
        }
    };
    tokio::join!(checking, expiring);
}

async fn check_pool(pool: &Pool) {
    if pool.addresses.is_empty() {
        return;
    }
    let health = pool.settings.health.as_ref();
    let every = health.map_or(TICK, |health| Duration::from_secs(health.interval_s.into()));
    loop {
        let begun = Instant::now();
        let due = pool.addresses.iter();
        let due = due.filter(|address| health.is_some() || !address.is_in());
        let checks = due.map(|address| check(address, pool));
        join_all(checks.collect()).await;
        tokio::time::sleep(every.saturating_sub(begun.elapsed()).max(TICK)).await;
    }
}

async fn check(address: &Arc<Address>, pool: &Pool) {
    let health = pool.settings.health.as_ref();
    let preface = match pool.settings.proxy_protocol {
        true => of_prism(),
        false => Vec::new(),
    };
    let limit = health.map_or(CONNECT_TIMEOUT, |health| {
        Duration::from_secs(health.timeout_s.into())
    });
    let server = match Server::connect(address.address, limit).await {
        Err(fault) if !is_of_server(&fault) => {
            tracing::debug!(address = %address.address, error = %fault, "no check");
            return;
        }
        connected => connected.ok(),
    };
    let is_good = match health {
        None => server.is_some(),
        Some(health) => {
            let asked = async { status(server?, preface, health).await };
            let asked = tokio::time::timeout(limit, asked);
            let status = asked.await.ok().flatten();
            status.is_some_and(|status| (200..400).contains(&status))
        }
    };
    address.checked(is_good, health);
}

/// The status of the answer to a check; `None` without an answer.
async fn status(mut server: Server, preface: Vec<u8>, health: &HealthCheck) -> Option<u16> {
    let host = match health.host.as_str() {
        "" => server.stream.peer_addr().ok()?.to_string(),
        host => host.to_owned(),
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Prism-health\r\nConnection: close\r\n\r\n",
        health.path
    );
    let request = [preface, request.into_bytes()].concat();
    let mut unsent = request.as_slice();
    while !unsent.is_empty() {
        let written = write_some(&server.stream, unsent).await.ok()?;
        unsent = unsent.get(written..).unwrap_or_default();
    }
    loop {
        let parsed = ResponseHead::parse(server.input.buffered(), &Limits::ANSWER).ok()?;
        match parsed {
            Some((head, len)) if head.status() < 200 => server.input.consume(len),
            Some((head, _)) => return Some(head.status()),
            None => match server.input.fill(&server.stream).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::SocketAddr;

    use prism_config::{Config, Node, Role, Upstream};

    use super::*;

    /// Whether one check leaves the only address in.
    fn is_in_after_check(address: &str) -> bool {
        let settings = Upstream {
            address: address.parse::<SocketAddr>().unwrap().into(),
            health: Some(HealthCheck {
                fall: 1,
                ..HealthCheck::default()
            }),
            ..Upstream::default()
        };
        let mut config = Config::default();
        config.nodes.push(Node {
            name: "be0".into(),
            roles: vec![Role::Backend],
            ..Node::default()
        });
        let pool = Pool::new(&settings, &config, "be0");
        let address = pool.addresses.first().unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(check(address, &pool));
        address.is_in()
    }

    #[test]
    fn a_check_that_this_host_cannot_make_says_nothing() {
        // Without an interface such an address is invalid here.
        assert!(is_in_after_check("[fe80::1]:9"));
        assert!(!is_in_after_check("127.0.0.1:9"));
    }
}
