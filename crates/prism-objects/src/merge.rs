//! Pages of listings, merged from the shares of all backends.
//!
//! One of the backends that have a key lists it. The view of the cluster says which one, so
//! all shares of a page are made by one view.

use std::time::{Duration, Instant};

use prism_replicas::{ListShare, Question, Reply};
use prism_s3::list::{Line, Page, place};
use prism_s3::{Code, S3Error};
use prism_service::join_all;

use crate::objects::Objects;
use crate::request::Request;

/// Lines that are requested beyond a backend's average part of a page. Keys are spread by chance.
const SLACK: usize = 16;
/// Longest wait for all backends to have one view while the cluster changes.
const VIEWS_DIFFER_MAX: Duration = Duration::from_secs(5);
const VIEWS_DIFFER_PAUSE: Duration = Duration::from_millis(20);

/// The name and id of a line, by which lines are ordered.
pub(crate) type Place = (String, String);

/// The share of a page that one backend is asked for.
pub(crate) struct ShareWanted {
    /// The share begins behind this line.
    pub(crate) after: Option<Place>,
    pub(crate) max: usize,
    /// Backends that do not answer, so that others list their keys.
    pub(crate) without: Vec<String>,
}

/// Why there is no page.
enum MergeError {
    /// This backend does not answer.
    Silent(String, S3Error),
    /// A backend acts by another view than this node.
    ViewsDiffer,
    Failed(S3Error),
}

/// The lines of one backend that were received and not merged.
struct Source {
    node: String,
    share: ListShare,
    /// The next share begins behind this line.
    after: Option<Place>,
}

impl Source {
    fn needs_more(&self) -> bool {
        self.share.items.is_empty() && self.share.truncated
    }

    fn replace_share(&mut self, share: ListShare) {
        if let Some((name, id)) = share.items.back().map(place) {
            self.after = Some((name.to_owned(), id.to_owned()));
        }
        self.share = share;
    }
}

impl Objects {
    /// The first `max` lines of all backends behind `after`.
    pub(crate) async fn merge_shares(
        &self,
        request: &Request<'_>,
        after: Option<Place>,
        max: usize,
        question: impl Fn(ShareWanted) -> Question,
    ) -> Result<Page, S3Error> {
        let begun = Instant::now();
        let mut wanted = ShareWanted {
            after,
            max,
            without: Vec::new(),
        };
        loop {
            match self.merge_by_one_view(request, &wanted, &question).await {
                Ok(page) => return Ok(page),
                // Other backends have all of the silent one's keys.
                Err(MergeError::Silent(node, _))
                    if wanted.without.len() < self.node.replication.spare() =>
                {
                    wanted.without.push(node);
                }
                Err(MergeError::ViewsDiffer) if begun.elapsed() < VIEWS_DIFFER_MAX => {
                    tokio::time::sleep(VIEWS_DIFFER_PAUSE).await;
                }
                Err(MergeError::Failed(error) | MergeError::Silent(_, error)) => return Err(error),
                Err(MergeError::ViewsDiffer) => return Err(Code::ServiceUnavailable.into()),
            }
        }
    }

    async fn merge_by_one_view(
        &self,
        request: &Request<'_>,
        wanted: &ShareWanted,
        question: impl Fn(ShareWanted) -> Question,
    ) -> Result<Page, MergeError> {
        let ShareWanted {
            after,
            max,
            without,
        } = wanted;
        let epoch = self.node.replication.view().epoch();
        let nodes = self.node.replication.in_sync().into_iter();
        let nodes = nodes.filter(|node| !without.contains(node));
        let mut sources: Vec<Source> = nodes
            .map(|node| Source {
                node,
                share: ListShare {
                    truncated: true,
                    ..ListShare::default()
                },
                after: after.clone(),
            })
            .collect();
        let share_max = (max / sources.len().max(1) + SLACK).min(*max).max(1);
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let question = &question;
            let asked = sources.iter().map(|source| async move {
                if !source.needs_more() {
                    return Ok(None);
                }
                let question = question(ShareWanted {
                    after: source.after.clone(),
                    max: share_max,
                    without: without.clone(),
                });
                let share = self.share_of(request, &source.node, &question, epoch).await;
                share.map(Some)
            });
            let shares = join_all(asked.collect()).await;
            for (source, share) in sources.iter_mut().zip(shares) {
                if let Some(share) = share? {
                    source.replace_share(share);
                }
            }
            if merge_lines(&mut sources, &mut lines, *max) {
                let is_truncated = sources
                    .iter()
                    .any(|s| !s.share.items.is_empty() || s.share.truncated);
                return Ok(Page {
                    lines,
                    is_truncated,
                });
            }
        }
    }

    async fn share_of(
        &self,
        request: &Request<'_>,
        node: &str,
        question: &Question,
        epoch: u64,
    ) -> Result<ListShare, MergeError> {
        let caller = &request.meaning.principal;
        match self.replicator.ask_for(node, caller, question).await {
            Ok(Reply::Share(share)) if share.epoch == epoch => Ok(share),
            Ok(Reply::Share(_)) => Err(MergeError::ViewsDiffer),
            Ok(_) => Err(MergeError::Failed(Code::InternalError.into())),
            Err(error) if error.code() == Code::ServiceUnavailable => {
                Err(MergeError::Silent(node.to_owned(), error))
            }
            Err(error) => Err(MergeError::Failed(error)),
        }
    }
}

/// Moves lines from the sources, in order, until there are `max`, or until one of the sources
/// needs its next share. Returns whether the page is complete.
fn merge_lines(sources: &mut [Source], lines: &mut Vec<Line>, max: usize) -> bool {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;
    use prism_s3::list::Item;

    fn source(names: &[&str], truncated: bool) -> Source {
        let items = names.iter().map(|name| ((*name).to_owned(), Item::Prefix));
        Source {
            node: String::new(),
            share: ListShare {
                items: items.collect(),
                truncated,
                epoch: 1,
            },
            after: None,
        }
    }

    fn names(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn shares_are_merged_in_order_and_a_line_of_several_is_listed_once() {
        let mut sources = [source(&["a", "c", "d"], false), source(&["b", "c"], false)];
        let mut lines = Vec::new();
        assert!(merge_lines(&mut sources, &mut lines, 3));
        assert_eq!(names(&lines), ["a", "b", "c"]);
        assert!(merge_lines(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a", "b", "c", "d"]);
    }

    #[test]
    fn no_line_follows_a_share_that_was_cut_off_before_its_next_one() {
        let mut sources = [source(&["a"], true), source(&["b", "x"], false)];
        let mut lines = Vec::new();
        assert!(!merge_lines(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a"]);
        sources[0].replace_share(source(&["aa", "c"], false).share);
        assert_eq!(sources[0].after, Some(("c".to_owned(), String::new())));
        assert!(merge_lines(&mut sources, &mut lines, 9));
        assert_eq!(names(&lines), ["a", "aa", "b", "c", "x"]);
    }
}
