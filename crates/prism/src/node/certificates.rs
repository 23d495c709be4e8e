//! The certificates of a node, and the log's lines about those that end.
//!
//! Not here: loading them (`prism-handoff`, `prism-gateway`), and getting them (`prism-acme`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use prism_acme::SOURCE;
use prism_pki::{Dated, Term, now_s};

use super::server::Server;

/// Time between two looks at the certificates.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Time between two lines of the log about one certificate.
const SAY_EVERY: Duration = Duration::from_secs(24 * 3600);

/// The files with certificates of this node, and their ends in seconds since 1970. A file with
/// several authorities has the end of the first one to end.
pub(super) fn ends(server: &Server) -> BTreeMap<PathBuf, u64> {
    let mut ends = BTreeMap::new();
    for Dated { file, end_s, .. } in certificates(server) {
        let end = ends.entry(file).or_insert(end_s);
        *end = end_s.min(*end);
    }
    ends
}

/// The certificates of the service, and those in use between nodes.
fn certificates(server: &Server) -> Vec<Dated> {
    let config = server.core.config.now();
    let tls = config.service.tls.iter();
    let files = tls.flat_map(|tls| &tls.certificates);
    let of_service = files.filter_map(|files| Dated::first_in(&files.file).ok().flatten());
    let by_acme = server.acme.iter().filter_map(|acme| {
        let certificate = acme.served()?.certificate().ok()?;
        Some(Dated::by_acme(SOURCE.into(), certificate))
    });
    let in_use = server.identity.iter().flat_map(|found| found.in_use());
    let of_nodes = in_use.map(|(file, certificate)| Dated::new(file, certificate));
    of_service.chain(by_acme).chain(of_nodes).collect()
}

/// Keeps the certificate that comes by ACME. Never returns.
pub(super) async fn keep_acme(server: &Server) {
    match (&server.acme, &server.https) {
        (Some(acme), Some(https)) => {
            acme.keep(|issued| {
                let chain = issued.chain.as_bytes();
                let key = issued.key.as_bytes();
                https.give(SOURCE, chain, key)
            })
            .await
        }
        _ => std::future::pending().await,
    }
}

/// Logs at the start, and then once a day, which certificates end soon or have ended; also when
/// one has just ended. Never returns.
pub(super) async fn watch_terms(server: &Server) {
    let mut said: HashMap<(PathBuf, u64), (Term, Instant)> = HashMap::new();
    loop {
        let now = now_s();
        let certificates = certificates(server);
        let is_in_use = |file: &PathBuf, end_s: u64| {
            let mut found = certificates.iter();
            found.any(|found| found.file == *file && found.end_s == end_s)
        };
        said.retain(|(file, end_s), _| is_in_use(file, *end_s));
        for certificate in &certificates {
            let term = certificate.term(now);
            let id = (certificate.file.clone(), certificate.end_s);
            let last = said.get(&id);
            if last.is_some_and(|(said, at)| *said == term && at.elapsed() < SAY_EVERY) {
                continue;
            }
            log(certificate, term, now);
            said.insert(id, (term, Instant::now()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn log(certificate: &Dated, term: Term, now_s: u64) {
    let certificate = certificate.said(now_s);
    match term {
        Term::Valid => {}
        Term::EndsSoon => tracing::warn!(%certificate, "a certificate ends soon; renew it"),
        Term::Ended => {
            tracing::error!(%certificate, "a certificate has ended, and is refused; renew it");
        }
    }
}
