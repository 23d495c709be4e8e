//! Tickets of one server at another.

use std::sync::Arc;

use prism_tls::Version;
use prism_tls::accept::{ServerConfig, Settings};
use rustls::ClientConfig;

use crate::support::*;

const SUITES: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];
const TLS12_SUITES: [&str; 2] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

fn visit(client: &Arc<ClientConfig>, server: &ServerConfig, cut: Cut) -> Established {
    let mut connection = connect_to(client, HOST);
    handshake(&mut connection, server, cut, &[]).unwrap()
}

/// A visit with data in both directions.
fn visit_and_talk(client: &Arc<ClientConfig>, server: &ServerConfig, cut: Cut) -> bool {
    let mut connection = connect_to(client, HOST);
    let established = handshake(&mut connection, server, cut, &[]).unwrap();
    let resumed = established.resumed;
    exchange(&mut connection, &mut Served::new(established), 1_000);
    resumed
}

#[test]
fn a_ticket_resumes_at_another_server_of_the_same_secret() {
    let clock = Wall::now().clock();
    for suite in SUITES {
        for cut in Cut::ALL {
            let client = Arc::new(client_of_suite(suite));
            let one = server_with(&Settings::default(), 1, clock.clone());
            let other = server_with(&Settings::default(), 1, clock.clone());
            assert!(!visit_and_talk(&client, &one, cut), "{suite}");
            assert!(visit_and_talk(&client, &other, cut), "{suite} {cut:?}");
            assert!(visit_and_talk(&client, &one, cut), "{suite} {cut:?}");
        }
    }
}

#[test]
fn a_ticket_of_another_secret_gives_a_full_handshake() {
    let clock = Wall::now().clock();
    for suite in SUITES {
        let client = Arc::new(client_of_suite(suite));
        let one = server_with(&Settings::default(), 1, clock.clone());
        let other = server_with(&Settings::default(), 2, clock.clone());
        assert!(!visit_and_talk(&client, &one, Cut::Nowhere));
        assert!(!visit_and_talk(&client, &other, Cut::Nowhere), "{suite}");
        assert!(visit_and_talk(&client, &other, Cut::Nowhere), "{suite}");
    }
}

#[test]
fn a_ticket_resumes_for_one_rotation_and_never_after_two() {
    for suite in SUITES {
        let wall = Wall::now();
        let server = server_with(&Settings::default(), 1, wall.clock());
        let client = Arc::new(client_of_suite(suite));
        assert!(!visit(&client, &server, Cut::Nowhere).resumed);
        wall.advance(ROTATION_S.into());
        assert!(visit(&client, &server, Cut::Nowhere).resumed, "{suite}");
        wall.advance(2 * u64::from(ROTATION_S));
        assert!(!visit(&client, &server, Cut::Nowhere).resumed, "{suite}");
    }
}

/// TLS 1.2 has no tickets: one would hold the secret of the recorded session.
#[test]
fn a_session_of_tls_1_2_gets_no_ticket() {
    let server = server();
    for suite in TLS12_SUITES {
        let client = Arc::new(client_of_suite(suite));
        for _ in 0..2 {
            assert!(!visit_and_talk(&client, &server, Cut::Nowhere), "{suite}");
        }
    }
}

#[test]
fn without_tickets_every_handshake_is_a_full_one() {
    let certificates = FIXTURE.certificates();
    let settings = Settings::default();
    let server = ServerConfig::new(&settings, certificates, None, system_clock()).unwrap();
    for suite in SUITES.into_iter().chain(TLS12_SUITES) {
        let client = Arc::new(client_of_suite(suite));
        for _ in 0..2 {
            let established = visit(&client, &server, Cut::Nowhere);
            assert!(!established.resumed, "{suite}");
            if version_of(&established) == Version::Tls13 {
                assert!(established.output.is_empty(), "no ticket is sent");
            }
        }
    }
}

#[test]
fn a_client_that_offers_early_data_is_not_heard_early() {
    use std::io::Write;
    let server = server();
    let mut config = client_of_suite("TLS_AES_128_GCM_SHA256");
    config.enable_early_data = true;
    let client = Arc::new(config);
    visit(&client, &server, Cut::Nowhere);
    let mut connection = connect_to(&client, HOST);
    assert!(connection.early_data().is_none(), "tickets allow none");
    connection.writer().write_all(b"late").unwrap();
    let established = handshake(&mut connection, &server, Cut::Nowhere, &[]).unwrap();
    assert!(established.resumed);
    assert_eq!(Served::new(established).open(&[]), b"late");
}
