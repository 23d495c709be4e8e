//! A bounded cache of derived signing keys. Deriving one takes four HMACs with fresh keys, which
//! is most of the time of a verification.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::hmac;

use crate::canonical::{Scope, signing_key};

/// Derived keys of one region and service, by access key. Around midnight requests of two days
/// come in; then they replace each other's entry, which costs only time.
#[derive(Default)]
pub(super) struct SigningKeys {
    by_access_key: Mutex<HashMap<String, Derived>>,
}

struct Derived {
    date: String,
    key: Arc<hmac::Key>,
}

impl SigningKeys {
    /// Most entries, of about 500 bytes each. Only known access keys have one.
    const CAPACITY: usize = 1024;

    pub(super) fn key(&self, access_key: &str, secret: &str, scope: Scope<'_>) -> Arc<hmac::Key> {
        if let Some(derived) = self.entries().get(access_key)
            && derived.date == scope.date
        {
            return derived.key.clone();
        }
        let key = Arc::new(signing_key(secret, scope));
        let derived = Derived {
            date: scope.date.to_owned(),
            key: key.clone(),
        };
        let mut entries = self.entries();
        if entries.len() >= Self::CAPACITY && !entries.contains_key(access_key) {
            entries.clear();
        }
        entries.insert(access_key.to_owned(), derived);
        key
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Derived>> {
        let entries = self.by_access_key.lock();
        entries.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(date: &str) -> Scope<'_> {
        Scope {
            date,
            region: "r",
            service: "s3",
        }
    }

    #[test]
    fn keys_change_with_the_date_and_the_cache_stays_bounded() {
        let keys = SigningKeys::default();
        let sign = |key: &hmac::Key| hmac::sign(key, b"x").as_ref().to_vec();
        let first = sign(&keys.key("a", "s", scope("20130524")));
        assert_eq!(first, sign(&keys.key("a", "s", scope("20130524"))));
        assert_ne!(first, sign(&keys.key("a", "s", scope("20130525"))));
        assert_eq!(first, sign(&keys.key("a", "s", scope("20130524"))));
        for n in 0..SigningKeys::CAPACITY * 2 {
            keys.key(&n.to_string(), "s", scope("20130524"));
        }
        assert!(keys.entries().len() <= SigningKeys::CAPACITY);
    }
}
