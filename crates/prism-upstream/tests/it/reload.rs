//! Changes of an upstream while requests come.

use crate::bed::{Bed, Served, Server, act, read, write};

const GET: &str = "GET / HTTP/1.1\r\nHost: h";

/// A server whose only connection has requests until it ends.
fn server(name: &'static str, requests: usize) -> Server {
    Server::new(vec![act(move |stream| {
        for _ in 0..requests {
            read(stream, 0);
            let answer = format!("HTTP/1.1 200 OK\r\nX-Name: {name}\r\nContent-Length: 0\r\n\r\n");
            write(stream, answer.as_bytes(), 1);
        }
        let end = std::io::Read::read(stream, &mut [0]).unwrap();
        assert_eq!(end, 0, "another request at {name}");
    })])
}

#[test]
fn requests_after_a_reload_go_by_the_new_upstream() {
    let (first, second) = (server("first", 2), server("second", 1));
    let mut bed = Bed::new(first.address, 1, |_| {});
    let ask = |bed: &Bed| {
        let end = bed.ask(GET, &[]);
        assert_eq!(end.served.unwrap(), Served::Open);
        end.client.text()
    };
    assert!(ask(&bed).contains("X-Name: first\r\n"));
    // The connection to the same server goes on.
    bed.reload(|upstream| upstream.answer_headers = vec!["X-Name: own".into()]);
    assert!(ask(&bed).contains("X-Name: own\r\n"));
    let address = second.address;
    bed.reload(move |upstream| {
        upstream.address = address.into();
        upstream.answer_headers.clear();
    });
    assert!(ask(&bed).contains("X-Name: second\r\n"));
    // The first server's idle connection has ended.
    first.join();
    drop(bed);
    second.join();
}

#[test]
fn a_server_keeps_its_health() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let mut bed = Bed::new(address, 1, |_| {});
    assert!(matches!(bed.ask(GET, &[]).served, Ok(Served::Elsewhere(_))));
    assert_eq!(bed.are_in(), [false]);
    bed.reload(|upstream| upstream.answer_timeout_s = 9);
    assert_eq!(bed.are_in(), [false]);
    bed.reload(|upstream| {
        upstream.address = [address, ([127, 0, 0, 1], 1).into()].into_iter().collect()
    });
    assert_eq!(bed.are_in().len(), 2);
}

#[test]
fn a_connection_to_a_server_that_a_reload_has_removed_is_not_kept() {
    let (sender, reloads) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
    let server = Server::new(vec![act(move |stream| {
        read(stream, 0);
        reloads.recv().unwrap()();
        write(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1);
        let patience = std::time::Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).unwrap();
        assert_eq!(std::io::Read::read(stream, &mut [0]).unwrap(), 0);
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let another = |upstream: &mut prism_config::Upstream| {
        upstream.address = std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into();
    };
    sender.send(bed.later_reload(another)).unwrap();
    assert_eq!(bed.ask(GET, &[]).served.unwrap(), Served::Open);
    server.join();
    assert_eq!(bed.are_in(), [true]);
}
