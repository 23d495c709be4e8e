//! Bucket policies: which callers may do which operations on a bucket, and which may not.
//!
//! A policy with parts that Prism does not know is refused. A policy that is accepted has its
//! full effect. Not here: the decision itself ([`crate::access`]).

pub(crate) mod actions;
mod condition;
mod document;
mod json;
mod pattern;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::actions::Actions;
use self::condition::Condition;
use self::document::Document;
use self::json::Single;
use self::pattern::fits;
use crate::{BucketName, Code, ObjectKey, S3Error};

/// The policy of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    bucket: BucketName,
    statements: Vec<Statement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Statement {
    effect: Effect,
    principals: Principals,
    actions: Actions,
    /// Patterns of what follows the bucket's name: nothing for the bucket, `/KEY` for an object. A
    /// policy names its own bucket only.
    resources: Vec<String>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

/// The callers that a statement is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Principals {
    /// Everybody, also without a signature.
    Everybody,
    /// The holders of these access keys.
    AccessKeys(BTreeSet<String>),
}

/// The facts of a connection that conditions of policies name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circumstances {
    /// The client's address.
    pub address: IpAddr,
    /// Whether the connection has TLS.
    pub is_tls: bool,
}

/// A question to a policy.
#[derive(Debug)]
pub(crate) struct PolicyQuestion<'a> {
    /// The caller; `None` without a signature.
    pub(crate) access_key: Option<&'a str>,
    pub(crate) actions: Actions,
    /// `None`: the bucket itself.
    pub(crate) key: Option<&'a ObjectKey>,
    /// The prefix of a listing.
    pub(crate) prefix: Option<&'a str>,
    pub(crate) circumstances: &'a Circumstances,
}

/// The answer of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A statement denies one of the actions.
    Denied,
    /// Statements allow all actions.
    Allowed,
    Silent,
}

impl Policy {
    /// The longest policy, in bytes, as in S3.
    pub const MAX_BYTES: usize = 20 * 1024;

    /// Reads a policy of this bucket.
    ///
    /// # Errors
    /// `MalformedPolicy`, also for patterns that take too long; `NotImplemented` for principals and
    /// actions that Prism does not know.
    pub fn parse(bucket: &BucketName, body: &[u8]) -> Result<Self, S3Error> {
        let malformed = |why: String| Code::MalformedPolicy.with_message(why);
        if body.len() > Self::MAX_BYTES {
            return Err(malformed("The policy is longer than 20 KiB.".to_owned()));
        }
        let Single(document) = serde_json::from_slice::<Single<Document>>(body)
            .map_err(|error| malformed(format!("The policy is not understood: {error}.")))?;
        Ok(Self {
            bucket: bucket.clone(),
            statements: document.statements(bucket)?,
        })
    }

    /// The bucket that it is about.
    pub const fn bucket(&self) -> &BucketName {
        &self.bucket
    }

    /// Whether it allows something to everybody. As in S3, a statement for some networks only does
    /// not count.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(|statement| {
            statement.effect == Effect::Allow
                && statement.principals == Principals::Everybody
                && !statement.conditions.iter().any(Condition::names_networks)
        })
    }

    pub(crate) fn verdict(&self, question: &PolicyQuestion<'_>) -> Verdict {
        let mut allowed = Actions::default();
        for statement in &self.statements {
            if !statement.actions.intersects(question.actions)
                || !statement.concerns(question)
                || !statement.covers(question.key)
            {
                continue;
            }
            match statement.effect {
                Effect::Deny => return Verdict::Denied,
                Effect::Allow => allowed |= statement.actions,
            }
        }
        if allowed.contains(question.actions) {
            Verdict::Allowed
        } else {
            Verdict::Silent
        }
    }

    /// Whether a statement allows one of the actions on some key.
    pub(crate) fn allows_for_some_key(&self, question: &PolicyQuestion<'_>) -> bool {
        self.statements.iter().any(|statement| {
            statement.effect == Effect::Allow
                && statement.actions.intersects(question.actions)
                && statement.concerns(question)
        })
    }
}

impl Statement {
    /// Whether it is about this caller in these circumstances.
    fn concerns(&self, question: &PolicyQuestion<'_>) -> bool {
        let is_principal = match (&self.principals, question.access_key) {
            (Principals::Everybody, _) => true,
            (Principals::AccessKeys(keys), Some(key)) => keys.contains(key),
            (Principals::AccessKeys(_), None) => false,
        };
        is_principal
            && self
                .conditions
                .iter()
                .all(|condition| condition.holds(question))
    }

    fn covers(&self, key: Option<&ObjectKey>) -> bool {
        let name = key.map_or(String::new(), |key| format!("/{}", key.as_str()));
        let mut resources = self.resources.iter();
        resources.any(|pattern| fits(pattern.bytes(), name.bytes()))
    }
}
