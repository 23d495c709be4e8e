//! Listing the keys, or the uploads, of a bucket that lies on many nodes: each
//! backend gives its share, in order, and whoever holds the client's connection
//! merges. A share is asked for in pieces, so that a page of a thousand keys
//! costs little more than a thousand keys, however many backends there are.

use std::collections::VecDeque;

use prism_s3::xml::{ListEntry, ListPage, UploadEntry, UploadsPage};
use prism_s3::{BucketName, Code, ListObjects, ListUploads, S3Error};
use prism_store::{Position, Step, Store, UploadId};
use serde::{Deserialize, Serialize};

use super::Worker;
use super::answer::from_ms;
use super::ask::{Question, Reply, together};
use super::errors::store_error;
use super::get::quoted;
use super::meta::checksum_wanted;
use super::replication::Replication;
use super::session::Request;

/// Entries asked for beyond a node's part of a page: keys are spread by chance.
const SLACK: usize = 16;

/// What is wanted of a node's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectsWanted {
    pub(super) bucket: String,
    prefix: String,
    delimiter: Option<String>,
    /// Behind this key or common prefix.
    after: Option<String>,
    max: usize,
    /// These nodes are out of reach: others that have their keys list them.
    pub(super) without: Vec<String>,
}

/// What is wanted of a node's uploads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UploadsWanted {
    pub(super) bucket: String,
    prefix: String,
    delimiter: Option<String>,
    /// Behind the uploads of this key; with an id, behind that upload of it.
    after: Option<(String, String)>,
    max: usize,
    /// As for objects.
    pub(super) without: Vec<String>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Item {
    /// A key.
    Key {
        len: u64,
        etag: String,
        created_ms: u64,
    },
    /// All keys that begin with the name.
    Prefix,
    Upload {
        id: String,
        created_ms: u64,
        /// Algorithm and type of its parts' checksums.
        checksum: Option<(String, String)>,
    },
    /// A version, or a delete marker.
    Version {
        id: String,
        is_latest: bool,
        created_ms: u64,
        /// ETag and length of what is no delete marker.
        object: Option<(String, u64)>,
    },
}

/// What one backend has, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListShare {
    pub(super) items: VecDeque<(String, Item)>,
    /// There is more behind the last.
    pub(super) truncated: bool,
}

/// This store's part of the keys. Blocks on disk.
pub(super) fn objects(
    store: &Store,
    replication: &Replication,
    wanted: &ObjectsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let begin = match wanted.after.as_deref() {
        None => Position::Start,
        // All that is below a common prefix has been listed with it.
        Some(after) if folder(after).as_deref() == Some(after) => Position::Behind(after),
        Some(after) => Position::After(after),
    };
    let scanned = store.scan(&wanted.bucket, &wanted.prefix, begin, |entry| {
        if !replication.lists(&wanted.bucket, &entry.key, &wanted.without) {
            return Step::Entry;
        }
        if share.items.len() >= wanted.max {
            share.truncated = true;
            return Step::End;
        }
        match folder(&entry.key) {
            Some(prefix) => {
                share.items.push_back((prefix.clone(), Item::Prefix));
                Step::Behind(prefix)
            }
            None => {
                let item = Item::Key {
                    len: entry.len,
                    etag: entry.etag,
                    created_ms: entry.created_ms,
                };
                share.items.push_back((entry.key, item));
                Step::Entry
            }
        }
    });
    scanned.map_err(|e| store_error(&e))?;
    Ok(share)
}

/// This store's part of the uploads. Blocks on disk.
pub(super) fn uploads(
    store: &Store,
    replication: &Replication,
    wanted: &UploadsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let mut after = wanted.after.clone();
    let listed = |key: &str| {
        let (marker, _) = wanted.after.as_ref()?;
        Some(folder(marker).as_deref() == Some(marker) && key.starts_with(marker.as_str()))
    };
    loop {
        let behind = after
            .as_ref()
            .map(|(key, id)| (key.as_str(), UploadId::parse(id)));
        let room = wanted.max.saturating_sub(share.items.len()).max(1);
        let page = store.uploads(&wanted.bucket, &wanted.prefix, behind, room);
        let (page, more) = page.map_err(|e| store_error(&e))?;
        let Some(last) = page.last() else {
            return Ok(share);
        };
        after = Some((last.key.clone(), last.id.to_string()));
        for upload in page {
            if !replication.lists(&wanted.bucket, &upload.key, &wanted.without) {
                continue;
            }
            let prefix = folder(&upload.key);
            let last = share.items.back().map(|(name, _)| name);
            if listed(&upload.key) == Some(true) || (prefix.is_some() && prefix.as_ref() == last) {
                continue;
            }
            if share.items.len() >= wanted.max {
                share.truncated = true;
                return Ok(share);
            }
            let line = match prefix {
                Some(prefix) => (prefix, Item::Prefix),
                None => {
                    let checksum = checksum_wanted(&upload.meta);
                    let checksum =
                        checksum.map(|(a, kind)| (a.name().to_owned(), kind.as_str().to_owned()));
                    let item = Item::Upload {
                        id: upload.id.to_string(),
                        created_ms: upload.meta.created_ms,
                        checksum,
                    };
                    (upload.key, item)
                }
            };
            share.items.push_back(line);
        }
        if !more {
            return Ok(share);
        }
    }
}

