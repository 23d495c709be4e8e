//! Unmodified clients over loopback: curl, openssl s_client, Python's ssl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use prism_tls::accept::Settings;

use crate::foreign;
use crate::loopback::Loopback;
use crate::support::*;

/// Most seconds for one client.
const PATIENCE_S: &str = "30";

/// Runs `program` with `input`, which must succeed. Returns its output.
fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let output = attempt(program, arguments, input);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{printed}\n{error}",
        output.status
    );
    printed
}

fn attempt(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("timeout")
        .args([PATIENCE_S, program])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A client that ends early needs no more input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn loopback() -> Loopback {
    Loopback::start(server())
}

/// OpenSSL's arguments for one suite, and its name for the suite.
fn openssl_suite(suite: &str) -> [String; 3] {
    if !suite.contains("_WITH_") {
        return ["-tls1_3".into(), "-ciphersuites".into(), suite.into()];
    }
    let name = suite
        .replace("TLS_", "")
        .replace("WITH_", "")
        .replace("AES_128", "AES128")
        .replace("AES_256", "AES256")
        .replace("POLY1305_SHA256", "POLY1305")
        .replace('_', "-");
    ["-tls1_2".into(), "-cipher".into(), name]
}

/// Sends one request by s_client, with `more` arguments. Returns its output.
fn s_client(server: &Loopback, more: &[&str]) -> String {
    let target = server.address().to_string();
    let ca_file = FIXTURE.authority.ca_file();
    let mut arguments = vec!["s_client", "-connect", &target, "-servername", HOST];
    arguments.extend(["-CAfile", ca_file.to_str().unwrap()]);
    arguments.extend(["-verify_return_error", "-verify_hostname", HOST, "-ign_eof"]);
    arguments.extend(more);
    let request = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
    run("openssl", &arguments, request)
}

#[test]
fn openssl_speaks_every_suite() {
    let server = loopback();
    for suite in SUITES {
        let arguments = openssl_suite(suite);
        let printed = s_client(&server, &arguments.each_ref().map(String::as_str));
        assert!(
            printed.contains(&format!("suite={suite} resumed=false")),
            "{printed}"
        );
        assert!(printed.contains("Verify return code: 0 (ok)"), "{printed}");
    }
}

#[test]
fn openssl_resumes_at_another_server_of_the_same_secret_only() {
    let (one, other) = (loopback(), loopback());
    let stranger = Loopback::start(server_with(&Settings::default(), 2, system_clock()));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("session.pem");
    let file = file.to_str().unwrap();
    let first = s_client(&one, &["-tls1_3", "-sess_out", file]);
    assert!(first.contains("resumed=false"), "{first}");
    let again = s_client(&other, &["-tls1_3", "-sess_in", file]);
    assert!(again.contains("resumed=true"), "{again}");
    assert!(again.contains("Reused, TLSv1.3"), "{again}");
    let elsewhere = s_client(&stranger, &["-tls1_3", "-sess_in", file]);
    assert!(elsewhere.contains("resumed=false"), "{elsewhere}");
    let first = s_client(&one, &["-tls1_2", "-sess_out", file]);
    assert!(first.contains("resumed=false"), "{first}");
    let again = s_client(&one, &["-tls1_2", "-sess_in", file]);
    assert!(again.contains("resumed=false"), "{again}");
}

#[test]
fn openssl_is_asked_for_a_key_share_that_is_served() {
    let server = loopback();
    let groups = ["-tls1_3", "-groups", "P-521:P-384", "-msg"];
    let printed = s_client(&server, &groups);
    assert_eq!(printed.matches("ClientHello").count(), 2, "{printed}");
    assert!(printed.contains("resumed=false"), "{printed}");
}

#[test]
fn early_data_for_a_ticket_of_another_kind_of_server_is_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let (session, early) = (
        directory.path().join("session"),
        directory.path().join("early"),
    );
    std::fs::write(&early, [b'e'; 2_000]).unwrap();
    let (session, early) = (session.to_str().unwrap(), early.to_str().unwrap());
    let foreign = foreign::Server::start();
    let target = foreign.address.to_string();
    let arguments = [
        "s_client",
        "-connect",
        &target,
        "-servername",
        HOST,
        "-tls1_3",
    ];
    let more = ["-ign_eof", "-sess_out", session];
    // The client fails at its end, because that server does not close the session.
    let _ = attempt(
        "openssl",
        &[&arguments[..], &more].concat(),
        foreign::LAST_LINE,
    );
    drop(foreign);
    let offered = ["-tls1_3", "-sess_in", session, "-early_data", early];
    let printed = s_client(&loopback(), &offered);
    assert!(printed.contains("Early data was rejected"), "{printed}");
    assert!(printed.contains("resumed=false"), "{printed}");
}

