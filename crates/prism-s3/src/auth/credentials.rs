//! Access keys and their secrets.

use std::collections::HashMap;

use zeroize::Zeroizing;

/// Known access keys. Secrets are wiped on drop and never printed.
#[derive(Clone, Default)]
pub struct Credentials {
    secrets: HashMap<String, Zeroizing<String>>,
}

impl Credentials {
    /// No credentials.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access key, or replaces its secret.
    pub fn insert(&mut self, access_key: impl Into<String>, secret: impl Into<String>) {
        self.secrets
            .insert(access_key.into(), Zeroizing::new(secret.into()));
    }

    pub(super) fn secret(&self, access_key: &str) -> Option<&str> {
        self.secrets.get(access_key).map(|secret| secret.as_str())
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("access_keys", &self.secrets.len())
            .finish_non_exhaustive()
    }
}
