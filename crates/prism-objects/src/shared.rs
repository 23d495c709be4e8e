//! The state that the threads of a node share.

use std::sync::Arc;

use parking_lot::RwLock;
use prism_config::{Config, Credential};
use prism_http::{Limits, RequestHead};
use prism_s3::cors::{self, CorsConfig, CorsRule};
use prism_s3::{Domains, S3Error};
use prism_service::Link;

use crate::answer::Answer;
use crate::auth::Auth;
use crate::caller_shares::CallerShares;
use crate::change_rates::ChangeRates;
use crate::commits::Commits;
use crate::hashing::Hashing;

/// The time for which a browser need not ask again.
const PREFLIGHT_S: u32 = 600;

/// The state that the threads of a node share to serve objects.
pub struct Shared {
    pub(crate) auth: Auth,
    pub(crate) limits: Limits,
    pub(crate) domains: Domains,
    /// The rule for web pages that may use every bucket with their users' own keys.
    pages: RwLock<Option<Arc<CorsConfig>>>,
    pub(crate) hashing: Hashing,
    pub(crate) commits: Commits,
    pub(crate) changes: ChangeRates,
    pub(crate) callers: CallerShares,
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
            domains: Domains::new(&config.s3.domains),
            pages: RwLock::new(pages(&config.service.cors_origins)),
            hashing: Hashing::default(),
            commits: Commits::default(),
            changes: ChangeRates::default(),
            callers: CallerShares::default(),
            link,
        }
    }

    /// Answers by another configuration, from the next request on. The limits of requests stay.
    pub fn reconfigure(&self, config: &Config) {
        self.auth.set_anonymous(config.s3.anonymous);
        let mut present = self.pages.write();
        *present = pages(&config.service.cors_origins);
    }

    /// Replaces all users, from the next request on.
    pub fn replace_users(&self, users: &[Credential]) {
        self.auth.replace(users);
    }

    /// The rule for web pages of `service.cors_origins`, if there are any.
    pub(crate) fn pages(&self) -> Option<Arc<CorsConfig>> {
        let pages = self.pages.read();
        pages.clone()
    }

    /// Whether a page of `service.cors_origins` asks.
    pub(crate) fn allows_page(&self, head: &RequestHead) -> bool {
        self.preflight(head).is_ok()
    }

    /// The answer to a browser that asks what a page of `service.cors_origins` may do.
    pub(crate) fn preflight(&self, head: &RequestHead) -> Result<Answer, S3Error> {
        cors::asked(head.headers())?;
        let pages = self.pages().ok_or_else(cors::forbidden)?;
        Ok(Answer {
            head: pages.preflight(head.headers())?,
            document: Vec::new(),
        })
    }

    /// Limits of requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// The rule for web pages of these origins.
fn pages(origins: &[String]) -> Option<Arc<CorsConfig>> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let rule = CorsRule {
        id: None,
        origins: origins.to_vec(),
        methods: texts(&["GET", "HEAD", "PUT", "POST", "DELETE"]),
        headers: texts(&["*"]),
        exposed: texts(&[
            "ETag",
            "Content-Range",
            "x-amz-request-id",
            "x-amz-version-id",
        ]),
        max_age_s: Some(PREFLIGHT_S),
    };
    // Without origins there is no rule.
    CorsConfig::new(vec![rule]).ok().map(Arc::new)
}