#[test]
fn openssl_that_asks_for_a_version_or_protocol_not_served_is_told_so() {
    let server = loopback();
    let target = server.address().to_string();
    for (arguments, alert) in [
        (
            ["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"],
            "alert handshake failure",
        ),
        (["-alpn", "h2", "-quiet"], "alert no application protocol"),
    ] {
        let arguments = [&["s_client", "-connect", &target], &arguments[..]].concat();
        let output = attempt("openssl", &arguments, "");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(alert), "{error}");
    }
}

#[test]
fn curl_keeps_a_connection_and_sends_bodies_over_it() {
    let server = loopback();
    let directory = tempfile::tempdir().unwrap();
    let body = directory.path().join("body");
    let data: String = (0..300_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(&body, &data).unwrap();
    let url = format!("https://{HOST}:{}/", server.port());
    let resolve = format!("{HOST}:{}:127.0.0.1", server.port());
    let ca_file = FIXTURE.authority.ca_file();
    let upload = format!("@{}", body.display());
    for version in ["1.2", "1.3"] {
        let (low, count) = (format!("--tlsv{version}"), "%{stderr}%{num_connects} ");
        let mut arguments = vec!["-sS", "--cacert", ca_file.to_str().unwrap()];
        arguments.extend(["--resolve", &resolve, &low, "--tls-max", version]);
        arguments.extend(["-H", "Expect:", "--data-binary", &upload, "-w", count]);
        arguments.extend([url.as_str(); 5]);
        let output = attempt("curl", &arguments, "");
        let printed = String::from_utf8(output.stdout).unwrap();
        let connects = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{connects}");
        assert_eq!(connects.trim(), "1 0 0 0 0");
        let about = printed.lines().next().unwrap().to_owned() + "\n";
        assert!(
            about.contains(&format!("Tls{}", version.replace('.', ""))),
            "{about}"
        );
        assert!(about.contains("alpn=http/1.1"), "{about}");
        assert!(
            printed == format!("{about}{data}").repeat(5),
            "the bodies differ"
        );
    }
}

#[test]
fn python_exchanges_and_resumes() {
    const SCRIPT: &str = r#"
import socket, ssl, sys
host, ca, ports = sys.argv[1], sys.argv[2], [int(p) for p in sys.argv[3:]]
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = context.maximum_version = version
    session = None
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            with context.wrap_socket(plain, server_hostname=host, session=session) as tls:
                for size in (0, 1, 16384, 16385, 1000000):
                    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
                    tls.sendall(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + body)
                    answer = tls.makefile("rb")
                    head = []
                    while (line := answer.readline().strip()):
                        head.append(line)
                    length = int(head[1].split()[1])
                    content = answer.read(length)
                    about, rest = content.split(b"\n", 1)
                    assert rest == body, (len(rest), size)
                    assert (b"resumed=true" in about) == (session is not None), about
                if version == ssl.TLSVersion.TLSv1_3:
                    session = tls.session
                    assert session.has_ticket
print("done")
"#;
    let (one, other) = (loopback(), loopback());
    let ca_file = FIXTURE.authority.ca_file();
    let ports = [one.port().to_string(), other.port().to_string()];
    let mut arguments = vec!["-c", SCRIPT, HOST, ca_file.to_str().unwrap()];
    arguments.extend([ports[0].as_str(), &ports[1], &ports[0]]);
    assert_eq!(run("python3", &arguments, "").trim(), "done");
}

#[test]
fn http_in_the_clear_can_be_answered_in_the_clear() {
    let server = loopback();
    let url = format!("http://{}/", server.address());
    let code = run(
        "curl",
        &["-s", "-o", "/dev/null", "-w", "%{http_code}", &url],
        "",
    );
    assert_eq!(code, "400");
}

#[test]
fn a_connection_that_ends_in_the_handshake_leaves_the_server_well() {
    let server = loopback();
    let hello = drain(&mut connect(client_of_suite("TLS_AES_128_GCM_SHA256")));
    for bytes in [0, 1, 5, 100, hello.len()] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&hello[..bytes]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(s_client(&server, &[]).contains("resumed=false"));
}