pub(super) fn common_prefix(prefix: &str, delimiter: Option<&str>, key: &str) -> Option<String> {
    let found = prism_s3::list::common_prefix(prefix, delimiter, key);
    found.map(str::to_owned)
}

/// A line of a listing.
pub(super) type Line = (String, Item);

/// The place of a line: names in order, then uploads by age. Versions of one key
/// are all on one node, in their order.
pub(super) fn place((name, item): &Line) -> (&str, &str) {
    match item {
        Item::Upload { id, .. } | Item::Version { id, .. } => (name.as_str(), id.as_str()),
        Item::Key { .. } | Item::Prefix => (name.as_str(), ""),
    }
}

/// One backend, as far as it has been asked.
struct Source {
    node: String,
    share: ListShare,
    /// Behind which line the next piece begins.
    after: Option<(String, String)>,
}

impl Source {
    fn needs_more(&self) -> bool {
        self.share.items.is_empty() && self.share.truncated
    }

    fn take(&mut self, share: ListShare) {
        if let Some(last) = share.items.back() {
            let (name, id) = place(last);
            self.after = Some((name.to_owned(), id.to_owned()));
        }
        self.share = share;
    }
}

impl Worker {
    /// The first `max` lines of all backends, and whether there are more. The
    /// question is made from where it is to begin, for how many, and without whom.
    pub(super) async fn merge(
        &self,
        request: &Request,
        (after, max): (Option<(String, String)>, usize),
        question: impl Fn(Option<(String, String)>, usize, &[String]) -> Question,
    ) -> Result<(Vec<Line>, bool), S3Error> {
        let mut without: Vec<String> = Vec::new();
        loop {
            let question = |after, max| question(after, max, &without);
            let from = (after.clone(), max);
            let merged = self.merge_from(request, from, question, &without).await;
            match merged {
                // Others have all of its keys as well.
                Err((Some(node), _)) if without.len() < self.node.replication.spare() => {
                    without.push(node);
                }
                merged => return merged.map_err(|(_, error)| error),
            }
        }
    }

    /// The same of all but some. An error says which node is out of reach.
    async fn merge_from(
        &self,
        request: &Request,
        (after, max): (Option<(String, String)>, usize),
        question: impl Fn(Option<(String, String)>, usize) -> Question,
        without: &[String],
    ) -> Result<(Vec<Line>, bool), (Option<String>, S3Error)> {
        let nodes = self.node.replication.backends();
        let nodes = nodes.filter(|node| !without.iter().any(|gone| gone == node.as_str()));
        let mut sources: Vec<Source> = nodes
            .map(|node| Source {
                node: node.as_str().to_owned(),
                share: ListShare {
                    items: VecDeque::new(),
                    truncated: true,
                },
                after: after.clone(),
            })
            .collect();
        let piece = (max / sources.len().max(1) + SLACK).min(max).max(1);
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let question = &question;
            let asked = sources.iter().map(|source| async move {
                if !source.needs_more() {
                    return Ok(None);
                }
                let question = question(source.after.clone(), piece);
                match self.ask_node(&source.node, request, &question).await {
                    Ok(Reply::Share(share)) => Ok(Some(share)),
                    Ok(_) => Err((None, S3Error::from(Code::InternalError))),
                    Err(error) if error.code() == Code::ServiceUnavailable => {
                        Err((Some(source.node.clone()), error))
                    }
                    Err(error) => Err((None, error)),
                }
            });
            let shares = together(asked.collect()).await;
            for (source, share) in sources.iter_mut().zip(shares) {
                if let Some(share) = share? {
                    source.take(share);
                }
            }
            if drain(&mut sources, &mut lines, max) {
                let more = sources
                    .iter()
                    .any(|s| !s.share.items.is_empty() || s.share.truncated);
                return Ok((lines, more));
            }
        }
    }

    /// The page of keys that the client asked for.
    pub(super) async fn list_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Vec<u8>, S3Error> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListObjects(ObjectsWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: after.map(|(key, _)| key),
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self
            .merge(request, (after, list.max_keys), question)
            .await?;
        Ok(objects_page(bucket, list, &lines, more))
    }

    /// The page of uploads that the client asked for.
    pub(super) async fn list_uploads(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListUploads,
    ) -> Result<Vec<u8>, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.upload_marker.clone())),
        };
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListUploads(UploadsWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after,
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self.merge(request, (after, list.max), question).await?;
        Ok(uploads_page(bucket, list, lines, more))
    }
}

