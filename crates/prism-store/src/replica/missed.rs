//! What a store holds, page by page, for another one to compare, and what comes of
//! the comparison.

use std::{cmp::Ordering, collections::HashMap, iter::Peekable, ops::Bound};

use fjall::UserKey;
use prism_replica::{Missed, Stamp, missed};
use serde::{Deserialize, Serialize};

use super::Scope;
use crate::{
    commit::{DiscardOp, Op, When, holds},
    error::Error,
    record::{Record, bucket_prefix, object_key, split_object_key},
    store::Store,
    types::check_bucket,
    uploads::{split_upload_key, upload_key, upload_prefix},
    versions::VERSIONS_MAX,
};

/// Most things of one page: below 8 MiB as JSON with the longest keys.
const PAGE_MAX: usize = 1000;
/// Things of a deleted bucket that are removed in one commit.
const PURGED_AT_ONCE: usize = 100;
/// Most things looked at for one page.
const SEEN_MAX: usize = 20_000;

/// Some of what a store holds of a bucket, in the order of its tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldPage {
    /// The bucket's life.
    pub life: Stamp,
    /// The scopes that the store has, with the stamps of their last changes.
    pub items: Vec<(Scope, Stamp)>,
    /// Up to what was looked; none: to the end.
    pub end: Option<Scope>,
}

/// What comes of comparing a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Missing {
    /// To be fetched.
    pub take: Vec<Scope>,
    /// To be removed.
    pub remove: Vec<Scope>,
}

impl Store {
    /// What this store holds of a bucket behind `after`: objects, or uploads with
    /// their parts; of keys that are `wanted`. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn held(
        &self,
        bucket: &str,
        uploads: bool,
        after: Option<&Scope>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<HeldPage, Error> {
        let life = self.head_bucket(bucket)?.which.life;
        let page = self.page(bucket, uploads, (after, None), PAGE_MAX, wanted)?;
        match self.head_bucket(bucket)?.which.life == life {
            true => Ok(HeldPage { life, ..page }),
            false => Err(Error::Unsettled),
        }
    }

