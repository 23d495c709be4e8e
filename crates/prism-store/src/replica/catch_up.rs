//! Pages of what a store has, for another replica to compare, and the deletions that the
//! comparison leads to.

use std::{collections::HashSet, iter, ops::Bound, sync::atomic::Ordering};

use prism_cluster::replica::{Missed, Stamp, missed};
use serde::{Deserialize, Serialize};

use crate::{
    commit::{DiscardOp, Op, When},
    error::Error,
    keys::{bucket_prefix, escaped_prefix, split_upload_key, upload_key},
    layout::FileId,
    merge::{merged, under},
    scope::Scope,
    store::Store,
    types::{VERSIONS_MAX, check_bucket},
    view::{View, holds},
};

/// Most scopes of one page: below 8 MiB as JSON with the longest keys.
const PAGE_MAX: usize = 1000;
/// Most keys or uploads looked at for one page.
const SEEN_MAX: usize = 20_000;

/// The scopes of a bucket from which a page is made.
#[derive(Debug, Clone, Copy)]
pub struct PageRequest<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// Uploads and their parts, or otherwise objects.
    pub uploads: bool,
    /// The page begins behind this scope, the end of the page before.
    pub after: Option<&'a Scope>,
}

/// Scopes of a bucket that a store has, in the order of its tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScopePage {
    /// The bucket's life.
    pub life: Stamp,
    /// The scopes, with the stamps of their last changes.
    pub items: Vec<(Scope, Stamp)>,
    /// The last scope that was looked at; none at the end of the tree.
    pub end: Option<Scope>,
}

/// The result of comparing a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Missing {
    /// Scopes to fetch from the other store.
    pub take: Vec<Scope>,
    /// Scopes to remove here.
    pub remove: Vec<Scope>,
}

/// The exchange by which a store gets the changes that it missed, and deletes the keys that
/// it no longer owns. `hand_over` and `take_in` copy single scopes.
#[derive(Debug, Clone, Copy)]
pub struct CatchUp<'a> {
    pub(crate) store: &'a Store,
}

impl Store {
    /// The exchange of copies with other replicas.
    #[must_use]
    pub fn catch_up(&self) -> CatchUp<'_> {
        CatchUp { store: self }
    }
}

