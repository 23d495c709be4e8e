//! Servers that authenticate connections: nobody else gets a connection on which a client has
//! logged in.

use std::net::TcpStream;

use prism_handoff::Companion;
use prism_service::{Route, Service};

use crate::bed::{Act, Bed, Served, Server, act, read, write};
use crate::routes::{node, understand};

const GET: &str = "GET /mail HTTP/1.1\r\nHost: h";

/// A request with this login.
fn login(token: &str) -> String {
    format!("{GET}\r\nAuthorization: {token}")
}

/// Answers a number of requests on a connection as a server that knows NTLM: the user of the last
/// login gets everything.
fn serve(stream: &mut TcpStream, requests: usize) {
    let mut user = None;
    for _ in 0..requests {
        let head = read(stream, 0);
        let token = head.split("Authorization: ").nth(1);
        let token = token.map(|rest| rest.lines().next().unwrap().to_owned());
        let offer = match token.as_deref() {
            Some("NTLM first") => Some("NTLM challenge"),
            Some(last) if last.starts_with("NTLM last-") => {
                user = Some(last.replace("NTLM last-", ""));
                None
            }
            _ => Some("Negotiate, NTLM"),
        };
        let answer = match (&user, offer) {
            (Some(user), _) => {
                format!(
                    "HTTP/1.1 200 \r\nContent-Length: {}\r\n\r\n{user}",
                    user.len()
                )
            }
            (None, offer) => format!(
                "HTTP/1.1 401 \r\nWWW-Authenticate: {}\r\nContent-Length: 0\r\n\r\n",
                offer.unwrap()
            ),
        };
        write(stream, answer.as_bytes(), 1);
    }
}

/// Serves a connection beside others.
fn apart(requests: usize) -> Act {
    act(move |stream| {
        let mut stream = stream.try_clone().unwrap();
        std::thread::spawn(move || serve(&mut stream, requests));
    })
}

fn status_and_body(bed: &Bed, companion: &mut Companion, head: &str) -> (Option<u16>, String) {
    let end = bed.ask_on(companion, head);
    assert_eq!(end.served.unwrap(), Served::Open);
    let text = end.client.text();
    let body = text.split("\r\n\r\n").nth(1).unwrap().to_owned();
    (end.status, body)
}

#[test]
fn a_connection_on_which_a_client_has_logged_in_is_for_that_client_only() {
    let server = Server::new(vec![apart(5), apart(1), apart(3)]);
    let bed = Bed::new(server.address, 1, |_| {});
    let (mut alice, mut stranger, mut bob): (Companion, Companion, Companion) = Default::default();
    let refused = (Some(401), String::new());
    let mail_of = |user: &str| (Some(200), user.to_owned());
    assert_eq!(status_and_body(&bed, &mut alice, GET), refused);
    assert_eq!(
        status_and_body(&bed, &mut alice, &login("NTLM first")),
        refused
    );
    let done = status_and_body(&bed, &mut alice, &login("NTLM last-alice"));
    assert_eq!(done, mail_of("alice"));
    assert_eq!(status_and_body(&bed, &mut stranger, GET), refused);
    assert_eq!(
        status_and_body(&bed, &mut bob, &login("NTLM first")),
        refused
    );
    let done = status_and_body(&bed, &mut bob, &login("NTLM last-bob"));
    assert_eq!(done, mail_of("bob"));
    for _ in 0..2 {
        assert_eq!(status_and_body(&bed, &mut alice, GET), mail_of("alice"));
    }
    assert_eq!(status_and_body(&bed, &mut bob, GET), mail_of("bob"));
    server.join();
}

#[test]
fn a_relayed_login_leaves_no_connection_behind() {
    let server = Server::new(vec![
        act(|stream| serve(stream, 1)),
        act(|stream| serve(stream, 1)),
        act(|stream| serve(stream, 1)),
    ]);
    let bed = Bed::new(server.address, 1, |_| {});
    for (id, head, status) in [
        (1, GET.to_owned(), 401),
        (2, login("NTLM last-alice"), 200),
        (3, GET.to_owned(), 401),
    ] {
        let end = bed.ask_relayed(&head, id, None);
        assert_eq!(end.status, Some(status), "{head}");
    }
    server.join();
}

#[test]
fn a_login_moves_and_is_never_relayed_in_the_hope_of_a_short_answer() {
    let frontend = node("fe0", "round-robin");
    for (fields, has_to_move) in [
        ("", false),
        ("Authorization: Basic YTpi\r\n", false),
        ("Authorization: Negotiate YII=\r\n", true),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\n", true),
    ] {
        let meaning = understand(&frontend, "GET /all", fields, None)
            .ok()
            .unwrap();
        assert_eq!(frontend.has_to_move(&meaning), has_to_move, "{fields}");
        assert_eq!(
            frontend.subject(&meaning).is_none(),
            has_to_move,
            "{fields}"
        );
        assert!(matches!(frontend.route(&meaning, false), Route::HandOff(_)));
    }
}
