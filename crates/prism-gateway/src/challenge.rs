//! Answers to an authority that asks whether a host name leads to this cluster (RFC 8555, section
//! 8.3). They come before the service, and before a redirect to HTTPS.

use std::io;

use prism_http::{Method, RequestHead, ResponseHead};
use prism_service::{Exchange, Service, send};

use crate::gateway::Gateway;

/// Gives the answer to a request for a path over plain HTTP; `None` if the path is the service's.
pub type Challenges = Box<dyn Fn(&str) -> Option<ChallengeAnswer> + Send + Sync>;

/// The answer to a request for a path of challenges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengeAnswer {
    /// The proof.
    Proof(Vec<u8>),
    /// There is no such challenge.
    Unknown,
}

impl<S: Service> Gateway<S> {
    /// The answer to a request that is not the service's.
    pub(crate) fn challenge(&self, head: &RequestHead, is_tls: bool) -> Option<ChallengeAnswer> {
        let challenges = self.shared.challenges.as_ref();
        let is_read = matches!(*head.method(), Method::GET | Method::HEAD);
        challenges.filter(|_| !is_tls && is_read)?(head.path())
    }
}

/// Sends the answer, and closes the connection.
pub(crate) async fn answer_challenge(
    exchange: &mut impl Exchange,
    answer: ChallengeAnswer,
) -> io::Result<()> {
    let (status, body) = match answer {
        ChallengeAnswer::Proof(proof) => (200, proof),
        ChallengeAnswer::Unknown => (404, b"no challenge of this name\n".to_vec()),
    };
    exchange.close_after();
    let answer = ResponseHead::new(status).with("Content-Type", "application/octet-stream");
    send(exchange, answer.map_err(io::Error::other)?, &body).await
}