/// Moves lines from the sources, in order, until there are `max`, or one of the
/// sources has to be asked again before it is known what comes next. Whether
/// the page is done.
fn drain(sources: &mut [Source], lines: &mut Vec<Line>, max: usize) -> bool {
    while lines.len() < max {
        if sources.iter().any(Source::needs_more) {
            return false;
        }
        let fronts = sources
            .iter()
            .filter_map(|source| source.share.items.front());
        let Some(first) = fronts.min_by(|a, b| place(a).cmp(&place(b))).cloned() else {
            return true;
        };
        // Several backends may have keys below one common prefix.
        for source in &mut *sources {
            let front = source.share.items.front();
            if front.is_some_and(|line| place(line) == place(&first)) {
                source.share.items.pop_front();
            }
        }
        lines.push(first);
    }
    true
}

fn objects_page(bucket: &BucketName, list: &ListObjects, lines: &[Line], more: bool) -> Vec<u8> {
    let etags: Vec<String> = lines
        .iter()
        .map(|(_, item)| match item {
            Item::Key { etag, .. } => quoted(etag),
            _ => String::new(),
        })
        .collect();
    let entries = lines
        .iter()
        .zip(&etags)
        .filter_map(|((key, item), etag)| match item {
            Item::Key {
                len, created_ms, ..
            } => Some(ListEntry {
                key,
                modified: from_ms(*created_ms),
                etag,
                size: *len,
            }),
            _ => None,
        });
    let prefixes = lines.iter().filter(|(_, item)| *item == Item::Prefix);
    let page = ListPage {
        bucket,
        request: list,
        entries: entries.collect(),
        common_prefixes: prefixes.map(|(name, _)| name.as_str()).collect(),
        next: lines.last().filter(|_| more).map(|(name, _)| name.as_str()),
    };
    page.xml()
}

fn uploads_page(bucket: &BucketName, list: &ListUploads, lines: Vec<Line>, more: bool) -> Vec<u8> {
    let next = lines.last().filter(|_| more).map(|line| {
        let (name, id) = place(line);
        (name.to_owned(), id.to_owned())
    });
    let mut page = UploadsPage {
        bucket,
        request: list,
        uploads: Vec::new(),
        common_prefixes: Vec::new(),
        next,
    };
    for (name, item) in lines {
        match item {
            Item::Upload {
                id,
                created_ms,
                checksum,
            } => {
                let checksum = checksum.and_then(|(algorithm, kind)| {
                    let algorithm = prism_s3::Algorithm::from_name(&algorithm).ok()?;
                    Some((algorithm, prism_s3::ChecksumType::parse(&kind)?))
                });
                page.uploads.push(UploadEntry {
                    key: name,
                    upload: id,
                    initiated: from_ms(created_ms),
                    checksum,
                });
            }
            Item::Prefix => page.common_prefixes.push(name),
            Item::Key { .. } | Item::Version { .. } => {}
        }
    }
    page.xml()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn source(names: &[&str], truncated: bool) -> Source {
        let items = names.iter().map(|name| ((*name).to_owned(), Item::Prefix));
        Source {
            node: String::new(),
            share: ListShare {
                items: items.collect(),
                truncated,
            },
            after: None,
        }
    }

    fn names(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn shares_are_merged_in_order_and_what_several_have_is_told_once() {
        let mut sources = [source(&["a", "c", "d"], false), source(&["b", "c"], false)];
        let mut lines = Vec::new();
        assert!(drain(&mut sources, &mut lines, 3));
        assert_eq!(names(&lines), ["a", "b", "c"]);
        assert!(drain(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a", "b", "c", "d"]);
    }

    #[test]
    fn nothing_goes_on_behind_a_share_that_was_cut_off() {
        let mut sources = [source(&["a"], true), source(&["b", "x"], false)];
        let mut lines = Vec::new();
        assert!(!drain(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a"]);
        sources[0].take(source(&["aa", "c"], false).share);
        assert_eq!(sources[0].after, Some(("c".to_owned(), String::new())));
        assert!(drain(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a", "aa", "b", "c", "x"]);
    }
}
