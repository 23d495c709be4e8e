//! The answers to challenges, which every node of the cluster has.

use std::sync::Arc;

use prism_membership::{Cluster, ClusterRecords};
use tokio::sync::watch;

use crate::order::is_token;
use crate::records::token;

/// The path of an authority's question (RFC 8555, section 8.3).
const PREFIX: &str = "/.well-known/acme-challenge/";

/// The answers to the challenges of the order that is under way.
pub struct Challenges(watch::Receiver<Arc<ClusterRecords>>);

impl Challenges {
    /// The challenges of a cluster; `None` if its state is not in etcd.
    pub fn of(cluster: &Cluster) -> Option<Self> {
        cluster.follow().map(Self)
    }

    /// The status and the body of the answer to a request for `path`: the proof, or 404 if no order
    /// under way has this challenge. `None` if it is no path of a challenge.
    pub fn answer(&self, path: &str) -> Option<(u16, Vec<u8>)> {
        let name = path.strip_prefix(PREFIX)?;
        let known = self.0.borrow();
        let record = known.acme.get(&token(name)).filter(|_| is_token(name));
        Some(match record {
            Some(record) => (200, record.value.to_vec()),
            None => (404, b"no challenge of this name\n".to_vec()),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_membership::{AcmeRecord, AcmeRecords};

    use super::*;

    #[test]
    fn only_tokens_of_the_present_order_are_answered() {
        let record = |value: &str| AcmeRecord {
            value: value.as_bytes().to_vec().into(),
            revision: 1,
        };
        let records = [("tokens/abc", "abc.proof"), ("account", "secret")];
        let acme: AcmeRecords = records
            .into_iter()
            .map(|(name, value)| (name.to_owned(), record(value)))
            .collect();
        let known = ClusterRecords {
            acme: Arc::new(acme),
            ..ClusterRecords::default()
        };
        let (_sender, receiver) = watch::channel(Arc::new(known));
        let challenges = Challenges(receiver);
        let answer = |rest: &str| challenges.answer(&format!("{PREFIX}{rest}")).unwrap();
        assert_eq!(answer("abc"), (200, b"abc.proof".to_vec()));
        for other in ["", "ab", "../account", "..%2faccount", "abc/"] {
            assert_eq!(answer(other).0, 404, "{other}");
        }
        assert_eq!(challenges.answer("/bucket/key"), None);
        assert_eq!(challenges.answer("/.well-known/acme-challenge"), None);
    }
}
