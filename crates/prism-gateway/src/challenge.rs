//! Answers to an authority that asks whether a host name leads to this cluster (RFC 8555, section
//! 8.3). They come before the service, and before a redirect to HTTPS.

use std::io;

use prism_http::{Method, RequestHead, ResponseHead};
use prism_service::{Exchange, Service, send};

use crate::gateway::Gateway;

/// Gives the status and the body of the answer to a request for a path over plain HTTP; `None` if
/// the path is the service's.
pub type Challenges = Box<dyn Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync>;

impl<S: Service> Gateway<S> {
    /// The answer to a request that is not the service's.
    pub(crate) fn challenge(&self, head: &RequestHead, is_tls: bool) -> Option<(u16, Vec<u8>)> {
        let challenges = self.shared.challenges.as_ref();
        let is_read = matches!(*head.method(), Method::GET | Method::HEAD);
        challenges.filter(|_| !is_tls && is_read)?(head.path())
    }
}

/// Sends the answer, and closes the connection.
pub(crate) async fn answer_challenge(
    exchange: &mut impl Exchange,
    (status, body): (u16, Vec<u8>),
) -> io::Result<()> {
    exchange.close_after();
    let answer = ResponseHead::new(status).with("Content-Type", "application/octet-stream");
    send(exchange, answer.map_err(io::Error::other)?, &body).await
}
