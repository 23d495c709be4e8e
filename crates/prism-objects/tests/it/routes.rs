//! Which nodes answer a request: the decision to answer here, to hand off, or to relay.

use prism_service::Route;

use crate::support::{Server, config};

/// The first node of a route, or "here".
fn first(route: Route) -> (&'static str, String) {
    match route {
        Route::Here => ("here", String::new()),
        Route::HandOff(nodes) => ("hand off", nodes[0].clone()),
        Route::Relay(nodes) => ("relay", nodes[0].clone()),
    }
}

#[test]
fn the_owner_of_a_key_gets_the_connection_for_its_bytes_and_the_request_for_the_rest() {
    let names = ["a", "b", "c"];
    let servers = names.map(|name| Server::of(config(&names, 1), name));
    for n in 0..50 {
        let gets = servers
            .each_ref()
            .map(|s| first(s.route(&format!("GET /bkt/{n}"))));
        let owner = gets.iter().position(|(how, _)| *how == "here").unwrap();
        for (at, server) in servers.iter().enumerate() {
            for (method, expected) in [
                ("GET", "hand off"),
                ("PUT", "hand off"),
                ("HEAD", "relay"),
                ("DELETE", "relay"),
            ] {
                let route = first(server.route(&format!("{method} /bkt/{n}")));
                match at == owner {
                    true => assert_eq!(route.0, "here", "{method} {n}"),
                    false => assert_eq!(route, (expected, names[owner].to_owned())),
                }
            }
        }
    }
}

#[test]
fn every_replica_reads_and_one_of_them_writes() {
    let names = ["a", "b", "c"];
    let servers = names.map(|name| Server::of(config(&names, 2), name));
    for n in 0..50 {
        let here = |method: &str| {
            let start = format!("{method} /bkt/{n}");
            let routes = servers.iter().map(|server| server.route(&start));
            routes.filter(|route| *route == Route::Here).count()
        };
        assert_eq!((here("GET"), here("HEAD")), (2, 2));
        assert_eq!((here("PUT"), here("DELETE")), (1, 1));
    }
}

#[test]
fn requests_about_all_backends_are_answered_where_they_arrive() {
    let names = ["a", "b", "c"];
    let servers = names.map(|name| Server::of(config(&names, 1), name));
    for start in [
        "PUT /bkt",
        "DELETE /bkt",
        "GET /bkt?list-type=2",
        "POST /bkt?delete",
        "GET /",
    ] {
        for server in &servers {
            assert_eq!(server.route(start), Route::Here, "{start}");
        }
    }
}
