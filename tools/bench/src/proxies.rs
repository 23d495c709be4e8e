//! Configurations of nginx and HAProxy at their best: kept connections on both sides, buffers
//! for an object, no log, and long timeouts. Each role has one process, as each node of Prism
//! has one worker.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::objects::BUCKET;

/// The ports of all systems, for HTTP (also of backends) and HTTPS.
const PLAIN: u16 = 8080;
const SECURE: u16 = 8443;

/// The port for clients.
pub(crate) const fn port(tls: bool) -> u16 {
    if tls { SECURE } else { PLAIN }
}

/// nginx as a backend: serves the files below `root`, and takes PUTs.
pub(crate) fn nginx_backend(address: IpAddr, root: &Path, tls: Option<&Path>) -> String {
    let listen = nginx_listen(address, tls);
    nginx(&format!(
        "sendfile on; tcp_nopush on; dav_methods PUT;\n\
         open_file_cache max=1000 inactive=1h; open_file_cache_valid 1h;\n\
         server {{ {listen} root {}; }}\n",
        root.display()
    ))
}

/// The choice of the server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// The key begins with the name of its server: `be0`, `be1` and so on.
    ByOwner,
    InTurn,
}

/// nginx as a proxy in front of `servers`.
pub(crate) fn nginx_proxy(
    address: IpAddr,
    servers: &[SocketAddr],
    routing: Routing,
    tls: Option<&Path>,
) -> String {
    let listen = nginx_listen(address, tls);
    if routing == Routing::InTurn {
        let mut text = String::new();
        nginx_upstream("all", servers, &mut text);
        return nginx_server(listen, "all", text);
    }
    let mut text = format!("map $uri $owner {{ ~^/{BUCKET}/(?<name>be\\d+)- $name; }}\n");
    for (n, server) in servers.iter().enumerate() {
        nginx_upstream(&format!("be{n}"), &[*server], &mut text);
    }
    nginx_server(listen, "$owner", text)
}

fn nginx_upstream(name: &str, servers: &[SocketAddr], text: &mut String) {
    let _ = write!(text, "upstream {name} {{ ");
    for server in servers {
        let _ = write!(text, "server {server}; ");
    }
    text.push_str("keepalive 1024; keepalive_requests 1000000000; keepalive_timeout 1h; }\n");
}

fn nginx_server(listen: String, upstream: &str, mut text: String) -> String {
    let _ = writeln!(
        text,
        "server {{ {listen}\nlocation / {{ proxy_pass http://{upstream}; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
         proxy_buffer_size 64k; proxy_buffers 80 64k; proxy_busy_buffers_size 256k;\n\
         proxy_max_temp_file_size 0; proxy_request_buffering off;\n\
         proxy_read_timeout 1h; proxy_send_timeout 1h; }} }}"
    );
    nginx(&text)
}

/// HAProxy as a proxy in front of `servers`.
pub(crate) fn haproxy(
    address: IpAddr,
    servers: &[SocketAddr],
    routing: Routing,
    tls: Option<&Path>,
) -> String {
    let mut text = haproxy_frontend(address, tls);
    text.push_str(match routing {
        Routing::ByOwner => " use_backend %[path,field(3,/),field(1,-)]\n",
        Routing::InTurn => " default_backend all\nbackend all\n balance roundrobin\n",
    });
    for (n, server) in servers.iter().enumerate() {
        if routing == Routing::ByOwner {
            let _ = writeln!(text, "backend be{n}");
        }
        let _ = writeln!(text, " server s{n} {server} pool-max-conn -1");
    }
    text
}

fn haproxy_frontend(address: IpAddr, tls: Option<&Path>) -> String {
    let [plain, secure] = [PLAIN, SECURE].map(|port| SocketAddr::new(address, port));
    let mut text = format!(
        "global\n nbthread 1\n maxconn 9000\n maxpipes 500\n tune.bufsize 65536\n\
         defaults\n mode http\n option http-keep-alive\n option splice-auto\n http-reuse always\n\
         timeout connect 10s\n timeout client 1h\n timeout server 1h\n\
         frontend clients\n bind {plain}\n"
    );
    if let Some(pem) = tls {
        let pem = pem.display();
        let _ = writeln!(
            text,
            " bind {secure} ssl crt {pem} ssl-min-ver TLSv1.3 \
             ciphersuites TLS_AES_128_GCM_SHA256"
        );
    }
    text
}

fn nginx_listen(address: IpAddr, tls: Option<&Path>) -> String {
    let [plain, secure] = [PLAIN, SECURE].map(|port| SocketAddr::new(address, port));
    // All addresses are those of both families.
    let both = match address {
        IpAddr::V6(all) if all.is_unspecified() => " ipv6only=off",
        _ => "",
    };
    let plain = format!("listen {plain}{both} backlog=4096;");
    let Some(pem) = tls else {
        return plain;
    };
    let pem = pem.display();
    format!(
        "{plain} listen {secure}{both} ssl backlog=4096;\n\
         ssl_certificate {pem}; ssl_certificate_key {pem};\n\
         ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;"
    )
}

/// The common part of all nginx configurations. Files are below the prefix.
fn nginx(servers: &str) -> String {
    format!(
        "daemon off; pid pid; worker_processes 1; user root; error_log error.log crit;\n\
         events {{ worker_connections 9000; }}\n\
         http {{ access_log off; tcp_nodelay on; etag on; keepalive_timeout 1h; send_timeout 1h;\n\
         keepalive_requests 1000000000; default_type application/octet-stream;\n\
         client_max_body_size 0; client_body_buffer_size 512k;\n\
         client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t;\n\
         uwsgi_temp_path t; scgi_temp_path t;\n{servers} }}\n"
    )
}
