//! Changes of the configuration of a node that runs.

use prism_config::Config;

use super::server::{Server, access_log_to};

/// Reads the configuration file again, and opens the access log again. A file with faults changes
/// nothing.
pub(super) fn reload(server: &Server) {
    let log = &server.requests.log;
    let config = server.file.as_deref().map(Config::load).transpose();
    let opened = match &config {
        Ok(Some(config)) => log.turn_to(&access_log_to(config)),
        Ok(None) | Err(_) => log.reopen(),
    };
    if let Err(error) = config {
        let fault = error.in_one_line();
        let file = server.file.as_deref().unwrap_or("".as_ref()).display();
        tracing::warn!(%file, fault, "the configuration stays as it was: its file has a fault");
    }
    if let Err(error) = opened {
        tracing::warn!(%error, "cannot open the access log; it stays as it was");
    }
}
