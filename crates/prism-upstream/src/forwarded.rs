//! The header fields by which a server learns of the client, of the first hop and of the request's
//! identifier, and those of the configuration. Pure.
//!
//! A client's own fields of these names are replaced, and all that a server may take for them:
//! nobody has vouched for them.

use std::net::IpAddr;

use prism_http::{
    HeadError, HeaderError, Headers, RequestHead, are_alike, is_forwarding, without_port,
};
use prism_rules::{RequestPath, Variable, fill_field};
use prism_service::{Remote, request_id_text};

use crate::error::Error;
use crate::pool::Pool;

/// The field with a request's identifier, as most servers and proxies have it.
pub(crate) const REQUEST_ID: &str = "X-Request-ID";
/// The longest identifier of a proxy that is kept.
const MAX_ID_BYTES: usize = 128;

/// Gives the request with this number the fields for its `client`, and its `own` ones.
pub(crate) fn add(
    head: &mut RequestHead,
    id_number: u64,
    client: &Remote,
    own: &[String],
) -> Result<(), HeaderError> {
    let proto = if client.is_tls { "https" } else { "http" };
    let address = client.address.ip().to_canonical();
    let ip = address.to_string();
    // A trusted proxy may have had another host, and an identifier for the request.
    let by_proxy = |name| {
        let headers = client.is_proxied.then(|| head.headers())?;
        headers.get_str(name).map(str::to_owned)
    };
    let host = by_proxy("x-forwarded-host").filter(|host| is_host(host));
    let host = host.unwrap_or_else(|| head.host().unwrap_or_default().to_owned());
    let id = by_proxy(REQUEST_ID).filter(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
    let id = id.unwrap_or_else(|| request_id_text(id_number));
    // RFC 7239, section 6.
    let node = match address {
        IpAddr::V4(_) => ["", &ip, ""],
        IpAddr::V6(_) => ["\"[", &ip, "]\""],
    };
    // A host holds neither quotes nor backslashes.
    let rest = [";host=\"", &host, "\";proto=", proto];
    let forwarded = [&["for="], &node[..], &rest].concat().concat();
    let own = own.iter().filter_map(|field| field.split_once(':'));
    let own: Vec<(&str, &str)> = own.collect();
    // A client must not have the added fields dropped, nor add ones that look the same.
    head.end_named_fields();
    let headers = head.headers_mut();
    headers.drop_where(|name| {
        let mut own = own.iter();
        is_forwarding(name)
            || are_alike(name, REQUEST_ID.as_bytes())
            || own.any(|(own, _)| are_alike(name, own.as_bytes()))
    });
    let mut port = itoa::Buffer::new();
    for (name, value) in [
        ("X-Forwarded-For", ip.as_str()),
        ("X-Forwarded-Proto", proto),
        ("X-Forwarded-Host", &host),
        ("X-Forwarded-Port", port.format(client.service.port())),
        ("X-Real-IP", &ip),
        ("Forwarded", &forwarded),
        (REQUEST_ID, &id),
    ] {
        headers.append(name, value)?;
    }
    for (name, value) in own {
        let value = fill_field(value, |variable| match variable {
            Variable::Client => ip.as_str().into(),
            Variable::RequestId => id.as_str().into(),
            _ => without_port(&host).into(),
        });
        headers.set(name, value.as_ref())?;
    }
    Ok(())
}

/// Gives another request for the same client its `own` fields.
pub(crate) fn set_own(
    request: &RequestHead,
    fields: &mut Headers,
    own: &[String],
) -> Result<(), HeaderError> {
    for (name, value) in own.iter().filter_map(|field| field.split_once(':')) {
        fields.drop_where(|other| are_alike(other, name.as_bytes()));
        let value = fill_field(value, |variable| of_request(request, variable).into());
        fields.append(name, value.as_ref())?;
    }
    Ok(())
}

/// The value of a variable, by the fields that the request has got for its server.
pub(crate) fn of_request(request: &RequestHead, variable: Variable) -> &str {
    let field = match variable {
        Variable::Client => request.headers().get_str("X-Forwarded-For"),
        Variable::RequestId => request.headers().get_str(REQUEST_ID),
        _ => request.headers().get_str("X-Forwarded-Host"),
    };
    let value = field.unwrap_or_default();
    if variable == Variable::Host {
        without_port(value)
    } else {
        value
    }
}

/// The request as a server of `pool` gets it, if its path has another beginning there. The server
/// gets a beginning that is gone in `X-Forwarded-Prefix`.
///
/// Nodes choose upstreams and servers by the path that the client wrote, so it stays until then.
///
/// # Errors
/// The new path can be read in two ways, or is longer than `max_bytes`.
pub(crate) fn with_replaced_prefix(
    head: &RequestHead,
    pool: &Pool,
    max_bytes: usize,
) -> Result<Option<RequestHead>, Error> {
    let Some(new) = &pool.settings.replace_prefix else {
        return Ok(None);
    };
    let path = RequestPath::of(head);
    let fit = pool.matcher.fit_path(&path);
    // The upstream was chosen by another configuration.
    let fit = fit.ok().flatten().ok_or(Error::NoUpstream)?;
    let replaced = fit.replace_beginning(new);
    let Some(target) = replaced.map_err(|_| Error::AmbiguousPath)? else {
        return Ok(None);
    };
    if target.len() > max_bytes {
        return Err(HeadError::TargetTooLong.into());
    }
    let mut replaced = head.clone();
    replaced.replace_path(&target)?;
    if let Some(gone) = fit.beginning().filter(|_| new == "/") {
        let fields = replaced.headers_mut();
        let set = fields.set("X-Forwarded-Prefix", gone.trim_end_matches('/'));
        set.map_err(|_| HeadError::HeadTooLong)?;
    }
    Ok(Some(replaced))
}

/// Whether a text may stand in a quoted string (RFC 9110, section 5.6.4) as a host.
fn is_host(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    !text.is_empty() && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::{BodyFraming, Limits};

    use super::*;

    fn forwarded(text: &str, client: &str, is_tls: bool) -> String {
        forwarded_by(text, client, is_tls, false)
    }

    fn forwarded_by(text: &str, client: &str, is_tls: bool, is_proxied: bool) -> String {
        let (mut head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        let own = ["Client: {client}", "Env: prod"].map(str::to_owned);
        let client = Remote {
            address: client.parse().unwrap(),
            service: "192.0.2.1:8443".parse().unwrap(),
            is_tls,
            has_companion: false,
            is_proxied,
        };
        add(&mut head, 0x12ab, &client, &own).unwrap();
        let mut out = Vec::new();
        head.write_forward(BodyFraming::None, &Headers::new(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_server_learns_who_asks_and_how() {
        let text = "GET /a?b HTTP/1.1\r\nHost: h.example:81\r\nX-Forwarded-For: 6.6.6.6\r\n\
                    X_Forwarded_For: 6.6.6.6\r\nX-Forwarded-Prefix: /admin\r\nENV: test\r\n\
                    x_real_ip: 6.6.6.6\r\nx-forwarded-user: root\r\nX_Request_ID: 1\r\nClient_: 6.6.6.6\r\n\
                    Forwarded: for=evil\r\nConnection: forwarded, env, x-forwarded-for, a\r\n\
                    A: 1\r\nEnv: test\r\nCLIENT: 6.6.6.6\r\n\r\n";
        assert_eq!(
            forwarded(text, "192.0.2.7:4711", true),
            "GET /a?b HTTP/1.1\r\nHost: h.example:81\r\nClient_: 6.6.6.6\r\n\
             X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
             X-Forwarded-Host: h.example:81\r\nX-Forwarded-Port: 8443\r\n\
             X-Real-IP: 192.0.2.7\r\nForwarded: for=192.0.2.7;host=\"h.example:81\";proto=https\r\n\
             X-Request-ID: 00000000000012AB\r\nClient: 192.0.2.7\r\nEnv: prod\r\n\r\n"
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

    #[test]
    fn a_server_gets_the_beginning_that_is_gone() {
        let settings = prism_config::Upstream {
            paths: vec!["/api/".into()],
            replace_prefix: Some("/".into()),
            ..prism_config::Upstream::default()
        };
        let pool = Pool::new("p".into(), &settings, Vec::new(), "be0", None);
        let replaced = |target: &str| {
            let text = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
            with_replaced_prefix(&parsed.unwrap().unwrap().0, &pool, 20)
        };
        let head = replaced("/api/users?a").unwrap().unwrap();
        assert_eq!(head.target(), "/users?a");
        let prefix = head.headers().get_str("X-Forwarded-Prefix");
        assert_eq!(prefix, Some("/api"));
        assert_eq!(replaced("/other"), Err(Error::NoUpstream));
        let long = replaced("/api/12345678901234567890");
        assert_eq!(long, Err(Error::Head(HeadError::TargetTooLong)));
    }

    #[test]
    fn a_trusted_proxy_is_believed() {
        let text = "GET / HTTP/1.1\r\nHost: inner\r\nX-Forwarded-Host: h.example\r\n\
                    X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nX-Request-ID: of-the-proxy\r\n\r\n";
        let seen = forwarded_by(text, "192.0.2.7:0", true, true);
        for field in [
            "X-Forwarded-For: 192.0.2.7",
            "X-Forwarded-Host: h.example",
            "Forwarded: for=192.0.2.7;host=\"h.example\";proto=https",
            "X-Request-ID: of-the-proxy",
        ] {
            assert!(seen.contains(&format!("\r\n{field}\r\n")), "{seen}");
        }
        let odd = text
            .replace("h.example", "a\"b")
            .replace("of-the-proxy", &"x".repeat(129));
        let seen = forwarded_by(&odd, "192.0.2.7:0", true, true);
        assert!(seen.contains("\r\nX-Forwarded-Host: inner\r\n"), "{seen}");
        assert!(
            seen.contains("\r\nX-Request-ID: 00000000000012AB\r\n"),
            "{seen}"
        );
    }
}
