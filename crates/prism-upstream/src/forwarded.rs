//! The header fields by which a server learns of the client and of the first hop, and those of the
//! configuration. Pure.
//!
//! A client's own fields of these names are replaced: nobody has vouched for them.

use std::net::{IpAddr, SocketAddr};

use prism_http::{HeaderError, RequestHead};

/// Gives a request the fields for its client at `address`, with or without TLS, and its `own` ones.
pub(crate) fn add(
    head: &mut RequestHead,
    address: SocketAddr,
    is_tls: bool,
    own: &[String],
) -> Result<(), HeaderError> {
    let proto = if is_tls { "https" } else { "http" };
    let ip = address.ip().to_canonical();
    let node = match ip {
        IpAddr::V4(v4) => v4.to_string(),
        // RFC 7239, section 6.
        IpAddr::V6(v6) => format!("\"[{v6}]\""),
    };
    let host = head.host().unwrap_or_default().to_owned();
    // A host holds neither quotes nor backslashes.
    let forwarded = format!("for={node};host=\"{host}\";proto={proto}");
    head.set_field("X-Forwarded-For", ip.to_string())?;
    head.set_field("X-Forwarded-Proto", proto)?;
    head.set_field("X-Forwarded-Host", host)?;
    head.set_field("Forwarded", forwarded)?;
    let own = own.iter().filter_map(|field| field.split_once(':'));
    for (name, value) in own {
        head.set_field(name, value.replace("{client}", &ip.to_string()))?;
        keep_at_next_hop(head, name)?;
    }
    Ok(())
}

/// Takes a field out of `Connection`, by which a client could have it dropped.
fn keep_at_next_hop(head: &mut RequestHead, name: &str) -> Result<(), HeaderError> {
    if !head.headers().list_has("connection", name) {
        return Ok(());
    }
    let named = head.headers().list("connection");
    let others = named.filter(|other| !other.eq_ignore_ascii_case(name.as_bytes()));
    let others: Vec<Vec<u8>> = others.map(<[u8]>::to_owned).collect();
    head.set_field("Connection", others.join(&b", "[..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::{BodyFraming, Headers, Limits};

    use super::*;

    fn forwarded(text: &str, client: &str, is_tls: bool) -> String {
        let (mut head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        let own = ["Client: {client}", "Env: prod"].map(str::to_owned);
        add(&mut head, client.parse().unwrap(), is_tls, &own).unwrap();
        let mut out = Vec::new();
        head.write_forward(BodyFraming::None, &Headers::new(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_server_learns_who_asks_and_how() {
        let text = "GET /a?b HTTP/1.1\r\nHost: h.example:81\r\nX-Forwarded-For: 6.6.6.6\r\n\
                    Forwarded: for=evil\r\nConnection: forwarded, env, x-forwarded-for, a\r\n\
                    A: 1\r\nEnv: test\r\n\r\n";
        assert_eq!(
            forwarded(text, "192.0.2.7:4711", true),
            "GET /a?b HTTP/1.1\r\nHost: h.example:81\r\nX-Forwarded-For: 192.0.2.7\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-Host: h.example:81\r\n\
             Forwarded: for=192.0.2.7;host=\"h.example:81\";proto=https\r\n\
             Client: 192.0.2.7\r\nEnv: prod\r\n\r\n"
        );
        let six = forwarded(
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "[2001:db8::7]:1",
            false,
        );
        assert!(six.contains("X-Forwarded-For: 2001:db8::7\r\n"), "{six}");
        assert!(
            six.contains("Forwarded: for=\"[2001:db8::7]\";host=\"h\";proto=http\r\n"),
            "{six}"
        );
    }
}