impl CatchUp<'_> {
    /// The scopes that this store has, of keys that are `wanted`. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`]; [`Error::Unsettled`] if the bucket begins another life.
    pub fn page(
        &self,
        request: PageRequest<'_>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<ScopePage, Error> {
        let life = self.life(request.bucket)?;
        let page = self.page_up_to(request, None, wanted)?;
        if self.life(request.bucket)? == life {
            Ok(ScopePage { life, ..page })
        } else {
            Err(Error::Unsettled)
        }
    }

    pub(super) fn life(&self, bucket: &str) -> Result<Stamp, Error> {
        Ok(self.store.existing_bucket(bucket)?.which.life)
    }

    /// Compares the answer to `request` of another store, in sync as of the epoch `since`,
    /// with what this store has. May block on disk.
    ///
    /// # Errors
    /// As for [`CatchUp::page`].
    pub fn compare(
        &self,
        request: PageRequest<'_>,
        page: &ScopePage,
        since: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Missing, Error> {
        if self.life(request.bucket)? != page.life {
            return Err(Error::Unsettled);
        }
        let mut missing = Missing::default();
        let theirs: HashSet<&Scope> = page.items.iter().map(|(scope, _)| scope).collect();
        let view = self.store.view();
        for (scope, stamp) in &page.items {
            if missed(since, holds(&view, scope)?, Some(*stamp)) == Missed::Take {
                missing.take.push(scope.clone());
            }
        }
        drop(view);
        let mut begin = request.after.cloned();
        loop {
            let after = begin.as_ref();
            let next = PageRequest { after, ..request };
            let mine = self.page_up_to(next, page.end.as_ref(), &wanted)?;
            for (scope, stamp) in mine.items {
                let is_gone = missed(since, Some(stamp), None) == Missed::Remove;
                if is_gone && !theirs.contains(&scope) {
                    missing.remove.push(scope);
                }
            }
            match mine.end {
                Some(end) if Some(&end) != page.end.as_ref() => begin = Some(end),
                _ => return Ok(missing),
            }
        }
    }

    /// Removes scopes that the other store does not have, except those that have changed
    /// since. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if this store is not in the epoch `since` any more.
    pub fn remove_missing(&self, scopes: Vec<Scope>, since: u64) -> Result<(), Error> {
        self.discard(scopes, Some(since), false, When::In(since))
    }

    /// Removes the objects and parts whose files were missing when the store was opened, as in a
    /// copy that was made while the store ran. A store that catches up as of the epoch `since`
    /// then fetches them. Returns their number. Reads the list of all files once. Blocks on disk.
    ///
    /// # Errors
    /// As for [`CatchUp::remove_missing`].
    pub fn remove_dangling(&self, since: u64) -> Result<usize, Error> {
        let storage = self.store.storage();
        if !storage.has_dangling.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let (mut count, mut last) = (0, None);
        loop {
            let dangling = self.dangling_after(&mut last)?;
            if dangling.is_empty() {
                break;
            }
            count += dangling.len();
            self.discard(dangling, Some(since), false, When::In(since))?;
        }
        storage.has_dangling.store(false, Ordering::Relaxed);
        Ok(count)
    }

    /// The scopes of the next missing files behind `last`, which becomes that of the last one that
    /// was looked at.
    fn dangling_after(&self, last: &mut Option<FileId>) -> Result<Vec<Scope>, Error> {
        let view = self.store.view();
        let mut dangling = Vec::new();
        for file in view.files_after(*last) {
            let (id, record) = file?;
            *last = Some(id);
            if self.store.files().is_whole(id, record.len) {
                continue;
            }
            let scope = Scope::of_object_key(&record.object_key)?;
            dangling.push(match view.upload_of_file(id, &record.object_key)? {
                Some((upload, part)) => scope.with_upload(upload, Some(part)),
                None => scope,
            });
            if dangling.len() >= PAGE_MAX {
                break;
            }
        }
        Ok(dangling)
    }

    /// The scopes that this store has, or has open changes of, and does not own. May block
    /// on disk.
    ///
    /// # Errors
    /// As for [`CatchUp::page`].
    pub fn without_place(
        &self,
        request: PageRequest<'_>,
        has_place: impl Fn(&str) -> bool,
    ) -> Result<ScopePage, Error> {
        let page = self.page(request, |key| !has_place(key))?;
        Ok(self.with_open(request, page, |key| !has_place(key)))
    }

    /// The page without parts, which go with their uploads. The first page of objects gets the
    /// scopes of open changes, too.
    fn with_open(
        &self,
        request: PageRequest<'_>,
        mut page: ScopePage,
        wanted: impl Fn(&str) -> bool,
    ) -> ScopePage {
        page.items.retain(|(scope, _)| scope.part().is_none());
        if request.after.is_none() && !request.uploads {
            let index = &self.store.committer().index;
            let open =
                index.select(|scope, _| scope.bucket == request.bucket && wanted(&scope.key));
            let open = open.into_iter().map(|(scope, open)| (scope, open.stamp));
            page.items.extend(open);
        }
        page
    }

    /// Removes the scopes that this store does not own as of `epoch`. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if this store is in another epoch.
    pub fn remove_without_place(&self, scopes: Vec<Scope>, epoch: u64) -> Result<(), Error> {
        self.discard(scopes, None, false, When::In(epoch))
    }

    /// Whether there is an object, or a version, of a key that is wanted.
    pub(crate) fn has_any_of(
        &self,
        bucket: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<bool, Error> {
        let view = self.store.view();
        let request = PageRequest {
            bucket,
            uploads: false,
            after: None,
        };
        for found in objects(&view, request) {
            if wanted(&found?.0.key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes all that is left under the name of a bucket that is gone, in batches. Blocks
    /// on disk.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if there is a bucket of this name.
    pub fn purge(&self, bucket: &str) -> Result<(), Error> {
        for uploads in [true, false] {
            let request = PageRequest {
                bucket,
                uploads,
                after: None,
            };
            loop {
                if self.store.view().bucket(bucket)?.is_some() {
                    return Err(Error::AlreadyExists);
                }
                let page = self.page_up_to(request, None, |_| true)?;
                let page = self.with_open(request, page, |_| true);
                if page.items.is_empty() {
                    break;
                }
                let scopes = page.items.into_iter().map(|(scope, _)| scope).collect();
                self.discard(scopes, None, true, When::Always)?;
            }
        }
        Ok(())
    }

    /// Removes scopes, in commits of a bounded number of versions.
    fn discard(
        &self,
        scopes: Vec<Scope>,
        since: Option<u64>,
        of_gone: bool,
        when: When,
    ) -> Result<(), Error> {
        let mut now = Vec::new();
        let mut weight = 0;
        let mut left = scopes.into_iter().peekable();
        while let Some(scope) = left.next() {
            if scope.upload.is_none() {
                let view = self.store.view();
                weight += view.count_versions(&scope.object_key(), VERSIONS_MAX)?;
            }
            weight += 1;
            now.push(scope);
            if weight >= VERSIONS_MAX || left.peek().is_none() {
                let op = Op::Discard(DiscardOp {
                    scopes: std::mem::take(&mut now),
                    since,
                    of_gone,
                });
                self.store.committer().commit(op, when)?;
                weight = 0;
            }
        }
        Ok(())
    }

    /// A page of scopes, none of them behind `end`.
    fn page_up_to(
        &self,
        request: PageRequest<'_>,
        end: Option<&Scope>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<ScopePage, Error> {
        check_bucket(request.bucket)?;
        let view = self.store.view();
        let scopes: Scopes<'_> = if request.uploads {
            Box::new(uploads(&view, request, &wanted))
        } else {
            Box::new(objects(&view, request))
        };
        let mut page = ScopePage::default();
        let mut seen = 0;
        for found in scopes {
            let (scope, stamp) = found?;
            if end.is_some_and(|end| scope > *end) {
                break;
            }
            seen += 1;
            if wanted(&scope.key) {
                page.items.push((scope.clone(), stamp));
            }
            if page.items.len() >= PAGE_MAX || seen >= SEEN_MAX {
                page.end = Some(scope);
                break;
            }
        }
        Ok(page)
    }
}

/// Scopes in their order, with the stamps of their last changes.
type Scopes<'v> = Box<dyn Iterator<Item = Result<(Scope, Stamp), Error>> + 'v>;

/// The scopes of all keys with an object or a version. A key may have versions and no object.
fn objects<'v>(
    view: &'v View<'_>,
    request: PageRequest<'v>,
) -> impl Iterator<Item = Result<(Scope, Stamp), Error>> + 'v {
    let prefix = bucket_prefix(request.bucket);
    let begin = match request.after {
        Some(after) => Bound::Excluded(after.object_key()),
        None => Bound::Unbounded,
    };
    let changes = under(prefix.clone(), |begin| view.changes(begin), begin.clone());
    let objects = under(prefix, |begin| view.objects(begin), begin);
    let objects = objects.map(|found| found.map(|(key, record)| (key, record.stamp)));
    let mut last = None;
    // The stamp of a change comes first, and counts.
    let keys = merged(changes, objects).filter(move |found| match found {
        Ok((key, _)) => last.replace(key.clone()).as_ref() != Some(key),
        Err(_) => true,
    });
    keys.map(move |found| {
        let (tree_key, stamp) = found?;
        Ok((Scope::of_object_key(&tree_key)?, stamp))
    })
}

/// The scopes of all uploads, each before its parts; of those that are not `wanted` no parts.
fn uploads<'v>(
    view: &'v View<'_>,
    request: PageRequest<'v>,
    wanted: &'v dyn Fn(&str) -> bool,
) -> impl Iterator<Item = Result<(Scope, Stamp), Error>> + 'v {
    let begun = request
        .after
        .and_then(|after| after.upload.map(|upload| (after, upload)));
    let begin = begun.map_or(Bound::Unbounded, |(after, (id, _))| {
        Bound::Included(upload_key(&after.object_key(), id))
    });
    let prefix = escaped_prefix(request.bucket, "");
    let found = under(prefix, |begin| view.uploads(begin), begin);
    found.flat_map(move |found| -> Scopes<'v> {
        let upload = found.and_then(|(tree_key, record)| {
            let split = split_upload_key(&tree_key);
            let (key, id) = split.ok_or_else(|| Error::corrupt("upload key"))?;
            let scope = Scope::object(request.bucket, &key).with_upload(id, None);
            Ok((scope, id, record.stamp))
        });
        let (scope, id, stamp) = match upload {
            Ok(upload) => upload,
            Err(error) => return Box::new(iter::once(Err(error))),
        };
        // After a scope of this upload, only later parts of it follow.
        let part = begun.filter(|(after, upload)| upload.0 == id && after.key == scope.key);
        let part = part.map(|(_, (_, part))| part.unwrap_or(0));
        let own = part.is_none().then(|| Ok((scope.clone(), stamp)));
        let parts = wanted(&scope.key).then(|| view.parts(id, part.unwrap_or(0)));
        let parts = parts.into_iter().flatten().map(move |found| {
            let (number, record) = found?;
            let scope = scope.clone().with_upload(id, Some(number));
            Ok((scope, record.stamp))
        });
        Box::new(own.into_iter().chain(parts))
    })
}
