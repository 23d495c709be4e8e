//! The caller of a request, identified by its signature or by the node that verified it. The
//! outcome travels with hand-offs and relayed requests as [`Facts`].
//!
//! Not here: what the caller may do (`admit.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use prism_config::{Anonymous, Config, Credential};
use prism_http::RequestHead;
use prism_proto::facts::{self, Facts};
use prism_s3::access::{KeyRights, Rights};
use prism_s3::query::Query;
use prism_s3::{Authenticated, Authenticator, Code, Payload, Principal, S3Error, Streaming};
use time::OffsetDateTime;

use crate::request::Meaning;

/// Identifies callers by their signatures, and knows the rights of their keys.
pub(crate) struct Auth {
    users: RwLock<Arc<Users>>,
    region: String,
    /// Whether everybody may read every bucket.
    anonymous_reads: AtomicBool,
}

/// The present users.
struct Users {
    authenticator: Authenticator,
    /// By access key.
    rights: HashMap<String, Arc<KeyRights>>,
}

impl Auth {
    pub(crate) fn new(config: &Config, users: &[Credential]) -> Self {
        let region = config.cluster.region.clone();
        Self {
            users: RwLock::new(Users::of(users, &region)),
            region,
            anonymous_reads: AtomicBool::new(config.s3.anonymous == Anonymous::Read),
        }
    }

    /// Changes the rights of everybody, from the next request on.
    pub(crate) fn set_anonymous(&self, anonymous: Anonymous) {
        let reads = anonymous == Anonymous::Read;
        self.anonymous_reads.store(reads, Ordering::Relaxed);
    }

    /// The rights of everybody on every bucket.
    pub(crate) fn everybody(&self) -> Rights {
        if self.anonymous_reads.load(Ordering::Relaxed) {
            Rights::READ
        } else {
            Rights::empty()
        }
    }

    /// Replaces all users, from the next request on.
    pub(crate) fn replace(&self, users: &[Credential]) {
        let new = Users::of(users, &self.region);
        *self.users.write() = new;
    }

    /// Identifies the caller of a request, by the verification of another node or by the
    /// signature. Also returns the rights of the caller's key, if this node knows it. `doubt`: the
    /// error for a signature, if this node cannot know its users.
    pub(crate) fn identify(
        &self,
        head: &RequestHead,
        query: &Query,
        verified: Option<Facts>,
        doubt: Option<S3Error>,
    ) -> Result<(Authenticated, Option<Arc<KeyRights>>), S3Error> {
        let users = self.users.read().clone();
        let known = match verified {
            Some(verified) => restored(&users.authenticator, verified)?,
            None => {
                let now = OffsetDateTime::now_utc();
                let known = users.authenticator.authenticate(head, query, now);
                let is_signed = !matches!(&known, Ok(known) if known.is_anonymous());
                match doubt {
                    Some(doubt) if is_signed => return Err(doubt),
                    _ => known?,
                }
            }
        };
        let rights = match &known.principal {
            Principal::AccessKey(key) => users.rights.get(key).cloned(),
            Principal::Anonymous => None,
        };
        Ok((known, rights))
    }

    /// The rights of an access key; `None` if this node does not know it.
    pub(crate) fn rights_of(&self, access_key: &str) -> Option<Arc<KeyRights>> {
        self.users.read().rights.get(access_key).cloned()
    }
}

impl Users {
    fn of(users: &[Credential], region: &str) -> Arc<Self> {
        let secrets = users
            .iter()
            .map(|user| (user.access_key.as_str(), user.secret_key.as_str()));
        let rights = users
            .iter()
            .map(|user| (user.access_key.clone(), Arc::new(user.rights())));
        Arc::new(Self {
            authenticator: Authenticator::new(secrets, region),
            rights: rights.collect(),
        })
    }
}

impl Meaning {
    /// The outcome of the verification, for the node that answers the request.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            caller: self.principal.clone(),
            body: match &self.payload {
                Payload::Unsigned => facts::Body::Unsaid,
                Payload::Sha256(hash) => facts::Body::Sha256(*hash),
                Payload::Streaming(Streaming { trailer, chain }) => facts::Body::Chunks {
                    trailer: *trailer,
                    seed: chain.as_ref().map(|chain| chain.seed()),
                },
            },
            hides_missing: self.hides_missing,
            ..Facts::of_anonymous(0)
        }
    }
}

