//! A bounded cache of derived signing keys. Deriving one takes four HMACs with fresh keys, which
//! is most of the time of a verification.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
        if let Some(key) = self.cached(access_key, scope.date) {
            return key;
        }
        let key = Arc::new(signing_key(secret, scope));
        let mut map = self
            .by_access_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if map.len() >= Self::CAPACITY && !map.contains_key(access_key) {
            map.clear();
        }
        let derived = Derived {
            date: scope.date.to_owned(),
            key: key.clone(),
        };
        map.insert(access_key.to_owned(), derived);
        key
    }

    fn cached(&self, access_key: &str, date: &str) -> Option<Arc<hmac::Key>> {
        let map = self
            .by_access_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        map.get(access_key)
            .filter(|d| d.date == date)
            .map(|d| d.key.clone())
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
        let map = keys
            .by_access_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(map.len() <= SigningKeys::CAPACITY);
    }
}
