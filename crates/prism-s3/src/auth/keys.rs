//! Secrets with the signing keys that are derived from them. A derivation takes four HMACs with
//! fresh keys, which is most of the time of a verification.

use std::sync::Arc;

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::canonical::{Scope, signing_key};

/// The secret of an access key. It is wiped on drop.
pub(super) struct Secret {
    text: Zeroizing<String>,
    /// The signing key of one day. Around midnight requests of two days come in; then each
    /// replaces the other's, which costs only time.
    derived: Mutex<Option<Derived>>,
}

/// The signing key of a day, within one region and service.
struct Derived {
    date: String,
    key: Arc<hmac::Key>,
}

impl Secret {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: Zeroizing::new(text.to_owned()),
            derived: Mutex::default(),
        }
    }

    /// The key that signs within a scope, of the region and service of all other calls.
    pub(super) fn signing_key(&self, scope: Scope<'_>) -> Arc<hmac::Key> {
        let mut derived = self.derived.lock();
        match &*derived {
            Some(derived) if derived.date == scope.date => derived.key.clone(),
            _ => {
                let key = Arc::new(signing_key(&self.text, scope));
                *derived = Some(Derived {
                    date: scope.date.to_owned(),
                    key: key.clone(),
                });
                key
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_with_the_date() {
        let secret = Secret::new("s");
        let sign = |date| {
            let key = secret.signing_key(Scope {
                date,
                region: "r",
                service: "s3",
            });
            hmac::sign(&key, b"x").as_ref().to_vec()
        };
        let first = sign("20130524");
        assert_eq!(first, sign("20130524"));
        assert_ne!(first, sign("20130525"));
        assert_eq!(first, sign("20130524"));
    }
}