/// The reverse of [`Meaning::facts`].
fn restored(authenticator: &Authenticator, verified: Facts) -> Result<Authenticated, S3Error> {
    let principal = verified.caller;
    let payload = match verified.body {
        facts::Body::Unsaid => Payload::Unsigned,
        facts::Body::Sha256(hash) => Payload::Sha256(hash),
        facts::Body::Chunks { trailer, seed } => {
            let chain = seed.map(|seed| match &principal {
                Principal::AccessKey(key) => authenticator.chain(key, seed).map(Box::new),
                Principal::Anonymous => Err(Code::AccessDenied.into()),
            });
            let chain = chain.transpose()?;
            Payload::Streaming(Streaming { trailer, chain })
        }
    };
    Ok(Authenticated { principal, payload })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_proto::facts::{Form, Seed};
    use prism_s3::Operation;

    use super::*;
    use crate::request::Standing;

    #[test]
    fn a_verification_is_the_same_at_the_next_node() {
        let authenticator = Authenticator::new([], "r");
        let knows = Authenticator::new([("key", "secret")], "r");
        let seed = Seed {
            signature: [9; 32],
            time_s: 1_369_357_323,
        };
        let chain = knows.chain("key", seed).unwrap();
        let streaming = |trailer, chain| Payload::Streaming(Streaming { trailer, chain });
        let payloads = [
            Payload::Unsigned,
            Payload::Sha256([1; 32]),
            streaming(true, None),
            streaming(false, Some(Box::new(chain))),
        ];
        for payload in payloads {
            let known = (Principal::AccessKey("key".into()), payload);
            let meaning = meaning_of(known.clone());
            let sent = Facts::decode(&meaning.facts().encode(Form::Entries)).unwrap();
            assert!(sent.hides_missing);
            let again = restored(&knows, sent.clone()).unwrap();
            assert_eq!((again.principal, again.payload), known);
            // Signed chunks need a known signer.
            let is_signed = matches!(sent.body, facts::Body::Chunks { seed: Some(_), .. });
            assert_eq!(restored(&authenticator, sent).is_err(), is_signed);
        }
    }

    #[test]
    fn a_node_in_doubt_identifies_no_signature_but_the_word_of_another_node() {
        let auth = Auth::new(&Config::default(), &[]);
        let doubt = || Some(S3Error::from(Code::ServiceUnavailable));
        let head = |fields: &str| {
            let text = format!("GET /bkt/k HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let read = RequestHead::parse(text.as_bytes(), &prism_http::Limits::DEFAULT);
            read.unwrap().unwrap().0
        };
        let query = Query::default();
        let (anonymous, _) = auth.identify(&head(""), &query, None, doubt()).unwrap();
        assert_eq!(anonymous.principal, Principal::Anonymous);
        let signed = head("Authorization: AWS4-HMAC-SHA256 Credential=key\r\n");
        let status = |doubt| {
            auth.identify(&signed, &query, None, doubt)
                .err()
                .unwrap()
                .status()
        };
        assert_eq!(status(doubt()), 503);
        assert_ne!(status(None), 503);
        let known = (Principal::AccessKey("key".into()), Payload::Unsigned);
        let verified = meaning_of(known).facts();
        assert!(
            auth.identify(&signed, &query, Some(verified), doubt())
                .is_ok()
        );
    }

    fn meaning_of((principal, payload): (Principal, Payload)) -> Meaning {
        let text = b"GET /bkt/k HTTP/1.1\r\nHost: h\r\n\r\n";
        let (head, _) = RequestHead::parse(text, &prism_http::Limits::DEFAULT)
            .unwrap()
            .unwrap();
        Meaning {
            operation: Operation::parse(&head).unwrap(),
            principal,
            payload,
            rights: None,
            standing: Standing::Open,
            hides_missing: true,
            lease_term: None,
        }
    }
}