    /// Compares a page of another store, in sync as of the epoch `since`, with what
    /// this one holds in its place. May block on disk.
    ///
    /// # Errors
    /// As for [`Store::held`].
    pub fn missing(
        &self,
        bucket: &str,
        uploads: bool,
        (after, page): (Option<&Scope>, &HeldPage),
        since: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Missing, Error> {
        if self.head_bucket(bucket)?.which.life != page.life {
            return Err(Error::Unsettled);
        }
        let mut missing = Missing::default();
        let theirs: HashMap<&Scope, Stamp> = page.items.iter().map(|(s, t)| (s, *t)).collect();
        let view = self.view();
        for (scope, stamp) in &page.items {
            if missed(since, holds(&view, scope)?, Some(*stamp)) == Missed::Take {
                missing.take.push(scope.clone());
            }
        }
        drop(view);
        let mut begin = after.cloned();
        loop {
            let bounds = (begin.as_ref(), page.end.as_ref());
            let mine = self.page(bucket, uploads, bounds, PAGE_MAX, &wanted)?;
            for (scope, stamp) in mine.items {
                if !theirs.contains_key(&scope)
                    && missed(since, Some(stamp), None) == Missed::Remove
                {
                    missing.remove.push(scope);
                }
            }
            match mine.end {
                Some(end) if Some(&end) != page.end.as_ref() => begin = Some(end),
                _ => return Ok(missing),
            }
        }
    }

    /// Removes what others do not have, unless it came meanwhile. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if this store is not in the epoch `since` any more.
    pub fn remove_missing(&self, scopes: Vec<Scope>, since: u64) -> Result<(), Error> {
        self.discard(scopes, Some(since), When::In(since))
    }

    /// What this store holds of a bucket, or has open, that has no place here, behind
    /// `after`. May block on disk.
    ///
    /// # Errors
    /// As for [`Store::held`].
    pub fn without_place(
        &self,
        bucket: &str,
        uploads: bool,
        after: Option<&Scope>,
        has_place: impl Fn(&str) -> bool,
    ) -> Result<HeldPage, Error> {
        let mut page = self.held(bucket, uploads, after, |key| !has_place(key))?;
        // Uploads take their parts along.
        let is_part = |scope: &Scope| matches!(scope.upload, Some((_, Some(_))));
        page.items.retain(|(scope, _)| !is_part(scope));
        if after.is_none() && !uploads {
            let open = self
                .inner
                .committer
                .index
                .all(|entry| entry.scope.bucket == bucket && !has_place(&entry.scope.key));
            page.items
                .extend(open.into_iter().map(|(scope, open)| (scope, open.stamp)));
        }
        Ok(page)
    }

    /// Whether there is an object, or a version, of a key that is wanted.
    pub(crate) fn has_any_of(
        &self,
        bucket: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<bool, Error> {
        let mut after = None;
        loop {
            let page = self.page(bucket, false, (after.as_ref(), None), 1, &wanted)?;
            match page.end {
                _ if !page.items.is_empty() => return Ok(true),
                Some(end) => after = Some(end),
                None => return Ok(false),
            }
        }
    }

    /// Removes what has no place here as of `epoch`. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if this store is in another one.
    pub fn remove_without_place(&self, scopes: Vec<Scope>, epoch: u64) -> Result<(), Error> {
        self.discard(scopes, None, When::In(epoch))
    }

    /// Removes all that is left under the name of a bucket that is gone, in batches.
    /// Blocks on disk.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if there is a bucket of this name; those of the disk.
    pub fn purge_bucket(&self, bucket: &str) -> Result<(), Error> {
        for uploads in [true, false] {
            loop {
                if self.view().bucket(bucket)?.is_some() {
                    return Err(Error::AlreadyExists);
                }
                let page = self.page(bucket, uploads, (None, None), PAGE_MAX, |_| true)?;
                let mut scopes: Vec<Scope> = page.items.into_iter().map(|(s, _)| s).collect();
                // Uploads take their parts along.
                scopes.retain(|scope| !matches!(scope.upload, Some((_, Some(_)))));
                let index = &self.inner.committer.index;
                let open = index.all(|entry| entry.scope.bucket == bucket);
                scopes.extend(open.into_iter().map(|(scope, _)| scope));
                if scopes.is_empty() {
                    break;
                }
                // Few at a time: each may have many versions.
                for some in scopes.chunks(PURGED_AT_ONCE) {
                    self.submit(Op::Discard(DiscardOp::of_gone(some.to_vec())))?;
                }
            }
        }
        Ok(())
    }

    fn discard(&self, scopes: Vec<Scope>, since: Option<u64>, when: When) -> Result<(), Error> {
        let (mut now, mut weight) = (Vec::new(), 0);
        for scope in scopes {
            let versions = match scope.upload {
                None => self
                    .view()
                    .count_versions(&scope.object_key(), VERSIONS_MAX)?,
                Some(_) => 0,
            };
            weight += 1 + versions;
            now.push(scope);
            if weight >= VERSIONS_MAX {
                self.discard_at_once(std::mem::take(&mut now), since, when)?;
                weight = 0;
            }
        }
        self.discard_at_once(now, since, when)
    }

    fn discard_at_once(
        &self,
        scopes: Vec<Scope>,
        since: Option<u64>,
        when: When,
    ) -> Result<(), Error> {
        if !scopes.is_empty() {
            let op = Op::Discard(DiscardOp::new(scopes, since));
            self.submit_when(op, when)?;
        }
        Ok(())
    }

    fn page(
        &self,
        bucket: &str,
        uploads: bool,
        bounds: (Option<&Scope>, Option<&Scope>),
        max: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<HeldPage, Error> {
        check_bucket(bucket)?;
        match uploads {
            false => self.page_of_objects(bucket, bounds, max, wanted),
            true => self.page_of_uploads(bucket, bounds, max, wanted),
        }
    }

    fn page_of_objects(
        &self,
        bucket: &str,
        (after, end): (Option<&Scope>, Option<&Scope>),
        max: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<HeldPage, Error> {
        let begin = match after {
            Some(scope) => Bound::Excluded(object_key(bucket, &scope.key)),
            None => Bound::Included(bucket_prefix(bucket)),
        };
        let last = end.map(|scope| object_key(bucket, &scope.key));
        let prefix = bucket_prefix(bucket);
        let (mut page, mut seen) = (HeldPage::default(), 0);
        let view = self.view();
        let mut keys = Keys {
            objects: view.objects((begin.clone(), Bound::Unbounded)).peekable(),
            changes: view.changes((begin, Bound::Unbounded)).peekable(),
        };
        while let Some((tree_key, stamp)) = keys.next()? {
            if !tree_key.starts_with(&prefix) || last.as_ref().is_some_and(|l| *tree_key > **l) {
                return Ok(page);
            }
            let split = split_object_key(&tree_key);
            let (_, key) = split.ok_or_else(|| Error::corrupt("object key"))?;
            let scope = Scope::object(bucket, key);
            seen += 1;
            if wanted(key) {
                page.items.push((scope.clone(), stamp));
            }
            if page.items.len() >= max || seen >= SEEN_MAX {
                page.end = Some(scope);
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// An upload comes before its parts, which may be on several pages.
    fn page_of_uploads(
        &self,
        bucket: &str,
        (after, end): (Option<&Scope>, Option<&Scope>),
        max: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<HeldPage, Error> {
        let prefix = upload_prefix(bucket, "");
        let (after, end) = (after.and_then(place_of), end.and_then(place_of));
        let begin = after.as_ref().map_or(&prefix, |(key, _)| key).clone();
        let view = self.view();
        let (mut page, mut seen) = (HeldPage::default(), 0);
        for found in view.uploads((Bound::Included(begin), Bound::Unbounded)) {
            let (tree_key, record) = found?;
            let is_behind = |place: &Place| end.as_ref().is_some_and(|end| place > end);
            if !tree_key.starts_with(&prefix) || is_behind(&(tree_key.to_vec(), None)) {
                return Ok(page);
            }
            let split = split_upload_key(&tree_key);
            let (key, id) = split.ok_or_else(|| Error::corrupt("upload key"))?;
            let of = |part| Scope {
                upload: Some((id, part)),
                ..Scope::object(bucket, &key)
            };
            let begun = after.as_ref().filter(|(key, _)| **key == *tree_key);
            let is_wanted = wanted(&key);
            if is_wanted && begun.is_none() {
                page.items.push((of(None), record.stamp));
            }
            let first = begun.and_then(|(_, part)| *part).unwrap_or(0);
            for part in view.parts(id, first).take_while(|_| is_wanted) {
                let (number, record) = part?;
                if is_behind(&(tree_key.to_vec(), Some(number))) {
                    return Ok(page);
                }
                page.items.push((of(Some(number)), record.stamp));
                if page.items.len() >= max {
                    page.end = Some(of(Some(number)));
                    return Ok(page);
                }
            }
            seen += 1;
            if page.items.len() >= max || seen >= SEEN_MAX {
                page.end = Some(of(Some(u16::MAX)));
                return Ok(page);
            }
        }
        Ok(page)
    }
}

/// All keys that have something: objects, and keys with versions, of which none need be
/// an object. Each with the stamp of its last change.
struct Keys<A: Iterator, B: Iterator> {
    objects: Peekable<A>,
    changes: Peekable<B>,
}

impl<A, B> Keys<A, B>
where
    A: Iterator<Item = Result<(UserKey, Record), Error>>,
    B: Iterator<Item = Result<(UserKey, Stamp), Error>>,
{
    fn next(&mut self) -> Result<Option<(UserKey, Stamp)>, Error> {
        let order = match (self.objects.peek(), self.changes.peek()) {
            (Some(Err(error)), _) | (_, Some(Err(error))) => return Err(error.clone()),
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(Ok((object, _))), Some(Ok((change, _)))) => object.cmp(change),
        };
        if order != Ordering::Less {
            if order == Ordering::Equal {
                self.objects.next();
            }
            return self.changes.next().transpose();
        }
        let found = self.objects.next().transpose()?;
        Ok(found.map(|(key, record)| (key, record.stamp)))
    }
}

/// Where an upload, or a part of it, is among all of them.
type Place = (Vec<u8>, Option<u16>);

fn place_of(scope: &Scope) -> Option<Place> {
    let (id, part) = scope.upload?;
    Some((upload_key(&scope.bucket, &scope.key, id), part))
}
