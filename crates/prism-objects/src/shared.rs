//! The state that the threads of a node share.

use std::sync::Arc;

use prism_config::{Config, Credential};
use prism_http::Limits;
use prism_service::Link;

use crate::auth::Auth;
use crate::commits::Commits;
use crate::hashing::Hashing;

/// The state that the threads of a node share to serve objects.
pub struct Shared {
    pub(crate) auth: Auth,
    pub(crate) limits: Limits,
    pub(crate) hashing: Hashing,
    pub(crate) commits: Commits,
    pub(crate) link: Arc<Link>,
}

impl Shared {
    /// For a node with these users. `link` counts the bytes of answers.
    pub fn new(config: &Config, users: &[Credential], link: Arc<Link>) -> Self {
        Self {
            auth: Auth::new(config, users),
            limits: Limits {
                head_bytes: config.limits.head_bytes as usize,
                body_bytes: config.limits.max_object_bytes,
                ..Limits::DEFAULT
            },
            hashing: Hashing::default(),
            commits: Commits::default(),
            link,
        }
    }

    /// Replaces all users, from the next request on.
    pub fn replace_users(&self, users: &[Credential]) {
        self.auth.replace(users);
    }

    /// Limits of requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
