//! Servers that authenticate a connection in the place of each request (NTLM, and Negotiate of RFC
//! 4559): whoever gets the connection next is taken for the same user.
//!
//! A client that logs in so has a server's connection of its own. It lies beside the client's
//! connection, and ends with it. The client's connection stays at the node, because a server's
//! connection cannot move. A relayed request never gets such a connection, so its login fails.

use std::net::SocketAddr;
use std::time::Instant;

use prism_http::{Headers, RequestHead, ResponseHead};
use prism_service::Exchange;

use crate::park::Lease;
use crate::pool::{Pool, UnderWay};
use crate::server::Server;

/// The schemes that authenticate a connection.
const SCHEMES: [&str; 3] = ["ntlm", "negotiate", "nego2"];

/// The requests that may use the server's connection of a request afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Any request.
    Everybody,
    /// Only later requests of the same client's connection: the request logs in, or the answer asks
    /// for that.
    Client,
    /// As with `Client`, and the client's connection has one already.
    Present,
}

impl Sharing {
    /// By the fields of a request.
    pub(crate) fn of(head: &RequestHead) -> Self {
        if has_scheme(head.headers(), ["authorization", "proxy-authorization"]) {
            Self::Client
        } else {
            Self::Everybody
        }
    }

    pub(crate) fn is_private(self) -> bool {
        self != Self::Everybody
    }
}

/// Whether an answer offers to authenticate the connection.
pub(crate) fn is_offered(answer: &ResponseHead) -> bool {
    matches!(answer.status(), 401 | 407)
        && has_scheme(answer.headers(), ["www-authenticate", "proxy-authenticate"])
}

fn has_scheme(headers: &Headers, names: [&str; 2]) -> bool {
    let values = names.into_iter().flat_map(|name| headers.get_all(name));
    // A field may have several challenges, and a parameter may have a comma.
    let mut challenges = values.flat_map(|value| value.split(|byte| *byte == b','));
    challenges.any(|challenge| {
        let mut words = challenge.trim_ascii().split(|byte| *byte == b' ');
        let scheme = words.next().unwrap_or_default();
        let mut known = SCHEMES.iter();
        known.any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()))
    })
}

/// A server's connection beside the client's.
struct Private {
    address: SocketAddr,
    server: Server,
    since: Instant,
}

impl Private {
    fn reused(self) -> Option<Server> {
        self.server.reused(self.since.elapsed()).ok()
    }
}

/// Keeps a server's connection beside that of its client. A relaying node's stream keeps none.
pub(crate) fn keep(exchange: &mut impl Exchange, lease: Lease) {
    let address = lease.under_way.address().address;
    if let Some(companion) = exchange.companion() {
        *companion = Some(Box::new(Private {
            address,
            server: lease.server,
            since: Instant::now(),
        }));
    }
}

/// The server's connection of this client.
pub(crate) enum Own {
    /// A connection to a server of this upstream.
    Usable(Lease),
    /// The server has ended it.
    Ended,
    /// It is one to a server of another upstream, and stays.
    Elsewhere,
}

/// Takes the server's connection that lies beside the client's.
pub(crate) fn take(exchange: &mut impl Exchange, pool: &Pool) -> Own {
    let Some(companion) = exchange.companion() else {
        return Own::Ended;
    };
    let present = companion.as_ref().and_then(|any| any.downcast_ref());
    let place = present.map(|private: &Private| private.address);
    let mut addresses = pool.addresses.iter();
    let address = addresses.find(|address| Some(address.address) == place);
    if address.is_some_and(|address| !address.is_open_to(true)) {
        *companion = None;
        return Own::Ended;
    }
    let Some(address) = address else {
        return match place {
            Some(_) => Own::Elsewhere,
            None => Own::Ended,
        };
    };
    let taken = companion.take().and_then(|any| any.downcast().ok());
    match taken.and_then(|private: Box<Private>| private.reused()) {
        Some(server) => Own::Usable(Lease {
            server,
            under_way: UnderWay::at(address),
        }),
        None => Own::Ended,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    #[test]
    fn a_login_of_a_connection_is_told_from_that_of_a_request() {
        for (fields, expected) in [
            ("Authorization: NTLM TlRMTVNTUAAB", Sharing::Client),
            ("authorization: negotiate YII=", Sharing::Client),
            ("Proxy-Authorization: NTLM TlRM", Sharing::Client),
            (
                "Authorization: Basic bnRsbTpuZWdvdGlhdGU=",
                Sharing::Everybody,
            ),
            ("Authorization: Bearer ntlm", Sharing::Everybody),
            ("A: NTLM", Sharing::Everybody),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
            let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
            assert_eq!(
                Sharing::of(&parsed.unwrap().unwrap().0),
                expected,
                "{fields}"
            );
        }
    }

    #[test]
    fn an_offer_may_be_one_of_several() {
        for (status, fields, expected) in [
            (401, "WWW-Authenticate: Negotiate", true),
            (401, "WWW-Authenticate: Basic realm=\"a\", NTLM", true),
            (
                401,
                "WWW-Authenticate: Basic\r\nwww-authenticate: NTLM",
                true,
            ),
            (407, "Proxy-Authenticate: NTLM TlRMTVNTUAAC", true),
            (401, "WWW-Authenticate: Basic realm=\"NTLM\"", false),
            (200, "WWW-Authenticate: NTLM", false),
        ] {
            let text = format!("HTTP/1.1 {status} x\r\n{fields}\r\n\r\n");
            let parsed = ResponseHead::parse(text.as_bytes(), &Limits::ANSWER);
            assert_eq!(
                is_offered(&parsed.unwrap().unwrap().0),
                expected,
                "{fields}"
            );
        }
    }
}
