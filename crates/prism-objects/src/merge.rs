//! Pages of listings, put together from what each backend has of them.
//!
//! Every key is listed by one of the backends that have it, and which one that is
//! follows from the view of the cluster: so a page is of one view.

use std::time::{Duration, Instant};

use prism_replicas::{Line, ListShare, Question, Reply, place};
use prism_s3::{Code, S3Error};
use prism_service::join_all;

use crate::objects::{Objects, Request};

/// Entries asked for beyond a node's part of a page: keys are spread by chance.
const SLACK: usize = 16;
/// While the cluster changes, nodes act by different views for a moment: a page waits
/// for them to agree.
const BETWEEN_VIEWS_MAX: Duration = Duration::from_secs(5);
const BETWEEN_VIEWS_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no page.
enum Unmerged {
    /// This backend does not answer.
    Silent(String, S3Error),
    /// A backend acts by another view than this node.
    Between,
    Failed(S3Error),
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

impl Objects {
    /// The first `max` lines of all backends, and whether there are more. The
    /// question is made from where it is to begin, for how many, and without whom.
    pub(crate) async fn merge(
        &self,
        request: &Request,
        (after, max): (Option<(String, String)>, usize),
        question: impl Fn(Option<(String, String)>, usize, &[String]) -> Question,
    ) -> Result<(Vec<Line>, bool), S3Error> {
        let begun = Instant::now();
        let mut without: Vec<String> = Vec::new();
        loop {
            let question = |after, max| question(after, max, &without);
            let from = (after.clone(), max);
            let merged = self.merge_from(request, from, question, &without).await;
            match merged {
                // Others have all of its keys as well.
                Err(Unmerged::Silent(node, _)) if without.len() < self.node.replication.spare() => {
                    without.push(node);
                }
                Err(Unmerged::Between) if begun.elapsed() < BETWEEN_VIEWS_MAX => {
                    tokio::time::sleep(BETWEEN_VIEWS_PAUSE).await;
                }
                Ok(merged) => return Ok(merged),
                Err(Unmerged::Failed(error) | Unmerged::Silent(_, error)) => return Err(error),
                Err(Unmerged::Between) => return Err(Code::ServiceUnavailable.into()),
            }
        }
    }

    /// The same of all but some, by one view of the cluster.
    async fn merge_from(
        &self,
        request: &Request,
        (after, max): (Option<(String, String)>, usize),
        question: impl Fn(Option<(String, String)>, usize) -> Question,
        without: &[String],
    ) -> Result<(Vec<Line>, bool), Unmerged> {
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
        let piece = (max / sources.len().max(1) + SLACK).min(max).max(1);
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let question = &question;
            let asked = sources.iter().map(|source| async move {
                if !source.needs_more() {
                    return Ok(None);
                }
                let question = question(source.after.clone(), piece);
                match self
                    .replicator
                    .ask_for(&source.node, &request.meaning.principal, &question)
                    .await
                {
                    Ok(Reply::Share(share)) if share.epoch == epoch => Ok(Some(share)),
                    Ok(Reply::Share(_)) => Err(Unmerged::Between),
                    Ok(_) => Err(Unmerged::Failed(Code::InternalError.into())),
                    Err(error) if error.code() == Code::ServiceUnavailable => {
                        Err(Unmerged::Silent(source.node.clone(), error))
                    }
                    Err(error) => Err(Unmerged::Failed(error)),
                }
            });
            let shares = join_all(asked.collect()).await;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;
    use prism_replicas::Item;

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
